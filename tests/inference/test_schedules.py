"""Step sizes follow the study."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cipherbayes.inference.schedules import fixed_schedule
from cipherbayes.inference.settings import Step


def schedule(step: Step) -> Any:
    return fixed_schedule(step, records=3200, batch=320, rounds=5000, floor=1e-4)


def test_constant_and_polynomial_steps() -> None:
    assert schedule(Step(size=0.5))(17) == 0.5
    polynomial = schedule(Step(schedule="polynomial", size=1.65e-2, power=1.0))
    assert polynomial(10) == pytest.approx(1.65e-3)


def test_the_papers_step_is_its_theorem_four() -> None:
    got = schedule(Step(schedule="paper", epsilon=1.0, delta=1e-5))(3)
    logs = math.log(2.5 * 3200 * 500 / (320 * 1e-5)) * math.log(2 / 1e-5)
    expected = 0.99 * 1.0 * (1e-4 + 1.0) * 320 / (32 * 3200 * logs * 3)
    assert got == pytest.approx(expected, rel=1e-12)


def test_no_size_means_automatic() -> None:
    assert schedule(Step()) is None


@pytest.mark.parametrize(
    "keys", [{"schedule": "polynomial"}, {"schedule": "paper", "size": 1.0}]
)
def test_contradictory_steps_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="size"):
        Step(**keys)
