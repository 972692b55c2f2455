"""The mean of a score sum that grows with the exponential of the linear predictor.

A hazard model's score at θ̄ is a sum over records of an integral over their time at
risk, g = Σ ∫ z (dN − dL̄), with N the events and L̄ the cumulative hazard under θ̄; its
information sum is H = Σ ∫ zz' dL̄. Under θ events come e^u times as often as under θ̄,
u = z'(θ − θ̄), so that given the same time at risk

    E g(θ̄) = Σ ∫ z (e^u − 1) dL̄,

of which H (θ − θ̄) is the first term; a Poisson model is the same with its mean for
dL̄. Let M = Σ ∫ dL̄. If z, weighted by dL̄, is about normal with mean m and variance V,

    E g(θ̄) = F(θ) − F(θ̄),    F(θ) = M (m + V δ) exp(m'δ + δ'V δ / 2),    δ = θ − θ̄,

and the mean of ḡ = Σ w_t g(θ_t) is F(θ) − Σ w_t F(θ_t).

Along the direction e in which u of every record grows by one (the intercept), z'e = 1:
M = e'He, M m = He and M V = H − He e'H / M, so nothing but H is needed. For a Weibull
hazard u is not linear in the shape; δ is first transformed such that it is
(``BoundedInfluence.straightening``). Nor is the shape's column normal: weighted by dL,
ln L of one record is a constant minus a unit exponential E. Where z has a part
(1 − E) b, its cumulants are those of 1 − E, and with t = b'δ

    log E exp(u) = m'δ + ½ (δ'V δ − t²) + t − log(1 + t),

and F is M times the gradient of the exponential of that.

Where sites may differ, each constant column c is one site's (in one interval), and the
other columns have a mean of their own there: with M_c, m_c of each and V of all within,

    F(θ) = Σ_c M_c (m_c + V δ) exp(m_c'δ + δ'V δ / 2),

so that each site's own parameter enters by its exponential, however few records the
site has.

References
----------
Andersen, Borgan, Gill and Keiding (1993), Statistical models based on counting
processes, section VII.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.typing import Floats, Integers

LARGEST_EXPONENT = 3.0
"""Limit L of the exponent x, for which L tanh(x / L) is used: far from θ̄ columns are
not normal, and the exponential of a normal law's exponent would be too large."""
LEAST_SKEWED = -0.9
"""Smallest t that is used: log(1 + t) ends at −1."""


@dataclass(frozen=True)
class TiltedScore:
    """The mean of ḡ as a function of θ, for the H of every chain.

    Attributes
    ----------
    shape
        The model's score, of which the straightening and the skew are used.
    place
        θ̄.
    information, pull, mass
        H, M m and M of every chain.
    origin
        Σ w_t F(θ_t) of every chain.
    """

    shape: ScoreShape
    place: Floats
    information: Floats
    pull: Floats
    mass: Floats
    origin: Floats

    @classmethod
    def of(
        cls, evidence: Evidence, shape: ScoreShape, unit: Floats, information: Floats
    ) -> TiltedScore:
        """The score of a finished study; ``unit`` is e of the module's equations."""
        pull = information @ unit
        mass = np.maximum(pull @ unit, 1e-300)
        score = cls(shape, evidence.place, information, pull, mass, pull)
        everywhere = score.mean(evidence.visited[:, None, :]) + pull
        return replace(score, origin=np.tensordot(evidence.weights, everywhere, 1))

    def mean(self, theta: Floats) -> Floats:
        """E ḡ for the θ of every chain."""
        moved, growth, _, _, _ = self._parts(theta)
        return np.asarray(growth[..., None] * moved - self.origin)

    def derivative(self, theta: Floats) -> Floats:
        """d mean / dθ, shape ``(chains, d, d)``."""
        moved, growth, slope, bulge, jacobian = self._parts(theta)
        mass = self.mass[:, None, None]
        spread = self.pull[:, :, None] * self.pull[:, None, :]
        tilt = moved[:, :, None] * moved[:, None, :] * slope[:, None, None]
        found = self.information + (tilt - spread) / mass + bulge
        found = growth[:, None, None] * found
        return np.asarray(found if jacobian is None else found @ jacobian)

    def variance_growth(self, theta: Floats) -> Floats:
        """γ = exp(m'δ + δ'V δ / 2): how many times as many events come as under θ̄.

        The variance of the scores grows as the number of events does.
        """
        return self._parts(theta)[1]

    def growth(self, theta: Floats) -> tuple[Floats, Floats]:
        """γ of every chain, and its gradient by θ."""
        moved, growth, slope, _, jacobian = self._parts(theta)
        rising = (growth * slope / self.mass)[:, None] * moved
        return growth, rising if jacobian is None else np.vecmat(rising, jacobian)

    def _parts(
        self, theta: Floats
    ) -> tuple[Floats, Floats, Floats, Floats, Floats | None]:
        """What mean and derivative are made of, with x = log E exp(u).

        They are M times the gradient of x by δ; exp x, with x held below a limit; the
        derivative of the held x by x; M times (the Hessian of x − V), zero where
        nothing is skewed; and dδ / dθ, None where δ = θ − θ̄.
        """
        away, jacobian = theta - self.place, None
        if (straightening := self.shape.straightening) is not None:
            away, jacobian = straightening(away)
        along = np.matvec(self.information, away)
        mean = (self.pull * away).sum(axis=-1) / self.mass
        square = (along * away).sum(axis=-1) / self.mass
        exponent = mean + 0.5 * np.maximum(square - mean**2, 0.0)
        moved = self.pull + along - self.pull * mean[..., None]
        bulge = np.zeros(1)
        if (b := self.shape.skew) is not None:
            t = np.maximum(away @ b, LEAST_SKEWED)
            exponent = exponent + t - np.log1p(t) - 0.5 * t**2
            moved = moved + (self.mass * (t / (1.0 + t) - t))[..., None] * b
            bend = self.mass * ((1.0 + t) ** -2.0 - 1.0)
            bulge = bend[..., None, None] * (b[:, None] * b)
        bent = np.tanh(exponent / LARGEST_EXPONENT)
        growth = np.exp(LARGEST_EXPONENT * bent)
        return moved, growth, 1.0 - bent**2, bulge, jacobian


