"""What a study implies before any data is read: releases, noise, range, parameters.

Every party derives the same plan from the study alone, so nobody has to be
believed about the noise, the grid or the number of rounds.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from typing import Protocol as Interface

from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.crypto.wire.transcript import transcript
from cipherbayes.errors import ProtocolError
from cipherbayes.privacy.events import Event
from cipherbayes.protocols.messages import RunManifest
from cipherbayes.protocols.protocol import Protocol, protocol_of
from cipherbayes.study.schema import PrivateStudy, Study
from cipherbayes.study.tables import (
    preparation_of,
    resolve_prior,
)


class ParameterNumbers(Interface):
    """A parameter set of either scheme, as far as people are told of it."""

    @property
    def id(self) -> str: ...
    @property
    def ring(self) -> int: ...
    @property
    def modulus_bits(self) -> int: ...
    @property
    def security_bits(self) -> int: ...


@dataclass(frozen=True)
class Encryption:
    """How a protocol encrypts, as a plan tells it.

    Attributes
    ----------
    parameters
        A vetted parameter set.
    message_bytes, total_bytes
        What a site sends in a round; what all parties send in all rounds.
    """

    scheme: str
    parameters: ParameterNumbers
    message_bytes: int
    total_bytes: int

    def record(self) -> dict[str, str | int]:
        """What ``cipherbayes plan --json`` says of the parameters."""
        parameters = self.parameters
        return {
            "scheme": self.scheme,
            "ring": parameters.ring,
            "modulus_bits": parameters.modulus_bits,
            "security_bits": parameters.security_bits,
            "id": parameters.id,
        }

    def __str__(self) -> str:
        return (
            f"{self.scheme}, ring {self.parameters.ring}, "
            f"{self.parameters.modulus_bits} bits, "
            f"{self.parameters.security_bits}-bit security"
        )


@dataclass(frozen=True)
class Plan(ABC):
    """What all parties of a private study agree on without talking to each other."""

    study: PrivateStudy

    @property
    def protocol(self) -> Protocol[Any]:
        """The study's protocol."""
        return protocol_of(self.study)

    @cached_property
    def study_hash(self) -> bytes:
        """What messages carry of the study: its fingerprint and the features' order.

        The order gives every number of θ its meaning, and a fingerprint, which is the
        same however a file is arranged, does not know it.
        """
        fields = (self.study.fingerprint(), *self.study.features)
        return hashlib.sha256(transcript("cipherbayes/study/1", *fields)).digest()

    @property
    @abstractmethod
    def rounds(self) -> int:
        """Releases in all."""

    @property
    def scheme(self) -> str | None:
        """Id of the encryption parameters; None where nothing is encrypted."""
        return None

    @property
    def encryption(self) -> Encryption | None:
        """The encryption and what it sends; None where nothing is encrypted."""
        return None

    @property
    def certified(self) -> bool:
        """Whether a run of it can be certified."""
        return self.protocol.certifies and not self.study.insecure

    def cautions(self) -> list[str]:
        """What every plan and result must warn of: by the protocol, and whose it is."""
        of_others = (
            f"the {what} comes from {whose}, which answers for its promises"
            for what, whose in self.parts_of_others()
        )
        return [*self.protocol.cautions(self), *of_others]

    def parts_of_others(self) -> list[tuple[str, str]]:
        """What of the study is not this package's, and whose it is."""
        found = []
        if (whose := self.protocol.distribution) is not None:
            found.append((f"protocol '{self.protocol.name}'", f"distribution {whose}"))
        model, method = self.study.model, self.study.inference_method
        for what, thing in (
            (f"model '{model.kind}'", model),
            (f"method '{method.name}'", method),
        ):
            package = type(thing).__module__.partition(".")[0]
            if package != __name__.partition(".")[0]:
                found.append((what, f"package '{package}'"))
        return [(what, f"the {whose}") for what, whose in found]

    @property
    def minimum_roster(self) -> int:
        """Fewest sites whose sum may be decrypted."""
        return len(self.study.sites) - self.study.privacy.dropouts

    @abstractmethod
    def epsilon_after(self, rounds: int) -> float:
        """ε that the first rounds have spent, at the study's δ; 0 before the first."""

    @abstractmethod
    def charges(self) -> Counter[Event]:
        """What a whole run charges to ledgers; empty where the plan cannot say."""

    @abstractmethod
    def purpose(self, number: int) -> str | None:
        """What a round is for; None where the study has no such round."""

    @property
    @abstractmethod
    def preparatory_names(self) -> tuple[str, ...]:
        """Under which names the results of preparatory rounds are kept."""

    @property
    def closing_names(self) -> tuple[str, ...]:
        """Under which names the results of rounds after the sampler's are kept."""
        return ()

    @abstractmethod
    def rounds_prepared(self, kept: Container[str]) -> int:
        """Rounds whose preparatory results are kept under these names."""

    @abstractmethod
    def check_site(self, name: str, count: int) -> None:
        """Refuse a table that the plan was not made for."""

    def noise_in_words(self, sizes: Sequence[int]) -> str:
        """How much noise totals over so many sites have; empty where it is not told."""
        return ""

    def check_manifest(
        self, manifest: RunManifest, run: bytes, pinned: Mapping[str, Identity]
    ) -> None:
        """Raise ProtocolError unless a manifest is exactly this study's.

        A site that was lost before it enrolled is not in it, where the study allows
        for lost sites.
        """
        scheme = self.scheme
        expected = (run, self.study_hash, self.rounds)
        given = (manifest.run, manifest.study, manifest.rounds)
        known = set(manifest.roster.sites) <= set(self.study.sites)
        enough = len(manifest.roster) >= self.minimum_roster
        if scheme is None or given != expected or not (known and enough):
            raise ProtocolError(
                "the run's manifest is not the study's",
                remedy="give every party the same study file and release",
            )
        if manifest.parameters != scheme:
            raise ProtocolError("the manifest names other encryption parameters")
        if manifest.csp != pinned["csp"].raw:
            raise ProtocolError("the manifest names another CSP")
        manifest.roster.verify(run=run, study=self.study_hash, pinned=pinned)


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def plan_study(study: Study) -> Plan:
    """Lay out a private study's releases within its budget.

    Formal guarantees
    -----------------
    Those of :meth:`~cipherbayes.protocols.protocol.Protocol.plan`.
    """
    private = study.with_privacy()
    resolve_prior(private, preparation_of(private).design)
    plan: Plan = protocol_of(private).plan(private)
    return plan
