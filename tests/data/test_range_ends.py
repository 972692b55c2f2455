"""Values that pile up at an end of a public range, told from noised histograms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

import cipherbayes as cb
from cipherbayes.data.range_ends import piles
from cipherbayes.data.windows import Numbers, histograms
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.results.range_flags import range_flags
from cipherbayes.typing import Floats

ROWS = 2000
Draw = Callable[[np.random.Generator], Floats]


def share_at(
    draw: Draw, low: float, high: float, noise: float, seed: int
) -> tuple[float, float]:
    """What is told of a column's values that were held within a range."""
    rng = np.random.default_rng(seed)
    z = 2.0 * (np.clip(draw(rng), low, high) - low) / (high - low) - 1.0
    numbers = Numbers(columns=1, places=(0,), stand_ins=(np.nan,), bins=64)
    counts = histograms(z[None], numbers, None)
    noisy = counts + rng.normal(0.0, noise, counts.size)
    ((lower, upper),) = piles(noisy, noise, float(ROWS), numbers)
    return float(lower), float(upper)


FINE: dict[str, tuple[Draw, float, float]] = {
    "age": (lambda rng: rng.normal(62.0, 12.0, ROWS), 18.0, 100.0),
    "whole years": (lambda rng: np.rint(rng.normal(62.0, 12.0, ROWS)), 18.0, 100.0),
    "tight": (lambda rng: rng.uniform(0.2, 0.8, ROWS), 0.2, 0.8),
    "skewed": (lambda rng: rng.lognormal(3.0, 1.0, ROWS), 1.0, 500.0),
    "counts from one": (
        lambda rng: 1.0 + rng.poisson(2.0, ROWS).astype(float),
        1.0,
        60.0,
    ),
    "a grade": (lambda rng: rng.choice([1.0, 2.0, 3.0, 4.0], ROWS), 1.0, 4.0),
    "a few beyond": (lambda rng: rng.normal(62.0, 12.0, ROWS), 18.0, 90.0),
}
WRONG: dict[str, tuple[Draw, float, float, int, float]] = {
    "age to 65": (lambda rng: rng.normal(62.0, 12.0, ROWS), 18.0, 65.0, 1, 0.40),
    "age from 60": (lambda rng: rng.normal(62.0, 12.0, ROWS), 60.0, 110.0, 0, 0.43),
    "grams as mg": (lambda rng: rng.normal(900.0, 90.0, ROWS), 0.0, 10.0, 1, 1.0),
}


@pytest.mark.parametrize("noise", [3.0, 30.0, 120.0])
@pytest.mark.parametrize("name", FINE)
def test_a_range_that_holds_the_values_is_not_warned_of(
    name: str, noise: float
) -> None:
    for seed in range(40):
        assert share_at(*FINE[name], noise, seed) == (0.0, 0.0)


@pytest.mark.parametrize("name", WRONG)
def test_a_range_that_cuts_many_values_off_is_told_with_their_share(name: str) -> None:
    draw, low, high, side, truth = WRONG[name]
    for seed in range(20):
        found = share_at(draw, low, high, 30.0, seed)
        assert found[side] == pytest.approx(truth, abs=0.08)
        assert found[1 - side] == 0.0


def test_noise_alone_is_no_pile() -> None:
    for seed in range(40):
        found = share_at(lambda rng: rng.normal(62.0, 12.0, ROWS), 18, 65, 1500.0, seed)
        assert found == (0.0, 0.0)


def test_the_warning_names_the_column_and_what_to_do_but_for_a_lower_zero() -> None:
    study = cb.Study(
        model=cb.models.Logistic(outcome="death"),
        features={
            "sex": {"levels": ["F", "M"]},
            "bmi": {"low": 10, "high": 30},
            "dose": {"low": 0, "high": 9},
        },
    )
    ends = np.array([[0.0, 0.34, 0.0], [0.5, 0.0, 0.0]])
    (flag,) = range_flags(study, ends)
    assert flag["name"] == "range-end"
    assert flag["parameters"] == ["bmi"]
    assert "values of 'bmi' are at the upper end" in flag["text"]
    assert "about 34 % of them in its last part" in flag["text"]
    assert "which ends at 30, or above that" in flag["text"]
    assert "widen the range in [features]" in flag["text"]
    assert range_flags(study, None) == []
    (hidden,) = range_flags(study, np.array([[0.0, 0.0, 0.0], [0.9, 0.0, 0.97]]))
    assert (hidden["name"], hidden["unusable"]) == ("scale-hidden", True)
    assert hidden["parameters"] == ["dose"]
    assert "about 97 % of the values of 'dose' are equal" in hidden["text"]


def test_a_private_study_with_a_range_too_narrow_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = Effort(chains=2, warm_up=30, kept=40, doublings=0)
    monkeypatch.setattr(Effort, "for_dimension", lambda _: few)
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "age": rng.normal(62.0, 12.0, ROWS),
            "bmi": rng.normal(26.0, 4.0, ROWS),
            "death": rng.integers(0, 2, ROWS),
        }
    )
    study = cb.Study(
        model=cb.models.Logistic(outcome="death"),
        features={
            "age": {"low": 18, "high": 65, "missing": 60},
            "bmi": {"low": 10, "high": 60},
        },
        preparation={"method": "private-scales"},
        privacy={"epsilon": 3.0, "delta": 1e-6, "records": ROWS},
    )
    result = cb.run(study, frame)
    found = [each for each in result.record["flags"] if each["name"] == "range-end"]
    assert [flag["parameters"] for flag in found] == [["age"]]
    assert found[0]["text"] in result.warnings
