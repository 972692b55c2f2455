"""Where the values of a column lie, from noised histograms.

A public range may be many times as wide as the data. Two histograms of each numeric
column find where most of its values are: the first over the whole public range, the
second inside the window that the first one found. Sums and squares of the values, held
inside the window that the second one found, then give a mean and a standard deviation.

A window is a centre c and a half width h for each column, in prepared units: the public
range is c = 0, h = 1. Everything here that reads records is bounded record by record,
and everything that reads noised sums is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.typing import Floats

COVERED, MOST_COVERED = 0.9, 0.98
"""Share of the values that a window holds, with much and with little noise."""
BELIEVED = -0.5
"""Standard deviations of noise by which a run of bins must exceed that share. Less than
none: a window that is too short grows anyway, and a run that misses the share by its
noise is followed by far longer ones, whose noise happens to make up for it."""
GROWTH = (0.75, 0.5)
"""By which share of its width a window grows on each side, in either round. For a
normal column the last window ends at 3.3 standard deviations."""
ATOM = 0.5
"""Share of the values in one bin from which on they may all be equal."""
UNSEEN, LACKING, LIKELY = 2.5, 3.5, 2.5
"""Standard deviations of a bin's noise: as many values may be outside of a window where
most are equal; so many must be others than these to be seen; so many at the other end
of a range make it likely that a column is 0 or 1."""
CLEAR = 4.2
"""Standard deviations of noise from which on a run of bins is not empty: the largest
of two thousand runs of noise alone is usually smaller."""
SEEN = 2.0
"""Standard deviations of the noise of a whole histogram that its values must exceed,
where missing ones make their number unknown."""
MOST_NOISE = 0.03
"""Noise of a bin over N from which on histograms find nothing."""
LEAST_SD = 1e-4
"""Least standard deviation of a column, in prepared units."""
LEAST_SHARE = 0.1
"""Least standard deviation of a column in half widths of its window."""
LEAST_BINARY = 0.25
"""Least scale of a 0/1 column: by its own standard deviation a rare level would lie
many of them out."""


@dataclass(frozen=True)
class Numbers:
    """Which columns of a design are numbers, and what stands in for missing ones.

    Attributes
    ----------
    columns
        Columns in all, the intercept not counted.
    places
        Which of them are numbers; the others are 0 or 1.
    stand_ins
        Prepared value that stands in for a missing one; NaN where there is none.
    bins
        Bins of a histogram.
    drawn
        Whether missing values are drawn, so that stand-ins are no values.
    """

    columns: int
    places: tuple[int, ...]
    stand_ins: tuple[float, ...]
    bins: int
    drawn: tuple[bool, ...] = ()

    @property
    def others(self) -> tuple[int, ...]:
        """The 0/1 columns."""
        numbers = set(self.places)
        return tuple(j for j in range(self.columns) if j not in numbers)

    @property
    def whole(self) -> Floats:
        """The public range of every number, as windows."""
        return np.repeat([0.0, 1.0], len(self.places))

    @property
    def histogram_bound(self) -> float:
        """Largest norm of what a record adds to :func:`histograms`."""
        return math.sqrt(len(self.places))

    @property
    def sums_bound(self) -> float:
        """Largest norm of what a record adds to :func:`sums_inside`."""
        return math.sqrt(2 * len(self.places) + len(self.others))


def histograms(
    z: Floats, numbers: Numbers, windows: Floats | None, shares: Floats | None = None
) -> Floats:
    """Counts of the values in equal bins of their windows, one column after the other.

    Parameters
    ----------
    z
        Prepared columns, the intercept aside; shape ``(columns, records)``.
    windows
        Centres, then half widths; None for the public range.
    shares
        By which each row counts; None where every row counts once.

    Formal guarantees
    -----------------
    In each column a record adds one to one bin, or nothing: where its value is outside
    of the window, or where it stands in for a missing one. So its contribution has at
    most one 1 for each number, and norm √(number of numbers) or less, whatever the
    windows are. Counts are integers, hence exact, and so are sums of shares
    (:mod:`~cipherbayes.data.persons`).
    """
    centre, half = np.split(numbers.whole if windows is None else windows, 2)
    counts = np.zeros((len(numbers.places), numbers.bins))
    for k, j in enumerate(numbers.places):
        window = (float(centre[k]), float(half[k]), numbers.stand_ins[k], numbers.bins)
        if shares is None:
            counts[k] = kernels.count_bins(z[j], *window)
            continue
        places, kept = kernels.bin_places(z[j], *window)
        counts[k] = np.bincount(places, shares[kept], minlength=numbers.bins)
    return counts.ravel()


def sums_inside(
    z: Floats, numbers: Numbers, windows: Floats | None, shares: Floats | None = None
) -> Floats:
    """Sums of numbers held inside their windows, of their squares, of 0/1 columns.

    Formal guarantees
    -----------------
    A number adds u and u², u = (z - c) / h held within [-1, 1] (zero for a gap whose
    value is drawn), a 0/1 column its value, within [0, 1]: no entry of a record's
    contribution exceeds one, and its norm is at
    most √(2 numbers + others), whatever the windows are.
    """
    centre, half = np.split(numbers.whole if windows is None else windows, 2)
    u = z[list(numbers.places)]
    u -= centre[:, None]
    u /= half[:, None]
    np.clip(u, -1.0, 1.0, out=u)
    for k, drawn in enumerate(numbers.drawn):
        if drawn:
            gaps = np.abs(z[numbers.places[k]] - numbers.stand_ins[k]) <= 1e-12
            u[k] = np.where(gaps, 0.0, u[k])
    others = np.clip(z[list(numbers.others)], 0.0, 1.0)
    if shares is not None:
        parts = np.concatenate([u, u * u, others]) * shares
        return np.asarray(parts.sum(axis=1))
    first = u.sum(axis=1)
    u *= u
    return np.concatenate([first, u.sum(axis=1), others.sum(axis=1)])


def windows_of(
    counts: Floats,
    noise: float,
    records: float,
    numbers: Numbers,
    windows: Floats | None,
) -> Floats:
    """Windows with most of each column's values, from noised histograms.

    Parameters
    ----------
    counts
        The noised histograms inside ``windows``.
    noise
        Standard deviation of the noise of a bin.
    windows
        Those of the round before; None after the first.

    Formal guarantees
    -----------------
    Whatever the counts are, a window lies within the public range, and its half width
    is at least 1 / bins of the one before (the first: of the public range).
    """
    last = windows is not None
    centre, half = np.split(numbers.whole if windows is None else windows, 2)
    found = np.empty((2, len(numbers.places)))
    for k, noisy in enumerate(counts.reshape(len(numbers.places), numbers.bins)):
        mass = _visible(noisy, noise, records, numbers.stand_ins[k])
        edges = None if mass is None else _edges(noisy, noise, mass, last=last)
        if edges is None:
            found[:, k] = 0.0, 1.0
            continue
        ends = centre[k] + half[k] * (2.0 * np.array(edges) / numbers.bins - 1.0)
        low, high = np.clip(ends, -1.0, 1.0)
        least = half[k] / numbers.bins
        width = min(max(0.5 * float(high - low), least), 1.0)
        found[:, k] = np.clip(0.5 * (low + high), width - 1.0, 1.0 - width), width
    return found.ravel()


def hidden_scales(
    counts: Floats, noise: float, records: float, numbers: Numbers
) -> Floats:
    """Share of a column's values that are equal, where noise hides how far the others
    lie, so that its scale is that of the public range; else zero.

    Parameters
    ----------
    counts
        The noised histograms of the second round.
    """
    found = np.zeros(len(numbers.places))
    for k, noisy in enumerate(counts.reshape(len(numbers.places), numbers.bins)):
        mass = _visible(noisy, noise, records, numbers.stand_ins[k])
        if mass is not None and _edges(noisy, noise, mass, last=True) is None:
            found[k] = min(float(noisy.max()) / mass, 1.0)
    return found


def scales_of(
    sums: Floats,
    noise: float,
    records: float,
    numbers: Numbers,
    windows: Floats | None,
) -> Floats:
    """Means, then scales of all columns, from :func:`sums_inside` with noise.

    A number's scale is the standard deviation of its values held inside the window; a
    0/1 column's is its own, at least ``LEAST_BINARY``.

    Formal guarantees
    -----------------
    Whatever the sums are, every mean lies within [-1, 1] and every scale within
    [``LEAST_SD``, 1].
    """
    centre, half = np.split(numbers.whole if windows is None else windows, 2)
    first, second, others = np.split(
        sums / records, np.cumsum([len(numbers.places)] * 2)
    )
    mean = np.clip(first, -1.0, 1.0)
    # A variance below its own noise would blow the column up to any scale.
    least = min(max(LEAST_SHARE**2, noise / records), 1.0)
    variance = np.clip(np.clip(second, 0.0, 1.0) - mean**2, least, 1.0)
    share = np.clip(others, 0.0, 1.0)
    result = np.empty((2, numbers.columns))
    places, rest = list(numbers.places), list(numbers.others)
    result[0, places] = np.clip(centre + half * mean, -1.0, 1.0)
    result[1, places] = np.clip(half * np.sqrt(variance), LEAST_SD, 1.0)
    result[0, rest] = share
    result[1, rest] = np.maximum(np.sqrt(share * (1.0 - share)), LEAST_BINARY)
    return result.ravel()


def _visible(
    noisy: Floats, noise: float, records: float, stand_in: float
) -> float | None:
    """How many values a histogram has; None where noise hides all of them."""
    missing = not math.isnan(stand_in)
    mass = min(float(noisy.sum()), records) if missing else records
    seen = mass > SEEN * noise * math.sqrt(noisy.size)
    return mass if seen and noise <= MOST_NOISE * records else None


def _edges(
    noisy: Floats, noise: float, mass: float, *, last: bool
) -> tuple[float, float] | None:
    """First and last edge of a window, in bins; None where nothing is to be seen.

    The shortest run of m bins with a mass of q M − σ √m / 2, M all values that are not
    missing, grown on both sides.

    Edge cases
    ----------
    Values that are mostly equal are all in one bin, and say nothing of how far the
    others are. Then the window has nearly all values, and every run that is clearly not
    empty. Where the second round sees no others nothing is known of their scale
    (:func:`hidden_scales`).
    """
    bins = noisy.size
    share = 1.0 - min(
        max(noise * math.sqrt(bins / 2) / mass, 1.0 - MOST_COVERED), 1.0 - COVERED
    )
    sums = np.concatenate([[0.0], np.cumsum(noisy)])
    start, stop = _shortest(sums, share * mass, noise)
    if noisy.max() > ATOM * mass:
        atom = int(noisy.argmax())
        sides = [(0, atom), (atom + 1, bins)]
        runs = [run for side in sides for run in _clear_runs(sums, side, noise)]
        # The others are as many as the bin of the equal ones lacks, wherever they are.
        rest = mass - float(noisy[atom])
        if last and not runs:
            return None if rest < LACKING * noise else (0, bins)
        if not last and atom in (0, bins - 1):
            end = bins - 1 - atom
            if noisy[end] > LIKELY * noise and rest - noisy[end] < UNSEEN * noise:
                runs.append((end, end + 1))
        unseen = max(UNSEEN * noise, (1.0 - MOST_COVERED) * mass)
        runs.append(_shortest(sums, mass - unseen, noise))
        start = min([start, *(run[0] for run in runs)])
        stop = max([stop, *(run[1] for run in runs)])
    more = GROWTH[last] * (stop - start)
    return start - more, stop + more


def _shortest(sums: Floats, wanted: float, noise: float) -> tuple[int, int]:
    """The shortest run with the wanted mass; of equally long ones, the heaviest."""
    bins = sums.size - 1
    for length in range(1, bins):
        runs = sums[length:] - sums[:-length]
        best = int(runs.argmax())
        if runs[best] >= wanted + BELIEVED * noise * math.sqrt(length):
            return best, best + length
    return 0, bins


def _clear_runs(
    sums: Floats, side: tuple[int, int], noise: float
) -> Sequence[tuple[int, int]]:
    """The run of a side that stands out of the noise most, if it is clear."""
    first, end = side
    best = CLEAR * noise
    found: list[tuple[int, int]] = []
    for length in range(1, end - first + 1):
        runs = (sums[first + length : end + 1] - sums[first : end + 1 - length]) / (
            math.sqrt(length)
        )
        place = int(runs.argmax())
        if runs[place] > best:
            best = float(runs[place])
            found = [(first + place, first + place + length)]
    return found
