"""How good predicted numbers are, from noised sums by predicted bin.

For each bin of predictions there are noised sums of ones, of outcomes and of
predictions. The true sums are drawn from normals around the released ones, whose
variance is that of the noise plus that of the outcomes themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.typing import Floats

DRAWS = 4000
"""Number of draws of every measure."""
SEEN = 4.0
"""Number of rows of a bin, in standard deviations of its noise, above which it is
shown."""


@dataclass(frozen=True)
class MeanFit:
    """Draws of measures of held-out rows, with bins on the last axis.

    ``shown`` says which bins have enough rows.
    """

    rows: Floats
    predicted: Floats
    observed: Floats
    shown: list[bool]
    mean_predicted: Floats
    mean_observed: Floats


@dataclass(frozen=True)
class NumberFit(MeanFit):
    """The same of numbers, with the root of the mean squared error."""

    rmse: Floats


def check_numbers(
    sums: Floats, noise: float, lows: Floats, highs: Floats, reach: float
) -> NumberFit:
    """Measures of predicted numbers, from noised sums.

    Parameters
    ----------
    sums
        Rows, outcomes and predictions of each bin, outcomes and predictions as places
        within a range; then the sum of squared errors.
    noise
        Standard deviation of the noise of each.
    lows, highs
        The ends of each bin's range of values, between which they count from -1 to 1.
    reach
        Half widths in which errors are counted.
    """
    rng = np.random.default_rng(1)
    bins = lows.size
    count, outcome, prediction = sums[: 3 * bins].reshape(3, bins)
    shown = count > SEEN * noise
    rows = np.maximum(count, 1.0)

    # The number of rows in a bin varies from sample to sample, and its sums with it.
    # That changes means over all bins, not those within a bin.
    more = rng.standard_normal((DRAWS, bins)) * np.sqrt(np.maximum(count, 0.0)) / rows

    def drawn(values: Floats, variance: Floats | float, vary: Floats) -> Floats:
        spread = np.sqrt(noise**2 + variance)
        own = spread * rng.standard_normal((DRAWS, values.size))
        return values * (1.0 + vary) + own

    counts = np.maximum(drawn(count, 0.0, more), 1.0)
    centre, half = 0.5 * (lows + highs), 0.5 * (highs - lows)
    total = float(np.maximum(count[shown].sum(), 1.0))
    error = float(np.clip(sums[-1] / total, 1e-6, 1.0))
    # The variance of a squared normal error is 2 σ⁴.
    square = drawn(sums[-1:], 2.0 * error**2 * total, np.zeros(1))[:, 0]
    vary: Floats = rows * error * reach**2
    outcomes, predictions = drawn(outcome, vary, more), drawn(prediction, 0.0, more)

    def value(places: Floats, over: Floats) -> Floats:
        return centre + half * places / over

    def overall(places: Floats) -> Floats:
        # Over all bins, those with few rows too: without them it is another mean.
        everything = (places * half + counts * centre).sum(axis=1)
        mean: Floats = everything / np.maximum(counts.sum(axis=1), 1.0)
        return mean

    # The mean prediction of a bin lies within the bin, whatever the noise says.
    edges = np.linspace(lows[0], highs[0], bins + 1)
    mean_square = np.maximum(square, 0.0) / np.maximum(counts.sum(axis=1), 1.0)
    return NumberFit(
        rows=counts,
        predicted=np.clip(value(predictions, counts), edges[:-1], edges[1:]),
        observed=value(outcomes, counts),
        shown=shown.tolist(),
        mean_predicted=overall(predictions),
        mean_observed=overall(outcomes),
        rmse=reach * half[0] * np.sqrt(mean_square),
    )
