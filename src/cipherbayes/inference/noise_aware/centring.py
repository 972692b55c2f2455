"""Coordinates that share a law whose scale is learnt, in a form that mixes.

With x_j ~ N(μ, σ²), or Student's t around μ with scale σ, σ unknown, moves of x and of
σ hinder each other: where the data say little about x, x follows σ; where they say
much, (x − μ)/σ does. In between,

    x = μ + σ^(1−λ) (y − λ μ),   y ~ N(λ μ, σ^(2λ)),

with λ the share of what is known about x that comes from the data.

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
    """Law of a squared scale, as one of the scale's logarithm."""

    shape: float
    scale: float

    def log_density(self, log_scale: Floats) -> Floats:
        return np.asarray(
            -2.0 * self.shape * log_scale - self.scale * np.exp(-2.0 * log_scale)
        )

    def slope(self, log_scale: Floats) -> Floats:
        """Its derivative."""
        return np.asarray(
            -2.0 * self.shape + 2.0 * self.scale * np.exp(-2.0 * log_scale)
        )

    @property
    def precision(self) -> float:
        """Minus its second derivative at the mode."""
        return 4.0 * self.shape


@dataclass(frozen=True)
class Centring:
    """y for x, λ being ``share``. μ and log σ have one entry a chain."""

    share: float

    def to_coordinates(self, y: Floats, centre: Floats, log_scale: Floats) -> Floats:
        """The coordinate x of what is moved, y."""
        away = y - self.share * centre[:, None]
        return np.asarray(centre[:, None] + self._stretch(log_scale) * away)

    def from_coordinates(self, x: Floats, centre: Floats, log_scale: Floats) -> Floats:
        """What is moved, y, of the coordinate x."""
        away = (x - centre[:, None]) / self._stretch(log_scale)
        return np.asarray(self.share * centre[:, None] + away)

    def log_density(
        self, y: Floats, centre: Floats, log_scale: Floats, df: float | None = None
    ) -> tuple[Floats, tuple[Floats, Floats, Floats]]:
        """Of y given μ and σ, with its derivatives by y, μ and log σ.

        Normal, or Student's t with ``df`` degrees of freedom.
        """
        share = self.share
        away = y - share * centre[:, None]
        pull = away * np.exp(-2.0 * share * log_scale)[:, None]
        if df is None:
            value = -0.5 * (away * pull).sum(axis=1)
        else:
            squares = away * pull
            value = -0.5 * (df + 1.0) * np.log1p(squares / df).sum(axis=1)
            pull = pull * (df + 1.0) / (df + squares)
        value -= share * y.shape[1] * log_scale
        by_centre = share * pull.sum(axis=1)
        by_scale = share * ((away * pull).sum(axis=1) - y.shape[1])
        return value, (-pull, by_centre, by_scale)

    def chain_rule(
        self, y: Floats, centre: Floats, log_scale: Floats, slope: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Derivatives by y, μ and log σ of what has those by x in ``slope``."""
        share, stretch = self.share, self._stretch(log_scale)
        away = y - share * centre[:, None]
        by_centre = ((1.0 - share * stretch) * slope).sum(axis=1)
        by_scale = ((1.0 - share) * stretch * away * slope).sum(axis=1)
        return stretch * slope, by_centre, by_scale

    def _stretch(self, log_scale: Floats) -> Floats:
        return np.asarray(np.exp((1.0 - self.share) * log_scale)[:, None])
