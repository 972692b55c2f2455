"""Scores, misfit and characteristics from noised counts, against what is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, ndtri

from cipherbayes.inference.count_check import check_counts
from cipherbayes.inference.described import bin_shares
from cipherbayes.inference.misfit import groups_test
from cipherbayes.inference.noised_counts import Smooth
from cipherbayes.inference.number_check import check_numbers
from cipherbayes.inference.recalibration import recalibrate
from cipherbayes.inference.score_density import ScoreGrid
from cipherbayes.inference.survival_check import check_survival
from cipherbayes.models.held_out import INTERVALS, LOG_HAZARDS, LOG_ODDS
from cipherbayes.models.held_out_numbers import COUNT_EDGES
from cipherbayes.models.metrics import (
    auc,
    brier,
    calibration_in_the_large,
    calibration_line,
)
from cipherbayes.models.shared_bins import shared_weights
from cipherbayes.typing import Floats


def spans(draws: Floats, truth: float, width: float) -> bool:
    """Whether a 98 % interval holds the truth and is no wider than said."""
    low, high = np.quantile(draws, [0.01, 0.99])
    return bool(low <= truth <= high and high - low <= width)


def by_bin(edges: Floats, score: Floats, happened: Floats) -> Floats:
    """Sums of what happened to rows, shared between bins."""
    sums: Floats = (shared_weights(edges, score).T @ happened).ravel()
    return sums


def test_a_spline_of_the_log_density_holds_a_normal_one() -> None:
    grid = ScoreGrid(tuple(LOG_ODDS.tolist()))
    mass = grid.masses(-0.5 * ((grid.centres[None] + 1.0) / 1.3) ** 2)[0]
    share = mass / mass.sum()
    assert share @ grid.points == pytest.approx(-1.0, abs=0.01)
    assert share @ (grid.points + 1.0) ** 2 == pytest.approx(1.3**2, rel=0.02)


def test_scores_of_many_rows_with_little_noise_are_those_of_the_rows() -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(-1.5, 1.2, 100_000)
    y = (rng.random(score.size) < expit(0.3 + 0.8 * score)).astype(float)
    counts = by_bin(LOG_ODDS, score, np.stack([1.0 - y, y], axis=1))
    counts += rng.normal(0.0, 3.0, counts.size)
    fit = recalibrate(counts, 3.0, tuple(LOG_ODDS.tolist()), 100_000.0)
    probability = expit(score)
    line = calibration_line(y, probability)
    assert line is not None
    assert spans(fit.auc, auc(y, probability) or 0.0, 0.03)
    assert spans(fit.brier, brier(y, probability) or 0.0, 0.01)
    assert spans(fit.calibration_intercept, line[0], 0.15)
    assert spans(fit.calibration_slope, line[1], 0.1)
    level = calibration_in_the_large(y, probability)
    assert level is not None
    assert abs(level - line[0]) > 0.2  # which of the two it is matters here
    assert spans(fit.calibration_in_the_large, level, 0.15)


def test_calibration_is_told_where_predictions_are_four_values() -> None:
    """All in two bins, away from their centres: if each row counted in its bin only,
    calibration in the large would be told wrong by a tenth or two, and the slope twice
    as steep."""
    rng = np.random.default_rng(3)
    a, b = rng.random(100_000) < 0.35, rng.random(100_000) < 0.5
    score = -1.6 + 0.75 * a + 0.1 * b
    chance = expit(-1.75 + 1.3 * a + 0.5 * b - 0.9 * a * b)
    y = (rng.random(score.size) < chance).astype(float)
    counts = by_bin(LOG_ODDS, score, np.stack([1.0 - y, y], axis=1))
    counts += rng.normal(0.0, 2.0, counts.size)
    fit = recalibrate(counts, 2.0, tuple(LOG_ODDS.tolist()), 100_000.0)
    level = calibration_in_the_large(y, expit(score))
    line = calibration_line(y, expit(score))
    assert level is not None
    assert line is not None
    assert spans(fit.calibration_in_the_large, level, 0.05)
    assert spans(fit.calibration_slope, line[1], 0.2)
    assert spans(fit.brier, brier(y, expit(score)) or 0.0, 0.005)
    # Which of two rows in a bin is the higher is not counted.
    assert fit.auc.mean() == pytest.approx(auc(y, score), abs=0.01)


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_a_million_rows_are_scored_however_little_noise_there_is(noise: float) -> None:
    """The prior has next to no rows where most of these are, and the grid must be fine
    enough to tell how rows of one bin rank."""
    score = -1.8 + 1.2 * ndtri((np.arange(100_000) + 0.5) / 100_000)
    chance = expit(score)
    counts = by_bin(LOG_ODDS, score, 10.0 * np.stack([1.0 - chance, chance], axis=1))
    fit = recalibrate(counts, noise, tuple(LOG_ODDS.tolist()), 1e6)
    won = chance @ np.cumsum(1.0 - chance) / (chance.sum() * (1.0 - chance).sum())
    assert fit.auc.mean() == pytest.approx(won, abs=1e-3)
    assert fit.brier.mean() == pytest.approx((chance * (1 - chance)).mean(), abs=1e-3)
    assert fit.calibration_slope.mean() == pytest.approx(1.0, abs=5e-3)
    assert 1e-4 < fit.auc.std() < 1e-3


def test_nothing_but_noise_says_that_nothing_is_known() -> None:
    rng = np.random.default_rng(1)
    fit = recalibrate(rng.normal(0, 300.0, 34), 300.0, tuple(LOG_ODDS), 800.0)
    low, high = np.quantile(fit.auc, [0.05, 0.95])
    assert high - low > 0.2


def test_survival_of_many_rows_is_told_by_cells() -> None:
    rng = np.random.default_rng(2)
    score = rng.normal(-1.0, 1.0, 60_000)
    time = rng.exponential(size=score.size) / np.exp(score)
    censored = rng.uniform(0.3, 2.0, score.size)
    event, seen = time <= censored, np.minimum(time, censored)
    fate = np.clip(np.ceil(seen * INTERVALS) - 1, 0, INTERVALS - 1).astype(int)
    fate = np.where(event, fate, fate + INTERVALS)
    fate = np.where(seen > 1.0, 2 * INTERVALS, fate)
    counts = by_bin(LOG_HAZARDS, score, np.eye(2 * INTERVALS + 1)[fate])
    counts += rng.normal(0.0, 3.0, counts.size)
    shares = np.full(INTERVALS, 1.0 / INTERVALS)
    fit = check_survival(counts, 3.0, tuple(LOG_HAZARDS), shares, 60_000.0)
    happened = (time <= 1.0).astype(float)
    assert spans(fit.auc[:, -1], auc(happened, score) or 0.0, 0.03)
    said = 1.0 - np.exp(-np.exp(score))
    assert spans(fit.brier[:, -1], brier(happened, said) or 0.0, 0.02)
    assert spans(fit.calibration_slope, 1.0, 0.1)
    ratio = fit.observed[:, :, -1] / fit.expected[:, :, -1]
    assert np.abs(ratio.mean(axis=0) - 1.0).max() < 0.05


def test_a_third_may_depart_early_however_alike_predictions_are() -> None:
    """The lowest third has half of the events that were predicted in the first quarter,
    and as many as predicted after it."""
    score = -0.2 + 0.5 * ndtri((np.arange(900) + 0.5) / 900)
    hazards = np.exp(score)[:, None] * np.full(INTERVALS, 1.0 / INTERVALS)
    hazards[:300, 0] *= 0.5
    there = np.exp(-np.cumsum(np.insert(hazards, 0, 0.0, axis=1), axis=1))
    fates = np.zeros((score.size, 2 * INTERVALS + 1))
    fates[:, :INTERVALS], fates[:, -1] = -np.diff(there), there[:, -1]
    cells = by_bin(LOG_HAZARDS, score, fates)
    shares = np.full(INTERVALS, 1.0 / INTERVALS)
    fit = check_survival(cells, 1.8, tuple(LOG_HAZARDS), shares, 900.0)
    early = np.median(fit.observed_over_expected[:, 0, 0])
    assert abs(early - 0.5) < 0.12


def test_numbers_by_predicted_bin_are_those_of_the_rows() -> None:
    rng = np.random.default_rng(3)
    mean = rng.uniform(-0.8, 0.8, 20_000)
    y = np.clip(mean + rng.normal(0, 0.1, mean.size), -1, 1)
    place = np.clip(np.floor((mean + 1) * 5), 0, 9).astype(int)
    sums = [
        np.bincount(place, weights=w, minlength=10) for w in (mean * 0 + 1, y, mean)
    ]
    total = np.append(np.concatenate(sums), ((y - mean) ** 2).sum())
    noised = total + rng.normal(0, 5.0, total.size)
    fit = check_numbers(noised, 5.0, np.full(10, 0.0), np.full(10, 200.0), 1.0, None)
    assert fit.shown == [j not in (0, 9) for j in range(10)]
    assert fit.rmse is not None
    assert spans(fit.rmse, 10.0, 2.0)
    assert spans(fit.mean_observed, 100.0 + 100.0 * y.mean(), 2.0)
    # What a bin predicts is in the bin, though noise is all that empty ones have.
    edges = np.linspace(0.0, 200.0, 11)
    assert np.all((edges[:-1] <= fit.predicted) & (fit.predicted <= edges[1:]))


def number_sums(rows: float, square: float) -> Floats:
    """Rows in the middle bins that are predicted at the middle of their bins."""
    count = np.zeros(10)
    count[4:6] = rows / 2.0
    places = count * np.linspace(-0.9, 0.9, 10)
    return np.concatenate([count, places, places, [rows * square]])


def test_an_error_whose_squares_are_lost_in_noise_is_not_said_to_be_zero() -> None:
    ends = np.full(10, -1.0), np.full(10, 1.0)
    fit = check_numbers(number_sums(800.0, -0.05), 30.0, *ends, 1.0, 800.0)
    lower, upper = np.quantile(fit.rmse, [0.05, 0.95])
    assert 0.0 < lower < 0.1 < upper < 0.5


@pytest.mark.parametrize("in_noise", [0.2, 2.4])
def test_intervals_of_errors_hold_however_much_noise_there_is(in_noise: float) -> None:
    """Squared errors add up to so many standard deviations of the noise."""
    ends, noise, rows = (np.full(10, -1.0), np.full(10, 1.0)), 10.0, 800.0
    square = in_noise * noise / rows
    away = ndtri((np.arange(200) + 0.5) / 200) * noise
    held = 0
    for each in away:
        sums = number_sums(rows, square + float(each) / rows)
        fit = check_numbers(sums, noise, *ends, 1.0, rows)
        lower, upper = np.quantile(fit.rmse, [0.05, 0.95])
        held += int(lower <= np.sqrt(square) <= upper)
    assert 0.9 <= held / away.size <= 0.97


def test_an_error_is_as_unsure_as_normal_or_heavier_tails_would_make_it() -> None:
    ends = np.full(10, -1.0), np.full(10, 1.0)
    fit = check_numbers(number_sums(10_000.0, 0.01), 0.01, *ends, 1.0, 10_000.0)
    spread = fit.rmse.std() / fit.rmse.mean()
    # Half the variance of a square over its squared mean, 2 or 8, in standard errors.
    assert (
        1.1 * 0.5 * np.sqrt(2.0 / 10_000) < spread < 0.9 * 0.5 * np.sqrt(8.0 / 10_000)
    )


def test_how_many_rows_there_are_is_as_sure_as_what_is_expected() -> None:
    ends = np.full(10, -1.0), np.full(10, 1.0)
    told, untold = (
        check_numbers(number_sums(800.0, 0.05), 30.0, *ends, 1.0, rows)
        for rows in (800.0, None)
    )
    assert abs(told.everybody.mean() - 800.0) < 5.0
    assert told.everybody.std() < 0.5 * untold.everybody.std()


def test_the_slope_of_a_heavy_tailed_prior_is_that_of_its_log_density() -> None:
    rng = np.random.default_rng(4)
    root = rng.standard_normal((5, 3))
    prior = Smooth(rng.standard_normal(3), root, np.array([1.0, 3.0, *[np.inf] * 3]))
    phi = 3.0 * rng.standard_normal((1, 3))
    away, _ = prior.away(phi)
    slope = -(prior.weights(away) * away) @ root
    for k, step in enumerate(1e-5 * np.eye(3)):
        rise = prior.away(phi + step)[1] - prior.away(phi - step)[1]
        assert abs(rise[0] / 2e-5 - slope[0, k]) < 1e-6
    far = Smooth(np.zeros(1), np.eye(1), np.array([1.0])).away(np.array([[0.0], [9.0]]))
    assert abs(far[1][0] - far[1][1] - np.log(82.0)) < 1e-12


def residual_sums(bend: float, noise: float, seed: int) -> tuple[Floats, Floats]:
    """Five groups of a column whose effect is a line, or bends."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(4000)
    y = rng.random(x.size) < expit(-1.0 + 0.5 * x + bend * (x**2 - 1.0))
    p = expit(-1.0 + 0.5 * x)
    place = np.searchsorted([-0.9, -0.3, 0.3, 0.9], x)
    sums = [np.bincount(place, weights=w) for w in (y - p, p * (1.0 - p))]
    residuals, variances = (s + rng.normal(0, noise, 5) for s in sums)
    return residuals, variances


