"""What a verification found: a line for each check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from cipherbayes.errors import CipherbayesError

State = Literal["holds", "fails", "not checked"]


@dataclass(frozen=True)
class Finding:
    """One check.

    Attributes
    ----------
    check
        What was looked at, in a word or two.
    state
        ``"not checked"`` where it cannot be seen from here.
    said
        The finding in words.
    open
        Whether it fails because nobody can tell from here: what passes here must be
        shown.
    """

    check: str
    state: State
    said: str
    open: bool = False


class CheckRecord(TypedDict):
    """A :class:`Finding` as JSON."""

    check: str
    state: str
    said: str


class VerificationRecord(TypedDict):
    """What ``cipherbayes verify --json`` prints."""

    run: str
    study_hash: str
    failed: int
    not_checked: int
    checks: list[CheckRecord]


@dataclass
class Findings:
    """All checks of one run, in their order."""

    run: str = ""
    study_hash: str = ""
    all: list[Finding] = field(default_factory=list)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.all)

    @property
    def failed(self) -> list[Finding]:
        """The checks that fail."""
        return [finding for finding in self.all if finding.state == "fails"]

    @property
    def unchecked(self) -> list[Finding]:
        """What cannot be seen from here."""
        return [finding for finding in self.all if finding.state == "not checked"]

    def holds(self, check: str, said: str) -> None:
        self.all.append(Finding(check, "holds", said))

    def fails(self, check: str, said: str, *, open: bool = False) -> None:
        self.all.append(Finding(check, "fails", _plain(said), open))

    def unknown(self, check: str, said: str) -> None:
        self.all.append(Finding(check, "not checked", _plain(said)))

    def judge(self, check: str, difference: str | None, said: str) -> None:
        """Holds with these words, or fails with what differs."""
        if difference is None:
            self.holds(check, said)
        else:
            self.fails(check, difference)

    @contextmanager
    def checking(self, check: str) -> Iterator[None]:
        """A block whose refusal is this check's failure."""
        try:
            yield
        except CipherbayesError as error:
            place = f"{error.where}: " if error.where else ""
            self.fails(check, f"{place}{error.what}")

    def document(self) -> VerificationRecord:
        """For programs."""
        return {
            "run": self.run,
            "study_hash": self.study_hash,
            "failed": len(self.failed),
            "not_checked": len(self.unchecked),
            "checks": [
                {"check": f.check, "state": f.state, "said": f.said} for f in self.all
            ],
        }


def _plain(said: str) -> str:
    """It may quote what a server wrote: nothing that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in said)
