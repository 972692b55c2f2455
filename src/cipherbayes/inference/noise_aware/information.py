"""Draws of the information matrix H, given the releases, by Hamiltonian Monte Carlo.

In the coordinates (p, U, ℓ, S) of :mod:`~.coordinates`,

    p_j ~ N(m, 3²),   U_jk ~ N(0, υ²),   ℓ_j ~ N(m, ω²),   S_ij ~ N(S⁰_ij, τ²),

τ = ρ / √d, with m, υ, ω and ρ learnt; ℓ_j ~ N(m, 1) where parameter j is no coefficient
of a column, as a Weibull shape, whose information is not like theirs. H is A flattened
along θ̄ where the score saturates (:mod:`~.saturation`), else A itself. The prior treats
B and B⁻¹ alike, where a Wishart prior with few degrees of freedom puts its smallest
eigenvalues near zero. S⁰ holds the few directions that stand far out of the noise
(:func:`~.shrinkage.spiked`): with S⁰ = 0 one of them raises ρ for all, and the small
eigenvalues, which noise hides, spread over decades. Where such a direction v has little
information, because columns almost follow from each other, noise may hide how little:
log B there is S⁰ − t vv' with t ~ N(0, 2²), so that one can lie a hundred times lower
than what is seen.

HMC moves all of them, m, ω and ρ together, in a metric that combines the prior's and
the Fisher noise's precision, ℓ and S as :mod:`~.centring` has them: by themselves m, ω
and ρ would creep, held by hundreds of coordinates. υ² has a conjugate conditional. With
more than 60 parameters S is not moved but taken as estimated: what that leaves out is
in the evidence's noise (:meth:`~.evidence.Evidence.blurred`).

References
----------
Neal (2011), MCMC using Hamiltonian dynamics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from cipherbayes.inference.noise_aware.centring import Centring, InverseGamma
from cipherbayes.inference.noise_aware.coordinates import Coordinates
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.saturation import (
    flattened,
    pulled_back,
    tame,
    unflattened,
)
from cipherbayes.inference.noise_aware.shrinkage import spikes_of
from cipherbayes.typing import Floats

TRAJECTORY = 1.4
"""Length of a trajectory in the metric's units; π/2 forgets a Gaussian's start."""
MOST_LEAPS = 24
FIRST_STEP = 0.25
DENSE = 60
"""Largest d for which S is among the coordinates (1,830 of them)."""
LARGEST_COORDINATE = 1e3
"""No coordinate of a sane trajectory is so large."""
ACCEPTANCE = 0.8
STRENGTH = InverseGamma(3.0, 0.4)
"""ρ² is inverse-gamma: median of ρ 0.39, one in a hundred above 1. Where noise hides
the correlations a heavier tail would fill the posterior with almost singular H."""
SPREAD = InverseGamma(1.0, 0.25)
"""ω² is inverse-gamma: half a decade of spread between columns is ordinary."""
MEANS = InverseGamma(1.0, 0.05)
"""υ² is inverse-gamma: columns lie within [-1, 1]."""
MASS_SPREAD, EXTRA_SPREAD = 3.0, 1.0
"""Of p, and of ℓ where a parameter is no coefficient of a column."""
DEPTH = 2.0
"""Of t."""
LEARNT = 3
"""m, log ω and log ρ."""


@dataclass
class Chains:
    """Where all chains stand, one row a chain.

    Attributes
    ----------
    moved
        (p, U, y of ℓ, y of S, t, m, log ω, log ρ): what HMC moves.
    slope
        A.
    means
        υ.
    step, bend
        Step size; β.
    """

    moved: Floats
    slope: Floats
    means: Floats
    step: Floats
    bend: Floats


class InformationSampler:
    """HMC within Gibbs over H, vectorised over chains.

    Parameters
    ----------
    evidence
        The averages over the rounds.
    chains
        How many chains.
    rng
        Source of the draws; it protects nobody.
    bend
        β to start with.
    """

    def __init__(
        self,
        evidence: Evidence,
        chains: int,
        rng: np.random.Generator,
        bend: float = 0.0,
    ) -> None:
        self.evidence = evidence
        self.rng = rng
        start = unflattened(evidence.estimate, evidence.place, bend)
        parts = self.parts = Coordinates(
            start,
            evidence.constants,
            correlated=evidence.dimension <= DENSE,
            frame=evidence.frame,
        )
        extra = parts.after(evidence.dimension - evidence.extra)
        self._alike = slice(parts.diagonal.start, parts.diagonal.stop - extra)
        apart = slice(self._alike.stop, parts.diagonal.stop)
        self._loose = ((parts.masses, MASS_SPREAD), (apart, EXTRA_SPREAD))
        place = parts.usual
        self._centre, self._deeper = np.zeros(0), np.zeros((0, parts.size))
        if parts.correlated:
            # A is not flat along θ̄ where H is A flattened.
            along = None if bend or evidence.along is None else evidence.along
            spikes, low = spikes_of(
                parts.blocks(start)[2],
                evidence.fisher_sd,
                None if along is None else parts.turned(along),
            )
            self._centre = parts.off_diagonal(spikes)
            self._deeper = parts.log_outer(low)
        rest = place[parts.entries] - self._centre
        strength = np.sqrt(parts.others * (rest**2).mean()) if rest.size else 0.0
        diagonal, means = place[self._alike], place[parts.means]
        size = np.sqrt((means**2).mean()) if means.size else 0.0
        self._diagonal = self._entries = Centring(0.5)
        learnt = [diagonal.mean(), np.log(max(float(diagonal.std()), 0.3))]
        learnt += [np.log(max(float(strength), 0.1))]
        self.chains = Chains(
            self._back(
                np.tile(place, (chains, 1)),
                np.tile([*np.zeros(len(self._deeper)), *learnt], (chains, 1)),
            ),
            slope=np.tile(start, (chains, 1, 1)),
            means=np.full(chains, max(float(size), 0.1)),
            step=np.full(chains, FIRST_STEP),
            bend=np.full(chains, bend),
        )
        self.renew_metric()
        # Twice as wide as the posterior is in the metric, so that R-hat can tell.
        white = rng.standard_normal(self.chains.moved.shape)
        wide = 2.0 / evidence.dimension * (white @ self._metric.T)
        self.chains.moved = self.chains.moved + wide
        self.chains.slope = parts.build(self._out(self.chains.moved)).matrix

    def information(self) -> Floats:
        """H of every chain, shape ``(chains, d, d)``."""
        return flattened(self.chains.slope, self.evidence.place, self.chains.bend)

    @property
    def alike(self) -> tuple[int, ...]:
        """Parameters of columns that almost follow from each other."""
        return self.parts.involved(self._deeper)

    def set_bend(self, bend: Floats) -> None:
        """Take β from now on, A as it is."""
        self.chains.bend = tame(self.evidence, self.chains.slope, bend)

    def sweep(self, prior_variance: Floats, *, adapting: bool) -> Floats:
        """One update of everything; the chance with which each move was accepted."""
        accepted = self._hmc(prior_variance)
        if adapting:
            self.chains.step = self._steps.update(accepted)
        self._draw_means()
        return accepted

    def renew_metric(self) -> None:
        """Take the metric, and λ, at where the chains are now."""
        parts, chains = self.parts, self.chains.step.size
        place, learnt = self._out(self.chains.moved), self.chains.moved[:, parts.size :]
        jacobian = parts.jacobian(place.mean(axis=0)) / self.evidence.fisher_sd
        data = (jacobian**2).sum(axis=1)
        *_, spread, strength = np.exp(np.median(learnt, axis=0))
        self._diagonal = Centring(_share(data[self._alike], spread))
        self._entries = Centring(
            _share(data[parts.entries], strength / np.sqrt(parts.others))
        )
        self.chains.moved = self._back(place, learnt)
        self._metric = self._new_metric(jacobian)
        self._steps = _StepAdaptation(chains)

    def stop_adapting(self) -> None:
        """Fix the step sizes at their averages."""
        self.chains.step = self._steps.averaged

    def _new_metric(self, jacobian: Floats) -> Floats:
        """A with A A' the inverse of J'J / s_H² + the prior's precision, J = dA / dx.

        The Fisher noise is isotropic in H, so J'J / s_H² is its precision in these
        coordinates. ``jacobian`` is that by (p, U, ℓ, S), over s_H.
        """
        parts, moved = self.parts, self.chains.moved.mean(axis=0)[None]
        # The chain rule is linear: as for a gradient, a row for every entry of A.
        rows = np.repeat(moved, jacobian.shape[1], axis=0)
        jacobian = self._chained(rows, jacobian.T, prior=False).T
        precision = np.full(moved.size, DEPTH**-2.0)
        for which, sd in self._loose:
            precision[which] = sd**-2.0
        precision[parts.means] = np.median(self.chains.means) ** -2.0
        _, spread, strength = moved[0, -LEARNT:]
        diagonal, entries = self._diagonal.share, self._entries.share
        pull = np.exp(-2.0 * diagonal * spread)
        strength = strength - 0.5 * np.log(parts.others)
        precision[self._alike] = pull
        precision[parts.entries] = np.exp(-2.0 * entries * strength)
        count = [each.stop - each.start for each in (self._alike, parts.entries)]
        precision[-3] = 1e-2 + count[0] * diagonal**2 * pull
        precision[-2] = SPREAD.precision + 2.0 * count[0] * diagonal**2
        precision[-1] = STRENGTH.precision + 2.0 * count[1] * entries**2
        matrix = jacobian @ jacobian.T + np.diag(precision)
        matrix[self._alike, -3] -= diagonal * pull
        matrix[-3, self._alike] -= diagonal * pull
        lower = np.linalg.cholesky(matrix)
        identity = np.eye(len(lower))
        return np.asarray(solve_triangular(lower, identity, lower=True).T)

    def _laws(
        self, moved: Floats
    ) -> tuple[tuple[slice, Centring, Floats, Floats], ...]:
        """(which, λ, μ, log σ) of ℓ and of S."""
        centre, spread, strength = moved[:, -LEARNT:].T
        strength = strength - 0.5 * np.log(self.parts.others)
        return (
            (self._alike, self._diagonal, centre, spread),
            (self.parts.entries, self._entries, np.zeros_like(centre), strength),
        )

    @property
    def _depths(self) -> slice:
        return slice(self.parts.size, self.parts.size + len(self._deeper))

    def _out(self, moved: Floats) -> Floats:
        """(p, U, ℓ, S) of what is moved."""
        place = moved[:, : self.parts.size].copy()
        for which, form, centre, scale in self._laws(moved):
            place[:, which] = form.out(place[:, which], centre, scale)
        place[:, self.parts.entries] += self._centre
        return np.asarray(place - moved[:, self._depths] @ self._deeper)

    def _back(self, place: Floats, learnt: Floats) -> Floats:
        """What is moved, of (p, U, ℓ, S) and (t, m, log ω, log ρ)."""
        moved = np.hstack([place, learnt])
        moved[:, : self.parts.size] += moved[:, self._depths] @ self._deeper
        moved[:, self.parts.entries] -= self._centre
        for which, form, centre, scale in self._laws(moved):
            moved[:, which] = form.back(moved[:, which], centre, scale)
        return moved

    def _chained(self, moved: Floats, slope: Floats, *, prior: bool = True) -> Floats:
        """Derivatives by what is moved, of those by (p, U, ℓ, S)."""
        by_depth = -slope @ self._deeper.T
        found = np.hstack([slope, by_depth, np.zeros((len(slope), LEARNT))])
        for column, (which, form, centre, scale) in zip(
            (-2, -1), self._laws(moved), strict=True
        ):
            y = moved[:, which]
            found[:, which], by_centre, by_scale = form.gradients(
                y, centre, scale, slope[:, which]
            )
            if not prior:
                bare = form.gradients(y, centre, scale, np.zeros_like(y))
                found[:, which] -= bare[0]
                by_centre, by_scale = by_centre - bare[1], by_scale - bare[2]
            found[:, column] += by_scale
            if column == -2:
                found[:, -3] += by_centre
        return found

    def _log_density(
        self, slope: Floats, prior_variance: Floats
    ) -> tuple[Floats, Floats]:
        """log p(releases | A, β) and its gradient with respect to A."""
        place, bend = self.evidence.place, self.chains.bend
        information = flattened(slope, place, bend)
        value, gradient = self.evidence.log_density(information, prior_variance)
        return value, pulled_back(gradient, slope, place, bend)

    def density(
        self, moved: Floats, prior_variance: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """log p(what is moved | υ, releases), its gradient, and A."""
        parts = self.parts
        built = parts.build(self._out(moved))
        value, slope = self._log_density(built.matrix, prior_variance)
        gradient = self._chained(moved, parts.pulled_back(built, slope))
        for which, form, centre, scale in self._laws(moved):
            value = value + form.log_density(moved[:, which], centre, scale)
        for column, law in ((-2, SPREAD), (-1, STRENGTH)):
            value = value + law.log_density(moved[:, column])
            gradient[:, column] += law.slope(moved[:, column])
        depths = moved[:, self._depths] / DEPTH**2
        gradient[:, self._depths] -= depths
        value = value - 0.5 * DEPTH**2 * (depths**2).sum(axis=1)
        for which, sd in self._loose:
            away = (moved[:, which] - moved[:, [-3]]) / sd
            gradient[:, which] -= away / sd
            gradient[:, -3] += away.sum(axis=1) / sd
            value = value - 0.5 * (away**2).sum(axis=1)
        means = moved[:, parts.means] / self.chains.means[:, None] ** 2
        gradient[:, parts.means] -= means
        value = value - 0.5 * (means * moved[:, parts.means]).sum(axis=1)
        return value, gradient, built.matrix

    def _hmc(self, prior_variance: Floats) -> Floats:
        here, rng, metric = self.chains, self.rng, self._metric
        step = (here.step * rng.uniform(0.8, 1.2, here.step.size))[:, None]
        leaps = int(np.clip(np.ceil(TRAJECTORY / step.mean()), 2, MOST_LEAPS))
        start = place = here.moved
        momentum = rng.standard_normal(start.shape)
        value, gradient, slope = self.density(place, prior_variance)
        force = gradient @ metric
        before = value - 0.5 * (momentum**2).sum(axis=1)
        with np.errstate(all="ignore"):
            for _ in range(leaps):
                momentum = momentum + 0.5 * step * force
                place = place + step * (momentum @ metric.T)
                place = np.where(np.abs(place) < LARGEST_COORDINATE, place, start)
                value, gradient, slope = self.density(place, prior_variance)
                force = gradient @ metric
                momentum = momentum + 0.5 * step * force
            after = value - 0.5 * (momentum**2).sum(axis=1)
            chance = np.exp(np.minimum(after - before, 0.0))
        lost = ~np.isfinite(chance) | (np.abs(place) >= LARGEST_COORDINATE).any(axis=1)
        chance = np.where(lost, 0.0, chance)
        moved = rng.random(chance.size) < chance
        here.moved = np.where(moved[:, None], place, start)
        here.slope = np.where(moved[:, None, None], slope, here.slope)
        return chance

    def _draw_means(self) -> None:
        """υ² (inverse-gamma) given U."""
        means = self.chains.moved[:, self.parts.means]
        rate = MEANS.scale + 0.5 * (means**2).sum(axis=1)
        shape = MEANS.shape + 0.5 * means.shape[1]
        self.chains.means = np.sqrt(rate / self.rng.gamma(shape, size=rate.size))


def _share(data: Floats, scale: float) -> float:
    """λ: of what is known about a coordinate, the data's share."""
    if not data.size:
        return 0.5
    return float((data / (data + scale**-2.0)).mean())


class _StepAdaptation:
    """Dual averaging of log step sizes (Hoffman and Gelman 2014, section 3.2)."""

    def __init__(self, chains: int) -> None:
        self._mean = np.log(2.0 * FIRST_STEP) * np.ones(chains)
        self._error = np.zeros(chains)
        self._log_average = np.log(FIRST_STEP) * np.ones(chains)
        self._count = 0

    def update(self, accepted: Floats) -> Floats:
        self._count += 1
        share = 1.0 / (self._count + 10.0)
        self._error = (1.0 - share) * self._error + share * (ACCEPTANCE - accepted)
        log_step = self._mean - np.sqrt(self._count) / 0.15 * self._error
        log_step = np.clip(log_step, np.log(1e-3), np.log(1.2))
        fade = self._count**-0.75
        self._log_average = fade * log_step + (1.0 - fade) * self._log_average
        return np.asarray(np.exp(log_step))

    @property
    def averaged(self) -> Floats:
        return np.asarray(np.exp(self._log_average))
