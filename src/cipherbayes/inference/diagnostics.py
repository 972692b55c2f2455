"""Whether chains have mixed: R-hat and the effective sample size.

Chains are split in halves and draws replaced by the normal scores of their ranks.
R-hat is the larger of that of the draws and that of their distances from the median.
The effective sample size is that of the bulk,

    S / τ,    τ = −1 + 2 Σ_k P_k,    P_k = ρ_2k + ρ_2k+1,

with ρ the autocorrelations over all chains. The P_k are summed while they are positive,
none counting for more than the one before it (Geyer 1992). It is implemented here
because ArviZ takes longer to load than a posterior takes to sample; tests compare the
two.

References
----------
Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization, folding, and
localization: an improved R-hat. Geyer (1992), Practical Markov chain Monte Carlo.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from cipherbayes.typing import Floats

RHAT_LIMIT = 1.05
"""R-hat above which chains have not mixed."""
ESS_LIMIT = 100.0
"""Effective draws below which an interval is rough."""
BLOM = 3.0 / 8.0
"""Blom's constant c in the normal score Φ⁻¹((r − c) / (S − 2c + 1)) of rank r of S."""


def rhat(draws: Floats) -> Floats:
    """R-hat of each parameter, in a fraction of the time of :func:`rhat_and_ess`."""
    chains, count, width = draws.shape
    if chains < 2 or count < 4:
        return np.full(width, np.nan)
    halves = _halves(draws)
    return _where_finite(draws, _larger_rhat(halves, normal_scores(halves)))


def _larger_rhat(halves: Floats, scores: Floats) -> Floats:
    """The larger of R-hat of the draws and of their distances from the median."""
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.fmax(_plain_rhat(scores), _plain_rhat(normal_scores(folded)))


def rhat_and_ess(draws: Floats) -> tuple[Floats, Floats]:
    """Rank-normalised split R-hat and bulk ESS of each parameter.

    ``draws`` has shape ``(chains, draws, d)``. What cannot be estimated (one
    chain for R-hat, fewer than four draws, draws that are not finite) is NaN.
    """
    chains, count, width = draws.shape
    if count < 4:
        return rhat(draws), np.full(width, np.nan)
    halves = _halves(draws)
    scores = normal_scores(halves)
    sizes = _where_finite(draws, _plain_ess(scores))
    if chains < 2:
        return np.full(width, np.nan), sizes
    return _where_finite(draws, _larger_rhat(halves, scores)), sizes


def _where_finite(draws: Floats, found: Floats) -> Floats:
    """What was found, NaN for parameters with draws that are not finite."""
    return np.where(np.isfinite(draws).all(axis=(0, 1)), found, np.nan)


def _halves(draws: Floats) -> Floats:
    """Every chain split in two; the middle draw of an odd number is left out."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def normal_scores(draws: Floats) -> Floats:
    """Φ⁻¹((r − 3/8) / (S + 1/4)) of the ranks r; equal draws share their mean rank."""
    pooled = draws.reshape(-1, draws.shape[2])
    size = len(pooled)
    of_rank = _score(np.arange(1.0, size + 1.0), size)
    scores = np.empty(pooled.shape)
    for j, column in enumerate(pooled.T):
        values = np.ascontiguousarray(column)
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        differs = ordered[1:] != ordered[:-1]
        if differs.all():
            scores[order, j] = of_rank
            continue
        edges = np.flatnonzero(np.concatenate([[True], differs, [True]]))
        ranks = np.repeat(0.5 * (edges[:-1] + edges[1:] + 1.0), np.diff(edges))
        scores[order, j] = _score(ranks, size)
    return scores.reshape(draws.shape)


def _score(ranks: Floats, size: int) -> Floats:
    """Normal scores of ranks among ``size`` draws."""
    return np.asarray(ndtri((ranks - BLOM) / (size - 2.0 * BLOM + 1.0)))


def _plain_rhat(draws: Floats) -> Floats:
    """R-hat of each parameter, from the variances between and within chains."""
    count = draws.shape[1]
    between = count * draws.mean(axis=1).var(axis=0, ddof=1)
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt((between / within + count - 1.0) / count))


def _plain_ess(draws: Floats) -> Floats:
    """Effective sample size of each parameter, as in the module's equation."""
    chains, count, width = draws.shape
    covariances = _autocovariances(draws).mean(axis=0)
    within = covariances[0] * count / (count - 1.0)
    total = covariances[0].copy()
    if chains > 1:
        total += draws.mean(axis=1).var(axis=0, ddof=1)
    constant = np.ptp(draws, axis=(0, 1)) < 1e-15
    total[constant] = 1.0
    correlations = 1.0 - (within - covariances) / total
    correlations[0] = 1.0
    most = max(count - 3, 0) // 2  # pairs looked at beyond the first
    pairs = correlations[: 2 * most + 2].reshape(most + 1, 2, width).sum(axis=1)
    ended = np.vstack([pairs[:most] <= 0.0, np.ones((1, width), dtype=bool)])
    # The sum ends before the first pair that is not positive, or before the last; of
    # that pair, its first half may still count.
    stop = np.argmax(ended, axis=0)
    falling = np.minimum.accumulate(pairs, axis=0)
    counted = np.where(np.arange(most + 1)[:, None] < stop, falling, 0.0).sum(axis=0)
    column = np.arange(width)
    next_one = correlations[2 * stop, column]
    next_one = np.where((next_one > 0.0) | (pairs[stop, column] >= 0.0), next_one, 0.0)
    size = chains * count
    longest = np.maximum(-1.0 + 2.0 * counted + next_one, 1.0 / np.log10(size))
    return np.where(constant, float(size), size / longest)


def _autocovariances(draws: Floats) -> Floats:
    """Autocovariances of every chain at all lags, divided by the number of draws."""
    count = draws.shape[1]
    length = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(draws - draws.mean(axis=1, keepdims=True), length, axis=1)
    found = np.fft.irfft(np.abs(spectrum) ** 2, length, axis=1)
    return np.asarray(found[:, :count] / count)