def test_a_curve_is_found_and_a_line_is_left_alone() -> None:
    along, sure = np.linspace(-1.2, 1.2, 5), np.zeros((5, 5))
    curved = groups_test(*residual_sums(0.3, 10.0, 0), (10.0, 10.0), sure, along)
    assert curved is not None
    assert curved.p < 0.001
    assert curved.trend == 1
    tests = [
        groups_test(*residual_sums(0.0, 10.0, s), (10.0, 10.0), sure, along)
        for s in range(200)
    ]
    alarms = [test.p < 0.05 for test in tests if test is not None]
    assert len(alarms) == 200
    assert np.mean(alarms) < 0.09


def test_counts_and_their_rows_vary_together() -> None:
    """Predicted over observed does not depend on how many rows there happen to be."""
    rng = np.random.default_rng(6)
    caps = 3.0 * np.append(COUNT_EDGES, 32.0) + 4.0
    found = []
    for rows in (700, 1000):
        mean = np.exp(rng.normal(0.3, 0.6, rows))
        y, place = rng.poisson(mean), np.searchsorted(COUNT_EDGES, mean)
        sums = (
            np.bincount(place, minlength=18),
            np.bincount(place // 3, y / caps[place], 6),
        )
        fit = check_counts(np.concatenate(sums), 0.5, COUNT_EDGES, caps, 850.0, 0.0)
        ratio = fit.mean_predicted / fit.mean_observed
        assert ratio.mean() == pytest.approx(mean.sum() / y.sum(), abs=0.03)
        found.append(ratio.std())
    # A Poisson sum of about rows x 1.6 varies by this much; twice if rows did too.
    assert all(0.7 < sd * np.sqrt(850 * 1.6) < 1.4 for sd in found)


def test_a_density_of_predicted_counts_may_end_at_an_edge() -> None:
    """No prediction is above e, most are near it; the counts are those to be
    expected."""
    place = (np.arange(40_000.0) + 0.5) / 40_000.0
    mean = np.exp(1.0 + 0.7 * np.log(place))
    caps = 3.0 * np.append(COUNT_EDGES, 32.0) + 4.0
    bins = np.searchsorted(COUNT_EDGES, mean)
    sums = (
        np.bincount(bins, minlength=18),
        np.bincount(bins // 3, mean / caps[bins], 6),
    )
    counts = np.concatenate(sums) / 50.0
    fit = check_counts(counts, 10.0, COUNT_EDGES, caps, 800.0, 0.0)
    assert fit.rows.mean(axis=0)[4:].sum() < 25.0  # 42 if it had to be smooth
    low, high = np.quantile(fit.mean_predicted, [0.05, 0.95])
    assert low <= mean.mean() <= high


def test_groups_that_drown_in_noise_are_not_tested() -> None:
    few = np.array([3.0, -2.0, 1.0])
    assert groups_test(few, np.abs(few), (50.0, 50.0), np.zeros((3, 3)), None) is None


def test_intervals_hold_what_groups_lack_however_few_records_they_have() -> None:
    """A share of 600 is known to ±0.012 where it is 0.9; one below 0.85 is a failure in
    one of thousands of right ones. None of the groups is left out."""
    rng, shares = np.random.default_rng(7), np.array([0.02, 0.08, 0.3, 0.4, 0.2])
    lacking = np.array([1.2, -0.3, 0.0, 0.2, -0.4])
    rows, noise = 1200, 7.0
    held, hidden = [], []
    for _ in range(600):
        group, score = rng.choice(5, rows, p=shares), rng.normal(-1.6, 1.0, rows)
        p, y = expit(score), rng.random(rows) < expit(score + lacking[group])
        residuals, variances = (
            np.bincount(group, weights=w, minlength=5) + rng.normal(0.0, noise, 5)
            for w in (y - p, p * (1.0 - p))
        )
        found = groups_test(
            residuals, variances, (noise, noise), np.zeros((5, 5)), None
        )
        assert found is not None
        away = lacking - shares @ lacking
        held.append((found.lower <= away) & (away <= found.upper))
        hidden.append(variances < 2.0 * noise)
    assert np.mean(hidden, axis=0)[0] > 0.5  # which would have been left out
    assert np.mean(held, axis=0).min() > 0.85


def test_shares_of_levels_add_up_and_are_near_the_truth() -> None:
    rng = np.random.default_rng(4)
    truth = np.array([600.0, 250.0, 100.0, 50.0])
    counts = truth + rng.normal(0.0, 15.0, (3, 4))
    shares = bin_shares(
        counts[:, None],
        np.full(4, 15.0),
        (np.full((3, 1), 1000.0), np.zeros((3, 1))),
        ranges=False,
    ).shares[:, 0]
    assert np.allclose(shares.sum(axis=2), 1.0)
    assert shares.min() >= 0.0
    assert np.abs(shares.mean(axis=(0, 1)) - truth / 1000.0).max() < 0.03


@pytest.mark.slow
def test_a_number_in_ranges_keeps_its_mean_and_its_spread() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0.0, 1.0, 5000)
    edges = np.linspace(-3.0, 3.0, 17)
    truth = np.bincount(np.searchsorted(edges[1:-1], values), minlength=16)
    counts = truth + rng.normal(0.0, 60.0, (20, 16))
    found = bin_shares(
        counts[:, None],
        np.full(16, 60.0),
        (np.full((20, 1), 5000.0), np.zeros((20, 1))),
        ranges=True,
        profile=np.tile(-0.5 * ((np.arange(16) - 7.5) * 6 / 16) ** 2, (20, 1)),
    )
    shares = found.shares[:, 0]
    assert found.smooth.mean() > 0.9
    middles = 0.5 * (edges[1:] + edges[:-1])
    means = shares @ middles
    spread = np.sqrt(shares @ middles**2 - means**2)
    assert abs(means.mean()) < 0.1
    assert spread.mean() == pytest.approx(1.0, abs=0.15)
    low, high = np.quantile(means, [0.05, 0.95], axis=1)
    assert np.mean((low < values.mean()) & (values.mean() < high)) >= 0.7


def test_a_column_of_few_values_is_not_smoothed() -> None:
    rng = np.random.default_rng(6)
    truth = np.zeros(16)
    truth[[3, 5, 8, 15]] = 500.0, 200.0, 200.0, 100.0
    counts = truth + rng.normal(0.0, 15.0, (10, 16))
    found = bin_shares(
        counts[:, None],
        np.full(16, 15.0),
        (np.full((10, 1), 1000.0), np.zeros((10, 1))),
        ranges=True,
    )
    assert found.smooth.mean() < 0.1
    assert np.abs(found.shares.mean(axis=(0, 1, 2)) - truth / 1000.0).max() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("apart", "least"), [(0.1, 0.9), (0.7, 0.82)])
