"""The table of the records' characteristics against the records themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cipherbayes as cb
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.plan import plan_releases
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.describing import describe_rows
from cipherbayes.results.record import DescribeRow
from cipherbayes.study.tables import open_site
from cipherbayes.typing import Floats

NOISE = 2.0
ROWS = 3000


def described(
    values: Floats, feature: dict[str, Any], moments: Floats | None = None
) -> dict[str, DescribeRow]:
    """Statistics of one feature, of which counts are released with little noise."""
    study = cb.Study(
        study={"protocol": "pooled"},
        model=cb.models.Logistic(outcome="y"),
        features={"v": feature},
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 10.0, "records": values.size},
        inference={"method": "averaged"},
        describe={},
        sites={"a": {}},
    )
    (phase,) = plan_releases(study).closing
    assert phase.characteristics is not None
    columns = {"v": pa.array(values, from_pandas=True), "y": np.zeros(values.size)}
    table = open_site(study, "a", pa.table(columns))
    question = Question(np.zeros(1), moments)
    total = Contributions(study.model, table, site="a").total(phase, question)
    noised = total + np.random.default_rng(0).normal(0.0, NOISE, total.size)
    released = Closing(noised, NOISE)
    rows = describe_rows(study, phase.characteristics, released, moments, 0.05)
    return {row["statistic"]: row for row in rows if row["column"] == "v"}


def rounded_values() -> Floats:
    rng = np.random.default_rng(1)
    return np.round(np.exp(rng.normal(0.0, 0.2, ROWS)), 1)


def test_a_value_that_equals_a_stand_in_is_not_called_missing() -> None:
    values = rounded_values()
    assert np.mean(values == 1.0) > 0.15
    found = described(values, {"low": 0.4, "high": 3.0, "missing": 1.0})
    assert "missing share" not in found
    mean = found["mean"]
    assert mean["lower"] - 0.05 < values.mean() < mean["upper"] + 0.05


@pytest.mark.parametrize("gaps", [0, 600])
def test_an_indicator_tells_missing_values_from_their_stand_in(gaps: int) -> None:
    values = rounded_values()
    values[:gaps] = np.nan
    feature = {"low": 0.4, "high": 3.0, "missing": 1.0, "indicator": True}
    found = described(values, feature)
    assert found["missing share"]["mean"] == pytest.approx(gaps / ROWS, abs=0.005)
