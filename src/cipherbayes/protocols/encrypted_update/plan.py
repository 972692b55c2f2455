"""What an encrypted update with the noise in the gradient implies, before any data.

With C the clipping norm, K sites of which c may collude and σ the noise multiplier of
T rounds, every site's share has standard deviation σC/√(K−c) and the total
σ_tot = σC √(K/(K−c)). All else follows from it:

=======  ======================  ================================================
symbol   value                   what it is
=======  ======================  ================================================
s        σ'/σ_tot, σ' = 0.1      unit of h = s Σ_k (S_k + share_k)
V₀       σ'²                     start of the running mean of squares
[a, 1]   a = 0.01                interval of the preconditioner's polynomial P
b        0.79                    |h| without noise stays in the box ±b
η_j      2 · prior scale/√T      step; at most σ_tot · (prior scale)²
T        10 for ε ≤ 1, else 40   rounds, if the study names none
=======  ======================  ================================================

The box keeps V ≤ 1, where P is a preconditioner, except with probability 2⁻⁴⁰ a run.
A failure costs correctness, never privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cipherbayes.errors import StudyError
from cipherbayes.inference.ascent import UNIT_NOISE, EncryptedAscent, default_rounds
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.protocols.plan import Encryption
from cipherbayes.protocols.releases import MOST_RECORDS, phases_of
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.study.protocol_rules import choices
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.study.tables import preparation_of, resolve_prior
from cipherbayes.typing import Floats

if TYPE_CHECKING:  # loads the encryption library
    from cipherbayes.crypto.ckks.circuit import Circuit

INTERVAL_START = 0.01
"""a: V below it is preconditioned as if it were a little larger."""
BOX = 0.79
"""b: bound on |h| before noise."""
LARGEST_DRIFT = 1.0
"""The prior's pull on h is cut here: beyond it a box of gradients could not hold."""

SCHEMES = {
    "literal": "ckks-16384-literal",
    "fast": "ckks-8192-fast",
    "hardened": "ckks-16384-hardened",
}

DEFAULT_CIRCUIT = "hardened"
ENVELOPE_BYTES = 700
"""Frames, names and signatures of a reply and an attestation, about."""

FLOODING_BITS = 40
LEAST_FLOODING_BITS = 20
FLOODING_SHARE = 0.14
"""Most that flooding may be, as a share of the smallest privacy noise in an output:
together they are then 1 % wider than that noise."""


@dataclass(frozen=True)
class CircuitEncryption(Encryption):
    """The encryption of an update: its circuit, and how far its error is hidden."""

    circuit: str
    flooding_bits: int

    def record(self) -> dict[str, str | int]:
        return {
            **super().record(),
            "circuit": self.circuit,
            "flooding_bits": self.flooding_bits,
        }

    def __str__(self) -> str:
        said = f"circuit {self.circuit}, {self.flooding_bits} bits of flooding"
        return f"{super().__str__()}, {said}"


