"""Partly centred coordinates y of a hierarchical prior x_j ~ N(μ, σ²), σ learnt.

A sampler that moves x and σ mixes badly where the data say little about x, which must
then follow σ. One that moves (x − μ)/σ and σ does where they say much. In between,

    x = μ + σ^(1−λ) (y − λ μ),   y ~ N(λ μ, σ^(2λ)),

with λ the share of the precision of x that comes from the data; λ = 1 is the centred
form and λ = 0 the non-centred one.

References
----------
Papaspiliopoulos, Roberts and Sköld (2007), A general framework for the parametrization
of hierarchical models. Gorinova, Moore and Hoffman (2020), Automatic reparameterisation
of probabilistic programs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.typing import Floats


@dataclass(frozen=True)
class InverseGamma:
    """Inverse gamma prior of a squared scale σ², as a density of log σ.

    Attributes
    ----------
    shape, scale
        a and b of the density ∝ (σ²)^(−a−1) exp(−b / σ²).
    """

    shape: float
    scale: float

    def log_density(self, log_scale: Floats) -> Floats:
        """log p(log σ), up to a constant."""
        return np.asarray(
            -2.0 * self.shape * log_scale - self.scale * np.exp(-2.0 * log_scale)
        )

    def slope(self, log_scale: Floats) -> Floats:
        """The derivative of :meth:`log_density`."""
        return np.asarray(
            -2.0 * self.shape + 2.0 * self.scale * np.exp(-2.0 * log_scale)
        )

    @property
    def precision(self) -> float:
        """Minus the second derivative of :meth:`log_density` at its mode."""
        return 4.0 * self.shape

    def drawn(self, values: Floats, rng: np.random.Generator) -> Floats:
        """A draw of every chain's σ given its values N(0, σ²), of the first axis."""
        axes = tuple(range(1, values.ndim))
        rate = self.scale + 0.5 * (values**2).sum(axis=axes, keepdims=True)
        count = values[0].size
        drawn = rng.gamma(self.shape + 0.5 * count, size=rate.shape)
        return np.asarray(np.sqrt(rate / drawn))


@dataclass(frozen=True)
class Centring:
    """The map between x and y; λ is ``share``.

    Each chain has its own μ, shape ``(chains,)``, and log σ of all coordinates,
    ``(chains, 1)``, or of each, ``(chains, n)``.
    """

    share: float

    def to_coordinates(self, y: Floats, centre: Floats, log_scale: Floats) -> Floats:
        """x for y."""
        away = y - self.share * centre[:, None]
        return np.asarray(centre[:, None] + self._stretch(log_scale) * away)

    def from_coordinates(self, x: Floats, centre: Floats, log_scale: Floats) -> Floats:
        """y for x."""
        away = (x - centre[:, None]) / self._stretch(log_scale)
        return np.asarray(self.share * centre[:, None] + away)

    def log_density(
        self, y: Floats, centre: Floats, log_scale: Floats
    ) -> tuple[Floats, tuple[Floats, Floats, Floats]]:
        """log p(y | μ, σ) and its derivatives by y, μ and log σ.

        The last is by that of each coordinate.
        """
        share = self.share
        away = y - share * centre[:, None]
        pull = away * np.exp(-2.0 * share * log_scale)
        value = -(0.5 * away * pull + share * log_scale).sum(axis=1)
        by_centre = share * pull.sum(axis=1)
        return value, (-pull, by_centre, share * (away * pull - 1.0))

    def chain_rule(
        self, y: Floats, centre: Floats, log_scale: Floats, slope: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Derivatives by y, μ and each log σ, given those by x in ``slope``."""
        share, stretch = self.share, self._stretch(log_scale)
        away = y - share * centre[:, None]
        by_centre = ((1.0 - share * stretch) * slope).sum(axis=1)
        by_scale = (1.0 - share) * stretch * away * slope
        return stretch * slope, by_centre, by_scale

    def _stretch(self, log_scale: Floats) -> Floats:
        """σ^(1−λ)."""
        return np.asarray(np.exp((1.0 - self.share) * log_scale))