def test_levels_of_sites_hold_whether_sites_are_alike_or_not(
    apart: float, least: float
) -> None:
    """Twenty sites of 300 records, noise of 30; log shares differ between sites by a
    normal of sd ``apart``. Of 2,400 intervals a share is known to about ±0.012: 0.95
    held where sites are alike, 0.88 where they differ by factors of two."""
    rng = np.random.default_rng(11)
    levels = np.log([0.5, 0.3, 0.15, 0.05])
    odds = np.exp(levels + apart * rng.standard_normal((30, 20, 4)))
    truth = rng.multinomial(300, odds / odds.sum(axis=2, keepdims=True)).astype(float)
    counts = truth + rng.normal(0.0, 30.0, truth.shape)
    records = np.full((30, 20), 300.0), np.full((30, 20), 15.0)
    found = bin_shares(counts, np.full(4, 30.0), records, ranges=False).shares
    low, high = np.quantile(300.0 * found, [0.05, 0.95], axis=2)
    assert np.mean((low <= truth) & (truth <= high)) > least


def test_a_level_that_is_rare_everywhere_is_not_told_too_high_at_sites() -> None:
    """Ten sites of 400 records; 8 of each have the level, the noise is 20."""
    rng = np.random.default_rng(7)
    truth = np.tile([392.0, 8.0], (20, 10, 1))
    counts = truth + rng.normal(0.0, 20.0, truth.shape)
    rows = np.full((20, 10), 400.0), np.full((20, 10), 5.0)
    shares = bin_shares(counts, np.full(2, 20.0), rows, ranges=False).shares
    told = 400.0 * shares[..., 1]
    assert told.mean() < 2.0 * 8.0
    low, high = np.quantile(told.sum(axis=1), [0.05, 0.95], axis=1)
    assert np.mean((low <= 80.0) & (high >= 80.0)) >= 0.75


