"""What checking and describing will tell, from public numbers alone.

A check is made of the counts that a likely study would have, with the noise that the
plan adds: predictions that are calibrated, of which so many have the event. How wide
the posterior of every score is then says about how wide its interval will be. No
record is looked at.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import expit, ndtri

from cipherbayes.inference.count_check import check_counts
from cipherbayes.inference.number_check import check_numbers
from cipherbayes.inference.recalibration import recalibrate
from cipherbayes.inference.survival_check import check_survival
from cipherbayes.models.held_out import (
    INTERVALS,
    LOG_HAZARDS,
    LOG_ODDS,
    BinaryCheck,
    HeldOutCheck,
    SurvivalCheck,
)
from cipherbayes.models.held_out_numbers import (
    COUNT_EDGES,
    NUMBER_BINS,
    SUMMED_BINS,
    CountCheck,
    NumberCheck,
)
from cipherbayes.models.shared_bins import shared_weights
from cipherbayes.typing import Floats

USUAL, RARE = "usual", "rare"
LEVELS = {USUAL: -1.6, RARE: -3.4}
"""Mean log odds: of events in a fifth of the rows, and in a twentieth."""
LOG_HAZARD, SPREAD = -1.0, 1.0
"""Mean of the log cumulative hazard (events in a third of the rows), and standard
deviation of predictions: an AUC of about 0.75."""
CENSORED = 0.05
"""Hazard of being censored in each interval of the horizon."""
NUMBER_SPREAD, NUMBER_ERROR = 0.2, 0.3
"""Standard deviations of predicted numbers and of errors, in half widths of a range."""
COUNT_LEVEL, COUNT_SPREAD, COUNT_DISPERSION = -0.12, 0.5, 0.5
"""Mean and standard deviation of the log of predicted counts, whose mean is one; and α
where counts vary by more."""
GRID = 1000
"""Made-up rows, evenly spaced over their distribution."""

Widths = dict[str, float]
"""Half of a 90 % interval, by the score's name; errors in parts of their size."""


def expected_widths(
    check: HeldOutCheck, rows: float, noise: float
) -> dict[str, Widths]:
    """How well each score will be known; of binary outcomes also where they are rare.

    Parameters
    ----------
    rows
        Held-out rows to be expected.
    noise
        Standard deviation of the noise of each sum.
    """
    match check:
        case BinaryCheck():
            return {each: _binary(rows, noise, each) for each in LEVELS}
        case SurvivalCheck():
            return {USUAL: _survival(rows, noise)}
        case NumberCheck():
            return {USUAL: _number(rows, noise, check.error_reach)}
        case CountCheck():
            varied = COUNT_DISPERSION if check.reach > CountCheck.reach else 0.0
            return {USUAL: _count(rows, noise, tuple(check.caps), varied)}
    return {}


def _places(mean: float, spread: float) -> Floats:
    """Made-up predictions, normal on their scale."""
    shares = (np.arange(GRID) + 0.5) / GRID
    places: Floats = mean + spread * ndtri(shares)
    return places


def _half(draws: Floats) -> float:
    low, high = np.quantile(draws, [0.05, 0.95])
    return 0.5 * float(high - low)


@lru_cache(maxsize=64)
def _binary(rows: float, noise: float, events: str) -> Widths:
    score = _places(LEVELS[events], SPREAD)
    chance = expit(score)
    shares = rows / GRID * np.stack([1.0 - chance, chance], axis=1)
    counts = (shared_weights(LOG_ODDS, score).T @ shares).ravel()
    fit = recalibrate(counts, noise, tuple(LOG_ODDS.tolist()), rows)
    predicted, observed = (
        (fit.rows * share).sum(axis=1) for share in (fit.predicted, fit.observed)
    )
    return {
        "auc": _half(fit.auc),
        "calibration_slope": _half(fit.calibration_slope),
        "calibration_in_the_large": _half(fit.calibration_in_the_large),
        "predicted_over_observed": _half(predicted / np.maximum(observed, 1e-9)),
    }


@lru_cache(maxsize=64)
def _survival(rows: float, noise: float) -> Widths:
    score = _places(LOG_HAZARD, SPREAD)
    shares = np.full(INTERVALS, 1.0 / INTERVALS)
    hazards = np.exp(score)[:, None] * shares
    leaving = hazards + CENSORED
    there = np.exp(-np.cumsum(leaving, axis=1))
    before = np.concatenate([np.ones((GRID, 1)), there[:, :-1]], axis=1)
    left = (before - there) / leaving
    fates = np.concatenate([left * hazards, left * CENSORED, there[:, -1:]], axis=1)
    counts = shared_weights(LOG_HAZARDS, score).T @ (fates * rows / GRID)
    edges = tuple(LOG_HAZARDS.tolist())
    fit = check_survival(counts.ravel(), noise, edges, shares, rows)
    ratio = fit.observed[:, :, -1] / fit.expected[:, :, -1]
    return {
        "c_index": _half(fit.c_index),
        "calibration_slope": _half(fit.calibration_slope),
        "observed_over_expected": _half(ratio[:, -1]),
        "observed_over_expected_in_thirds": float(
            np.mean([_half(ratio[:, third]) for third in range(3)])
        ),
    }


@lru_cache(maxsize=64)
def _number(rows: float, noise: float, reach: float) -> Widths:
    mean = np.clip(_places(0.0, NUMBER_SPREAD), -1.0, 1.0)
    place = np.searchsorted(np.linspace(-1.0, 1.0, NUMBER_BINS + 1)[1:-1], mean)
    each = rows / GRID
    ones, sums = (
        np.bincount(place, np.full(GRID, each) * weight, NUMBER_BINS)
        for weight in (1.0, mean)
    )
    square = rows * (NUMBER_ERROR / reach) ** 2
    ends = np.full(NUMBER_BINS, -1.0), np.full(NUMBER_BINS, 1.0)
    released = np.concatenate([ones, sums, sums, [square]])
    fit = check_numbers(released, noise, *ends, reach, rows)
    return {"rmse": _half(fit.rmse) / NUMBER_ERROR}


@lru_cache(maxsize=64)
def _count(
    rows: float, noise: float, caps: tuple[float, ...], dispersion: float
) -> Widths:
    mean, bins = np.exp(_places(COUNT_LEVEL, COUNT_SPREAD)), COUNT_EDGES.size + 1
    place = np.searchsorted(COUNT_EDGES, mean)
    each = rows / GRID
    ones = np.bincount(place, np.full(GRID, each), bins)
    counted = each * mean / np.array(caps)[place]
    outcomes = np.bincount(place // SUMMED_BINS, counted, bins // SUMMED_BINS)
    released = np.concatenate([ones, outcomes])
    limits = np.array(caps)
    fit = check_counts(released, noise, COUNT_EDGES, limits, rows, dispersion)
    return {"predicted_over_observed": _half(fit.mean_predicted / fit.mean_observed)}
