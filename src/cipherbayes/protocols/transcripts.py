"""A run's transcript: from it anybody can compute the result again.

A file of frames, one after the other: the head, then each round's total exactly as
the CSP signed it (in a pooled run, as the curator wrote it, with nobody's signature).
Everything else in a result follows from the study and from these.

Formal guarantees
-----------------
A transcript holds released values only: what the certificate calls released, no
ciphertext, no key but public ones. Whoever has it learns nothing that the promise
does not cover.

Edge cases
----------
The CSP signs what it says it decrypted; that it decrypted honestly cannot be seen
here. Of a run that stopped early only the sites know which rounds they answered.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cipherbayes.crypto.bfv.parameters import MAX_DIMENSION
from cipherbayes.crypto.identity.roster import Roster
from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.crypto.wire.fields import Blob, Vector
from cipherbayes.crypto.wire.framing import Kind, split_frames
from cipherbayes.crypto.wire.transcript import (
    RoundId,
    check_counter,
    check_token,
)
from cipherbayes.errors import CryptoError, ProtocolError, RunError
from cipherbayes.protocols.message_checks import check_run, checked_total
from cipherbayes.protocols.messages import (
    DecryptReply,
    RunManifest,
    decode,
    encode,
    register,
)
from cipherbayes.typing import Integers

if TYPE_CHECKING:
    from cipherbayes.protocols.plan import Plan

FILE = "transcript.bin"
FORMAT = 1
MOST_BYTES = 2**30
_SMALL, _LARGE = 2**16, 2**20


@dataclass(frozen=True)
class TranscriptHead:
    """What a transcript is of.

    Attributes
    ----------
    run, study
        The run's id and the hash of its study.
    manifest
        The run's manifest, with every site's signed enrolment; empty for a pooled
        run, which has no parties.
    lost
        Sites that dropped out, the first lost first.
    """

    run: bytes
    study: bytes
    manifest: Annotated[bytes, Blob(_LARGE)]
    lost: tuple[str, ...]
    version: int = FORMAT

    def __post_init__(self) -> None:
        check_run(self.run, self.study)
        for site in self.lost:
            check_token(site, "a site's name")
        if self.version != FORMAT:
            raise ProtocolError(
                "the transcript has another version",
                remedy="read it with the release that wrote it",
            )


@dataclass(frozen=True, eq=False)
class CuratorTotal:
    """A round's total in a pooled run: one party holds all tables, nobody signs."""

    run: bytes
    study: bytes
    round: int
    purpose: str
    values: Annotated[Integers, Vector("<i8")]

    def __post_init__(self) -> None:
        check_run(self.run, self.study)
        check_counter(self.round, "the round")
        check_token(self.purpose, "the purpose")
        object.__setattr__(self, "values", checked_total(self.values))


register(TranscriptHead, Kind.TRANSCRIPT, _LARGE + _SMALL)
register(CuratorTotal, Kind.CURATOR_TOTAL, 8 * MAX_DIMENSION + _SMALL)


def transcript_bytes(head: TranscriptHead, messages: Sequence[bytes]) -> bytes:
    """A transcript of messages as they came."""
    return b"".join((encode(head), *messages))


