"""What a protocol is: one object that the rest of the package asks.

Each folder of this room exports one descriptor, ``PROTOCOL``. It knows which studies
it can run, what they release, how its parties are made from a run's folder, what its
certificate says, and the words for its plan and report. Nothing outside its folder asks
which protocol a study has. :func:`register` adds another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, TypeVar
from typing import Protocol as Interface

from cipherbayes.study.protocol_rules import ProtocolRules, register, unregister

if TYPE_CHECKING:  # a study file is read without loading parties
    from cipherbayes.crypto.identity.signatures import Identity, SigningKey
    from cipherbayes.crypto.key_folder import KeyFolder
    from cipherbayes.crypto.masks import ExchangeKey
    from cipherbayes.data.prepared import PreparedTable
    from cipherbayes.privacy.ledger import Ledger
    from cipherbayes.privacy.noise import NoiseSource
    from cipherbayes.protocols.certificate import CertificateRecord
    from cipherbayes.protocols.contributions import Contributions
    from cipherbayes.protocols.csp import Csp
    from cipherbayes.protocols.paper_claim import PaperSetting
    from cipherbayes.protocols.phase import Phase
    from cipherbayes.protocols.plan import Plan
    from cipherbayes.protocols.plan_description import PlanDescription
    from cipherbayes.protocols.questions import Question
    from cipherbayes.protocols.rounds import PhasedRounds, StudyRounds
    from cipherbayes.protocols.server import Server
    from cipherbayes.protocols.site import Site
    from cipherbayes.protocols.stores import AnswerStore, Checkpoint
    from cipherbayes.protocols.study_plan import StudyPlan
    from cipherbayes.study.schema import PrivateStudy, Study
    from cipherbayes.typing import Integers

__all__ = [
    "CspParts",
    "CuratedProtocol",
    "Fact",
    "PartyFolder",
    "Protocol",
    "ServerParts",
    "SiteParts",
    "TableCurator",
    "protocol_of",
    "register",
    "unregister",
]


ItsPlan = TypeVar("ItsPlan", bound="Plan")
"""The plan of one protocol."""


class PartyFolder(Interface):
    """A run's folder, as far as a party is made from it."""

    @property
    def run(self) -> bytes: ...
    @property
    def plan(self) -> Any: ...
    def home(self, name: str) -> Path: ...
    def keys(self, name: str) -> KeyFolder: ...
    def pinned(self) -> dict[str, Identity]: ...
    def noise(self, name: str) -> NoiseSource: ...


class SiteParts(TypedDict, Generic[ItsPlan]):
    """What a site of any protocol is made of."""

    name: str
    run: bytes
    plan: ItsPlan
    contributions: Contributions
    ledger: Ledger
    key: SigningKey
    exchange: ExchangeKey
    noise: NoiseSource
    pinned: dict[str, Identity]


class ServerParts(TypedDict, Generic[ItsPlan]):
    """What a server of any protocol is made of."""

    run: bytes
    plan: ItsPlan
    rounds: StudyRounds[ItsPlan]
    checkpoint: Checkpoint
    pinned: dict[str, Identity]


class CspParts(TypedDict, Generic[ItsPlan]):
    """What a CSP of any protocol is made of."""

    run: bytes
    plan: ItsPlan
    key: SigningKey
    store: AnswerStore
    pinned: dict[str, Identity]


@dataclass(frozen=True)
class Fact:
    """One line of a report about a protocol; ``alarming`` where it must stand out."""

    name: str
    text: str
    alarming: bool = False


