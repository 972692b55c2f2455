"""Bounded influence: unbiased under the model, and bounded record by record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.noise_aware import influence_bound
from cipherbayes.models import Design, Exponential, Logistic, Model
from cipherbayes.models.gompertz import Gompertz
from cipherbayes.models.influence import InfluenceBound, require_bounded_influence
from cipherbayes.models.linear import Linear
from cipherbayes.models.negative_binomial import NegativeBinomial
from cipherbayes.models.ordinal import Ordinal
from cipherbayes.models.packing import pack, unpack
from cipherbayes.models.piecewise import Piecewise
from cipherbayes.models.poisson import Poisson
from cipherbayes.models.registry import registered
from cipherbayes.models.weibull import Weibull
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.typing import Floats

SURVIVAL = {"time": "t", "event": "e", "horizon": 1.0}
MODELS: dict[str, Model] = {
    "logistic": Logistic(outcome="y"),
    "exponential": Exponential(**SURVIVAL),
    "weibull": Weibull(**SURVIVAL),
    "gompertz": Gompertz(**SURVIVAL),
    "piecewise": Piecewise(**SURVIVAL, cuts=(0.2, 0.5)),
    "linear": Linear(outcome="y", low=-1.0, high=1.0, variance=0.25),
    "learnt-variance": Linear(outcome="y", low=-1.0, high=1.0),
    "poisson": Poisson(outcome="y"),
    "negative-binomial": NegativeBinomial(outcome="y"),
    "ordinal": Ordinal(outcome="y", classes=4),
}


def test_every_model_that_states_its_influence_is_drawn_from_here() -> None:
    stated = {
        kind
        for kind, model in registered.items()
        if model.bounded_influence is not Model.bounded_influence
    }
    assert stated <= {model.kind for model in MODELS.values()}


def design_of(kind: str) -> Design:
    names = ("a", "b", "c") if kind == "piecewise" else ("intercept", "b", "c")
    constant = None if kind == "piecewise" else 1.0
    return Design(names, np.zeros(3), np.ones(3), constant)


def drawn(kind: str, theta: Floats, n: int, rng: np.random.Generator) -> PreparedTable:
    """Records of the model at theta."""
    design = design_of(kind)
    x = rng.uniform(-1.0, 1.0, (3, n))
    if design.intercept is not None:
        x[0] = 1.0
    eta = theta[:3] @ x
    if kind == "logistic":
        outcome = {"y": (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(float)}
    elif kind == "linear":
        outcome = {"y": eta + 0.5 * rng.standard_normal(n)}
    elif kind == "learnt-variance":
        outcome = {"y": eta + np.exp(theta[3]) * rng.standard_normal(n)}
    elif kind == "poisson":
        outcome = {"y": rng.poisson(np.exp(eta)).astype(float), "offset": np.zeros(n)}
    elif kind == "negative-binomial":
        r = np.exp(-theta[3])
        means = np.exp(eta) * rng.gamma(r, 1.0 / r, n)
        outcome = {"y": rng.poisson(means).astype(float), "offset": np.zeros(n)}
    elif kind == "ordinal":
        latent = eta + rng.logistic(size=n)
        steps = np.concatenate([[0.0], np.cumsum(np.exp(theta[3:]))])
        outcome = {"y": (latent > steps[:, None]).sum(axis=0).astype(float)}
    else:
        goal = rng.exponential(size=n) * np.exp(-eta)
        if kind == "weibull":
            time = goal ** np.exp(-theta[3])
        elif kind == "gompertz":
            time = np.log1p(theta[3] * goal) / theta[3]
        elif kind == "piecewise":
            rates, starts = np.exp(theta[3:]), np.array([0.0, 0.2, 0.5])
            reached = np.concatenate([[0.0], np.cumsum(rates[:2] * [0.2, 0.3])])
            at = np.searchsorted(reached, goal, side="right") - 1
            time = starts[at] + (goal - reached[at]) / rates[at]
        else:
            time = goal
        censored = rng.uniform(0.1, 3.0, n)
        outcome = {
            "time": np.maximum(np.minimum(time, censored), 1e-12),
            "event": (time <= censored).astype(float),
        }
        if kind == "piecewise":
            outcome["entry"] = np.zeros(n)
    return PreparedTable.from_arrays(design, x, outcome)


@pytest.mark.parametrize("stop", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", MODELS)
def test_scores_are_unbiased_at_the_truth_and_their_variance_is_bounded(
    kind: str, stop: float
) -> None:
    model, rng = MODELS[kind], np.random.default_rng(3)
    width = len(model.parameters(design_of(kind)))
    theta = np.array([0.3, -0.6, 0.8, 0.2, -0.4, 0.3])[:width]
    n = 50_000
    table = drawn(kind, theta, n, rng)
    sums = influence_sums(
        model, theta, table, InfluenceBound(1.3, stop), with_information=True
    )
    assert sums.information is not None
    variance = unpack(sums.information)
    # The information sum bounds the variance: no coordinate is 4.5 of its sd away.
    z = sums.gradient / np.sqrt(np.diag(variance))
    assert np.abs(z).max() < 4.5


COUNTED = ("poisson", "negative-binomial", "ordinal")
"""Slow for each record, and quieter than what is stopped at a hazard."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_the_information_sum_is_the_slope_of_the_score_sum(kind: str) -> None:
    model, rng = MODELS[kind], np.random.default_rng(4)
    design = design_of(kind)
    width = len(model.parameters(design))
    theta = np.array([0.2, -0.5, 0.6, 0.1, -0.3, 0.2])[:width]
    table = drawn(kind, theta, 100_000 if kind in COUNTED else 400_000, rng)
    bound = InfluenceBound(1.3, 1.0)
    bounded = require_bounded_influence(model)
    basis = bounded.basis(design)
    basis[: design.width] *= bounded.scale(theta) or 1.0
    information = influence_sums(
        model, theta, table, bound, with_information=True
    ).information
    assert information is not None
    step = 0.05
    for j in range(width):
        move = step * basis[:, j]
        ahead = influence_sums(
            model, theta + move, table, bound, with_information=False
        )
        behind = influence_sums(
            model, theta - move, table, bound, with_information=False
        )
        slope = (behind.gradient - ahead.gradient) / (2.0 * step)
        size = np.diag(unpack(information)).max()
        assert np.abs(slope - unpack(information)[j]).max() < 0.03 * size


