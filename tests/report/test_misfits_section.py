"""What the report says of groups in which the fit may miss."""

from __future__ import annotations

import tomllib
from typing import Any, cast

import pytest

from cipherbayes.report.sections.misfits import _groups
from cipherbayes.results.record import FitTest
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
