"""Where residuals do not add up to zero: what a fit misses, tested within the noise.

In each group of records there are noised sums S of residuals and V of their variances
under the model. If the model holds, S has mean zero and variance

    V + V² x'Cov x + s²,

V² x'Cov x because the posterior is not sure of what is expected of a group with the
columns x, nor independently of other groups. The level of all groups together is taken
off: it is a matter of calibration. V itself is noised: it is drawn towards the mean of
all groups where the noise is large, which matters little, since s² is then most of the
variance.

Along a number's ranges a parabola is looked for besides any other pattern: a line in
the model would leave it.

An effect that changes over time leaves residuals that differ between the first and the
second half of it. What a group's log hazard is off by all the time is fitted beside it,
as freely as the posterior is unsure of it, a level of either half as freely as can be,
and a curve of usual size: a slope is in the model, so that the posterior tells it, and
a slope in one half alone is a sign of change. Sites are not, and may be off by
anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, ndtr, ndtri

from cipherbayes.typing import Floats

LEAST_VARIANCE = 2.0
"""Standard deviations of its noise that the variance of all groups together must
exceed to be tested."""
BEND_SD = 1.0
"""Standard deviation of the square of a number in the log hazard, its ranges one unit
wide together, beside which a change over time is looked for."""
SPREAD, LEAST_SHARE = 0.5, 0.1
"""How far variances of groups lie apart, in means of them, and the least that one
counts."""


@dataclass(frozen=True)
class GroupTest:
    """A feature's groups, tested.

    Attributes
    ----------
    p
        How surprising residuals like these are if the model holds.
    trend
        Sign of the parabola along a number's ranges, where that is the pattern, else 0.
    shift, lower, upper
        What is missing of the linear predictor in each group, with 90 % intervals: wide
        ones where a group has few records.
    """

    p: float
    trend: int
    shift: Floats
    lower: Floats
    upper: Floats


def groups_test(
    residuals: Floats,
    variances: Floats,
    noise: tuple[float, float],
    unsure: Floats,
    along: Floats | None,
) -> GroupTest | None:
    """Test whether residuals are even over groups; None where there are too few.

    Parameters
    ----------
    residuals, variances
        S and V of each group.
    noise
        Standard deviations of the noise of either.
    unsure
        x'Cov x of every pair of groups.
    along
        Where the groups of a number are on its scale; None for levels and sites.
    """
    size = residuals.size
    own, theirs = noise
    if size < 2 or variances.sum() < LEAST_VARIANCE * theirs * np.sqrt(size):
        return None
    v = _steadied(variances, theirs)
    covariance = np.diag(v + own**2) + np.outer(v, v) * unsure
    # S less what the level of all of them explains: (I - v 1'/sum v) S.
    taken = np.eye(size) - np.outer(v, np.ones(size)) / v.sum()
    centred, covariance = taken @ residuals, taken @ covariance @ taken.T
    tests = [_even(centred, covariance)]
    trend = 0
    if along is not None and size > 2:
        weights = _parabola(along, v)
        sd = float(np.sqrt(weights @ covariance @ weights))
        z = float(weights @ centred) / sd if sd > 0.0 else 0.0
        tests.append(2.0 * float(ndtr(-abs(z))))
        if tests[1] < tests[0]:
            trend = 1 if z > 0.0 else -1
    lacking = _ratio(centred, np.diag(covariance), variances, theirs)
    return GroupTest(min(1.0, len(tests) * min(tests)), trend, *lacking)


def _ratio(
    sums: Floats, spread: Floats, variances: Floats, noise: float
) -> tuple[Floats, Floats, Floats]:
    """S / V of each group and the ends of its 90 % interval, V being noised too.

    Those b for which S - b V is within its own noise (Fieller 1954). A group whose V is
    not clear of its noise may have few records or more: it counts as one of few, and
    its interval is wide.
    """
    few = LEAST_SHARE * float(variances.mean())
    clear = variances > LEAST_VARIANCE * noise
    v = np.where(clear, variances, few)
    t = np.where(clear, float(ndtri(0.95)) * noise, 0.0)
    own = float(ndtri(0.95)) ** 2 * spread
    left = v**2 - t**2
    root = np.sqrt(t**2 * sums**2 + own * left)
    return sums / v, (sums * v - root) / left, (sums * v + root) / left


def _steadied(variances: Floats, noise: float, least: float = 0.0) -> Floats:
    """Variances drawn towards their mean, which is no smaller than ``least``, the more
    so the larger their noise."""
    mean = max(float(variances.mean()), least)
    kept = (SPREAD * mean) ** 2 / ((SPREAD * mean) ** 2 + noise**2)
    found: Floats = np.maximum(mean + kept * (variances - mean), LEAST_SHARE * mean)
    return found


def _even(centred: Floats, covariance: Floats) -> float:
    """P value of the sum of squares of all contrasts between groups."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * values.max()
    parts = vectors[:, kept].T @ centred
    return float(chdtrc(int(kept.sum()), float((parts**2 / values[kept]).sum())))


