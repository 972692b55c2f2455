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
NUMBER_BYTES = 8
"""Of a number that is told in the clear."""


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
        total = sum(phase.rounds * self._exchanged(phase) for phase in self.phases)
        return Encryption(
            scheme="BFV",
            parameters=parameters,
            message_bytes=self._message(self.last_phase),
            total_bytes=total,
        )

    def _message(self, phase: Phase) -> int:
        """Bytes of a site's message in a round of a phase."""
        return self.parameters.payload_bytes(phase.dimension) + ENVELOPE_BYTES

    def _exchanged(self, phase: Phase) -> int:
        """Bytes of all messages in a round of a phase, about: the server asks every
        site, telling what was released before the fit, and shows the CSP what all
        sites answered, which tells the sum."""
        sites = len(self.study.sites)
        told = sum(NUMBER_BYTES * each.dimension for each in self.preparatory)
        asked = ENVELOPE_BYTES + (0 if phase.preparatory else told)
        summed = ENVELOPE_BYTES + NUMBER_BYTES * phase.dimension
        return sites * (asked + 2 * self._message(phase)) + summed
