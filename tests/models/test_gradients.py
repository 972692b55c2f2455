"""Gradients against finite differences and against autodiff of a second formula."""

from __future__ import annotations

import math

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from model_scenarios import KINDS, plain_exponential, plain_logistic, rows_of, scenario

from cipherbayes.models import Exponential, Logistic, RecordGradients
from cipherbayes.models.base import Model
from cipherbayes.typing import Floats

seeds = st.integers(0, 2**32 - 1)
etas = st.floats(-700.0, 700.0)


def matrix_of(gradients: RecordGradients) -> Floats:
    """Column i is the gradient of record i."""
    parts = []
    if gradients.score is not None:
        parts.append(gradients.score * gradients.rows.x)
    if gradients.extra is not None:
        parts.append(gradients.extra)
    return np.vstack(parts)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_gradients_equal_autodiff_of_the_likelihood_of_the_raw_data(
    kind: str, seed: int
) -> None:
    case = scenario(kind, seed)
    theta = np.random.default_rng(seed).normal(0.0, 1.5, case.dimension)
    expected = autograd.jacobian(case.plain_log_likelihood)(theta)
    found = matrix_of(case.model.gradients(theta, case.rows)).T
    np.testing.assert_allclose(
        found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max()
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_gradients_equal_central_finite_differences(kind: str, seed: int) -> None:
    case = scenario(kind, seed)
    theta = np.random.default_rng(seed).normal(0.0, 1.0, case.dimension)
    found = matrix_of(case.model.gradients(theta, case.rows))
    step = 2e-4
    for j, unit in enumerate(np.eye(theta.size)):
        values = [
            case.model.log_likelihood(theta + k * step * unit, case.rows)
            for k in (-2, -1, 1, 2)
        ]
        # Fourth order: a bend of time's own power makes the cubic term too large.
        expected = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
        size = 1.0 + np.abs(values).max() + np.abs(expected).max()
        np.testing.assert_allclose(found[j], expected, rtol=0, atol=1e-9 * size)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(seed=seeds)
@example(seed=925604)
def test_information_is_minus_the_second_derivative(kind: str, seed: int) -> None:
    case = scenario(kind, seed)
    theta = np.random.default_rng(seed).normal(0.0, 1.5, case.dimension)
    # Where the plain formula itself can be trusted: t^k overflows for a large shape,
    # and (exp(a t) - 1) / a loses its digits near a = 0.
    if kind == "weibull":
        theta[-1] = np.clip(theta[-1], -3.0, 3.0)
    elif kind == "gompertz":
        theta[-1] = np.copysign(max(abs(theta[-1]), 0.1), theta[-1])
    elif kind == "ordinal":  # exp(exp(gap)) overflows
        theta = np.clip(theta, -3.0, 3.0)
    hessian = autograd.hessian(lambda t: anp.sum(case.plain_log_likelihood(t)))(theta)
    found, wanted = case.model.information_diagonal(theta, case.rows), -np.diag(hessian)
    rounding = 1e-10
    if type(case.model).information_diagonal is Model.information_diagonal:
        # Central differences are off by about the square of their step.
        step = 1e-5 * (1.0 + np.abs(theta).max())
        rounding = step**2 * max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=rounding)


@settings(deadline=None)
@given(eta=arrays(np.float64, 6, elements=etas), y=st.lists(st.booleans(), min_size=6))
def test_logistic_is_exact_up_to_eta_700(eta: Floats, y: list[bool]) -> None:
    rows = rows_of(eta[None], {"y": np.array(y[:6], dtype=float)})
    model, one = Logistic(outcome="y"), np.ones(1)
    beta = np.array([0.0, 1.0])
    plain = plain_logistic(beta, rows.x, rows.outcome["y"])
    rounding = 700.0 * np.finfo(float).eps  # the plain formula subtracts eta from eta
    np.testing.assert_allclose(
        model.log_likelihood(one, rows), plain, rtol=1e-12, atol=rounding
    )
    score = autograd.elementwise_grad(
        lambda e: plain_logistic(beta, e[None], rows.outcome["y"])
    )(eta)
    np.testing.assert_allclose(
        model.gradients(one, rows).score,  # type: ignore[arg-type]
        score,
        rtol=1e-12,
        atol=rounding,
    )
    assert np.isfinite(model.information_diagonal(one, rows)).all()
    assert np.isfinite(model.gradients(one, rows).norms()).all()


