"""A learnt residual scale, where the coefficients are not known exactly.

Residuals at θ̄ = (β̄, τ̄) vary because of the outcome's own scale e^τ and because β̄ is not
β: in units of e^τ̄, and of β over it,

    E u² = e^(2 (τ − τ̄)) + q(β),
    q(β) = (β − β̄)' H (β − β̄) / M + Σ_t w_t e^(τ̄ − τ_t) (β_t − β̄)' H (β_t − β̄) / M,

M the constant's information, the second term from rounds at other β, whose score counts
residuals over e^τ_t (:meth:`~.recursion.NoiseAware.measured_at`). So what the score
of the log scale tells about, as if it were linear, is τ' with e^(2 (τ' − τ̄)) = E u²,
and not τ: with much noise τ' is too high by ½ log(1 + q e^(2 (τ̄ − τ))). β and τ' are
drawn as everywhere, and a draw is accepted by what the prior says of τ for τ'
(Metropolis),

    π(τ) / π(τ') · dτ / dτ',    dτ / dτ' = e^(2 (τ' − τ̄)) / (e^(2 (τ' − τ̄)) − q).

Draws whose q is all that residuals vary by are impossible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.shape import ScoreShape
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class ResidualScale:
    """The last parameter, a log scale, of draws in internal units.

    Attributes
    ----------
    evidence
        What was released.
    constant
        The parameter with the constant column.
    unit
        a: τ is a times the internal parameter.
    """

    evidence: Evidence
    constant: int
    unit: float

    @classmethod
    def of(cls, shape: ScoreShape, evidence: Evidence) -> ResidualScale | None:
        """None where no scale is learnt."""
        if not shape.learns_scale or not shape.constants:
            return None
        return cls(evidence, shape.constants[0], float(shape.basis[-1, -1]))

    def told(self, information: Floats, theta: Floats) -> Floats:
        """θ with τ for τ', for stacks of H and θ; NaN where there is none."""
        _, own = self._squares(information, theta)
        moved = theta.copy()
        with np.errstate(invalid="ignore", divide="ignore"):
            change = 0.5 * np.log(np.where(own > 0.0, own, np.nan))
        moved[..., -1] = self.evidence.place[-1] + change / self.unit
        return moved

    def log_weight(
        self, information: Floats, theta: Floats, precision: Floats
    ) -> Floats:
        """Log of what a draw of (β, τ') is accepted by; -∞ where it is impossible.

        Parameters
        ----------
        precision
            Λ, a stack.
        """
        every, own = self._squares(information, theta)
        moved = self.told(information, theta)[..., -1] - self.evidence.prior_mean[-1]
        before = theta[..., -1] - self.evidence.prior_mean[-1]
        with np.errstate(invalid="ignore", divide="ignore"):
            weight = -0.5 * precision[..., -1, -1] * (moved**2 - before**2)
            weight += np.log(every) - np.log(own)
        return np.where(own > 0.0, weight, -np.inf)

    def _squares(self, information: Floats, theta: Floats) -> tuple[Floats, Floats]:
        """E u², and how much of it is the outcome's own."""
        evidence = self.evidence
        columns = information[..., :-1, :-1]
        mass = information[..., self.constant, self.constant]
        away = theta[..., :-1] - evidence.place[:-1]
        rounds = evidence.visited[:, :-1] - evidence.place[:-1]
        larger = self.unit * (evidence.visited[:, -1] - evidence.place[-1])
        weights = evidence.weights * np.exp(-larger)
        spread = np.einsum("t,ti,tj->ij", weights, rounds, rounds)
        wrong = np.vecdot(away, np.matvec(columns, away))
        wrong += np.einsum("...ij,ij->...", columns, spread)
        change = self.unit * (theta[..., -1] - evidence.place[-1])
        every = np.exp(np.clip(2.0 * change, -50.0, 50.0))
        return every, every - wrong / mass
