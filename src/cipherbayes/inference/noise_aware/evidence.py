"""What the releases say about the information matrix H.

    log p(releases | H) = −‖H̃ − H‖_F² / 2 s_H²
        + log N(ḡ + H (θ̄ − μ₀); 0, s² I + V + H Λ⁻¹ H)
        − ½ Σ_t ‖(g_t − ḡ) + H m_t‖² / σ_t²,

θ* integrated out. The first term is the noise of the information sums, the second the
averaged score sum (mean H (θ* − θ̄), variance V + s² I; V = K H K is less than H
because records are weighted, :mod:`~.down_weighting`), the third the contrasts between
rounds (:mod:`~.contrasts`; m_t is how far θ_t is from θ̄), which hold no sampling
variation but only the known noise. All rounds count,
those far from the window with a larger σ_t (:func:`~.recursion.everything`): the
window alone would forget that θ̄ is where it is because the rounds before brought it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.inference.noise_aware.recursion import (
    NoiseAware,
    NoiseAwareState,
    everything,
    information_estimate,
)
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.shrinkage import (
    InformationLayout,
    by_site,
    left_out,
    shrunk,
    without_means,
)
from cipherbayes.typing import Floats

HIDDEN = 2.0
"""Standard deviations of its noise that a column's information must have."""
CONFOUNDED = 0.2
"""Share of a column's information from which on what differs between sites counts."""
RARE = 0.3
"""Up to this share of columns, those that are hidden are so because they are rare."""