class Protocol(ProtocolRules, ABC, Generic[ItsPlan]):
    """A protocol.

    Attributes
    ----------
    certifies
        Whether its results can be certified: whoever sets it answers for
        :meth:`holds_against`.
    leaves
        How a vector leaves a site, in words for whoever approves a study.
    charges_every_round
        Whether ledgers count its rounds; else a run is charged once, as a whole.
    messages_audited
        Whether ``cipherbayes audit --protocol`` can drive its parties.
    totals_have_range
        Whether public numbers bound every total.
    headline
        What was done, in a report's first line.
    unverifiable_noise
        What no transcript can show about its noise.
    """

    certifies: ClassVar[bool] = False
    leaves: ClassVar[str]
    charges_every_round: ClassVar[bool] = True
    messages_audited: ClassVar[bool] = False
    totals_have_range: ClassVar[bool] = True
    headline: ClassVar[str]
    unverifiable_noise: ClassVar[str] = (
        "that sites drew their noise and summed their own rows honestly"
    )

    # -- what is released --------------------------------------------------

    @abstractmethod
    def plan(self, study: PrivateStudy) -> ItsPlan:
        """Lay out a study's releases within its budget.

        Formal guarantees
        -----------------
        The composition of everything that is released is (ε, δ)-differentially private
        with the study's ε and δ, by the accountant, unless :attr:`certifies` is false.
        """

    def first_budget(self, study: PrivateStudy) -> float:
        """ε of a table's first ledger where its owner names none."""
        return study.privacy.epsilon

    # -- who runs it -------------------------------------------------------

    def rounds(self, plan: ItsPlan, checkpoint: Checkpoint) -> StudyRounds[Any]:
        """Where a run stands."""
        from cipherbayes.protocols.rounds import PhasedRounds

        return PhasedRounds(_phased(plan), checkpoint)

    @abstractmethod
    def site(
        self, folder: PartyFolder, table: PreparedTable, parts: SiteParts[ItsPlan]
    ) -> Site[Any]:
        """A site over its table."""

    @abstractmethod
    def csp(self, folder: PartyFolder, parts: CspParts[ItsPlan]) -> Csp[Any]:
        """The CSP, with the run's keys made at the first call."""

    @abstractmethod
    def server(self, folder: PartyFolder, parts: ServerParts[ItsPlan]) -> Server[Any]:
        """The server, where it stopped."""

    # -- what may be said --------------------------------------------------

    def certificate(self, plan: ItsPlan, rounds: int) -> CertificateRecord:
        """What a run of so many rounds may promise."""
        from cipherbayes.protocols.certificate import certificate

        return certificate(_phased(plan), rounds)

    @abstractmethod
    def holds_against(self, study: PrivateStudy) -> list[str]:
        """Whom a certified result's promise holds against, in words."""

    def cautions(self, plan: ItsPlan) -> list[str]:
        """What every plan and result of it must warn of."""
        return []

    def describe(self, plan: ItsPlan) -> PlanDescription:
        """What ``cipherbayes plan`` says."""
        from cipherbayes.protocols.plan_description import describe

        return describe(_phased(plan))

    def approval(self, plan: ItsPlan) -> list[str]:
        """What is spent and sent, for whoever decides whether a study may run."""
        from cipherbayes.protocols.plan_description import approval_lines

        return approval_lines(_phased(plan))

    def method_words(self, study: Study) -> str:
        """What a report calls the method."""
        return study.method

    def interval_caution(self, study: Study) -> str | None:
        """Why intervals should not be relied on; None where they may."""
        return study.inference_method.interval_caution if study.private else None

    def not_certified(self, privacy: CertificateRecord) -> tuple[str, str] | None:
        """Title and text of a report's banner, where its own rules forbid a
        certificate; None where nothing of the kind is known."""
        return None

    def asked_epsilon(self, privacy: CertificateRecord) -> float | None:
        """The ε that a study asked for, also where nothing is certified."""
        return privacy["epsilon"]

    def limits(self, privacy: CertificateRecord) -> list[Fact]:
        """What limits a certificate of its own kind."""
        return []

    def security(self, privacy: CertificateRecord) -> tuple[str, list[Fact]]:
        """How messages were protected: a sentence, and facts."""
        return "", []

    def audited_claim(self, study: PrivateStudy) -> PaperSetting | None:
        """The claim that an audit attacks instead of the study's own releases."""
        return None


class TableCurator(Interface):
    """Whoever holds all tables of a study and releases noised totals over them."""

    def release(self, number: int, phase: Phase, question: Question) -> Integers: ...


class CuratedProtocol(Protocol[ItsPlan]):
    """A protocol without parties: whoever holds all tables releases the totals."""

    federated = False
    leaves = "not at all: whoever holds the tables adds it up"

    def security(self, privacy: CertificateRecord) -> tuple[str, list[Fact]]:
        return (
            "All tables were in one place, so nothing was encrypted and nothing had to "
            "be signed. Whoever holds that place can read the rows.",
            [],
        )

    def rounds(self, plan: ItsPlan, checkpoint: Checkpoint) -> PhasedRounds[Any]:
        from cipherbayes.protocols.rounds import PhasedRounds

        return PhasedRounds(_phased(plan), checkpoint)

    @abstractmethod
    def curator(
        self, folder: PartyFolder, tables: Mapping[str, tuple[Contributions, Ledger]]
    ) -> TableCurator:
        """Whoever holds the tables, each with its ledger."""

    def site(
        self, folder: PartyFolder, table: PreparedTable, parts: SiteParts[ItsPlan]
    ) -> Site[Any]:
        raise NotImplementedError(f"{self.name} has no sites of their own")

    def csp(self, folder: PartyFolder, parts: CspParts[ItsPlan]) -> Csp[Any]:
        raise NotImplementedError(f"{self.name} has no CSP")

    def server(self, folder: PartyFolder, parts: ServerParts[ItsPlan]) -> Server[Any]:
        raise NotImplementedError(f"{self.name} has no server")


def protocol_of(study: Study) -> Protocol[Any]:
    """The descriptor of a study's protocol."""
    found = study.rules
    assert isinstance(found, Protocol)
    return found


def _phased(plan: Plan) -> StudyPlan:
    """The plan of a protocol that releases noised sums in phases.

    One of another kind says itself what rounds, certificates and descriptions are.
    """
    from cipherbayes.protocols.study_plan import StudyPlan

    if not isinstance(plan, StudyPlan):
        raise NotImplementedError(
            f"{plan.protocol.name} has a plan without phases: its protocol must state "
            "rounds, certificate, describe and approval itself"
        )
    return plan