finite = st.floats(-50.0, 50.0)


@pytest.mark.slow
@example("piecewise", [1.0, 0.0, 0.0], [20.0, 0, 0, -24.0, 13.0, 0], 0.0, 1.0, 1.0, 1.0)
@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(sorted(MODELS)),
    x=st.lists(finite, min_size=3, max_size=3),
    theta=st.lists(st.floats(-30.0, 30.0), min_size=6, max_size=6),
    y=st.floats(0.0, 1.0),
    time=st.floats(1e-9, 10.0),
    clip=st.floats(0.05, 20.0),
    stop=st.floats(0.1, 5.0),
)
def test_no_record_moves_a_sum_by_more_than_its_sensitivity(
    kind: str,
    x: list[float],
    theta: list[float],
    y: float,
    time: float,
    clip: float,
    stop: float,
) -> None:
    model, design = MODELS[kind], design_of(kind)
    width = len(model.parameters(design))
    outcome = {
        "logistic": {"y": [float(y > 0.5)]},
        "linear": {"y": [20.0 * y - 10.0]},
        "learnt-variance": {"y": [20.0 * y - 10.0]},
        "poisson": {"y": [np.floor(1e6 * y)], "offset": [0.0]},
        "negative-binomial": {"y": [np.floor(1e6 * y)], "offset": [0.0]},
        "ordinal": {"y": [np.floor(3.99 * y)]},
    }.get(kind, {"time": [time], "event": [float(y > 0.5)], "entry": [0.0]})
    table = PreparedTable.from_arrays(
        design,
        np.array(x)[:, None],
        {role: np.array(values) for role, values in outcome.items()},
    )
    bound = InfluenceBound(clip, stop)
    bounded = require_bounded_influence(model)
    most = bounded.sensitivities(bound)
    sums = influence_sums(
        model, np.array(theta)[:width], table, bound, with_information=True
    )
    assert sums.information is not None
    assert np.linalg.norm(sums.gradient) <= most[0]
    assert np.linalg.norm(sums.information) <= most[1]
    # The algebra alone keeps the bound: what is bounded once more was never shortened.
    rows = next(iter(table.blocks()))
    found = bounded.at(np.array(theta)[:width], rows, bound)
    square = found.score**2 * rows.squared_norms
    if found.extra is not None:
        square = square + (found.extra**2).sum(axis=0)
    assert np.sqrt(square[0]) <= most[0] * (1.0 + 1e-9) + 1e-9
    square = (found.information * rows.squared_norms) ** 2
    if found.cross is not None and found.corner is not None:
        square = square + 2.0 * (found.cross**2).sum(axis=0) * rows.squared_norms
        square = square + (found.corner**2).sum(axis=(0, 1))
    assert np.sqrt(square[0]) <= most[1] * (1.0 + 1e-6) + 1e-9


