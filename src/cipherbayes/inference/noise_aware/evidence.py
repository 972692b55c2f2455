"""What the releases say about the information matrix H: its log likelihood.

    log p(releases | H) = −‖H̃ − H‖_F² / 2 s_H²
        + log N(ḡ + H (θ̄ − μ₀); 0, s² I + V + H Λ⁻¹ H)
        − ½ Σ_t ‖(g_t − ḡ) + H m_t‖² / σ_t²,

with the true θ* integrated out. The first term is the likelihood of the information
sums. The second is that of the averaged score sum, which has mean H (θ* − θ̄) and
variance V + s² I; V = K H K is less than H because records are weighted
(:mod:`~.down_weighting`). The third is that of the differences between rounds
(:mod:`~.contrasts`; m_t is how far θ_t is from θ̄): the records are the same in all
rounds, so these vary by the known noise only. All rounds count, those far from the
window with a larger σ_t (:func:`~.recursion.averages_of_all_rounds`). With the window
alone the likelihood would not know that earlier rounds chose θ̄.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.inference.noise_aware.first_round import FirstRound
from cipherbayes.inference.noise_aware.layout import InformationLayout
from cipherbayes.inference.noise_aware.recursion import (
    NoiseAware,
    NoiseAwareState,
    averages_of_all_rounds,
    information_estimate,
)
from cipherbayes.inference.noise_aware.schedule import ROUNDS
from cipherbayes.inference.noise_aware.shrinkage import (
    OtherCorrelations,
    by_site,
    estimation_error,
    noise_edge,
    shrunk,
    without_means,
)
from cipherbayes.inference.site_context import SiteContext
from cipherbayes.models.packing import unpack
from cipherbayes.typing import Floats

HIDDEN = 2.0
"""Noise standard deviations below which a column's information counts as hidden."""
CONFOUNDED = 0.2
"""Share of a column's information that lies between sites (in its means) from which on
the column is treated as confounded with site."""
RARE = 0.3
"""Largest share of parameters that may be hidden for them to be taken for rare levels.
If more are hidden, noise is the likelier reason."""
FEW, DENSE = 20, 60
"""Numbers of parameters: up to the first correlations are always drawn, beyond the
second never, since the second has 1,770 of them."""
HIDING = 1.0
"""Largest eigenvalue of the noise of a correlation matrix from which on correlations
are not drawn. That of the matrix itself is one in the mean over all directions, so
noise of this size hides whether there is any information in one."""


