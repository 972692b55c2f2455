"""The variance V of a weighted score sum, given its slope H.

A record with a long row has a small weight, w_i = min(1, S / q_i) with q_i the squared
length of its row. The slope of the score sum is H = Σ w v z z' and its variance
V = Σ w² v z z', which is 2 to 30 % less in real tables. Here

    V = K H K,   K = diag(√κ_j),   κ_j = E_j[w²] / E_j[w],

E_j a mean over the records weighted by their information about parameter j. H itself
says how long rows are. With P the information about the constants and B that about the
columns, their means taken off, tr B / tr P = E[w ‖x‖²] / E[w]. If ‖x‖² has a gamma law
with mean m,

    q = b + m G,   G ~ Gamma(e / 3, 1) / (e / 3),   e columns,

(for independent normal columns the shape would be e / 2; real ones are skewed and
correlated), then this ratio gives m, and m gives κ₀ of a constant and κ₁ of a column.
Both are averaged over the values of m that the noise of the ratio allows. One κ₁ for
all columns is too small for columns within narrow bounds and too large for those with a
long tail or a rare level, but in hazard models B_jj does not say which is which. All of
this is post-processing.

References
----------
Huber and Ronchetti (2009), Robust statistics, section 6.3: the sandwich H⁻¹ V H⁻¹.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv

from cipherbayes.typing import Floats

SHAPE = 3.0
"""Number of columns that add one to the shape of the gamma law; see above."""
NODES = 200
"""Number of quantiles of G over which means are taken."""
PLACES = 121
"""Number of grid points of log m, from 1/50 to 20 times S."""


@dataclass(frozen=True)
class RowLengths:
    """What is public about the weights of a study's records.

    Attributes
    ----------
    square, constant
        S and b: w = min(1, S / (b + ‖x‖²)).
    value
        What a constant column is in the records where it is not zero.
    count
        e, the number of columns that vary.
    columns
        Numbers of the parameters that are coefficients of these columns.
    width
        How many of the first parameters are coefficients of any column.
    shares
        κ that a model has even if all weights are one, for coefficients and for other
        parameters, as a function of mean and variance of the linear predictor.
    kept
        The share of the likelihood's own information that a model's bounded scores
        have if all weights are one, as a function of what a record tells about its
        constant and of the same mean and variance.
    """

    square: float
    constant: float
    value: float
    count: int
    columns: tuple[int, ...]
    width: int
    shares: Callable[[float, float], tuple[float, float]]
    kept: Callable[[float, float, float], tuple[float, float]]


def variation(
    lengths: RowLengths,
    information: Floats,
    information_sd: float,
    constants: tuple[int, ...],
    predictor: tuple[float, float] = (0.0, 0.0),
) -> Floats:
    """√κ of every parameter, from an estimate of H with noise ``information_sd``.

    ``predictor`` is the mean and variance of the linear predictor. Without constants or
    without columns nothing is known about the weights, and all are taken to be one.
    """
    root = np.empty(len(information))
    root[: lengths.width], root[lengths.width :] = np.sqrt(lengths.shares(*predictor))
    weights = _weights(lengths, information, information_sd, constants)
    if weights is None:
        return root
    found = np.full(len(information), weights.constant_variance)
    found[list(lengths.columns)] = weights.column_variance
    return np.asarray(root * np.sqrt(found))


def kept_by_weights(
    lengths: RowLengths,
    information: Floats,
    information_sd: float,
    constants: tuple[int, ...],
) -> tuple[float, float]:
    """E[w] and E[w ‖x‖²] / E[‖x‖²]: the shares of the information that weights keep.

    About a constant and about a column; both one where nothing is known of the weights.
    """
    weights = _weights(lengths, information, information_sd, constants)
    if weights is None:
        return 1.0, 1.0
    return weights.constant_kept, weights.column_kept


@dataclass(frozen=True)
class _Weights:
    """Means over the values of m that the noised ratio tr B / tr P allows.

    Attributes
    ----------
    constant_variance, column_variance
        κ₀ and κ₁.
    constant_kept, column_kept
        E[w] and E[w ‖x‖²] / E[‖x‖²].
    """

    constant_variance: float
    column_variance: float
    constant_kept: float
    column_kept: float


def _weights(
    lengths: RowLengths,
    information: Floats,
    information_sd: float,
    constants: tuple[int, ...],
) -> _Weights | None:
    """What H says of the records' weights; None without constants or columns."""
    if not constants or not lengths.columns:
        return None
    columns, fixed = list(lengths.columns), list(constants)
    masses = np.diag(information)[fixed]
    own = np.diag(information)[columns]
    own = own - (information[np.ix_(fixed, columns)] ** 2 / masses[:, None]).sum(axis=0)
    mass = float(masses.sum()) / lengths.value**2
    ratio = float(own.sum()) / mass
    # The noise of the trace and of the mass that it is divided by.
    noise = information_sd / mass
    noise = noise * np.sqrt(len(columns) + len(fixed) * (ratio / lengths.value**2) ** 2)
    return _means(lengths, ratio, float(noise))


def _means(lengths: RowLengths, ratio: float, noise: float) -> _Weights:
    shape = lengths.count / SHAPE
    levels = (np.arange(NODES) + 0.5) / NODES
    quantiles = gammaincinv(shape, levels)
    quantiles = quantiles / quantiles.mean()
    places = np.exp(np.linspace(np.log(0.02), np.log(20.0), PLACES))
    squares = lengths.square * places[:, None] * quantiles
    weights = np.minimum(1.0, lengths.square / (lengths.constant + squares))
    mean = weights.mean(axis=1)
    sizes = (weights * squares).mean(axis=1)
    expected = sizes / mean
    # At least as wide as the grid is fine.
    width = np.hypot(noise, 0.05 * ratio)
    log_density = -0.5 * ((expected - ratio) / width) ** 2
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    return _Weights(
        float(density @ ((weights**2).mean(axis=1) / mean)),
        float(density @ ((weights**2 * squares).mean(axis=1) / sizes)),
        float(density @ mean),
        float(density @ (sizes / squares.mean(axis=1))),
    )