def test_packing_keeps_the_frobenius_norm() -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 5))
    matrix += matrix.T
    assert np.linalg.norm(pack(matrix)) == pytest.approx(np.linalg.norm(matrix))
    assert np.allclose(unpack(pack(matrix)), matrix)


@pytest.mark.slow
@pytest.mark.parametrize("log_sd", [-6.0, 0.0, 6.0])
def test_a_learnt_scale_keeps_its_sensitivity_between_neighbours(
    log_sd: float,
) -> None:
    """Over a grid of records that are added, at scales far from the outcomes'."""
    model, design = MODELS["learnt-variance"], design_of("learnt-variance")
    theta, bound = np.array([0.5, -2.0, 1.0, log_sd]), InfluenceBound(1.7)
    most = require_bounded_influence(model).sensitivities(bound)
    size, y = np.meshgrid(np.geomspace(1e-3, 1e3, 25), np.linspace(-10.0, 10.0, 41))
    x = np.stack([np.ones(size.size), size.ravel(), -0.5 * size.ravel()])
    steps = []
    for k in range(size.size):
        table = PreparedTable.from_arrays(
            design, x[:, k : k + 1], {"y": y.ravel()[k : k + 1]}
        )
        one = influence_sums(model, theta, table, bound, with_information=True)
        assert one.information is not None
        steps.append([np.linalg.norm(one.gradient), np.linalg.norm(one.information)])
    largest = np.array(steps).max(axis=0)
    assert (largest <= most).all()
    if log_sd <= 0.0:  # residuals reach their bound, which is not wasteful
        assert (largest > 0.9 * np.array(most)).all()


def test_a_record_is_followed_longer_only_where_noise_is_known_to_be_small() -> None:
    loud, quiet = mu_for(1.0, 1e-5), mu_for(3.0, 1e-5)
    weibull, logistic = MODELS["weibull"], MODELS["logistic"]
    assert influence_bound(weibull, 1.75, records=8_000, mu=loud).stop == 1.0
    assert influence_bound(weibull, 1.75, records=8_000, mu=quiet).stop == 1.4
    assert influence_bound(weibull, 1.75, records=None, mu=quiet).stop == 1.0
    crowded = influence_bound(weibull, 1.75, records=8_000, mu=quiet, excess=10.0)
    assert crowded.stop == 1.0
    assert influence_bound(logistic, 1.75, records=8_000, mu=quiet).stop == 1.0
    for kind in ("exponential", "piecewise"):
        assert influence_bound(MODELS[kind], 1.75, records=8_000, mu=quiet).stop == 1.5
