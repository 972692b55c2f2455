"""How much a sum of weighted scores varies.

A record with a long row counts for less: w_i = min(1, S / q_i) with q_i its squared
length. The slope of the score sum is H = Σ w v z z', its variance V = Σ w² v z z'. That
is 2 to 30 % less in real tables. Here

    V = K H K,   K = diag(√κ_j),   κ_j = E_j[w²] / E_j[w],

E_j a mean over the records by their information about parameter j. How long rows are is
told by H itself. With P the information of the constants and B that of the columns,
their means taken off, tr B / tr P = E[w ‖x‖²] / E[w]; and if ‖x‖² has a gamma law of
mean m,

    q = b + m G,   G ~ Gamma(e / 3, 1) / (e / 3),   e columns,

(normal and unrelated columns have e / 2; real ones are skewed and related) that
ratio says what m is, and m what κ is of a constant, κ₀, and of a column, κ₁: averages
over the m that the noise of the ratio leaves. One κ₁ for all columns is too small for
those that are within bounds, too large for those with a long tail or a rare level; in
hazard models B_jj does not tell which is which. All of it is post-processing.

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
"""Columns for a unit of the gamma law's shape."""
NODES, PLACES = 200, 121
"""Quantiles of G, and places of log m from 1/50 to 20 times S."""


@dataclass(frozen=True)
class RowLengths:
    """What is public about the weights of a study's records.

    Attributes
    ----------
    square, constant
        S and b: w = min(1, S / (b + ‖x‖²)).
    value
        Of the constant columns, where they are not zero.
    count
        e.
    columns
        Of the parameters, those that multiply columns that vary.
    width
        Parameters before the ones that multiply no column.
    shares
        κ if all weights were one, of the former and of the latter, by mean and variance
        of the linear predictor.
    """

    square: float
    constant: float
    value: float
    count: int
    columns: tuple[int, ...]
    width: int
    shares: Callable[[float, float], tuple[float, float]]


def variation(
    lengths: RowLengths,
    information: Floats,
    information_sd: float,
    constants: tuple[int, ...],
    predictor: tuple[float, float] = (0.0, 0.0),
) -> Floats:
    """√κ of every parameter, from a positive definite H with noise ``information_sd``.

    ``predictor`` has the mean and variance of the linear predictor. Without a constant,
    or without columns, nothing is known of the weights.
    """
    root = np.empty(len(information))
    root[: lengths.width], root[lengths.width :] = np.sqrt(lengths.shares(*predictor))
    if not constants or not lengths.columns:
        return root
    columns, fixed = list(lengths.columns), list(constants)
    masses = np.diag(information)[fixed]
    own = np.diag(information)[columns]
    own = own - (information[np.ix_(fixed, columns)] ** 2 / masses[:, None]).sum(axis=0)
    mass = float(masses.sum()) / lengths.value**2
    ratio = float(own.sum()) / mass
    # Of the trace, and of the mass that it is divided by.
    noise = information_sd / mass
    noise = noise * np.sqrt(len(columns) + len(fixed) * (ratio / lengths.value**2) ** 2)
    constant, column = _ratios(lengths, ratio, float(noise))
    found = np.full(len(information), constant)
    found[columns] = column
    return np.asarray(root * np.sqrt(found))


def _ratios(lengths: RowLengths, ratio: float, noise: float) -> tuple[float, float]:
    """κ₀ and κ₁, averaged over what the ratio leaves open of m."""
    shape = lengths.count / SHAPE
    levels = (np.arange(NODES) + 0.5) / NODES
    usual = gammaincinv(shape, levels)
    usual = usual / usual.mean()
    places = np.exp(np.linspace(np.log(0.02), np.log(20.0), PLACES))
    squares = lengths.square * places[:, None] * usual
    weights = np.minimum(1.0, lengths.square / (lengths.constant + squares))
    mean = weights.mean(axis=1)
    sizes = (weights * squares).mean(axis=1)
    expected = sizes / mean
    # Never narrower than the grid.
    width = np.hypot(noise, 0.05 * ratio)
    log_density = -0.5 * ((expected - ratio) / width) ** 2
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    constant = (weights**2).mean(axis=1) / mean
    column = (weights**2 * squares).mean(axis=1) / sizes
    return float(density @ constant), float(density @ column)