@dataclass(frozen=True)
class Transcript:
    """A transcript that was read; nothing about it has been believed yet."""

    head: TranscriptHead
    totals: tuple[DecryptReply | CuratorTotal, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> Transcript:
        """Read what :func:`transcript_bytes` wrote; ProtocolError for anything else."""
        if len(data) > MOST_BYTES:
            raise ProtocolError(f"a transcript has at most {MOST_BYTES} bytes")
        try:
            frames = list(split_frames(data))
        except CryptoError as refused:
            raise ProtocolError(refused.what, remedy=refused.remedy) from None
        if not frames:
            raise ProtocolError("the transcript is empty")
        head = decode(frames[0], TranscriptHead)
        totals = (decode(frame, DecryptReply, CuratorTotal) for frame in frames[1:])
        return cls(head, tuple(totals))

    @classmethod
    def load(cls, folder: Path) -> Transcript:
        """Read the transcript of a folder."""
        path = folder / FILE
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ProtocolError(f"a transcript has at most {MOST_BYTES} bytes")
            return cls.from_bytes(path.read_bytes())
        except FileNotFoundError:
            raise RunError(
                "holds no transcript",
                where=str(folder),
                remedy="give the folder of a private run that has ended, or a site's "
                "own copy, KIT/runs/RUN",
            ) from None
        except OSError:
            raise RunError("cannot be read", where=str(path)) from None

    @property
    def pooled(self) -> bool:
        """Whether one party held all tables, so that nothing is signed."""
        return not self.head.manifest

    @cached_property
    def manifest(self) -> RunManifest:
        """The run's manifest, as the transcript has it."""
        return decode(self.head.manifest, RunManifest)

    # -- what must hold ----------------------------------------------------

    def check(self, plan: Plan, run: bytes, pinned: Mapping[str, Identity]) -> None:
        """Raise ProtocolError unless every total is signed, in its place, and of
        this run and study."""
        self.check_study(plan, run)
        plan.check_manifest(self.manifest, run, pinned)
        self.check_rounds(plan)
        self.check_signatures(pinned["csp"])
        self.rosters(plan)

    def check_study(self, plan: Plan, run: bytes) -> None:
        """Raise ProtocolError if it is of another study or run."""
        if self.head.study != plan.study_hash:
            raise ProtocolError("the transcript is of another study")
        if self.head.run != run:
            raise ProtocolError("the transcript is of another run")

    def check_rounds(self, plan: Plan) -> None:
        """Raise ProtocolError unless rounds follow one another from the first on."""
        if len(self.totals) > plan.rounds:
            raise ProtocolError("the transcript has more rounds than the study")
        expected = (self.head.run, self.head.study)
        for number, total in enumerate(self.totals):
            run, study, found, purpose = place(total)
            where = f"round {number + 1}"
            if (run, study) != expected:
                raise ProtocolError(
                    "a total is of another run or study", where=f"place of {where}"
                )
            if found != number:
                raise ProtocolError(
                    f"a total is missing or out of order: round {found + 1} stands "
                    "in its place",
                    where=where,
                )
            if purpose != plan.purpose(number):
                raise ProtocolError("a total is not what the study asks", where=where)

    def check_signatures(self, csp: Identity) -> None:
        """Raise ProtocolError unless the CSP signed every total."""
        for number, total in enumerate(self.totals):
            where = f"round {number + 1}"
            if not isinstance(total, DecryptReply):
                raise ProtocolError("nobody signed the total", where=where)
            try:
                total.verify(csp)
            except ProtocolError:
                raise ProtocolError(
                    "the CSP did not sign this total", where=where
                ) from None

    def rosters(self, plan: Plan) -> list[Roster]:
        """The sites in each total; ProtocolError where the study does not allow them.

        Formal guarantees
        -----------------
        Each is a part of the manifest's roster of at least the study's minimum, and
        a site that was left out never comes back.
        """
        found: list[Roster] = []
        if len(self.head.lost) > len(plan.study.sites) - plan.minimum_roster:
            raise ProtocolError("more sites are said to be lost than the study allows")
        possible = _possible_rosters(self.manifest.roster, self.head.lost)
        for number, total in enumerate(self.totals):
            assert isinstance(total, DecryptReply)
            where = f"round {number + 1}"
            roster = _named(total.round_id, possible)
            if len(roster) < plan.minimum_roster:
                raise ProtocolError(
                    "a total is over fewer sites than the study allows", where=where
                )
            if found and len(roster) > len(found[-1]):
                raise ProtocolError("a lost site came back", where=where)
            found.append(roster)
        return found

    def check_site(self, site: str, answered: int | None) -> None:
        """Raise ProtocolError unless a site's own rounds are those told here.

        Parameters
        ----------
        answered
            Rounds that the site's ledger was charged for; None if it does not say.

        Edge cases
        ----------
        The last round that a site answered need not have been decrypted: another
        site may have refused it.
        """
        if answered is None:
            return
        where = f"site {site}"
        if answered > len(self.totals) + 1:
            raise ProtocolError(
                f"{answered} rounds were answered, the transcript tells of "
                f"{len(self.totals)}",
                where=where,
            )
        possible = _possible_rosters(self.manifest.roster, self.head.lost)
        for number, total in enumerate(self.totals):
            assert isinstance(total, DecryptReply)
            roster = _named(total.round_id, possible)
            if site in roster.sites and number >= answered:
                raise ProtocolError(
                    f"round {number + 1} names a site that did not answer it",
                    where=where,
                )


def place(total: DecryptReply | CuratorTotal) -> tuple[bytes, bytes, int, str]:
    """Run, study, round and purpose that a total says it is of."""
    of = total.round_id if isinstance(total, DecryptReply) else total
    return of.run, of.study, of.round, of.purpose


def roster_of(given: RoundId, everyone: Roster, lost: Sequence[str]) -> Roster:
    """The roster that an exchange names: everyone but the first of the lost.

    A round that is asked again after a loss is answered for its first roster.
    """
    return _named(given, _possible_rosters(everyone, lost))


def _possible_rosters(everyone: Roster, lost: Sequence[str]) -> dict[bytes, Roster]:
    """Every roster that there was, by its digest."""
    parts = (
        everyone.restrict([s for s in everyone.sites if s not in lost[:count]])
        for count in range(len(lost) + 1)
    )
    return {roster.digest: roster for roster in parts}


def _named(given: RoundId, possible: Mapping[bytes, Roster]) -> Roster:
    if given.roster not in possible:
        raise ProtocolError("the CSP answered for another roster", where="csp")
    return possible[given.roster]


def keep_transcript(folder: Path, data: bytes) -> None:
    """Write a transcript into a folder, whole or not at all."""
    partial = folder / f".{FILE}.partial"
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, folder / FILE)
    except OSError:
        raise RunError(
            "cannot be written",
            where=str(folder / FILE),
            remedy="check the disk and its permissions, then `cipherbayes resume`",
        ) from None
