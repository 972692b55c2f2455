"""Metrics against scikit-learn, lifelines, scikit-survival and plain counting."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines.utils import concordance_index
from model_scenarios import KINDS, scenario
from scipy.special import expit
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sksurv.metrics import cumulative_dynamic_auc
from sksurv.util import Surv

from cipherbayes.models import (
    Design,
    Exponential,
    GaussianMean,
    Logistic,
    Model,
    Rows,
    Survival,
)
from cipherbayes.models import metrics as evaluation
from cipherbayes.typing import Floats

HORIZON = 50.0


def evaluate(
    model: Model, draws: Floats, tables: Iterable[Blocks]
) -> evaluation.Metrics:
    """Metrics of all rows of some tables under the same draws."""
    return evaluation.evaluate_each(model, [(draws, each) for each in tables])


@dataclass(frozen=True)
class Blocks:
    """A held-out table of ready-made blocks."""

    parts: tuple[Rows, ...]

    def blocks(self) -> Iterator[Rows]:
        yield from self.parts


def table(x: Floats, outcome: dict[str, Floats], parts: int = 3) -> Blocks:
    """Prepared rows in uneven blocks."""
    names = tuple(f"x{j}" for j in range(len(x)))
    design = Design(names, np.zeros(len(x)), np.ones(len(x)), None)
    count = x.shape[1]
    edges = [0, *sorted({count // (k + 2) for k in range(parts - 1)}), count]
    cuts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    return Blocks(
        tuple(
            Rows(
                design,
                x[:, cut],
                {role: values[cut] for role, values in outcome.items()},
                (x[:, cut] ** 2).sum(axis=0),
            )
            for cut in cuts
        )
    )


def binary_case(seed: int = 1, count: int = 400) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    probability = expit(rng.normal(0.0, 1.5, count))
    return (rng.random(count) < probability).astype(float), probability


def survival_case(
    seed: int, count: int, whole_days: bool
) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(seed)
    risk = rng.normal(size=count).round(1)
    time = rng.exponential(np.exp(-risk) * 20.0) + 0.01
    censoring = rng.uniform(0.0, 40.0, count) + 0.01
    event = (time <= censoring).astype(float)
    time = np.minimum(time, censoring)
    return np.ceil(time) if whole_days else time, event, risk


def brute_c_index(time: Floats, event: Floats, risk: Floats) -> float | None:
    """Every pair, one by one."""
    won = pairs = 0.0
    for i, j in itertools.permutations(range(len(time)), 2):
        first = time[i] < time[j] or (time[i] == time[j] and not event[j])
        if event[i] and first:
            pairs += 1
            won += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    return won / pairs if pairs else None


rows_of_survival = st.lists(
    st.tuples(st.integers(1, 5), st.booleans(), st.integers(0, 4)), max_size=14
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_auc_is_scikit_learns_with_ties(rows: list[tuple[bool, int]]) -> None:
    y = np.array([row[0] for row in rows], dtype=float)
    score = np.array([row[1] for row in rows], dtype=float)
    found = evaluation.auc(y, score)
    if len(set(y)) < 2:
        assert found is None
    else:
        assert found == pytest.approx(sklearn.metrics.roc_auc_score(y, score))


def test_accuracy_and_brier_are_scikit_learns() -> None:
    y, probability = binary_case()
    assert evaluation.accuracy(y, probability) == pytest.approx(
        sklearn.metrics.accuracy_score(y, probability >= 0.5)
    )
    assert evaluation.brier(y, probability) == pytest.approx(
        sklearn.metrics.brier_score_loss(y, probability)
    )


def test_calibration_table_is_scikit_learns_by_decile() -> None:
    y, probability = binary_case()
    found = evaluation.calibration_table(y, probability)
    observed, predicted = calibration_curve(
        y, probability, n_bins=10, strategy="quantile"
    )
    np.testing.assert_allclose([row["observed"] for row in found], observed)  # type: ignore[arg-type]
    np.testing.assert_allclose([row["predicted"] for row in found], predicted)  # type: ignore[arg-type]
    assert sum(row["rows"] or 0 for row in found) == y.size
    assert evaluation.calibration_error(found) == pytest.approx(
        np.mean(np.abs(observed - predicted)), abs=1e-12
    )


def test_equal_predictions_share_one_bin_whatever_their_order() -> None:
    y = np.array([1.0] * 30 + [0.0] * 70)
    found = evaluation.calibration_table(y, np.full(100, 0.3))
    assert found == [{"rows": 100, "predicted": pytest.approx(0.3), "observed": 0.3}]
    assert evaluation.calibration_error(found) == pytest.approx(0.0)


@pytest.mark.parametrize("sharpness", [1.0, 0.2, 5.0])
def test_calibration_line_is_the_logistic_regression_on_the_logit(
    sharpness: float,
) -> None:
    y, probability = binary_case(2)
    logit = sharpness * np.log(probability / (1 - probability))
    found = evaluation.calibration_line(y, expit(logit))
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    reference.fit(logit[:, None], y)
    assert found is not None
    assert found[0] == pytest.approx(reference.intercept_[0], abs=1e-5)
    assert found[1] == pytest.approx(reference.coef_[0, 0], rel=1e-5)


@pytest.mark.parametrize(
    ("y", "probability"),
    [
        ([], []),
        ([1.0, 1.0], [0.2, 0.4]),
        ([0.0, 1.0], [0.5, 0.5]),
        ([0.0, 0.0, 1.0, 1.0], [0.1, 0.2, 0.8, 0.9]),
        ([0.0, 1.0], [0.0, 1.0]),
    ],
)
def test_calibration_line_is_none_where_it_does_not_exist(
    y: list[float], probability: list[float]
) -> None:
    assert evaluation.calibration_line(np.array(y), np.array(probability)) is None


def test_calibration_in_the_large_is_the_intercept_with_the_slope_held_at_one() -> None:
    y, probability = binary_case(2)
    log_odds = 0.2 * np.log(probability / (1 - probability)) + 1.5
    found = evaluation.calibration_in_the_large(y, expit(log_odds))
    assert found is not None
    assert expit(found + log_odds).sum() == pytest.approx(y.sum())
    line = evaluation.calibration_line(y, expit(log_odds))
    assert line is not None
    assert abs(found - line[0]) > 0.1
    assert evaluation.calibration_in_the_large(np.ones(3), np.full(3, 0.5)) is None


@settings(deadline=None)
@given(rows_of_survival)
def test_c_index_counts_every_comparable_pair(
    rows: list[tuple[int, bool, int]],
) -> None:
    time, event, risk = np.array(rows, dtype=float).reshape(-1, 3).T
    found = evaluation.c_index(time, event, risk)
    expected = brute_c_index(time, event, risk)
    if expected is None:
        assert found is None
    else:
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("whole_days", [False, True])
def test_c_index_is_lifelines(whole_days: bool) -> None:
    time, event, risk = survival_case(3, 1500, whole_days)
    assert evaluation.c_index(time, event, risk) == pytest.approx(
        concordance_index(time, -risk, event), abs=1e-12
    )


def test_auc_at_times_is_scikit_survivals() -> None:
    time, event, risk = survival_case(4, 800, whole_days=False)
    outcome = Surv.from_arrays(event.astype(bool), time)
    times = np.quantile(time[event == 1.0], [0.25, 0.5, 0.75])
    expected, _ = cumulative_dynamic_auc(outcome, outcome, risk, times)
    found = [evaluation.auc_at(float(t), time, event, risk) for t in times]
    np.testing.assert_allclose(found, expected, rtol=1e-10)  # type: ignore[arg-type]


def test_auc_without_censoring_is_the_plain_auc_of_having_died_by_then() -> None:
    time, _, risk = survival_case(5, 300, whole_days=True)
    found = evaluation.auc_at(6.0, time, np.ones(300), risk)
    assert found == pytest.approx(sklearn.metrics.roc_auc_score(time <= 6.0, risk))


def test_an_event_tied_with_a_censoring_counts_as_seen_before_it() -> None:
    # The event at 2 keeps the weight 1 / G(2-) = 1; after it four are at risk of
    # the censoring at 2, so that the event at 3 has G(3-) = 1 - 1/4.
    time = np.array([2.0, 2.0, 3.0, 9.0, 9.0])
    event = np.array([1.0, 0.0, 1.0, 0.0, 0.0])
    risk = np.array([0.0, 0.0, 2.0, 1.0, 1.0])
    weights = np.array([1.0, 1.0 / 0.75])
    expected = weights[1] / weights.sum()
    assert evaluation.auc_at(4.0, time, event, risk) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("time", "event"),
    [([], []), ([1.0, 2.0], [0.0, 0.0]), ([3.0, 3.0], [1.0, 1.0])],
)
def test_survival_rows_without_comparable_pairs_give_none(
    time: list[float], event: list[float]
) -> None:
    metrics = evaluation.survival_metrics(
        np.array(time), np.array(event), np.arange(float(len(time)))
    )
    assert metrics["c_index"] is None
    assert isinstance(metrics["auc_at"], list)
    assert all(entry["auc"] is None for entry in metrics["auc_at"])


def test_one_class_gives_none_and_no_crash() -> None:
    metrics = evaluation.binary_metrics(np.ones(3), np.array([0.2, 0.9, 0.4]))
    assert metrics["auc"] is None
    assert metrics["calibration_slope"] is None
    assert metrics["accuracy"] == pytest.approx(1 / 3)


def test_binary_study_is_judged_on_predictions_averaged_over_the_draws() -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(2, 90))
    draws = rng.normal([1.0, -0.5], 0.4, size=(2, 30, 2))
    y = (rng.random(90) < expit(x[0] - 0.5 * x[1])).astype(float)
    metrics = evaluate(Logistic(outcome="y"), draws, [table(x, {"y": y})])
    mean = expit(draws.reshape(60, 2) @ x).mean(axis=0)
    assert metrics["rows"] == 90
    assert metrics["auc"] == pytest.approx(sklearn.metrics.roc_auc_score(y, mean))
    assert metrics["log_score"] == pytest.approx(-sklearn.metrics.log_loss(y, mean))
    assert metrics["brier"] == pytest.approx(np.mean((y - mean) ** 2))


def test_survival_study_is_judged_in_the_users_time() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(2, 200))
    theta = np.array([0.8, -0.4])
    time = HORIZON * rng.exponential(np.exp(-theta @ x))
    event = (time < 1.5 * HORIZON).astype(float)
    time = np.minimum(time, 1.5 * HORIZON)
    model = Exponential(time="t", event="c", horizon=HORIZON)
    outcome = model.prepare_outcome({"time": time, "event": event})
    metrics = evaluate(model, theta[None], [table(x, outcome)])
    assert metrics["c_index"] == pytest.approx(
        concordance_index(time, -theta @ x, event)
    )
    assert isinstance(metrics["auc_at"], list)
    np.testing.assert_allclose(
        [entry["time"] for entry in metrics["auc_at"]],  # type: ignore[arg-type]
        np.quantile(time[event == 1.0], [0.25, 0.5, 0.75]),
    )
    hazard = np.exp(theta @ x) / HORIZON
    assert metrics["log_score"] == pytest.approx(
        np.mean(event * np.log(hazard) - time * hazard)
    )


def test_gaussian_study_is_judged_by_its_log_score_alone() -> None:
    x = np.random.default_rng(9).normal(size=(2, 40))
    metrics = evaluate(GaussianMean(variance=1.0), np.zeros((1, 2)), [table(x, {})])
    assert metrics.keys() == {"rows", "log_score"}
    assert metrics["log_score"] == pytest.approx(
        -np.log(2 * np.pi) - 0.5 * np.mean((x**2).sum(axis=0))
    )


def test_thousands_of_draws_are_thinned_evenly() -> None:
    x = np.ones((1, 2))
    y = {"y": np.array([0.0, 1.0])}
    draws = np.linspace(-1.0, 3.0, 10_001)[:, None]
    metrics = evaluate(Logistic(outcome="y"), draws, [table(x, y)])
    kept = np.linspace(-1.0, 3.0, evaluation.MOST_DRAWS)
    p = expit(kept).mean()
    assert metrics["log_score"] == pytest.approx(
        (np.log(p) + np.log1p(-p)) / 2, rel=1e-5
    )


def test_no_rows_give_no_metrics() -> None:
    empty = table(np.ones((1, 0)), {"y": np.empty(0)})
    for tables in ([], [empty], [empty, Blocks(())]):
        metrics = evaluate(Logistic(outcome="y"), np.zeros((1, 1)), tables)
        assert metrics == {"rows": 0, "log_score": None}


def test_rows_of_several_sites_are_judged_together() -> None:
    y, probability = binary_case(10)
    x = np.log(probability / (1.0 - probability))[None]
    parts = [table(x[:, cut], {"y": y[cut]}) for cut in (slice(90), slice(90, None))]
    together = [table(x, {"y": y})]
    model, draws = Logistic(outcome="y"), np.ones((1, 1))
    assert evaluate(model, draws, parts) == evaluate(model, draws, together)


def test_a_log_score_too_bad_for_a_number_is_none() -> None:
    x = np.ones((1, 40_000))
    model = Exponential(time="t", event="c", horizon=1.0)
    outcome = {"time": np.full(40_000, 10.0), "event": np.ones(40_000)}
    draws = np.full((1, 1), 700.0)
    assert evaluate(model, draws, [table(x, outcome)])["log_score"] is None


def test_c_index_of_a_hundred_thousand_rows_is_possible() -> None:
    time, event, risk = survival_case(6, 100_000, whole_days=False)
    found = evaluation.c_index(time, event, risk)
    sample = np.arange(0, 100_000, 50)
    assert found == pytest.approx(
        evaluation.c_index(time[sample], event[sample], risk[sample]), abs=0.03
    )


SURVIVAL = [kind for kind in KINDS if isinstance(scenario(kind, 1).model, Survival)]


@pytest.mark.parametrize("kind", SURVIVAL)
def test_a_larger_risk_of_a_survival_model_is_a_higher_hazard(kind: str) -> None:
    """Its effects are called hazard ratios, and its concordance is of this risk."""
    made = scenario(kind, seed=3, count=40)
    assert made.model.measure == "hazard ratio"
    theta = np.random.default_rng(1).normal(0.0, 0.7, made.dimension)
    risk = made.model.fitted(theta, made.rows)
    assert risk is not None
    survival = made.model.predict(theta[None], made.rows, np.array([12.0]))
    order = np.argsort(risk)
    assert (np.diff(survival[0, order, 0]) <= 1e-12).all()
