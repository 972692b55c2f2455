"""A record that counts in three neighbouring bins, by where between them it is.

Bins of equal width h with centres c_1, ..., c_K. A value v, held within c_1 + h/2 and
c_K - h/2, that is t = (v - c_k) / h ∈ [-1/2, 1/2] widths from its nearest centre,
counts in the bins before it, of it and after it by

    (1/2 - t)² / 2,     3/4 - t²,     (1/2 + t)² / 2

(the quadratic B-spline of that place). These add up to one, c weighted by them to v,
and c² to v² + h²/4: sums over records tell how many there are, and the mean and the
variance of their values, whether these are few or many, and nearly so the sum of any
smooth function of them. Did each record count in one bin, where in it records are would
be a guess.

Formal guarantees
-----------------
The weights' squares add up to 19/32 - 3/4 t² + 3/2 t⁴, which falls from t = 0 to |t| =
1/2: at most 19/32. Outer weights are rounded to multiples of 2⁻²⁰ and the middle one is
what they leave of one, so that weights are multiples of 2⁻²⁰, not negative, and add up
to one exactly; their squares add up to less than :data:`SHARED_NORM`² whatever was
rounded. A value's weights are a function of it alone, by operations on numbers one by
one, each rounded as IEEE 754 says: the same bits wherever it stands.

Edge cases
----------
What is beyond the outer limits, ±∞ included, counts as these; NaN as zero.
"""

from __future__ import annotations

import numpy as np

from cipherbayes.typing import Floats, Integers

SHARED_NORM = 0.7706
"""Bound of the norm of a value's weights: √(19/32) and room for rounding."""
UNIT = 2.0**20


def shared_bins(edges: Floats, values: Floats) -> tuple[Integers, Floats]:
    """The nearest bin of each value, ``(m,)``, and the weights by which it counts in
    the bin before, in that one and in the bin after: ``(3, m)``.

    Parameters
    ----------
    edges
        Equally spaced edges between bins; the outer bins are as wide as the others.
    """
    width = (edges[-1] - edges[0]) / (edges.size - 1)
    held = np.clip(np.nan_to_num(values), edges[0], edges[-1])
    # In widths from the centre of the first bin.
    place = np.clip((held - edges[0]) / width + 0.5, 0.5, edges.size - 0.5)
    nearest = np.clip(np.rint(place), 1.0, edges.size - 1.0)
    away = place - nearest
    before = np.rint(0.5 * (0.5 - away) ** 2 * UNIT) / UNIT
    after = np.rint(0.5 * (0.5 + away) ** 2 * UNIT) / UNIT
    weights: Floats = np.stack([before, 1.0 - before - after, after])
    return nearest.astype(np.int64), weights


def shared_weights(edges: Floats, values: Floats) -> Floats:
    """The weight of each value in every bin, ``(m, bins)``."""
    nearest, weights = shared_bins(edges, values)
    found = np.zeros((values.size, edges.size + 1))
    everyone = np.arange(values.size)
    for step, each in zip((-1, 0, 1), weights, strict=True):
        found[everyone, nearest + step] = each
    return found
