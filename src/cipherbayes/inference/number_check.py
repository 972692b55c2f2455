"""How good predicted numbers are, from noised sums by predicted bin.

For each bin of predictions there are noised sums of ones, of outcomes and of
predictions. The true sums are drawn from normals around the released ones, whose
variance is that of the noise plus that of the outcomes themselves. The root of the mean
squared error is positive, whatever the noise says. Before that its density goes with
its own square root: between flat in the root (intervals are too low where squared
errors add up to two or three times the noise) and flat in the square (too high where
they are lost in it).

How much squared errors vary was not released. In units of the square of their mean it
is 2 for normal errors and more where tails are heavy: 8 for a t distribution with five
degrees of freedom. Anything between is as likely, on the log scale.
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
SQUARES_VARY = (2.0, 8.0)
"""Least and largest variance of squared errors, in squares of their mean."""
ROOTS, KINDS = 2001, 5
"""Values of the root of their sum, and of that variance, which are weighed."""


@dataclass(frozen=True)
class MeanFit:
    """Draws of measures of held-out rows, with bins on the last axis.

    ``shown`` says which bins have enough rows. ``everybody`` are the rows of all bins:
    noise leaves less room below those of an empty bin than above.
    """

    everybody: Floats
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
    sums: Floats,
    noise: float,
    lows: Floats,
    highs: Floats,
    reach: float,
    expected: float | None,
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
    expected
        Held-out rows to be expected; None where the study does not know.
    """
    rng = np.random.default_rng(1)
    bins = lows.size
    count, outcome, prediction = sums[: 3 * bins].reshape(3, bins)
    shown = count > SEEN * noise
    rows = np.maximum(count, 1.0)

    there = count + noise * rng.standard_normal((DRAWS, bins))
    if expected is not None:
        # A hash decides which rows are held out: how many are is known about.
        about = expected + np.sqrt(expected) * rng.standard_normal(DRAWS)
        gain = noise**2 / (bins * noise**2 + expected)
        there += gain * (about - there.sum(axis=1))[:, None]
    # The number of rows in a bin varies from sample to sample, and its sums with it.
    # That changes means over all bins, not those within a bin.
    more = rng.standard_normal((DRAWS, bins)) * np.sqrt(np.maximum(count, 0.0)) / rows
    counts = there + count * more
    centre, half = 0.5 * (lows + highs), 0.5 * (highs - lows)
    everybody = np.maximum(there.sum(axis=1), 1.0)
    error = float(np.clip(sums[-1] / everybody.mean(), 1e-6, 1.0))

    def drawn(values: Floats, variance: Floats | float) -> Floats:
        spread = np.sqrt(noise**2 + variance)
        own = spread * rng.standard_normal((DRAWS, values.size))
        return values * (1.0 + more) + own

    vary: Floats = rows * error * reach**2
    outcomes, predictions = drawn(outcome, vary), drawn(prediction, 0.0)

    def value(places: Floats) -> Floats:
        return centre + half * places / np.maximum(counts, 1.0)

    def overall(places: Floats) -> Floats:
        # Over all bins, those with few rows too: without them it is another mean.
        everything = (places * half + counts * centre).sum(axis=1)
        mean: Floats = everything / np.maximum(counts.sum(axis=1), 1.0)
        return mean

    # The mean prediction of a bin lies within the bin, whatever the noise says.
    edges = np.linspace(lows[0], highs[0], bins + 1)
    squares = _squares(float(sums[-1]), noise, float(everybody.mean()), rng)
    return NumberFit(
        everybody=np.maximum(counts.sum(axis=1), 1.0),
        rows=np.maximum(counts, 1.0),
        predicted=np.clip(value(predictions), edges[:-1], edges[1:]),
        observed=value(outcomes),
        shown=shown.tolist(),
        mean_predicted=overall(predictions),
        mean_observed=overall(outcomes),
        rmse=reach * half[0] * np.sqrt(squares / everybody),
    )


def _squares(
    told: float, noise: float, rows: float, rng: np.random.Generator
) -> Floats:
    """Draws of the sum of squared errors of so many rows, each at most one."""
    root = np.linspace(0.0, np.sqrt(rows), ROOTS)
    error = root**2 / rows
    vary = np.geomspace(*SQUARES_VARY, KINDS)[:, None]
    spread = noise**2 + rows * np.minimum(vary * error**2, error * (1.0 - error))
    fit = -0.5 * ((told - root**2) ** 2 / spread + np.log(spread))
    density = np.sqrt(root) * np.exp(fit - fit.max()).sum(axis=0)
    upto = np.cumsum(density)
    drawn: Floats = np.interp(rng.random(DRAWS) * upto[-1], upto, root)
    return drawn**2