def _parabola(along: Floats, weight: Floats) -> Floats:
    """A square along a scale, without what a line explains under the weights."""
    basis = np.stack([np.ones_like(along), along])
    line = np.linalg.solve((basis * weight) @ basis.T, (basis * weight) @ along**2)
    result: Floats = along**2 - line @ basis
    return result


def change_test(
    residuals: Floats,
    variances: Floats,
    noise: tuple[float, float],
    unsure: Floats,
    along: Floats | None,
    *,
    free: bool,
) -> float | None:
    """P value of no change from the first half of the time to the second; None where
    there are too few records.

    Parameters
    ----------
    residuals, variances
        S and V of each half and group, ``(2, groups)``.
    noise, unsure
        As for :func:`groups_test`.
    along
        Where the groups of a number are on its scale: a slope is looked for then, else
        any pattern.
    free
        Whether groups may be off by anything all the time.
    """
    size = residuals.shape[1]
    own, theirs = noise
    least = LEAST_VARIANCE * theirs * np.sqrt(2.0 * size)
    if size < 2 or variances.sum() < least:
        return None
    floor = LEAST_SHARE * float(variances.mean())
    v = np.stack([_steadied(half, theirs, floor) for half in variances])
    flat, identity = v.ravel(), np.eye(size)
    covariance = np.diag(flat + own**2)
    covariance += np.outer(flat, flat) * np.tile(unsure, (2, 2))
    # What is off in a half or group as a pattern over both halves.
    halves = [np.repeat(np.eye(2)[half], size) for half in range(2)]
    both = [np.tile(each, 2) for each in identity[1:]] if free else []
    if along is not None and size > 2:
        scale = (along - along.mean()) / (np.ptp(along) or 1.0)
        curve = BEND_SD * flat * np.tile(scale**2, 2)
        covariance += np.outer(curve, curve)
        patterns = [scale]
    else:
        patterns = list(identity[1:])
    change = [np.concatenate([each, -each]) for each in patterns]
    beside = flat * np.array([*halves, *both])
    tested = flat * np.array(change)
    inverse = np.linalg.inv(covariance)
    kept = np.linalg.pinv(beside @ inverse @ beside.T, rcond=1e-9, hermitian=True)
    weigh = inverse - inverse @ beside.T @ kept @ beside @ inverse
    score, information = tested @ weigh @ residuals.ravel(), tested @ weigh @ tested.T
    values, vectors = np.linalg.eigh(information)
    told = values > 1e-9 * max(values.max(), 1e-300)
    if not np.any(told):
        return None
    square = float(((vectors[:, told].T @ score) ** 2 / values[told]).sum())
    return float(chdtrc(int(told.sum()), square))


def level_test(
    residual: float, variance: float, noise: tuple[float, float], unsure: float
) -> GroupTest | None:
    """Test whether one sum of residuals is zero; None where there are too few records.

    Parameters
    ----------
    unsure
        Variance of what the posterior expects of it, in units of V².
    """
    own, theirs = noise
    if variance < LEAST_VARIANCE * theirs:
        return None
    sd = float(np.sqrt(variance + own**2 + variance**2 * unsure))
    shift, reach = residual / variance, float(ndtri(0.95)) * sd / variance
    p = 2.0 * float(ndtr(-abs(residual) / sd))
    found = np.array([shift, shift - reach, shift + reach])
    return GroupTest(p, 0, *found[:, None])
