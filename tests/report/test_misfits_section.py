"""What the report says of groups in which the fit may miss."""

from __future__ import annotations

import tomllib
from typing import Any, cast

import pytest

from cipherbayes.report.sections.misfits import _groups, _untested
from cipherbayes.results.record import FitTest, MeanRow
from cipherbayes.study.schema import Study
from conftest import LOGISTIC


@pytest.mark.parametrize(
    ("mean", "lower", "upper", "known"),
    [
        (0.4, -0.5, 1.3, True),
        (27.3, 13.1, 41.6, False),
        (0.1, -4.0, 4.2, False),
        (-150.0, -153.0, -148.0, False),
    ],
)
def test_a_group_that_noise_hides_is_not_known(
    mean: float, lower: float, upper: float, known: bool
) -> None:
    study = Study.model_validate(tomllib.loads(LOGISTIC))
    group = {"group": "18 to 40", "mean": mean, "lower": lower, "upper": upper}
    test: dict[str, Any] = {"by": "age", "kind": "feature", "what": "curve", "p": 0.4}
    test |= {"bend": 1, "groups": [group], "misfit": False, "text": ""}
    page = str(_groups("Groups", [cast("FitTest", test)], study, "90 %", "groups"))
    assert ("not known" in page) != known


@pytest.mark.parametrize(
    ("slope", "said"),
    [
        ((0.6, 0.4, 0.8), "predictions are too extreme,"),
        ((1.5, 1.2, 1.8), "predictions are not extreme enough,"),
        ((1.1, 0.9, 1.3), None),
        (None, None),
    ],
)
def test_what_is_not_tested_is_not_said_to_fit_where_the_slope_is_off(
    slope: tuple[float, float, float] | None, said: str | None
) -> None:
    study = Study.model_validate(tomllib.loads(LOGISTIC))
    row: MeanRow | None = None
    if slope is not None:
        row = {"mean": slope[0], "lower": slope[1], "upper": slope[2]}
    page = str(_untested(study, [], row))
    assert "Not tested: " in page
    assert ("calibration slope" in page) == (said is not None)
    assert said is None or said in page
