"""How good predicted survival is, from noised counts of risk bin × what happened.

A row's score s is the log of the cumulative hazard predicted for the horizon, of which
the share w_j falls into interval j of the horizon. In truth the hazard adds up to

    w_j exp(s + f(s) + a_j + d_jg)

there, f a smooth function, a_j a level of the interval and d_jg one of the third g of
the rows that s is in: all zero if predictions are calibrated. Observed over expected is
told of thirds, and by how much they depart in an interval has little to do with how far
apart their scores are: a slope along the score would keep hazards proportional where
scores are much alike. The counts of bins say beforehand where thirds begin. Censoring
has a rate in each interval and one slope along the score. Scores have a smooth density.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from cipherbayes.inference.noised_counts import (
    SHORT,
    Pull,
    Smooth,
    block_diag,
    likeliest_rates,
    sample_rates,
)
from cipherbayes.inference.score_density import ScoreGrid
from cipherbayes.typing import Floats

LEVEL_SD, SLOPE_SD, BEND_SD = 0.7, 0.8, 0.5
"""Prior standard deviations of f: its mean, its slope, and its second differences from
bin to bin."""
INTERVAL_SD, THIRD_SD = 0.5, 1.0
"""Prior standard deviations of a_j and d_jg."""
LEAST_WEIGHT = 1e-9
"""Least weight of a point of the grid, so that each point is in some third."""
CENSORING, CENSORING_SD, CENSORING_SLOPE_SD = -2.0, 2.0, 1.0
"""Prior mean and standard deviation of the log rate of censoring in an interval, and
standard deviation of its slope along u, the place of s within the bins (-1 to 1)."""
TREND_BEND_SD, TREND_LEVEL_SD = 0.6, 1.0
"""Prior standard deviations of second differences of f and of a_j where a change over
time is tested: what they leave over must not be taken for a change."""
TREND_SD = 3.0
"""Prior standard deviation of a change of the slope along u over the horizon, where it
is tested: hardly any prior."""
PARTS = 4
"""Parts of an interval between which the order of events is told apart."""
GROUPS = ("lowest third", "middle third", "highest third", "all rows")


class SurvivalFit(NamedTuple):
    """Draws of measures of held-out rows; times and groups on the last axes."""

    auc: Floats
    brier: Floats
    c_index: Floats
    log_score: Floats
    calibration_slope: Floats
    events: Floats
    rows: Floats
    expected: Floats
    observed: Floats
    observed_over_expected: Floats


@dataclass(frozen=True)
class _Truth:
    """Hazards on the grid, for each draw: ``(k, points, intervals)``."""

    mass: Floats
    hazards: Floats
    censoring: Floats


def check_survival(
    counts: Floats,
    noise: float,
    edges: tuple[float, ...],
    shares: Floats,
    rows: float | None,
) -> SurvivalFit:
    """The posterior of what the noised counts say of predicted survival.

    Parameters
    ----------
    counts
        Of risk bin × fate (event in each interval, censored in each, event-free at the
        horizon), rows shared between bins, the fate fastest.
    noise
        Standard deviation of the noise of each.
    shares
        w_j: what part of the predicted cumulative hazard each interval has.
    rows
        Held-out rows to be expected; None where the study does not know.
    """
    grid = ScoreGrid(edges)
    fates = 2 * shares.size + 1
    in_bins = counts.reshape(grid.bins, fates).sum(axis=1)
    mass = grid.likeliest(in_bins, noise * float(np.sqrt(fates)), rows)
    cells = _FateCells(_Shape(grid, shares, _third_of(mass)), rows is not None)
    prior = cells.shape.prior(rows)
    phi = sample_rates(_with_rows(counts, rows), noise, cells, prior, SHORT)
    return _measures(phi[1:], cells.shape)


class RiskChange(NamedTuple):
    """How the slope of the log hazard along the predicted one differs between the end
    of the horizon and its beginning, and the p value of no difference."""

    mean: float
    sd: float
    p: float


def risk_test(
    counts: Floats,
    noise: float,
    edges: tuple[float, ...],
    shares: Floats,
    rows: float | None,
) -> RiskChange:
    """Test whether predicted risks separate rows as well late as early; parameters as
    for :func:`check_survival`.

    One slope that changes evenly over the horizon is fitted besides everything that
    proportional hazards may have. At the mode it is about normal, and drawn to zero by
    its prior as much as is taken back here.
    """
    shape = _Shape(ScoreGrid(edges), shares, None)
    cells = _FateCells(shape, rows is not None)
    mode, covariance = likeliest_rates(
        _with_rows(counts, rows), noise, cells, shape.prior(rows)
    )
    place = shape.ends[1] - 1
    kept = 1.0 - covariance[place, place] / TREND_SD**2
    mean = float(mode[place] / kept)
    sd = float(np.sqrt(covariance[place, place] / kept))
    # From the first interval to the last, along one unit of the log hazard.
    scale = 2.0 * float(np.ptp(shape.places) / np.ptp(shape.grid.points))
    return RiskChange(scale * mean, scale * sd, 2.0 * float(ndtr(-abs(mean) / sd)))


def _with_rows(counts: Floats, rows: float | None) -> Floats:
    """Counts, and after them how many rows there should be, where that is known."""
    return counts if rows is None else np.append(counts, rows)


@dataclass(frozen=True)
class _Shape:
    """How parameters make densities and hazards on the grid.

    Parameters: log densities, then values of f, both at the centres of bins; a of each
    interval, then d of each third in each, or where a change over time is tested one
    slope that rises evenly from the first interval to the last; log rates of censoring,
    and their slope.

    Attributes
    ----------
    third_of
        How much of each point is in each third of the rows, ``(points, 3)``; None where
        a change over time is tested.
    """

    grid: ScoreGrid
    shares: Floats
    third_of: Floats | None

    @cached_property
    def places(self) -> Floats:
        """u of every point."""
        centres = self.grid.centres
        middle = 0.5 * (centres[0] + centres[-1])
        places: Floats = (self.grid.points - middle) / (centres[-1] - middle)
        return places

    @cached_property
    def own(self) -> tuple[Floats, Floats]:
        """What intervals have of their own, ``(points, intervals, d)``, and its prior
        standard deviations."""
        intervals = self.shares.size
        each = np.eye(intervals)
        level = np.repeat(each[None], self.places.size, axis=0)
        if self.third_of is not None:
            thirds = np.einsum("pg,jk->pjgk", self.third_of, each)
            own = thirds.reshape(*level.shape[:2], -1)
            sds = np.repeat([INTERVAL_SD, THIRD_SD], [intervals, own.shape[2]])
        else:
            own = (self.places[:, None] * np.linspace(-1.0, 1.0, intervals))[:, :, None]
            sds = np.append(np.full(intervals, TREND_LEVEL_SD), TREND_SD)
        return np.concatenate([level, own], axis=2), sds

    @cached_property
    def by_hazard(self) -> Floats:
        """From parameters of hazards to their logarithms, ``(points, intervals, d)``
        with the first two as one."""
        smooth = np.repeat(self.grid.basis[:, None], self.shares.size, axis=1)
        whole = np.concatenate([smooth, self.own[0]], axis=2)
        return whole.reshape(-1, whole.shape[2])

    @cached_property
    def by_censoring(self) -> Floats:
        """From parameters of censoring to the logarithms of its rates, as in
        :attr:`by_hazard`."""
        intervals = self.shares.size
        level = np.einsum("p,jk->pjk", np.ones_like(self.places), np.eye(intervals))
        slope = np.repeat(self.places[:, None, None], intervals, axis=1)
        whole = np.concatenate([level, slope], axis=2)
        return whole.reshape(-1, whole.shape[2])

    @property
    def ends(self) -> tuple[int, int]:
        """Where parameters of hazards begin, and those of censoring."""
        return self.grid.bins, self.grid.bins + self.by_hazard.shape[1]

    def prior(self, rows: float | None) -> Smooth:
        """The prior of all parameters, for about ``rows`` rows."""
        mean, density = self.grid.prior(rows)
        intervals, (first, last) = self.shares.size, self.ends
        bend_sd = BEND_SD if self.third_of is not None else TREND_BEND_SD
        rates = [CENSORING] * intervals
        sds = [CENSORING_SD] * intervals + [CENSORING_SLOPE_SD]
        root = block_diag(
            density,
            self.grid.departures(LEVEL_SD, SLOPE_SD, bend_sd),
            np.diag(1.0 / self.own[1]),
            np.diag(1.0 / np.array(sds)),
        )
        zeros = np.zeros(last - first)
        return Smooth(np.concatenate([mean, zeros, rates, [0.0]]), root)

    def truth(self, phi: Floats) -> _Truth:
        """What parameters say of every point."""
        first, last = self.ends
        shape = (len(phi), self.grid.points.size, self.shares.size)
        logs = (phi[:, first:last] @ self.by_hazard.T).reshape(shape)
        logs += self.grid.points[:, None] + np.log(np.maximum(self.shares, 1e-12))
        lost = (phi[:, last:] @ self.by_censoring.T).reshape(shape)
        return _Truth(
            self.grid.masses(phi[:, :first]),
            np.exp(np.clip(logs, -30.0, 5.0)),
            np.exp(np.clip(lost, -30.0, 5.0)),
        )


@dataclass(frozen=True)
class _FateCells:
    """Cells of risk bin × fate, the fate fastest; then all rows, where ``total``."""

    shape: _Shape
    total: bool

    def __call__(self, phi: Floats) -> tuple[Floats, Pull]:
        grid, count = self.shape.grid, self.shape.shares.size
        truth = self.shape.truth(phi)
        hazards, censoring, mass = truth.hazards, truth.censoring, truth.mass
        leaving = np.maximum(hazards + censoring, 1e-300)
        staying = np.exp(-leaving)
        there = np.ones((*leaving.shape[:2], count + 1))
        np.cumprod(staying, axis=2, out=there[:, :, 1:])
        left = there[:, :, :-1] * (1.0 - staying) / leaving
        fates = np.concatenate(
            [left * hazards, left * censoring, there[:, :, -1:]], axis=2
        )
        cells = (grid.weights.T @ (mass[:, :, None] * fates)).reshape(len(phi), -1)
        if self.total:
            cells = np.concatenate([cells, mass.sum(axis=1, keepdims=True)], axis=1)

        def pull(weights: Floats) -> Floats:
            by_bin = weights[:, : grid.bins * (2 * count + 1)]
            worth = grid.weights @ by_bin.reshape(len(weights), grid.bins, -1)
            event, lost = worth[:, :, :count], worth[:, :, count : 2 * count]
            gained = (event * hazards + lost * censoring) / leaving
            # What the rest of the way is worth to whoever is still there, from the end.
            ahead = np.empty_like(gained)
            ahead[:, :, -1] = worth[:, :, -1]
            for j in reversed(range(count - 1)):
                stays = staying[:, :, j + 1]
                ahead[:, :, j] = (1.0 - stays) * gained[:, :, j + 1]
                ahead[:, :, j] += stays * ahead[:, :, j + 1]
            # Of one more unit of leaving, whatever for; then of what it is for.
            common = staying * (gained - ahead) * there[:, :, :-1] - left * gained
            scale = mass[:, :, None]
            by_hazard = scale * hazards * (common + left * event)
            by_loss = scale * censoring * (common + left * lost)
            value = (fates * worth).sum(axis=2)
            if self.total:
                value = value + weights[:, -1:]
            flat = (len(weights), -1)
            return np.concatenate(
                [
                    (mass * value) @ grid.basis,
                    by_hazard.reshape(flat) @ self.shape.by_hazard,
                    by_loss.reshape(flat) @ self.shape.by_censoring,
                ],
                axis=1,
            )

        return cells, pull


def _measures(phi: Floats, shape: _Shape) -> SurvivalFit:
    grid, shares = shape.grid, shape.shares
    truth = shape.truth(phi)
    weight = truth.mass / truth.mass.sum(axis=1, keepdims=True)
    cumulated = np.cumsum(truth.hazards, axis=2)
    happened = 1.0 - np.exp(-cumulated)
    hazard = np.exp(np.clip(grid.points, -30.0, 5.0))
    said = 1.0 - np.exp(-hazard[:, None] * np.cumsum(shares))
    ones = weight[:, :, None] * happened
    zeros = weight[:, :, None] * (1.0 - happened)
    brier = (ones * (1.0 - said) ** 2 + zeros * said**2).sum(axis=1)
    held = np.clip(said[:, -1], 1e-9, 1.0 - 1e-9)
    score = ones[:, :, -1] @ np.log(held) + zeros[:, :, -1] @ np.log1p(-held)
    groups = _thirds(weight)
    expected = _with_all(3.0 * np.einsum("kpg,pj->kgj", groups, said))
    observed = _with_all(3.0 * np.einsum("kpg,kpj->kgj", groups, happened))
    return SurvivalFit(
        auc=_won(ones, zeros) / (ones.sum(axis=1) * zeros.sum(axis=1)),
        brier=brier,
        c_index=_concordance(weight, truth.hazards),
        log_score=score,
        calibration_slope=_slope(ones[:, :, -1], cumulated[:, :, -1], grid.points),
        events=truth.mass.sum(axis=1) * ones[:, :, -1].sum(axis=1),
        rows=truth.mass.sum(axis=1, keepdims=True) * groups.sum(axis=1),
        expected=expected,
        observed=observed,
        observed_over_expected=observed / expected,
    )


def _with_all(thirds: Floats) -> Floats:
    """Shares of each third, then of all of them."""
    return np.concatenate([thirds, thirds.mean(axis=1, keepdims=True)], axis=1)


def _won(cases: Floats, controls: Floats) -> Floats:
    """Pairs in which the case has the higher score, equal ones counting one half."""
    below = np.cumsum(controls, axis=1) - 0.5 * controls
    total: Floats = (cases * below).sum(axis=1)
    return total


def _concordance(weight: Floats, hazards: Floats) -> Floats:
    """P(score of the earlier > score of the later) among pairs whose first event comes
    by the horizon, nobody censored; Uno et al. (2011), Statistics in Medicine 30."""
    parts = np.repeat(hazards / PARTS, PARTS, axis=2)
    survival = np.exp(-np.cumsum(parts, axis=2))
    before = np.concatenate([np.ones_like(survival[:, :, :1]), survival[:, :, :-1]], 2)
    events = weight[:, :, None] * (before - survival)
    later = weight[:, :, None] * 0.5 * (before + survival)
    won, total = np.zeros(len(weight)), np.zeros(len(weight))
    for part in range(parts.shape[2]):
        cases, controls = events[:, :, part : part + 1], later[:, :, part : part + 1]
        won = won + _won(cases, controls)[:, 0]
        total = total + (cases.sum(axis=1) * controls.sum(axis=1))[:, 0]
    result: Floats = won / np.maximum(total, 1e-300)
    return result


def _slope(events: Floats, hazard: Floats, score: Floats) -> Floats:
    """Slope of the log cumulative hazard along the predicted one, each point counted by
    the events that are there."""
    share = events / events.sum(axis=1, keepdims=True)
    away = score - (share @ score)[:, None]
    slope: Floats = (share * away * np.log(hazard)).sum(axis=1)
    slope /= (share * away**2).sum(axis=1)
    return slope


def _thirds(weight: Floats) -> Floats:
    """How much of each point of the grid is in each third of the rows, for each draw:
    ``(k, points, 3)``; one third of all is in each."""
    upto = np.cumsum(weight, axis=1)[:, :, None]
    before = upto - weight[:, :, None]
    ends = np.arange(4.0) / 3.0
    inside: Floats = np.minimum(upto, ends[1:]) - np.maximum(before, ends[:-1])
    return inside.clip(0.0)


def _third_of(mass: Floats) -> Floats:
    """How much of each point of the grid is in each third of the rows, of all of which
    ``mass`` says where they are."""
    weight = np.maximum(mass / mass.sum(), LEAST_WEIGHT)
    inside = _thirds((weight / weight.sum())[None])[0]
    share: Floats = inside / inside.sum(axis=1, keepdims=True)
    return share
