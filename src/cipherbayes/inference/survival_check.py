"""How good predicted survival is, from noised counts of risk bin × what happened.

A row's score s is the log of the cumulative hazard predicted for the horizon, of which
the share w_j falls into interval j of the horizon. In truth the hazard adds up to
w_j exp(a_j + (b + d z_j) s + c s² / 4) there, z_j from -1 to 1: a = c = d = 0 and b = 1
if predictions are calibrated. Censoring has a rate in each interval, whatever the
score. Scores have a smooth density.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cipherbayes.inference.noised_counts import (
    Pull,
    Smooth,
    sample_rates,
)
from cipherbayes.inference.score_density import ScoreGrid
from cipherbayes.typing import Floats

LEVELS_SD, SLOPE_SD, CHANGE_SD, BEND_SD = 0.7, 0.8, 0.3, 0.3
"""Prior standard deviations of a_j, b, d and c."""
CENSORING, CENSORING_SD = -2.0, 2.0
"""Prior mean and standard deviation of the log rate of censoring in an interval."""
PARTS = 4
"""Parts of an interval between which the order of events is told apart."""
GROUPS = ("lowest third", "middle third", "highest third")


class SurvivalFit(NamedTuple):
    """Draws of measures of held-out rows; times and groups on the last axes."""

    auc: Floats
    brier: Floats
    c_index: Floats
    log_score: Floats
    calibration_slope: Floats
    rows: Floats
    expected: Floats
    observed: Floats


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
        horizon), the fate fastest.
    noise
        Standard deviation of the noise of each.
    shares
        w_j: what part of the predicted cumulative hazard each interval has.
    rows
        Held-out rows to be expected; None where the study does not know.
    """
    grid = ScoreGrid(edges)
    known = np.array([]) if rows is None else np.array([rows])
    cells = _FateCells(grid, shares, bool(known.size))
    prior = _prior(grid, shares.size, rows)
    phi = sample_rates(np.append(counts, known), noise, cells, prior)
    # Measures need fewer draws than the sampler makes, and much memory for each.
    return _measures(phi[::2], grid, shares)


@dataclass(frozen=True)
class _FateCells:
    """Cells of risk bin × fate, the fate fastest; then all rows, where ``total``."""

    grid: ScoreGrid
    shares: Floats
    total: bool

    def __call__(self, phi: Floats) -> tuple[Floats, Pull]:
        grid, count = self.grid, self.shares.size
        truth = _truth(phi, grid, self.shares)
        hazards, censoring, mass = truth.hazards, truth.censoring, truth.mass
        leaving = np.maximum(hazards + censoring, 1e-300)
        staying = np.exp(-leaving)
        there = np.ones((*leaving.shape[:2], count + 1))
        np.cumprod(staying, axis=2, out=there[:, :, 1:])
        left = there[:, :, :-1] * (1.0 - staying) / leaving
        fates = np.concatenate(
            [left * hazards, left * censoring, there[:, :, -1:]], axis=2
        )
        cells = (grid.bin_of.T @ (mass[:, :, None] * fates)).reshape(len(phi), -1)
        if self.total:
            cells = np.concatenate([cells, mass.sum(axis=1, keepdims=True)], axis=1)

        def pull(weights: Floats) -> Floats:
            by_bin = weights[:, : grid.bins * (2 * count + 1)]
            worth = grid.bin_of @ by_bin.reshape(len(phi), grid.bins, -1)
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
            along = grid.points @ by_hazard
            change = along @ np.linspace(-1.0, 1.0, count)
            bent = (0.25 * grid.points**2 @ by_hazard).sum(axis=1)
            return np.concatenate(
                [
                    (mass * value) @ grid.basis,
                    by_hazard.sum(axis=1),
                    along.sum(axis=1, keepdims=True),
                    change[:, None],
                    bent[:, None],
                    by_loss.sum(axis=1),
                ],
                axis=1,
            )

        return cells, pull


def _prior(grid: ScoreGrid, intervals: int, rows: float | None) -> Smooth:
    shape, density = grid.prior(rows)
    sds = (
        [LEVELS_SD] * intervals
        + [SLOPE_SD, CHANGE_SD, BEND_SD]
        + [CENSORING_SD] * intervals
    )
    rest = [0.0] * intervals + [1.0, 0.0, 0.0] + [CENSORING] * intervals
    root = np.zeros((len(density) + len(sds), grid.bins + len(sds)))
    root[: len(density), : grid.bins] = density
    root[len(density) :, grid.bins :] = np.diag(1.0 / np.array(sds))
    return Smooth(np.concatenate([shape, rest]), root)


def _truth(phi: Floats, grid: ScoreGrid, shares: Floats) -> _Truth:
    intervals, first = shares.size, grid.bins
    levels = phi[:, first : first + intervals]
    slope, change, bend = phi[:, first + intervals :].T[:3, :, None]
    slopes = slope + change * np.linspace(-1.0, 1.0, intervals)
    logs = np.log(np.maximum(shares, 1e-12)) + levels
    logs = logs[:, None, :] + slopes[:, None, :] * grid.points[:, None]
    logs = logs + (0.25 * bend * grid.points**2)[:, :, None]
    censoring = np.exp(np.clip(phi[:, first + intervals + 3 :], -30.0, 5.0))
    return _Truth(
        grid.masses(phi[:, :first]),
        np.exp(np.clip(logs, -30.0, 5.0)),
        np.broadcast_to(censoring[:, None, :], logs.shape),
    )


def _measures(phi: Floats, grid: ScoreGrid, shares: Floats) -> SurvivalFit:
    truth = _truth(phi, grid, shares)
    weight = truth.mass / truth.mass.sum(axis=1, keepdims=True)
    happened = 1.0 - np.exp(-np.cumsum(truth.hazards, axis=2))
    hazard = np.exp(np.clip(grid.points, -30.0, 5.0))
    said = 1.0 - np.exp(-hazard[:, None] * np.cumsum(shares))
    ones = weight[:, :, None] * happened
    zeros = weight[:, :, None] * (1.0 - happened)
    brier = (ones * (1.0 - said) ** 2 + zeros * said**2).sum(axis=1)
    held = np.clip(said[:, -1], 1e-9, 1.0 - 1e-9)
    score = ones[:, :, -1] @ np.log(held) + zeros[:, :, -1] @ np.log1p(-held)
    groups = _thirds(weight)
    inside = np.maximum(weight @ groups, 1e-12)[:, :, None]
    return SurvivalFit(
        auc=_won(ones, zeros) / (ones.sum(axis=1) * zeros.sum(axis=1)),
        brier=brier,
        c_index=_concordance(weight, truth.hazards),
        log_score=score,
        calibration_slope=phi[:, grid.bins + shares.size],
        rows=truth.mass @ groups,
        expected=groups.T @ (weight[:, :, None] * said) / inside,
        observed=groups.T @ ones / inside,
    )


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


def _thirds(weight: Floats) -> Floats:
    """Which third of the rows each point of the grid is in, ``(points, 3)``."""
    below = np.cumsum(weight.mean(axis=0)) - 0.5 * weight.mean(axis=0)
    place = np.minimum((3.0 * below).astype(np.int64), 2)
    groups: Floats = np.eye(3)[place]
    return groups
