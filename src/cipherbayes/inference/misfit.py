"""Where residuals do not add up to zero: what a fit misses, tested within the noise.

In each group of records there are noised sums S of residuals and V of their variances
under the model. If the model holds, S has mean zero and variance

    V + V² x'Cov x + s²,

V² x'Cov x because the posterior is not sure of what is expected of a group with the
columns x, nor independently of other groups. The level of all groups together is taken
off: it is a matter of calibration. V itself is noised: it is drawn towards the mean of
all groups where the noise is large, which matters little, since s² is then most of the
variance.

Along a number's ranges one pattern is looked for besides any other: a parabola, which a
line in the model would leave, or a slope, which an effect that changes over time would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, ndtr, ndtri

from cipherbayes.typing import Floats

LEAST_VARIANCE = 2.0
"""Standard deviations of its noise that a variance must exceed: that of all groups
together to be tested, that of a group to be shown."""
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
        Sign of the parabola or of the slope along a number's ranges, where that is the
        pattern, else 0.
    shift, lower, upper
        What is missing of the linear predictor in each group, with 90 % intervals; NaN
        where there are too few records.
    """

    p: float
    trend: int
    shift: Floats
    lower: Floats
    upper: Floats


def test_groups(
    residuals: Floats,
    variances: Floats,
    noise: tuple[float, float],
    unsure: Floats,
    along: Floats | None,
    degree: int,
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
    degree
        Of the pattern along a number: 2 for a parabola, 1 for a slope.
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
    shown = np.where(variances > LEAST_VARIANCE * theirs, v, np.nan)
    shift, spread = centred / shown, np.sqrt(np.diag(covariance)) / shown
    tests = [_even(centred, covariance)]
    trend = 0
    if along is not None and size > 2:
        weights = _pattern(along, v, degree)
        sd = float(np.sqrt(weights @ covariance @ weights))
        z = float(weights @ centred) / sd if sd > 0.0 else 0.0
        tests.append(2.0 * float(ndtr(-abs(z))))
        if tests[1] < tests[0]:
            trend = 1 if z > 0.0 else -1
    reach = float(ndtri(0.95)) * spread
    return GroupTest(
        min(1.0, len(tests) * min(tests)), trend, shift, shift - reach, shift + reach
    )


def _steadied(variances: Floats, noise: float) -> Floats:
    """Variances drawn towards their mean, the more so the larger their noise."""
    mean = float(variances.mean())
    kept = (SPREAD * mean) ** 2 / ((SPREAD * mean) ** 2 + noise**2)
    found: Floats = np.maximum(mean + kept * (variances - mean), LEAST_SHARE * mean)
    return found


def _even(centred: Floats, covariance: Floats) -> float:
    """P value of the sum of squares of all contrasts between groups."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * values.max()
    parts = vectors[:, kept].T @ centred
    return float(chdtrc(int(kept.sum()), float((parts**2 / values[kept]).sum())))


def _pattern(along: Floats, weight: Floats, degree: int) -> Floats:
    """A power along a scale, without what lower powers explain under the weights."""
    basis = np.stack([along**power for power in range(degree)])
    power = along**degree
    line = np.linalg.solve((basis * weight) @ basis.T, (basis * weight) @ power)
    result: Floats = power - line @ basis
    return result
