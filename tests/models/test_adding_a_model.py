"""The model of CONTRIBUTING's guide, run as it stands there: private, calibrated."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr

import cipherbayes as cb
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.errors import StudyError
from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.noise_aware import Effort, sample_posterior
from cipherbayes.models import Design, Model, Rows, registry
from cipherbayes.models.influence import (
    InfluenceBound,
    ScoreInfluence,
    require_bounded_influence,
)
from cipherbayes.models.packing import unpack
from cipherbayes.models.prior import Prior
from cipherbayes.typing import Floats
from cipherbayes.validation import calibration, outcome_draws, trial_records
from cipherbayes.validation.outcome_draws import OutcomeDraw
from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.simulation import Simulated, columns, release_rounds
from cipherbayes.validation.study_audit import audit_study
from conftest import LOGISTIC, logistic_frame

GUIDE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
FEATURES: dict[str, Any] = {
    "age": {"low": 18, "high": 100},
    "sex": {"levels": ["F", "M"]},
}
PRIVACY = {
    "epsilon": 3.0,
    "delta": 1e-5,
    "records": 1200,
    "randomness": "insecure-repeatable",
}
BOUND = InfluenceBound(1.2)


@pytest.fixture(scope="module")
def probit() -> Iterator[Model]:
    """The guide's first block of Python, executed as a module that registers it."""
    guide = GUIDE.read_text(encoding="utf-8").split("## How to add a model")[1]
    found = re.search(r"```python\n(.*?)```", guide, re.DOTALL)
    assert found is not None
    module = ModuleType("probit_of_the_guide")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "registered", dict(registry.registered))
        patch.setitem(sys.modules, module.__name__, module)
        exec(compile(found[1], str(GUIDE), "exec"), module.__dict__)
        yield module.Probit(outcome="death")


def table_of(theta: Floats, count: int, rng: np.random.Generator) -> PreparedTable:
    """Records that the model at theta has drawn."""
    x = columns(rng, count, theta.size)
    names = ("intercept", *(f"x{j}" for j in range(1, theta.size)))
    design = Design(names, np.zeros(theta.size), np.ones(theta.size), 1.0)
    y = (rng.random(count) < ndtr(theta @ x)).astype(float)
    return PreparedTable.from_arrays(design, x, {"y": y})


def rows_of(table: PreparedTable) -> Rows:
    return next(iter(table.blocks()))


def test_its_gradient_is_that_of_its_log_likelihood(probit: Model) -> None:
    rng = np.random.default_rng(1)
    theta = np.array([0.4, -1.0, 0.7, 2.0])
    rows = rows_of(table_of(theta, 50, rng))
    score = probit.gradients(theta, rows).score
    assert score is not None
    for j, unit in enumerate(np.eye(4)):
        above = probit.log_likelihood(theta + 1e-6 * unit, rows)
        below = probit.log_likelihood(theta - 1e-6 * unit, rows)
        np.testing.assert_allclose(score * rows.x[j], (above - below) / 2e-6, atol=1e-7)


def test_no_record_moves_its_sums_by_more_than_their_sensitivities(
    probit: Model,
) -> None:
    """Brute force: one record more or less, ordinary, extreme and absurd ones."""
    rng = np.random.default_rng(2)
    most = require_bounded_influence(probit).sensitivities(BOUND)
    assert most == (1.5 * 1.2, 2.0 / np.pi * 1.2**2)
    design = Design(("intercept", "x"), np.zeros(2), np.ones(2), 1.0)
    largest = np.zeros(2)
    for scale in (0.1, 1.0, 10.0, 1e8, 1e200):
        for _ in range(40):
            theta = rng.normal(0.0, 3.0, 2)
            x = np.vstack([np.ones(6), scale * rng.standard_normal(6)])
            y = rng.integers(0, 2, 6).astype(float)
            sums = []
            for kept in (slice(0, 5), slice(0, 6)):
                table = PreparedTable.from_arrays(design, x[:, kept], {"y": y[kept]})
                found = influence_sums(
                    probit, theta, table, BOUND, with_information=True
                )
                assert found.information is not None
                sums.append((found.gradient, found.information))
            moved = [np.linalg.norm(a - b) for a, b in zip(*sums, strict=True)]
            largest = np.maximum(largest, moved)
    assert np.all(largest <= np.array(most) * (1.0 + 1e-12))
    # The bounds are met: they are no larger than they must be.
    assert np.all(largest >= 0.8 * np.array(most))


def test_its_own_algebra_keeps_the_bounds_before_anything_is_shortened(
    probit: Model,
) -> None:
    bounded, rng = require_bounded_influence(probit), np.random.default_rng(3)
    rows = rows_of(table_of(np.array([0.0, 3.0, -3.0, 2.0]), 2_000, rng))
    for scale in (0.0, 1.0, 5.0, 30.0):
        found = bounded.at(scale * rng.standard_normal(4), rows, BOUND)
        lengths = np.abs(found.score) * np.sqrt(rows.squared_norms)
        assert lengths.max() <= bounded.sensitivities(BOUND)[0] * (1.0 + 1e-12)
        sizes = found.information * rows.squared_norms
        assert sizes.max() <= bounded.sensitivities(BOUND)[1] * (1.0 + 1e-12)


def test_its_scores_are_unbiased_and_their_information_is_the_slope(
    probit: Model,
) -> None:
    theta = np.array([0.3, -1.2, 0.8, 1.0])
    table = table_of(theta, 100_000, np.random.default_rng(4))
    sums = influence_sums(probit, theta, table, BOUND, with_information=True)
    assert sums.information is not None
    information = unpack(sums.information)
    assert np.abs(sums.gradient / np.sqrt(np.diag(information))).max() < 4.5
    for j, unit in enumerate(np.eye(4)):
        ahead = influence_sums(
            probit, theta + 0.02 * unit, table, BOUND, with_information=False
        )
        behind = influence_sums(
            probit, theta - 0.02 * unit, table, BOUND, with_information=False
        )
        slope = (behind.gradient - ahead.gradient) / 0.04
        assert np.abs(slope - information[j]).max() < 0.03 * information.max()