@dataclass(frozen=True)
class EncryptedPlan(StudyPlan):
    """The plan of ``protocol = "encrypted-update"`` with noise in the gradient.

    Formal guarantees
    -----------------
    All that honest sites H send is a randomised function of Σ_H (S_k + share_k) of each
    round, to all other parties together and whatever keys they have: pairwise masks,
    exactly linear encodings (:class:`~cipherbayes.crypto.ckks.masking.RingMask`). What
    the CSP releases is a function of these messages, of the others' and of noise that
    knows no data. With |H| ≥ K − c the noise in the sum is σC or more. The box is a
    projection of each site's sum onto a convex set that does not depend on the data,
    so it keeps the sensitivity, and it comes before the noise. So the accounting of
    the noised sums is that of the run, and it does not rest on the encryption.
    """

    @property
    def circuit_name(self) -> str:
        """How the update is computed: as stated, else hardened."""
        return self.study.study.circuit or DEFAULT_CIRCUIT

    @property
    def scheme(self) -> str:
        return SCHEMES[self.circuit_name]

    @property
    def encryption(self) -> CircuitEncryption:
        circuit, sites = self.circuit, self.last_phase.sums.sites
        parameters, dimension = circuit.parameters, circuit.update.dimension
        payload = parameters.payload_bytes(dimension, 2, parameters.levels)
        message = payload + ENVELOPE_BYTES
        return CircuitEncryption(
            scheme="CKKS",
            parameters=parameters,
            circuit=self.circuit_name,
            flooding_bits=self.flooding_bits,
            message_bytes=message,
            # Every site gets all messages back and checks what they amount to.
            total_bytes=self.rounds * sites * message * (1 + sites),
        )

    @cached_property
    def noise_sd(self) -> float:
        """σ_tot: noise really in the sum of all sites' gradients."""
        return self.last_phase.sums.noise_sd(len(self.study.sites))

    @property
    def unit(self) -> float:
        """s: what a gradient sum is multiplied with."""
        return UNIT_NOISE / self.noise_sd

    @property
    def box(self) -> float:
        """Bound on each coordinate of one site's sum: B/K with B = b/s.

        Not B n_k/N: the number of a site's rows is data, and a box that moves
        with it is no projection.
        """
        return BOX / self.unit / len(self.study.sites)

    @cached_property
    def prior(self) -> ResolvedPrior:
        return resolve_prior(self.study, preparation_of(self.study).design)

    @cached_property
    def step_size(self) -> Floats:
        """η of each parameter, as stated or 2 · prior scale/√T.

        The preconditioned direction has no unit: its coordinates are of order one
        whatever the data, so η is how far θ_j moves in a round, and its scale is
        the prior's.
        """
        scale, stated = self.prior.scale, self.study.inference.step.size
        if stated is not None:
            return np.full(scale.shape, stated)
        # η P s/scale² ≤ 1 at the largest P = 1/σ': the prior does not overshoot.
        return np.minimum(
            2.0 * scale / math.sqrt(self.rounds), self.noise_sd * scale**2
        )

    def drift(self, theta: Floats) -> Floats:
        """s ∇log p(θ), cut to ±``LARGEST_DRIFT``: public, the same for all parties."""
        pull = self.unit * self.prior.gradient(theta)
        return np.clip(pull, -LARGEST_DRIFT, LARGEST_DRIFT)

    @cached_property
    def circuit(self) -> Circuit:
        """The circuit that the study names; refuses what could wrap around."""
        from cipherbayes.crypto.ckks.circuit import Update
        from cipherbayes.crypto.ckks.circuits import make_circuit
        from cipherbayes.crypto.ckks.polynomial import minimax

        settings, release = self.study.inference, self.last_phase.sums
        update = Update(
            dimension=release.dimension,
            sites=len(self.study.sites),
            unit=self.unit * release.step,
            polynomial=minimax(INTERVAL_START, settings.floor),
            alpha=settings.alpha,
            initial=UNIT_NOISE**2,
            drift=LARGEST_DRIFT,
        )
        if self.circuit_name == "literal":
            from cipherbayes.crypto.ckks.stored_literal import StoredLiteral

            return StoredLiteral(update)
        return make_circuit(self.circuit_name, update)

    @property
    def certified(self) -> bool:
        """Whether a result may be certified: real noise, and a key that is hidden."""
        return super().certified and self.flooding_bits > 0

    @cached_property
    def flooding_bits(self) -> int:
        """Statistical bits by which released values hide the CKKS error; 0 for none.

        Over all values of all rounds. As many as 0.14 of the smallest privacy noise in
        an output, σ' min P, pays for, at most 40. Fewer than 20 would be no protection
        worth naming.
        """
        if self.circuit_name != "hardened":
            return 0
        from cipherbayes.protocols.encrypted_update.flooding import Flooding

        allowed = FLOODING_SHARE * UNIT_NOISE * self._smallest_factor
        for bits in range(FLOODING_BITS, LEAST_FLOODING_BITS - 1, -1):
            flooding = Flooding(bits=bits, releases=self.rounds)
            if self._widest(flooding) <= allowed:
                return bits
        raise StudyError(
            "the noise that hides the CKKS error would widen the "
            "privacy noise by more than one per cent",
            where=f"study '{self.study.name}'",
            remedy="ask for fewer rounds, or use "
            + choices(lambda other: other.federated and other.noise_aware),
        )

    def _widest(self, flooding: object) -> float:
        from cipherbayes.protocols.encrypted_update.flooding import Flooding

        assert isinstance(flooding, Flooding)
        return max(
            flooding.sd(self.circuit, t) for t in range(1, min(self.rounds, 64) + 1)
        )

    @cached_property
    def _smallest_factor(self) -> float:
        polynomial = self.circuit.update.polynomial
        return float(np.abs(polynomial(np.linspace(INTERVAL_START, 1.0, 513))).min())

    @cached_property
    def grid(self) -> float:
        """Step of the released values: a power of two, 2⁻⁸ of their smallest noise."""
        fine = UNIT_NOISE * self._smallest_factor * 2.0**-8
        return float(2.0 ** math.floor(math.log2(fine)))

    @cached_property
    def bound(self) -> int:
        """Largest released value in grid units: anything beyond is no output."""
        polynomial = self.circuit.update.polynomial
        largest = float(np.abs(polynomial(np.linspace(0.0, 1.0, 513))).max())
        reach = self.circuit.update.largest_mean + LARGEST_DRIFT
        return math.ceil(2.0 * largest * reach / self.grid)

    def recursion(self, records: float) -> EncryptedAscent:
        return EncryptedAscent(
            self.study.inference, self.prior, rounds=self.rounds, size=self.step_size
        )


def plan_encrypted(study: PrivateStudy) -> EncryptedPlan:
    """Lay out an encrypted update within its budget.

    N is not needed: neither the step nor the box depends on it. Where the study
    does not declare it, only the range of sums is planned for the largest N.
    """
    privacy = study.privacy
    if study.inference.batch is not None and privacy.records is None:
        raise StudyError(
            "inference.batch needs the public number of records",
            where=f"study '{study.name}'",
            remedy="set privacy.records",
        )
    rounds = study.inference.rounds or default_rounds(privacy.epsilon)
    filled = study.model_copy(
        update={
            "privacy": privacy.model_copy(
                update={"records": privacy.records or MOST_RECORDS}
            ),
            "inference": study.inference.model_copy(update={"rounds": rounds}),
        }
    )
    return EncryptedPlan(study, phases_of(filled, preparation_of(study).design))
