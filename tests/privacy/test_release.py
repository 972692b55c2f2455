"""One record moves a released sum by at most Δ, and what protects it is there."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.errors import PrivacyError
from cipherbayes.inference.gradient import gradient_sum, summation_depth
from cipherbayes.models import Design, Exponential, GaussianMean, Logistic, Model
from cipherbayes.privacy.accountant import epsilon
from cipherbayes.privacy.events import GaussianSum, PoissonSampled
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.typing import Floats

MODELS = {
    "logistic": Logistic(outcome="y"),
    "exponential": Exponential(time="t", event="c", horizon=1.0),
    "gaussian": GaussianMean(variance=1e-3),
}
# Values at which products, squares and sums overflow, underflow or lose digits.
NASTY = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 5e-324, -1e-308, 1e-160, 1e-30, 0.1, 1e8, 1e154, -1e308]
)
VALUES = st.one_of(
    NASTY, st.floats(-1.0, 1.0), st.floats(allow_nan=False, allow_infinity=False)
)


def release_plan(**changes: object) -> ReleasePlan:
    plan = {
        "clip": 1.0,
        "dimension": 3,
        "noise_multiplier": 5.0,
        "rounds": 40,
        "rate": 1.0,
        "sites": 3,
        "colluders": 1,
        "dropouts": 0,
        "records": 1000,
        "depth": summation_depth(1000),
    }
    return ReleasePlan(**{**plan, **changes})  # type: ignore[arg-type]


def design_of(width: int, intercept: float | None) -> Design:
    names = tuple(f"x{j}" for j in range(width))
    return Design(names, np.zeros(width), np.ones(width), intercept)


def table_of(
    model: Model, x: Floats, first: Floats, second: Floats, keep: np.ndarray
) -> PreparedTable:
    design = design_of(x.shape[0], None)
    columns = {
        "logistic": {"y": second},
        "exponential": {"time": first, "event": second},
        "gaussian": {},
    }[model.kind]
    kept = {role: values[keep] for role, values in columns.items()}
    return PreparedTable.from_arrays(design, x[:, keep], kept)


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Model, Floats, PreparedTable, PreparedTable]:
    """A model, a θ, a table of 1 to 12 records and the table without one of them."""
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    width, count = draw(st.integers(1, 4)), draw(st.integers(1, 12))

    def numbers(size: int, values: st.SearchStrategy[float]) -> Floats:
        return np.array(draw(st.lists(values, min_size=size, max_size=size)))

    x = numbers(width * count, VALUES).reshape(width, count)
    theta = numbers(width, VALUES)
    time = numbers(count, st.one_of(st.just(5e-324), st.floats(1e-9, 10.0)))
    event = numbers(count, st.sampled_from([0.0, 1.0]))
    everyone = np.arange(count)
    others = np.delete(everyone, draw(st.integers(0, count - 1)))
    with np.errstate(all="ignore"):
        whole = table_of(model, x, time, event, everyone)
        less = table_of(model, x, time, event, others)
    return model, theta, whole, less


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    pair=neighbours(),
    clip=st.sampled_from([1e-6, 0.5, 1.0, 3.0, 1e6]),
    sigma=st.sampled_from([0.0625, 1.0, 30.0, 1000.0]),
)
def test_removing_any_record_moves_the_integer_sum_by_at_most_delta(
    pair: tuple[Model, Floats, PreparedTable, PreparedTable], clip: float, sigma: float
) -> None:
    model, theta, whole, less = pair
    plan = release_plan(
        clip=clip,
        noise_multiplier=sigma,
        dimension=theta.size,
        records=whole.count,
        depth=summation_depth(whole.count),
    )
    with np.errstate(all="ignore"):
        sums = [
            plan.to_grid(gradient_sum(model, theta, table, clip=clip))
            for table in (whole, less)
        ]
    moved = sum(int(a - b) ** 2 for a, b in zip(*sums, strict=True))
    assert moved <= plan.sensitivity**2
    assert all(int(np.abs(total).max()) <= plan.bound for total in sums)


def test_a_record_that_fills_its_bound_moves_the_sum_by_nearly_delta() -> None:
    """Δ is not much larger than what a record can do."""
    x = np.full((3, 1), 1e9)
    model = MODELS["logistic"]
    plan = release_plan(records=1, depth=summation_depth(1))
    table = table_of(model, x, np.ones(1), np.ones(1), np.arange(1))
    moved = plan.to_grid(gradient_sum(model, np.zeros(3), table, clip=plan.clip))
    assert 0.998 * plan.sensitivity < np.linalg.norm(moved) <= plan.sensitivity


def test_over_several_blocks_one_record_still_moves_the_sum_by_at_most_delta() -> None:
    """Removing the first record shifts every block boundary, so every rounding."""
    rng = np.random.default_rng(5)
    count, width = 40_000, 4
    x = rng.standard_normal((width, count)) * 10.0 ** rng.integers(-8, 9, count)
    outcome = (rng.random(count) < 0.5).astype(float)
    model, theta = MODELS["logistic"], rng.standard_normal(width)
    plan = release_plan(
        dimension=width, records=count, depth=summation_depth(count) + 64
    )
    everyone = np.arange(count)
    sums = [
        plan.to_grid(
            gradient_sum(
                model,
                theta,
                table_of(model, x, np.ones(count), outcome, keep),
                clip=plan.clip,
            )
        )
        for keep in (everyone, everyone[1:], everyone[:-1], np.delete(everyone, 20_000))
    ]
    for without in sums[1:]:
        assert np.linalg.norm(sums[0] - without) <= plan.sensitivity


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_a_table_without_records_gives_zero(kind: str) -> None:
    model = MODELS[kind]
    empty = table_of(model, np.ones((3, 1)), np.ones(1), np.ones(1), np.arange(0))
    total = gradient_sum(model, np.ones(3), empty, clip=1.0)
    assert release_plan().to_grid(total).tolist() == [0, 0, 0]


PLANS = st.fixed_dictionaries(
    {
        "clip": st.floats(-20.0, 20.0).map(lambda exponent: 10.0**exponent),
        "dimension": st.integers(1, 5000),
        "noise_multiplier": st.floats(-1.2, 5.0).map(lambda exponent: 10.0**exponent),
        "rounds": st.integers(1, 100_000),
        "sites": st.integers(3, 40),
        "colluders": st.integers(0, 1),
        "dropouts": st.integers(0, 1),
        "records": st.integers(1, 10_000_000),
    }
)


@given(changes=PLANS)
def test_what_honest_sites_add_is_at_least_the_certified_noise(
    changes: dict[str, float],
) -> None:
    plan = release_plan(**changes, depth=summation_depth(int(changes["records"])) + 64)
    honest = plan.sites - plan.colluders - plan.dropouts
    certified = (plan.noise_multiplier * plan.sensitivity) ** 2
    assert honest * plan.share_scale**2 >= certified
    assert plan.noise_sd(honest) >= plan.noise_multiplier * plan.clip


@given(changes=PLANS)
def test_the_grid_costs_at_most_a_fifth_of_a_per_cent_of_noise(
    changes: dict[str, float],
) -> None:
    plan = release_plan(**changes, depth=summation_depth(int(changes["records"])) + 64)
    honest = plan.sites - plan.colluders - plan.dropouts
    assert plan.noise_sd(honest) <= 1.002 * plan.noise_multiplier * plan.clip
    assert math.frexp(plan.step)[0] == 0.5
    assert plan.share_scale * math.sqrt(honest) >= 2.0**12


@given(changes=PLANS)
def test_the_largest_sums_and_noises_fit_the_bound(changes: dict[str, float]) -> None:
    plan = release_plan(**changes, depth=summation_depth(int(changes["records"])) + 64)
    largest = plan.records * plan.clip / plan.step + plan.sites / 2.0
    # P(|sum of K shares| > t) <= 2 exp(-t² / 2 K s²), over all rounds and values.
    room = plan.bound - largest
    spread = plan.share_scale * math.sqrt(plan.sites)
    log_miss = math.log(2.0 * plan.dimension * plan.rounds) - (room / spread) ** 2 / 2.0
    assert log_miss <= -60.0 * math.log(2.0) * (1.0 - 1e-9)
    assert plan.bound < 2**62


def test_the_sum_of_a_full_study_stays_within_the_bound() -> None:
    plan = release_plan(records=3000, depth=summation_depth(3000))
    x = np.full((3, 1000), 1e6)
    model = MODELS["logistic"]
    site = table_of(model, x, np.ones(1000), np.ones(1000), np.arange(1000))
    total = plan.to_grid(gradient_sum(model, np.zeros(3), site, clip=plan.clip))
    assert int(np.abs(3 * total).max()) < plan.bound


@given(values=st.lists(st.integers(-(2**50), 2**50), min_size=3, max_size=3))
def test_the_grid_is_exact_in_both_directions(values: list[int]) -> None:
    plan = release_plan()
    integers = np.array(values, dtype=np.int64)
    assert plan.to_grid(plan.from_grid(integers)).tolist() == values


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_a_sum_that_no_bounded_records_have_is_refused(value: float) -> None:
    with pytest.raises(PrivacyError, match="not finite or outside") as refusal:
        release_plan().to_grid(np.array([0.0, value, 0.0]))
    assert "300" not in str(refusal.value)


def test_the_event_is_that_of_the_certified_noise() -> None:
    plan = release_plan(noise_multiplier=3.0)
    assert plan.event == GaussianSum(3.0)
    half = release_plan(noise_multiplier=3.0, rate=0.5)
    assert half.event == PoissonSampled(0.5, GaussianSum(3.0))
    assert epsilon(half.event, 1e-5) < epsilon(plan.event, 1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sites": 2, "colluders": 2}, "2 colluders and 0 dropouts leave no honest"),
        ({"sites": 2, "colluders": 1, "dropouts": 1}, "leave no honest site among 2"),
        ({"sites": 3, "colluders": 4}, "leave no honest site"),
        ({"colluders": -1}, "not negative"),
        ({"dropouts": -1}, "not negative"),
        ({"sites": 0}, "at least one value, round, site and record"),
        ({"rounds": 0}, "at least one value, round"),
        ({"dimension": 0}, "at least one value"),
        ({"records": 0}, "at least one value"),
        ({"clip": 0.0}, "usable positive number"),
        ({"clip": -1.0}, "usable positive number"),
        ({"clip": math.nan}, "usable positive number"),
        ({"clip": math.inf}, "usable positive number"),
        ({"clip": 5e-324}, "usable positive number"),
        ({"noise_multiplier": 0.0}, "usable positive number"),
        ({"noise_multiplier": -2.0}, "usable positive number"),
        ({"noise_multiplier": math.nan}, "usable positive number"),
        ({"noise_multiplier": math.inf}, "usable positive number"),
        ({"rate": 0.0}, "sampling rate"),
        ({"rate": 1.5}, "sampling rate"),
        ({"rate": math.nan}, "sampling rate"),
        ({"records": 10**15, "dimension": 10**6}, "cannot be shown to fit 64 bits"),
    ],
)
def test_a_plan_that_protects_nobody_is_refused(
    changes: dict[str, float], words: str
) -> None:
    with pytest.raises(PrivacyError, match=words) as refusal:
        release_plan(**changes)
    assert refusal.value.remedy
    assert "\n" not in str(refusal.value)


def test_a_plan_cannot_be_changed_after_it_was_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        release_plan().noise_multiplier = 0.0  # type: ignore[misc]
