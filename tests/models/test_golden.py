"""Non-private fits on real data agree with independent implementations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cipherbayes as cb
from accuracy import flchain_concordance, physionet_auc
from cipherbayes.study.schema import Study
from cipherbayes_research.datasets.flchain import load_flchain

pytestmark = [pytest.mark.slow, pytest.mark.realdata]


def test_physionet_auc_is_within_a_hundredth_of_ridge_logistic_regression(
    physionet_archive: Path,
) -> None:
    ours, theirs = np.mean(physionet_auc(physionet_archive, splits=3), axis=0)
    assert ours > theirs - 0.01


def test_flchain_concordance_is_within_five_thousandths_of_lifelines() -> None:
    pytest.importorskip("sksurv")
    for ours, theirs in flchain_concordance(splits=3):
        assert ours > theirs - 0.005


def test_flchain_coefficients_agree_with_exponential_maximum_likelihood() -> None:
    """Events per unit of time, weighted by time, are the same likelihood as Poisson."""
    pytest.importorskip("sksurv")
    from sklearn.linear_model import PoissonRegressor

    frame = load_flchain().to_pandas()[["age", "sex", "futime", "death"]]
    study = Study(
        model=cb.models.Exponential(time="futime", event="death", horizon=5000.0),
        features={
            "age": {"low": 50, "high": 101},
            "sex": {"levels": ["F", "M"]},
        },
        prior={"scale": 20.0},
        inference={"rounds": 3300, "burn_in": 1 / 11},
    )
    rows = {row["name"]: row for row in cb.run(study, {"all": frame}).summary()}
    years = frame["futime"] / 365.25
    reference = PoissonRegressor(alpha=0.0, tol=1e-9, max_iter=1000).fit(
        np.column_stack([frame["age"] - 70.0, frame["sex"] == "M"]),
        frame["death"] / years,
        sample_weight=years,
    )
    for name, expected in zip(("age", "sex[M]"), reference.coef_, strict=True):
        sd = rows[name]["sd"]
        assert sd is not None
        assert abs(rows[name]["mean"] - expected) < 0.1 * sd
    at_70 = rows["intercept"]["mean"] + 70.0 * rows["age"]["mean"] + np.log(365.25)
    assert at_70 == pytest.approx(reference.intercept_, abs=0.005)