def test_sites_that_differ_are_not_told_to_be_alike() -> None:
    rng = np.random.default_rng(8)
    truth = np.array([[300.0, 100.0], [100.0, 300.0], [380.0, 20.0]])
    counts = truth + rng.normal(0.0, 15.0, (20, 3, 2))
    rows = np.full((20, 3), 400.0), np.full((20, 3), 5.0)
    shares = bin_shares(counts, np.full(2, 15.0), rows, ranges=False).shares
    assert np.abs(400.0 * shares.mean(axis=(0, 2)) - truth).max() < 8.0
    low, high = np.quantile(400.0 * shares[..., 0], [0.05, 0.95], axis=2)
    assert np.mean((low <= truth[:, 0]) & (truth[:, 0] <= high)) >= 0.8


def test_intervals_hold_levels_of_many_sites_that_differ() -> None:
    """Twenty sites of 300 records whose shares differ, and noise of 30: how far sites
    are apart is told by their shares, not by how many records they have. Of 160
    intervals fewer than 0.82 hold in one of a thousand trials if each holds in 0.9."""
    rng = np.random.default_rng(9)
    differ = 0.5 * rng.standard_normal((8, 20, 2))
    share = expit(np.log(1.5) + differ[..., 0] - differ[..., 1])
    first = rng.binomial(300, share).astype(float)
    truth = np.stack([first, 300.0 - first], axis=2)
    counts = truth + rng.normal(0.0, 30.0, truth.shape)
    rows = np.full((8, 20), 300.0), np.full((8, 20), 10.0)
    shares = bin_shares(counts, np.full(2, 30.0), rows, ranges=False).shares
    low, high = np.quantile(300.0 * shares[..., 0], [0.05, 0.95], axis=2)
    assert np.mean((low <= first) & (first <= high)) >= 0.82
