"""Where residuals do not add up to zero: what a fit misses, tested within the noise.

In each group of records there are noised sums S of residuals and V of their variances
under the model. If the model holds, S has mean zero and variance

    V + V² x'Cov x + s²,

V² x'Cov x because the posterior is not sure of what is expected of a group with the
columns x, nor independently of other groups. The level of all groups together is taken
off: it is a matter of calibration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc, ndtr, ndtri

from cipherbayes.typing import Floats

LEAST_VARIANCE = 2.0
"""Standard deviations of its noise that the variance of a group must exceed: a group
with fewer records tells nothing."""


@dataclass(frozen=True)
class GroupTest:
    """A feature's groups, tested.

    Attributes
    ----------
    p
        How surprising residuals like these are if the model holds.
    bend
        Sign of the curve along a number's ranges: 1 where both ends have more than
        predicted, -1 where they have less, 0 where that is not the pattern.
    shift, lower, upper
        What is missing of the linear predictor in each group, with 90 % intervals; NaN
        where there are too few records.
    """

    p: float
    bend: int
    shift: Floats
    lower: Floats
    upper: Floats


def test_groups(
    residuals: Floats,
    variances: Floats,
    noise: float,
    unsure: Floats,
    along: Floats | None,
) -> GroupTest | None:
    """Test whether residuals are even over groups; None where there are too few.

    Parameters
    ----------
    residuals, variances
        S and V of each group.
    noise
        Standard deviation of the noise of either.
    unsure
        x'Cov x of every pair of groups.
    along
        Where the groups of a number are on its scale; None for levels and sites.
    """
    seen = variances > LEAST_VARIANCE * noise
    shift, spread = (np.full(residuals.size, np.nan) for _ in range(2))
    if seen.sum() < 2:
        return None
    s, v = residuals[seen], variances[seen]
    extra = unsure[np.ix_(seen, seen)]
    covariance = np.diag(v + noise**2) + np.outer(v, v) * extra
    # S less what the level of all of them explains: (I - v 1'/sum v) S.
    taken = np.eye(s.size) - np.outer(v, np.ones(s.size)) / v.sum()
    centred, covariance = taken @ s, taken @ covariance @ taken.T
    shift[seen] = centred / v
    spread[seen] = np.sqrt(np.diag(covariance)) / v
    tests = [_even(centred, covariance)]
    bend = 0
    if along is not None and s.size > 2:
        weights = _quadratic(along[seen], v)
        sd = float(np.sqrt(weights @ covariance @ weights))
        z = float(weights @ centred) / sd if sd > 0.0 else 0.0
        tests.append(2.0 * float(ndtr(-abs(z))))
        if tests[1] < tests[0]:
            bend = 1 if z > 0.0 else -1
    reach = float(ndtri(0.95)) * spread
    return GroupTest(
        min(1.0, len(tests) * min(tests)), bend, shift, shift - reach, shift + reach
    )


def _even(centred: Floats, covariance: Floats) -> float:
    """P value of the sum of squares of all contrasts between groups."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-9 * values.max()
    parts = vectors[:, kept].T @ centred
    return float(chdtrc(int(kept.sum()), float((parts**2 / values[kept]).sum())))


def _quadratic(along: Floats, weight: Floats) -> Floats:
    """A parabola along a scale, without level and slope under the weights."""
    basis = np.stack([np.ones_like(along), along])
    line = np.linalg.solve((basis * weight) @ basis.T, (basis * weight) @ along**2)
    result: Floats = along**2 - line @ basis
    return result
