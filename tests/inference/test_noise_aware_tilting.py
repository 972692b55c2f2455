"""The mean of a hazard model's score sum, away from where it was taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.noise_aware import ScoreShape
from cipherbayes.inference.noise_aware.tilting import TiltedScore
from cipherbayes.models.influence import InfluenceBound, require_bounded_influence
from cipherbayes.models.packing import unpack
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import Simulated, simulate

FAR = 0.6


def taken_at(study: Simulated, place: Floats) -> tuple[Floats, TiltedScore]:
    """Score sum at a θ̄, without noise, and its mean as a function of θ."""
    shape = ScoreShape.of(study.model, study.table.design)
    bound = InfluenceBound(study.clip)
    sums = influence_sums(study.model, place, study.table, bound, with_information=True)
    assert sums.information is not None
    assert shape.unit is not None
    information = unpack(sums.information)[None]
    pull = information @ shape.unit
    return sums.gradient, TiltedScore(
        shape, shape.inside(place), information, pull, pull @ shape.unit, pull
    )


def taken_elsewhere(kind: str, seed: int) -> tuple[Simulated, Floats, TiltedScore]:
    """Of very many records, at a θ̄ that is not their truth."""
    rng = np.random.default_rng(seed)
    study = simulate(kind, 40_000, 5, rng, truth_scale=0.7)
    place = study.truth + FAR * rng.standard_normal(5) / np.sqrt(5.0)
    return study, *taken_at(study, place)


@pytest.mark.parametrize("kind", ["exponential", "weibull"])
def test_the_mean_of_a_hazard_score_is_closer_than_a_line(kind: str) -> None:
    bent, line = [], []
    for seed in range(8):
        study, gradient, score = taken_elsewhere(kind, seed)
        truth = score.shape.inside(study.truth)
        away = truth - score.place
        size = np.linalg.norm(gradient)
        bent.append(np.linalg.norm(score.mean(truth[None])[0] - gradient) / size)
        line.append(np.linalg.norm(score.information[0] @ away - gradient) / size)
    assert np.median(bent) < 0.12
    assert np.median(line) > 2.0 * np.median(bent)


def test_scores_vary_as_much_more_as_there_are_more_events() -> None:
    _, _, score = taken_elsewhere("exponential", 1)
    assert score.shape.unit is not None
    assert score.variance_growth(score.place[None]) == pytest.approx(1.0)
    doubled = score.place + np.log(2.0) * score.shape.unit
    assert score.variance_growth(doubled[None]) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("kind", ["exponential", "weibull"])
def test_its_slope_where_it_was_taken_is_the_information(kind: str) -> None:
    _, _, score = taken_elsewhere(kind, 1)
    here = score.place[None]
    assert np.allclose(score.mean(here), 0.0)
    assert np.allclose(score.derivative(here), score.information)


@pytest.mark.parametrize("kind", ["exponential", "weibull"])
def test_its_derivative_is_that_of_differences(kind: str) -> None:
    _, _, score = taken_elsewhere(kind, 2)
    there = score.place[None] + 0.3
    found = score.derivative(there)[0]
    for j in range(5):
        move = 1e-6 * (np.arange(5) == j)
        change = (score.mean(there + move) - score.mean(there - move)) / 2e-6
        assert change[0] == pytest.approx(found[:, j], rel=1e-5, abs=1e-3)


def test_a_straightened_weibull_change_is_the_change_of_the_log_hazard() -> None:
    study = simulate("weibull", 10, 3, np.random.default_rng(0))
    design, away = study.table.design, np.array([[0.2, -0.1, 0.4]])
    form = require_bounded_influence(study.model).straightening(design)
    assert form is not None
    straight = form(away)[0][0]
    shape, log_time, x = np.exp(0.3), np.log(0.2), np.array([1.0, 0.7])
    changed = (np.exp(0.4) - 1.0) * shape * log_time + 0.4 + away[0, :2] @ x
    z = np.array([*x, 1.0 + shape * log_time])
    assert z @ straight == pytest.approx(changed)


def test_a_shapes_column_is_an_exponential_not_a_normal_one() -> None:
    as_exponential: list[Any] = []
    as_normal: list[Any] = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        study = simulate("weibull", 40_000, 4, rng, truth_scale=0.5)
        elsewhere = study.truth - np.array([0.0, 0.0, 0.0, 0.5])
        gradient, score = taken_at(study, elsewhere)
        normal = replace(score, shape=replace(score.shape, skew=None))
        truth = score.shape.inside(study.truth)[None]
        for errors, form in ((as_exponential, score), (as_normal, normal)):
            errors.append(abs(form.mean(truth)[0, -1] / gradient[-1] - 1.0))
    assert np.median(as_exponential) < 0.15
    assert np.median(as_normal) > 0.4
