"""Priors against scipy's densities, autodiff and finite differences."""

from __future__ import annotations

from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from cipherbayes.models import (
    Design,
    Linear,
    Logistic,
    Model,
    Ordinal,
    Piecewise,
    Prior,
    ResolvedPrior,
    Weibull,
)
from cipherbayes.models.prior import PriorKind
from cipherbayes.typing import Floats

NAMES = ("intercept", "age", "sex[M]")
KINDS: tuple[PriorKind, ...] = ("normal", "laplace", "student-t")
thetas = arrays(np.float64, 3, elements=st.floats(-50.0, 50.0))


def resolved(kind: PriorKind) -> ResolvedPrior:
    table: dict[str, Any] = {
        "kind": kind,
        "mean": 0.5,
        "scale": 2.0,
        "parameters": {"age": {"mean": -1.0}, "sex[M]": {"mean": 0.1, "scale": 0.3}},
    }
    if kind == "student-t":
        table["df"] = 3.0
    return Prior.model_validate(table).resolve(NAMES)


def plain(kind: PriorKind, theta: Any) -> Any:
    """The log density up to its constant, written again for autodiff."""
    u = (theta - np.array([0.5, -1.0, 0.1])) / np.array([2.0, 2.0, 0.3])
    if kind == "normal":
        return -anp.sum(u**2) / 2
    if kind == "laplace":
        return -anp.sum(anp.abs(u))
    return -2.0 * anp.sum(anp.log1p(u**2 / 3.0))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(theta=thetas)