@pytest.mark.slow
def test_a_private_study_file_with_it_gets_a_noise_aware_posterior(
    probit: Model, tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(LOGISTIC.replace('"logistic"', '"probit"'), encoding="utf-8")
    study = cb.Study.load(path)
    assert study.model == probit
    study = cb.Study(model=study.model, features=FEATURES, privacy=PRIVACY)
    frames = {name: logistic_frame(seed=k) for k, name in enumerate("abc")}
    result = cb.run(study, frames)
    assert result.record["method"] == "noise-aware"
    assert study.method == "noise-aware"
    assert not any("pSGLD" in warning for warning in result.record["warnings"])
    age = next(row for row in result.summary() if row["name"] == "age")
    # The table's truth is logistic: a probit slope is about 1 / 1.7 of it.
    assert age["lower"] is not None
    assert age["upper"] is not None
    assert age["lower"] < 0.04 / 1.7 < age["upper"]


def test_one_draw_lets_calibrations_and_trials_count_it(
    probit: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ProbitDraw(OutcomeDraw):
        model = type(probit)

        def outcome(
            self, eta: Floats, others: Floats, rng: np.random.Generator
        ) -> dict[str, Floats]:
            return {"y": (rng.random(eta.size) < ndtr(eta)).astype(float)}

    monkeypatch.setattr(outcome_draws, "_DRAWS", dict(outcome_draws.draws()))
    outcome_draws.add_draw(ProbitDraw())
    with pytest.raises(ValueError, match="a draw called 'probit' already"):
        outcome_draws.add_draw(ProbitDraw())
    assert "probit 8000 10 1" in [cell.key for cell in calibration.other_grid()]
    found = calibration.replicate(calibration.Cell("probit", 400, 4, 3.0), 0)
    assert found.width_ratio > 1.0
    table = Columns.of("made up", pa.table({"age": np.arange(300.0)}))
    records = trial_records.simulated(table, trial_records.Ground("probit"), 0)
    assert records.study.model.kind == "probit"
    seen = records.outcome[records.study.model.outcome_columns()["y"]]
    assert abs(seen.mean() - trial_records.EVENTS["usual"]) < 0.01


def test_parameters_that_its_influence_is_silent_about_are_refused_by_a_plan(
    probit: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(probit), "extra_parameters", lambda self: ("log_sd",))
    with pytest.raises(StudyError, match="says nothing of log_sd"):
        cb.plan(cb.Study(model=probit, features=FEATURES, privacy=PRIVACY))


def test_reports_know_how_much_of_its_information_is_kept(probit: Model) -> None:
    bounded, bound = probit.bounded_influence, InfluenceBound(2.0)
    assert isinstance(bounded, ScoreInfluence)
    certain = bounded.kept_shares(bound, 1.0, mean=0.0, variance=0.0)[0]
    spread = bounded.kept_shares(bound, 1.0, mean=0.0, variance=9.0)[0]
    largest = bounded.largest_score(np.zeros(1))[0]
    assert certain == pytest.approx(min(1.0, bounded.most_score / largest))
    assert 0.0 < spread < certain


def test_an_influence_that_leaves_out_a_bound_is_refused_as_it_is_written() -> None:
    with pytest.raises(TypeError, match="Half does not say its most_information"):
        type("Half", (ScoreInfluence,), {"most_score": 2.0})


def test_an_unknown_kind_is_refused_with_the_kinds_there_are(
    probit: Model, tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(LOGISTIC.replace('"logistic"', '"tobit"'), encoding="utf-8")
    with pytest.raises(StudyError, match=r'unknown model\.kind.*"poisson", "probit"'):
        cb.Study.load(path)


def test_a_kind_belongs_to_one_class(probit: Model) -> None:
    class Another(type(probit)):  # type: ignore[misc]
        pass

    with pytest.raises(ValueError, match="two models of kind 'probit'"):
        registry.register(Another)
    assert registry.register(type(probit)) is type(probit)


@pytest.mark.slow
def test_its_intervals_hold_the_truth_as_often_as_they_say(probit: Model) -> None:
    rng = np.random.default_rng(5)
    covered = []
    for seed in range(20):
        truth = rng.standard_normal(4)
        table = table_of(truth, 2_000, rng)
        prior = Prior().resolve(probit.parameters(table.design))
        study = Simulated(probit, prior, table, truth, clip=1.4)
        rounds = release_rounds(study, 2.0, rng)
        effort = Effort(chains=4, warm_up=40, kept=50, doublings=0)
        draws = sample_posterior(*rounds, seed=seed, effort=effort).draws
        low, high = np.quantile(draws.theta.reshape(-1, 4), [0.05, 0.95], axis=0)
        covered.append((low <= truth) & (truth <= high))
    assert np.mean(covered) >= 0.75


@pytest.mark.slow
@pytest.mark.parametrize("other", [np.median, np.mean])
def test_an_audit_finds_a_model_whose_records_depend_on_each_other(
    other: Callable[[Floats], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cb.models.Logistic,
        "prepare_outcome",
        lambda model, raw: {"y": (raw["y"] >= other(raw["y"])).astype(float)},
    )
    study = cb.Study(
        model={"kind": "logistic", "outcome": "y"},
        features={"x": {"low": 0, "high": 1}},
        privacy={"epsilon": 3.0, "records": 1_000},
        preparation={"method": "public-bounds"},
    )
    assert audit_study(study, runs=16).refuted
