"""What a secure sum implies: the encryption parameters that hold every release."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cipherbayes.crypto.bfv.parameters import ParameterSet, choose
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.plan import Encryption
from cipherbayes.protocols.study_plan import StudyPlan

ENVELOPE_BYTES = 350
"""Frames, names and a signature around a message's coefficients, about."""


@dataclass(frozen=True)
class SecureSumPlan(StudyPlan):
    """The plan of ``protocol = "secure-sum"``."""

    @cached_property
    def parameters(self) -> ParameterSet:
        """The smallest vetted parameter set that holds every release."""
        return choose(
            max(phase.bound for phase in self.phases),
            len(self.study.sites),
            max(phase.dimension for phase in self.phases),
        )

    @property
    def scheme(self) -> str:
        return self.parameters.id

    @property
    def encryption(self) -> Encryption:
        parameters = self.parameters
        sizes = (phase.rounds * self._message(phase) for phase in self.phases)
        return Encryption(
            scheme="BFV",
            ring=parameters.ring,
            modulus_bits=parameters.modulus_bits,
            security_bits=parameters.security_bits,
            id=parameters.id,
            message_bytes=self._message(self.last_phase),
            total_bytes=sum(sizes) * self.last_phase.sums.sites,
        )

    def _message(self, phase: Phase) -> int:
        """Bytes of a site's message in a round of a phase."""
        return self.parameters.payload_bytes(phase.dimension) + ENVELOPE_BYTES