def test_density_is_scipys(kind: PriorKind, theta: Floats) -> None:
    place = {"loc": [0.5, -1.0, 0.1], "scale": [2.0, 2.0, 0.3]}
    expected = {
        "normal": lambda: scipy.stats.norm.logpdf(theta, **place),
        "laplace": lambda: scipy.stats.laplace.logpdf(theta, **place),
        "student-t": lambda: scipy.stats.t.logpdf(theta, df=3.0, **place),
    }[kind]()
    np.testing.assert_allclose(
        resolved(kind).log_density(theta), expected.sum(), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(theta=thetas)
def test_gradient_equals_autodiff(kind: PriorKind, theta: Floats) -> None:
    expected = autograd.grad(lambda t: plain(kind, t))(theta)
    np.testing.assert_allclose(
        resolved(kind).gradient(theta), expected, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(theta=thetas)
def test_gradient_equals_finite_differences(kind: PriorKind, theta: Floats) -> None:
    prior, step = resolved(kind), 1e-6
    if kind == "laplace":  # away from the kink
        theta = np.where(np.abs(theta - prior.mean) < 1e-3, prior.mean + 0.1, theta)
    for j, unit in enumerate(np.eye(3)):
        above = prior.log_density(theta + step * unit)
        below = prior.log_density(theta - step * unit)
        # Rounding leaves eps |f| / step.
        tolerance = 1e-9 * (1.0 + abs(above))
        assert prior.gradient(theta)[j] == pytest.approx(
            (above - below) / (2 * step),
            abs=tolerance,  # type: ignore[arg-type]
            rel=1e-8,
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.0, 1e-300, 1e150])
def test_extreme_parameters_give_finite_densities(kind: PriorKind, size: float) -> None:
    theta = np.array([size, -size, size])
    assert np.isfinite(resolved(kind).log_density(theta))
    assert np.isfinite(resolved(kind).gradient(theta)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_many_draws_are_answered_at_once(kind: PriorKind) -> None:
    draws = np.random.default_rng(1).normal(size=(4, 5, 3))
    prior = resolved(kind)
    assert prior.log_density(draws).shape == (4, 5)
    assert prior.log_density(draws)[2, 3] == prior.log_density(draws[2, 3])
    np.testing.assert_array_equal(
        prior.gradient(draws)[2, 3], prior.gradient(draws[2, 3])
    )


def test_the_default_prior_is_standard_normal() -> None:
    prior = Prior().resolve(NAMES)
    np.testing.assert_array_equal(prior.mean, np.zeros(3))
    np.testing.assert_array_equal(prior.precision, np.ones(3))


def test_precision_is_one_over_the_squared_scale_of_each_parameter() -> None:
    np.testing.assert_allclose(resolved("normal").precision, [0.25, 0.25, 1 / 0.09])


@pytest.mark.parametrize("kind", ["laplace", "student-t"])
def test_only_a_normal_prior_has_a_precision(kind: PriorKind) -> None:
    with pytest.raises(ValueError, match="use a normal prior"):
        _ = resolved(kind).precision


def test_a_prior_for_an_unknown_parameter_lists_the_known_ones() -> None:
    prior = Prior.model_validate({"parameters": {"agee": {"mean": 1.0}}})
    with pytest.raises(ValueError, match=r"'agee'.* intercept, age, sex\[M\]"):
        prior.resolve(NAMES)


@pytest.mark.parametrize(
    "table",
    [
        {"scale": 0.0},
        {"scale": -1.0},
        {"scale": float("nan")},
        {"mean": float("inf")},
        {"parameters": {"age": {"scale": 0.0}}},
        {"parameters": {"age": {"sd": 1.0}}},
        {"sigma": 1.0},
        {"kind": "cauchy"},
        {"df": 3.0},
        {"kind": "student-t", "df": 0.0},
    ],
)
def test_impossible_priors_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Prior.model_validate(table)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prior_survives_being_written_and_read(kind: PriorKind) -> None:
    prior = Prior.model_validate({"kind": kind, "parameters": {"age": {"mean": 1.0}}})
    for table in (
        prior.model_dump(),
        prior.model_dump(exclude_none=True),
        prior.model_dump(exclude_unset=True),
    ):
        assert Prior.model_validate(table) == prior


def test_effects_of_standardised_columns_constants_and_shapes_have_own_scales() -> None:
    names = ("intercept", "age", "log_shape")
    own = {"intercept": {"scale": 7.0}}
    for prior, standardised, scales in (
        (Prior(), True, [5.0, 0.5, 1.0]),
        (Prior(), False, [1.0, 1.0, 1.0]),
        (Prior(scale=1.0), True, [1.0, 1.0, 1.0]),
        (Prior(scale=2.0), True, [2.0, 2.0, 2.0]),
        (Prior(scale=2.0, intercept=3.0), False, [3.0, 2.0, 2.0]),
        (Prior(intercept=3.0), True, [3.0, 0.5, 1.0]),
        (Prior(shape=3.0), True, [5.0, 0.5, 3.0]),
        (Prior(shape=3.0), False, [1.0, 1.0, 3.0]),
        (Prior(parameters=own), True, [7.0, 0.5, 1.0]),
    ):
        filled = prior.filled_in(standardised=standardised)
        assert filled.resolve(names, (0,), (2,)).scale.tolist() == scales
        # What is filled in may be stated.
        again = Prior.model_validate(filled.model_dump(exclude_none=True))
        assert again.filled_in(standardised=standardised) == filled


SURVIVAL = {"time": "t", "event": "e", "horizon": 1.0}
DESIGN = Design(("intercept", "age", "sex"), np.zeros(3), np.ones(3), intercept=1.0)


@pytest.mark.parametrize(
    ("model", "scales"),
    [
        (Logistic(outcome="y"), [5.0, 0.5, 0.5]),
        (Linear(outcome="y", low=0.0, high=2.0), [5.0, 0.5, 0.5, 1.0]),
        (Weibull(**SURVIVAL), [5.0, 0.5, 0.5, 1.0]),
        (Ordinal(outcome="y", classes=4), [5.0, 0.5, 0.5, 1.0, 1.0]),
        (Piecewise(**SURVIVAL, intervals=2), [0.5, 0.5, 5.0, 5.0]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_model_says_which_parameters_are_effects(
    model: Model, scales: list[float]
) -> None:
    design = DESIGN
    if not model.needs_intercept:
        design = Design(DESIGN.names[1:], np.zeros(2), np.ones(2), intercept=None)
    prior = Prior().filled_in(standardised=True)
    assert model.prior_of(prior, design).scale.tolist() == scales
