"""Whether values pile up at the ends of a public range, from the released histogram.

A value beyond its range counts as the range's end, so a range that is too narrow shows
as a last bin that holds far more than any other. What is read here are noised counts
that a study has released anyway: post-processing, without a further privacy cost.
"""

from __future__ import annotations

import numpy as np

from cipherbayes.data.windows import Numbers
from cipherbayes.typing import Floats

LEAST = 0.03
"""Share of a column's values in its last bin, from which on it may be a pile."""
STANDS_OUT = (3.0, 1.5)
"""Times the fullest of the other bins that a pile at the lower and the upper end holds.
Many columns begin at their most frequent value (counts, amounts, detection limits);
few end there."""
SURE = 3.0
"""Standard deviations of noise by which both must be exceeded."""


def piles(counts: Floats, noise: float, records: float, numbers: Numbers) -> Floats:
    """Share of the values at the lower and upper end of each range, where they pile up.

    Parameters
    ----------
    counts
        The noised histograms over the public ranges, one number after the other.
    noise
        Standard deviation of the noise of a bin.

    Returns
    -------
    Floats
        Shape ``(numbers, 2)``; zero where there is no pile.
    """
    found = np.zeros((len(numbers.places), 2))
    for k, noisy in enumerate(counts.reshape(len(numbers.places), numbers.bins)):
        mass = records
        if not np.isnan(numbers.stand_ins[k]):
            mass = min(float(noisy.sum()), records)
        if mass <= 0.0:
            continue
        for side, times in enumerate(STANDS_OUT):
            end = -1 if side else 0
            others = np.delete(noisy, end)
            beyond_others = noisy[end] - times * others.max()
            if noisy[
                end
            ] - SURE * noise > LEAST * mass and beyond_others > SURE * noise * np.hypot(
                1.0, times
            ):
                found[k, side] = min(noisy[end] / mass, 1.0)
    return found