@dataclass(frozen=True)
class Evidence:
    """Averages over the rounds, in internal units.

    Attributes
    ----------
    place, gradient, variance
        θ̄, ḡ and s².
    information, information_sd
        H̃ and s_H.
    quadratic, linear
        B = Σ m_t m_t' / σ_t² and A = Σ a_t m_t' / σ_t² with m_t = θ_t − θ̄ and
        a_t = g_t − ḡ: the contrasts are −½ tr(H B H) − tr(A' H) up to a constant.
        Where the score is no line they are those of :mod:`~.contrasts`.
    prior_mean, prior_covariance
        μ₀ and Λ⁻¹; of a prior that is not normal, with its scales for sds.
    visited, weights
        Every θ_t, and each one's weight in θ̄.
    first_trace
        Trace of the first round's information sum, and the sd of its noise.
    layout
        What is known about H at θ̄ besides.
    extra
        How many parameters, the last ones, are no coefficients of columns.
    variation
        The diagonal of K.
    """

    place: Floats
    gradient: Floats
    variance: float
    information: Floats
    information_sd: float
    quadratic: Floats
    linear: Floats
    prior_mean: Floats
    prior_covariance: Floats
    visited: Floats
    weights: Floats
    first_trace: Floats
    layout: InformationLayout
    variation: Floats
    extra: int = 0

    @classmethod
    def of(
        cls,
        recursion: NoiseAware,
        state: NoiseAwareState,
        besides: Floats | float = 0.0,
    ) -> Evidence:
        """What a finished recursion knows, of a score that is a line.

        ``besides`` is a variance that each round's score sum has besides its noise.
        """
        if state.rounds != ROUNDS:
            raise ValueError("the posterior needs all rounds")
        shape = recursion.shape
        place, gradient, variance, trust = everything(state, shape, besides)
        moved, rest = state.visited - place, state.gradients - gradient
        weights = trust[:, None]
        information, information_sd = information_estimate(state)
        layout = shape.layout(place, information, information_sd, by_level=True)
        known = shrunk(information, information_sd, layout)
        return cls(
            place,
            gradient,
            variance,
            information,
            information_sd,
            quadratic=moved.T @ (weights * moved),
            linear=rest.T @ (weights * moved),
            prior_mean=recursion.prior_mean,
            prior_covariance=recursion.prior_covariance(),
            visited=state.visited,
            weights=trust * variance,
            first_trace=state.first_trace,
            layout=layout,
            variation=shape.variation(place, known, information_sd),
            extra=place.size - (shape.width or place.size),
        )

    @property
    def dimension(self) -> int:
        return self.place.size

    @property
    def estimate(self) -> Floats:
        """A positive definite estimate of H."""
        return shrunk(self.information, self.information_sd, self.layout)

    def spread(self, information: Floats, growth: Floats | None = None) -> Floats:
        """γ V + s² I, the covariance of ḡ given θ, of one H or a stack.

        γ is one where None.
        """
        total = information * (self.variation[:, None] * self.variation)
        if growth is not None:
            total *= growth[:, None, None]
        index = np.arange(self.dimension)
        total[..., index, index] += self.variance
        return np.asarray(total)

    @property
    def own_information(self) -> dict[int, float]:
        """What is seen of each column's information by itself, means apart."""
        information, noise = self.information, self.information_sd
        constants, frame = self.layout.constants, self.layout.frame
        varying = [j for j in range(self.dimension) if j not in constants]
        if frame is not None:
            information = frame @ information @ frame.T
        sites = self.layout.sites
        if sites is not None and sites.masses is not None:
            own = np.diag(by_site(information, noise, constants, sites)[2])
        else:
            own = np.diag(without_means(information, noise, constants)[1])
        return dict(zip(varying, own.tolist(), strict=True))

    @property
    def hidden(self) -> tuple[int, ...]:
        """Parameters whose own information, means apart, is not clear of its noise."""
        least = HIDDEN * self.information_sd
        return tuple(j for j, own in self.own_information.items() if own < least)

    @property
    def unlike(self) -> tuple[int, ...]:
        """Parameters whose information need not be like that of the others.

        Those that are no coefficients of columns, columns that are hidden where most
        are not: rare levels, and columns that are confounded with site.
        """
        extra = range(self.dimension - self.extra, self.dimension)
        hidden = self.hidden
        rare = hidden if len(hidden) <= RARE * self.dimension else ()
        return tuple(sorted({*extra, *rare, *self._own_columns, *self._confounded}))

    @property
    def _own_columns(self) -> tuple[int, ...]:
        """Columns of one site each, whose information depends on its size."""
        sites, constants = self.layout.sites, self.layout.constants
        if sites is None:
            return ()
        varying = [j for j in range(self.dimension) if j not in constants]
        return tuple(
            j for j, site in zip(varying, sites.others, strict=True) if site >= 0
        )

    @property
    def _confounded(self) -> tuple[int, ...]:
        """Columns of all sites that tell less within them than others do.

        Columns are alike in what they tell between and within sites together; of one
        whose means differ much between sites, what is left within them is less.
        """
        sites, constants = self.layout.sites, self.layout.constants
        if sites is None or sites.masses is None:
            return ()
        masses, means, rest = by_site(
            self.information, self.information_sd, constants, sites
        )
        away = means - masses @ means / masses.sum()
        between, within = masses @ away**2, np.maximum(np.diag(rest), 0.0)
        varying = [j for j in range(self.dimension) if j not in constants]
        return tuple(
            j
            for j, one, other in zip(varying, between, within, strict=True)
            if one > CONFOUNDED * (one + other)
        )

    @property
    def varying(self) -> int:
        """Parameters whose columns' correlations are to be learnt.

        All, but where sites may differ those only that are no site's indicator.
        """
        sites = self.layout.sites
        if sites is None or sites.masses is None:
            return self.dimension
        return self.dimension - len(self.layout.constants)

    def blurred(self) -> Evidence:
        """This evidence, with the correlations' error as more noise of the score sums.

        Where the correlations are not drawn but taken as estimated, H (θ − θ̄) is
        wrong by E (θ − θ̄), E_jk² about e r_j r_k: in each coordinate a variance of
        e r̄ q, q = Σ_k r_k (θ_k − θ̄_k)², of which the posterior mean is found by
        fixed-point iteration.
        """
        error, sizes = left_out(
            self.information, self.information_sd, self.layout.constants
        )
        h = self.estimate
        prior = np.linalg.inv(self.prior_covariance)
        variance = self.variance
        for _ in range(20):
            noisy = replace(self, variance=variance).spread(h)
            weight = np.linalg.solve(noisy, h).T
            covariance = np.linalg.inv(weight @ h + prior)
            right = prior @ self.prior_mean + weight @ (self.gradient + h @ self.place)
            away = covariance @ right - self.place
            square = float(sizes @ (np.diag(covariance) + away**2))
            variance = self.variance + error * float(sizes.mean()) * square
        return replace(self, variance=variance)

    def log_density(
        self, information: Floats, prior_covariance: Floats
    ) -> tuple[Floats, Floats]:
        """log p(releases | H) and its gradient, for a stack of H.

        ``information`` and ``prior_covariance``, Λ⁻¹, have shape ``(chains, d, d)``.
        The gradient G is symmetric with d log p = tr(G dH) for symmetric dH.
        """
        h = information
        away = self.place - self.prior_mean
        scaled = h @ prior_covariance  # H Λ⁻¹
        varied = self.variation[:, None] * self.variation
        total = varied * h + scaled @ h
        index = np.arange(self.dimension)
        # A trajectory that has gone astray may bring an H without an inverse; it is
        # rejected, but must not raise.
        tiny = 1e-13 * np.trace(total, axis1=1, axis2=2)[:, None]
        total[:, index, index] += self.variance + tiny
        inverse = np.linalg.inv(total)
        _, log_determinant = np.linalg.slogdet(total)
        residual = self.gradient + h @ away
        solved = np.matvec(inverse, residual)
        difference = self.information - h
        curved = h @ self.quadratic
        value = -0.5 * (difference**2).sum(axis=(1, 2)) / self.information_sd**2
        value -= 0.5 * (log_determinant + (solved * residual).sum(axis=1))
        value -= 0.5 * (curved * h).sum(axis=(1, 2)) + (self.linear * h).sum((1, 2))
        spread = inverse - solved[:, :, None] * solved[:, None, :]
        crossed = spread @ scaled  # W H Λ⁻¹
        slope = -0.5 * varied * spread - crossed
        slope -= solved[:, :, None] * away + curved + self.linear
        slope = 0.5 * (slope + slope.transpose(0, 2, 1))
        return value, slope + difference / self.information_sd**2
