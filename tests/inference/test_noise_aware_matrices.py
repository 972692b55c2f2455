"""Coordinates of information matrices, and estimates of them from noise."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.noise_aware.alike_columns import follows_from_others
from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.layout import InformationLayout
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.inference.noise_aware.shrinkage import (
    SHARE_SPREAD,
    estimation_error,
    noise_edge,
    shrunk,
)
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.packing import pack, unpack
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import release_rounds, simulate

CASES = [((), True), ((0,), True), ((3, 4), True), ((0,), False), ((3, 4), False)]


def matrix(d: int, constants: tuple[int, ...], seed: int = 0) -> Floats:
    root = np.random.default_rng(seed).standard_normal((d, 3 * d))
    found = root @ root.T + d * np.eye(d)
    for i in constants:
        for j in constants:
            found[i, j] *= i == j
    return np.asarray(found)


def assert_derivatives(parts: Coordinates, rng: np.random.Generator, d: int) -> None:
    """Near the usual place they are those of differences."""
    place = parts.reference + 0.1 * rng.standard_normal(parts.size)
    gradient = rng.standard_normal((d, d))
    gradient = gradient + gradient.T
    found = parts.pulled_back(parts.build(place[None]), gradient[None])[0]
    jacobian = parts.jacobian(place)
    for j in range(parts.size):
        move = 1e-5 * (np.arange(parts.size) == j)
        ahead, behind = parts.build(np.stack([place + move, place - move])).matrix
        change = (ahead - behind) / 2e-5
        assert (gradient * change).sum() == pytest.approx(found[j], rel=1e-4, abs=1e-4)
        assert np.allclose(pack(change), jacobian[j], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("constants", "correlated"), CASES)
def test_coordinates_rebuild_a_matrix(
    constants: tuple[int, ...], correlated: bool
) -> None:
    truth = matrix(6, constants)
    parts = Coordinates(truth, constants, correlated=correlated)
    place = parts.of(truth)
    assert place.shape == (parts.size,)
    assert np.allclose(parts.build(place[None]).matrix[0], truth, rtol=1e-6)


@pytest.mark.parametrize(("constants", "correlated"), CASES)
def test_derivatives_of_the_coordinates_are_those_of_differences(
    constants: tuple[int, ...], correlated: bool
) -> None:
    rng, truth = np.random.default_rng(1), matrix(6, constants)
    parts = Coordinates(truth, constants, correlated=correlated)
    assert_derivatives(parts, rng, 6)


def test_a_frame_changes_what_the_coordinates_mean_and_not_the_matrix() -> None:
    rng, truth = np.random.default_rng(8), matrix(5, (0,))
    frame = np.eye(5)
    frame[4, :4] = rng.standard_normal(4)
    parts = Coordinates(truth, (0,), frame=frame)
    assert np.allclose(parts.build(parts.reference[None]).matrix[0], truth, rtol=1e-6)
    assert_derivatives(parts, rng, 5)


def test_every_place_is_positive_definite() -> None:
    rng, truth = np.random.default_rng(2), matrix(5, (0,))
    parts = Coordinates(truth, (0,))
    places = parts.reference + 2.0 * rng.standard_normal((50, parts.size))
    assert np.linalg.eigvalsh(parts.build(places).matrix).min() > 0.0


def test_a_model_of_constants_alone_has_coordinates_too() -> None:
    parts = Coordinates(np.diag([2.0, 3.0]), (0, 1))
    rebuilt = parts.build(parts.reference[None]).matrix[0]
    assert np.allclose(rebuilt, np.diag([2.0, 3.0]))


def test_means_are_taken_out_before_anything_is_shrunk() -> None:
    """Columns with means are estimated better, in the directions that matter."""
    rng = np.random.default_rng(3)
    mean, spread = rng.uniform(-0.8, 0.8, 9), rng.uniform(0.05, 0.3, 9)
    truth = np.zeros((10, 10))
    truth[0, 0], truth[0, 1:], truth[1:, 0] = 1.0, mean, mean
    truth[1:, 1:] = np.diag(spread) + np.outer(mean, mean)
    truth *= 3_000.0

    def distance(found: Floats) -> float:
        """Of H and Ĥ as information: relative in every direction."""
        values = np.linalg.eigvals(np.linalg.solve(truth, found)).real
        return float((np.log(values) ** 2).sum())

    plain, apart = [], []
    for _ in range(40):
        noise = rng.standard_normal((10, 10))
        noisy = truth + 100.0 * (noise + noise.T) / 2.0
        plain.append(distance(shrunk(noisy, 100.0)))
        apart.append(distance(shrunk(noisy, 100.0, InformationLayout((0,)))))
    assert np.median(apart) < 0.8 * np.median(plain)


def test_an_intercept_hidden_in_its_noise_is_not_divided_by() -> None:
    noise = np.random.default_rng(4).standard_normal((4, 4))
    found = shrunk(50.0 * (noise + noise.T), 100.0, InformationLayout((0,)))
    assert np.linalg.eigvalsh(found).min() > 0.0


def test_a_column_whose_information_is_known_is_not_shrunk_to_the_others() -> None:
    rng = np.random.default_rng(2)
    truth = np.diag([3_000.0, 300.0, 300.0, 300.0, 30.0])
    layout = InformationLayout((0,), shares=((4, 0.01),))
    plain, known = [], []
    for _ in range(40):
        noise = rng.standard_normal((5, 5))
        noisy = truth + 100.0 * (noise + noise.T) / 2.0
        plain.append(shrunk(noisy, 100.0, InformationLayout((0,)))[4, 4])
        known.append(shrunk(noisy, 100.0, layout)[4, 4])
    assert np.median(known) == pytest.approx(30.0, rel=0.3)
    assert np.median(plain) > 2.0 * np.median(known)


@pytest.mark.parametrize("stop", [1.0, 1.4])
def test_the_information_about_a_weibull_shape_is_known_from_its_mass(
    stop: float,
) -> None:
    """Whatever the effects, the shape and the place at which it is taken."""
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        study = simulate("weibull", 4_000, 8, rng)
        shape = ScoreShape.of(study.model, study.table.design)
        place = 0.8 * study.truth
        bound = InfluenceBound(study.clip, stop)
        sums = influence_sums(
            study.model, place, study.table, bound, with_information=True
        )
        assert sums.information is not None
        information = unpack(sums.information)
        layout = shape.layout(shape.inside(place), information, 1e-3)
        parts = Coordinates(information, (0,), frame=layout.frame)
        masses, _, rest = parts.blocks(information)
        ((column, expected),) = layout.expected(masses).items()
        found.append(np.log(rest[column, column] / expected))
    assert np.abs(found).max() < 2.5 * SHARE_SPREAD
    assert np.std(found) < SHARE_SPREAD


def test_a_spike_is_found_and_kept_where_noise_hides_the_rest() -> None:
    rng, d = np.random.default_rng(5), 30
    direction = np.ones(d) / np.sqrt(d)
    truth = 100.0 * (0.5 * np.eye(d) + 15.0 * np.outer(direction, direction))
    noise = rng.standard_normal((d, d))
    noisy = truth + 30.0 * (noise + noise.T) / 2.0
    assert direction @ shrunk(noisy, 30.0) @ direction == pytest.approx(1550, rel=0.1)


def test_correlations_and_the_diagonal_are_coordinates_of_their_own() -> None:
    rng, d = np.random.default_rng(8), 5
    root = rng.standard_normal((d, 9))
    parts = Coordinates(root @ root.T, (0,))
    place = parts.reference.copy()
    place[parts.diagonal] += np.log(3.0)
    before, after = parts.build(np.stack([parts.reference, place])).rest
    assert np.diag(after) == pytest.approx(3.0 * np.diag(before))
    place[parts.entries] *= 0.5
    weaker = parts.build(place[None]).rest[0]
    assert np.diag(weaker) == pytest.approx(np.diag(after))


def test_columns_that_follow_from_others_are_told_by_their_information() -> None:
    rng = np.random.default_rng(3)
    finished = release_rounds(simulate("logistic", 400, 5, rng), 1.0, rng)
    evidence = Evidence.of(*finished)
    x = rng.standard_normal((5, 500))
    x[0] = 1.0
    apart = x @ x.T
    x[3] = x[1] + x[2] + 0.1 * x[3]
    found = follows_from_others(evidence, np.stack([apart, x @ x.T]))
    assert not found[0].any()
    assert found[1].tolist() == [False, True, True, True, False]


def test_what_shrinking_leaves_out_is_about_its_error() -> None:
    rng, d = np.random.default_rng(6), 40
    root = rng.standard_normal((d, 400))
    truth = 10.0 * root @ root.T
    errors, expected = [], []
    for _ in range(10):
        noise = rng.standard_normal((d, d))
        noisy = truth + 800.0 * (noise + noise.T) / 2.0
        error, sizes = estimation_error(noisy, 800.0, ())
        wrong = (shrunk(noisy, 800.0) - truth)[~np.eye(d, dtype=bool)]
        errors.append((wrong**2).mean())
        expected.append(error * sizes.mean() ** 2)
    assert np.mean(expected) == pytest.approx(np.mean(errors), rel=0.3)


def test_correlations_taken_as_estimated_are_counted_as_noise() -> None:
    rng = np.random.default_rng(7)
    study = simulate("logistic", 3_000, 30, rng)
    evidence = Evidence.of(*release_rounds(study, 1.0, rng))
    assert evidence.blurred().variance > 1.05 * evidence.variance


@pytest.mark.parametrize(
    ("dimension", "epsilon", "drawn"),
    [(8, 0.3, True), (30, 0.5, False), (30, 30.0, True), (64, 30.0, False)],
)
def test_correlations_are_drawn_unless_there_are_many_and_noise_hides_them(
    dimension: int, epsilon: float, drawn: bool
) -> None:
    rng = np.random.default_rng(8)
    study = simulate("logistic", 3_000, dimension, rng)
    evidence = Evidence.of(*release_rounds(study, epsilon, rng))
    assert evidence.draws_correlations is drawn


def test_the_largest_eigenvalue_of_noise_is_what_it_is_said_to_be() -> None:
    rng, d = np.random.default_rng(9), 60
    found = []
    for _ in range(10):
        noise = rng.standard_normal((d, d))
        noisy = 1_000.0 * np.eye(d) + 40.0 * (noise + noise.T) / 2.0
        seen = np.diag(noisy) ** -0.5
        found.append(np.linalg.eigvalsh(seen[:, None] * noisy * seen)[-1] - 1.0)
    assert noise_edge(noisy, 40.0, ()) == pytest.approx(np.mean(found), rel=0.1)