@dataclass(frozen=True)
class Evidence:
    """What all rounds released, as averages over the rounds in internal units.

    Attributes
    ----------
    place, gradient, variance
        θ̄, ḡ and s²: the average θ, the average score sum and its noise variance.
    information, information_sd
        H̃, the average information sum, and s_H, the noise sd of its diagonal.
    quadratic, linear
        B = Σ m_t m_t' / σ_t² and A = Σ a_t m_t' / σ_t² with m_t = θ_t − θ̄ and
        a_t = g_t − ḡ: the contrasts are −½ tr(H B H) − tr(A' H) up to a constant.
        Where the score is not linear in θ, m_t is that of :mod:`~.contrasts`.
    prior_mean, prior_covariance
        μ₀ and Λ⁻¹. A prior that is not normal has its scales taken for sds.
    visited, weights
        θ_t of every round, and the weight of each in θ̄.
    first_trace
        Trace of the first round's information sum, and the sd of its noise.
    layout
        What is known about the structure of H at θ̄.
    variation
        The diagonal of K: √κ of every parameter.
    extra
        How many of the last parameters are not coefficients of columns.
    first
        What the first round says about correlations; None where it says nothing.
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
    first: FirstRound | None = None

    @classmethod
    def of(
        cls,
        recursion: NoiseAware,
        state: NoiseAwareState,
        more_variance: Floats | float = 0.0,
    ) -> Evidence:
        """The evidence of a finished recursion, the score taken to be linear in θ.

        ``more_variance`` is added to the noise variance of each round's score sum.
        """
        if state.rounds != ROUNDS:
            raise ValueError("the posterior needs all rounds")
        shape = recursion.shape
        place, gradient, variance, trust = averages_of_all_rounds(
            state, shape, more_variance
        )
        moved, rest = state.visited - place, state.gradients - gradient
        weights = trust[:, None]
        information, information_sd = information_estimate(state)
        layout = shape.layout(place, information, information_sd, by_level=True)
        width = shape.width or place.size
        noisy, noise = unpack(state.first_information), state.first_information_sd[0]
        first = FirstRound.of(noisy, float(noise), layout, width)
        known = shrunk(information, information_sd, layout, _correlations(first))
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
            extra=place.size - width,
            first=first,
        )

    @property
    def dimension(self) -> int:
        return self.place.size

    @property
    def estimate(self) -> Floats:
        """A positive definite estimate of H."""
        other = _correlations(self.first)
        return shrunk(self.information, self.information_sd, self.layout, other)

    def score_covariance(
        self, information: Floats, growth: Floats | None = None
    ) -> Floats:
        """γ V + s² I, the covariance of ḡ given θ, for one H or a stack of them.

        ``growth`` is γ, how many times as much scores vary as at θ̄; None for one.
        """
        total = information * (self.variation[:, None] * self.variation)
        if growth is not None:
            total *= growth[:, None, None]
        index = np.arange(self.dimension)
        total[..., index, index] += self.variance
        return np.asarray(total)

    @property
    def own_information(self) -> dict[int, float]:
        """The noised information about each varying column, its means taken off.

        By the parameter's number; it may be negative.
        """
        information, noise = self.information, self.information_sd
        constants, frame = self.layout.constants, self.layout.frame
        varying = [j for j in range(self.dimension) if j not in constants]
        if frame is not None:
            information = frame @ information @ frame.T
        sites = self.layout.sites
        if sites is not None and sites.masses is not None:
            own = np.diag(
                by_site(information, noise, constants, sites, sites.masses)[2]
            )
        else:
            own = np.diag(without_means(information, noise, constants)[1])
        return dict(zip(varying, own.tolist(), strict=True))

    @property
    def hidden(self) -> tuple[int, ...]:
        """Parameters whose :attr:`own_information` is within two sds of its noise."""
        least = HIDDEN * self.information_sd
        return tuple(j for j, own in self.own_information.items() if own < least)

    @property
    def unlike(self) -> tuple[int, ...]:
        """Parameters whose information is not assumed to be like that of the others.

        They are those that are not coefficients of columns, those of rare levels
        (columns that are hidden where most are not), the columns of one site, and
        columns that are confounded with site.
        """
        extra = range(self.dimension - self.extra, self.dimension)
        hidden = self.hidden
        rare = hidden if len(hidden) <= RARE * self.dimension else ()
        return tuple(sorted({*extra, *rare, *self._own_columns, *self._confounded}))

    @property
    def _own_columns(self) -> tuple[int, ...]:
        """Columns that one site has: their information depends on the site's size."""
        sites, constants = self.layout.sites, self.layout.constants
        if sites is None:
            return ()
        varying = [j for j in range(self.dimension) if j not in constants]
        return tuple(
            j for j, site in zip(varying, sites.others, strict=True) if site >= 0
        )

    @property
    def _confounded(self) -> tuple[int, ...]:
        """Columns whose means differ so much between sites that little is left within.

        Standardised columns have about the same information in all. Where much of it
        lies between sites, what is left within them is less than other columns have.
        """
        sites, constants = self.layout.sites, self.layout.constants
        if sites is None or sites.masses is None:
            return ()
        masses, means, rest = by_site(
            self.information, self.information_sd, constants, sites, sites.masses
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
        """How many parameters have columns whose correlations are to be learnt.

        All of them; where sites may differ, all but the sites' indicators.
        """
        sites = self.layout.sites
        if sites is None or sites.masses is None:
            return self.dimension
        return self.dimension - len(self.layout.constants)

    @property
    def draws_correlations(self) -> bool:
        """Whether correlations are drawn, or taken as estimated with an error.

        With many columns and much noise a draw has directions without information
        wherever noise allows them, and every interval is as wide as these make it.
        """
        if not FEW < self.varying <= DENSE or self.layout.sites is not None:
            return self.varying <= DENSE
        constants = self.layout.constants
        edge = noise_edge(self.information, self.information_sd, constants)
        if self.first is not None:
            edge = min(edge, self.first.edge)
        return edge <= HIDING

    def blurred(self) -> Evidence:
        """This evidence with the error of the estimated correlations as more noise.

        Where correlations are not drawn but taken as estimated, H (θ − θ̄) is wrong by
        E (θ − θ̄) with E_jk² about e r_j r_k (:func:`~.shrinkage.estimation_error`).
        That adds the variance e r̄ q to each coordinate of the score sum, with
        q = Σ_k r_k (θ_k − θ̄_k)², whose posterior mean is found by fixed-point
        iteration.
        """
        error, sizes = estimation_error(
            self.information,
            self.information_sd,
            self.layout.constants,
            _correlations(self.first),
        )
        h = self.estimate
        prior = np.linalg.inv(self.prior_covariance)
        variance = self.variance
        for _ in range(20):
            noisy = replace(self, variance=variance).score_covariance(h)
            weight = np.linalg.solve(noisy, h).T
            covariance = np.linalg.inv(weight @ h + prior)
            right = prior @ self.prior_mean + weight @ (self.gradient + h @ self.place)
            away = covariance @ right - self.place
            square = float(sizes @ (np.diag(covariance) + away**2))
            variance = self.variance + error * float(sizes.mean()) * square
        return replace(self, variance=variance)

    def log_density(
        self,
        information: Floats,
        prior_covariance: Floats,
        follows: SiteContext | None = None,
        following: Floats | float = 1.0,
    ) -> tuple[Floats, Floats]:
        """log p(releases | H) and its gradient, for a stack of H.

        ``information`` and ``prior_covariance``, Λ⁻¹, have shape ``(chains, d, d)``.
        Where sites' levels follow the means in H, Λ⁻¹ is larger by what ``follows``
        says, with √f τ of every chain in ``following``.
        The gradient G is symmetric with d log p = tr(G dH) for symmetric dH.
        """
        h = information
        away = self.place - self.prior_mean
        context, size = np.zeros((*h.shape[:2], 0)), np.reshape(following, (-1, 1, 1))
        if follows is not None:
            context = size * follows.at(h)
        covariance = prior_covariance + context @ context.transpose(0, 2, 1)
        scaled = h @ covariance  # H Λ⁻¹
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
        if follows is not None:
            slope += follows.pulled_back(h, -size * (h @ (spread @ (h @ context))))
        return value, slope + difference / self.information_sd**2


def _correlations(first: FirstRound | None) -> OtherCorrelations | None:
    return None if first is None else first.correlations
