"""ArviZ, whose import takes seconds, reads what a run writes and gives back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from quick_studies import study

import cipherbayes as cb
from conftest import logistic_frame

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def arviz() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("arviz")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("arviz") / "out"
    cb.run(study(), logistic_frame(200), out=out)
    return out


def test_arviz_opens_the_posterior(arviz: Any, finished: Path) -> None:
    data = arviz.from_netcdf(str(finished / "posterior.nc"))
    assert data.posterior["theta"].dims == ("chain", "draw", "parameter")
    assert "theta[age]" in arviz.summary(data.posterior).index


def test_arviz_names_the_parameters(arviz: Any, finished: Path) -> None:
    labels = list(arviz.summary(cb.Result.load(finished).dataset).index)
    assert labels == ["theta[intercept]", "theta[age]", "theta[sex[M]]"]