@dataclass(frozen=True)
class TiltedBySite:
    """The mean of ḡ as a function of θ, where each constant column is one site's.

    Attributes
    ----------
    constants, others
        Numbers of the parameters with constant columns, and of the others.
    values
        What each constant column is in the records where it is not zero.
    place
        θ̄.
    masses, means, within
        M_c, m_c of the other columns, and V, for the H of every chain.
    origin
        Σ w_t F(θ_t) of every chain.
    """

    constants: Integers
    others: Integers
    values: Floats
    place: Floats
    masses: Floats
    means: Floats
    within: Floats
    origin: Floats

    @classmethod
    def of(
        cls, evidence: Evidence, shape: ScoreShape, unit: Floats, information: Floats
    ) -> TiltedBySite:
        """The score of a finished study; ``unit`` is e of the module's equations."""
        constants = np.array(shape.constants, dtype=np.int64)
        others = np.setdiff1d(np.arange(evidence.dimension), constants)
        values = 1.0 / unit[constants]
        masses = information[:, constants, constants] / values**2
        masses = np.maximum(masses, 1e-300)
        mixed = information[:, constants[:, None], others]
        means = mixed / (masses * values)[:, :, None]
        weighted = (masses[:, :, None] * means).transpose(0, 2, 1)
        within = information[:, others[:, None], others] - weighted @ means
        within = within / masses.sum(axis=1)[:, None, None]
        nothing = np.zeros((len(information), evidence.dimension))
        score = cls(
            constants, others, values, evidence.place, masses, means, within, nothing
        )
        everywhere = score.mean(evidence.visited[:, None, :])
        return replace(score, origin=np.tensordot(evidence.weights, everywhere, 1))

    def mean(self, theta: Floats) -> Floats:
        """E ḡ for the θ of every chain."""
        moved, growth, _ = self._parts(theta)
        found = np.empty((*growth.shape[:-1], self.place.size))
        found[..., self.constants] = self.values * growth
        found[..., self.others] = np.vecmat(growth, moved)
        return np.asarray(found - self.origin)

    def derivative(self, theta: Floats) -> Floats:
        """d mean / dθ, shape ``(chains, d, d)``."""
        moved, growth, slope = self._parts(theta)
        tilted = growth * slope
        found = np.zeros((*self.origin.shape, self.origin.shape[1]))
        c, o = self.constants, self.others
        found[:, c, c] = self.values**2 * tilted
        found[:, c[:, None], o] = (self.values * tilted)[:, :, None] * moved
        found[:, o[:, None], c] = found[:, c[:, None], o].transpose(0, 2, 1)
        spread = moved.transpose(0, 2, 1) @ (tilted[:, :, None] * moved)
        own = growth.sum(axis=1)[:, None, None] * self.within
        found[:, o[:, None], o] = spread + own
        return found

    def variance_growth(self, theta: Floats) -> Floats | None:
        """None: γ would differ between sites, and V is taken to be that of θ̄."""
        return None

    def _parts(self, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """m_c + V δ of the other columns, M_c times the exponential, and the derivative
        of the held exponent by the one that is not."""
        away = theta - self.place
        rest = away[..., self.others]
        along = np.matvec(self.within, rest)
        square = np.maximum((along * rest).sum(axis=-1), 0.0)
        exponent = self.values * away[..., self.constants]
        exponent = exponent + np.matvec(self.means, rest) + 0.5 * square[..., None]
        bent = np.tanh(exponent / LARGEST_EXPONENT)
        growth = self.masses * np.exp(LARGEST_EXPONENT * bent)
        return self.means + along[..., None, :], growth, 1.0 - bent**2