@settings(deadline=None)
@given(
    eta=arrays(np.float64, 6, elements=etas),
    time=arrays(np.float64, 6, elements=st.floats(1e-6, 10.0)),
    event=st.lists(st.booleans(), min_size=6),
)
def test_exponential_is_exact_up_to_eta_700(
    eta: Floats, time: Floats, event: list[bool]
) -> None:
    model, one = Exponential(time="t", event="c", horizon=1.0), np.ones(1)
    raw = {"time": time, "event": np.array(event[:6], dtype=float)}
    rows = rows_of(eta[None], model.prepare_outcome(raw))
    beta = np.array([0.0, 1.0])
    plain = plain_exponential(beta, rows.x, **raw)
    np.testing.assert_allclose(model.log_likelihood(one, rows), plain, rtol=1e-12)
    score = autograd.elementwise_grad(
        lambda e: plain_exponential(beta, e[None], **raw)
    )(eta)
    gradients = model.gradients(one, rows)
    np.testing.assert_allclose(gradients.score, score, rtol=1e-12, atol=1e-15)  # type: ignore[arg-type]
    assert np.isfinite(gradients.norms()).all()
    assert np.isfinite(gradients.weighted_sum(1.0 / (1.0 + gradients.norms()))).all()


@pytest.mark.parametrize("eta", [700.0, 710.0, 1e6, 1e300, -710.0, -1e6, -1e300])
def test_nothing_overflows_beyond_eta_700(eta: float) -> None:
    theta = np.array([eta])
    for event in (0.0, 1.0):
        survival = Exponential(time="t", event="c", horizon=1.0)
        raw = {"time": np.array([10.0]), "event": np.array([event])}
        rows = rows_of(np.ones((1, 1)), survival.prepare_outcome(raw))
        assert np.isfinite(survival.log_likelihood(theta, rows)).all()
        assert np.isfinite(survival.gradients(theta, rows).score).all()  # type: ignore[arg-type]
        assert np.isfinite(survival.information_diagonal(theta, rows)).all()
        curve = survival.predict(theta[None], rows, np.array([0.0, 10.0, 1e300]))
        assert np.all((curve >= 0.0) & (curve <= 1.0))
        assert curve[0, 0, 0] == 1.0

        binary = Logistic(outcome="y")
        rows = rows_of(np.ones((1, 1)), {"y": np.array([event])})
        assert np.isfinite(binary.log_likelihood(theta, rows)).all()
        assert np.abs(binary.gradients(theta, rows).score).max() <= 1.0  # type: ignore[arg-type]
        assert 0.0 <= binary.predict(theta[None], rows)[0, 0] <= 1.0


magnitudes = st.sampled_from([0.0, 5e-324, 1e-300, 1e-160, 1.0, 1e150, 1e300])


@settings(deadline=None)
@given(
    score=arrays(np.float64, 3, elements=magnitudes),
    extra=arrays(np.float64, (2, 3), elements=magnitudes),
    shape=st.sampled_from(["score", "extra", "both"]),
)
def test_norms_are_euclidean_from_denormals_to_1e300(
    score: Floats, extra: Floats, shape: str
) -> None:
    rows = rows_of(np.array([[0.6, 1.0, 0.0], [-0.8, 2.0, 0.0]]), {})
    gradients = RecordGradients(
        rows,
        score=None if shape == "extra" else score,
        extra=None if shape == "score" else extra,
    )
    expected = [math.hypot(*column) for column in matrix_of(gradients).T]
    np.testing.assert_allclose(gradients.norms(), expected, rtol=1e-14, atol=1.5e-323)


@settings(deadline=None)
@given(
    score=arrays(np.float64, 4, elements=st.floats(-9, 9)),
    extra=arrays(np.float64, (2, 4), elements=st.floats(-9, 9)),
    weights=arrays(np.float64, 4, elements=st.floats(0, 1)),
    x=arrays(np.float64, (3, 4), elements=st.floats(-1, 1)),
)
def test_weighted_sums_are_sums_of_weighted_record_gradients(
    score: Floats, extra: Floats, weights: Floats, x: Floats
) -> None:
    rows = rows_of(x, {})
    for gradients in (
        RecordGradients(rows, score),
        RecordGradients(rows, None, extra),
        RecordGradients(rows, score, extra),
    ):
        records = matrix_of(gradients)
        np.testing.assert_allclose(
            gradients.weighted_sum(weights),
            [math.fsum(line) for line in records * weights],
            atol=1e-12,
        )
        np.testing.assert_allclose(
            gradients.weighted_sum(), [math.fsum(line) for line in records], atol=1e-12
        )
