"""Warnings about a posterior, as every method gives and every result keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

MOSTLY_PRIOR = 0.5
"""Posterior sd over prior sd above which a parameter is mostly its prior."""


class FlagRecord(TypedDict):
    """A flag or a caution as in ``result.json``.

    ``code`` and ``message`` repeat ``name`` and ``text`` for older readers.
    """

    name: str
    parameters: list[str]
    text: str
    unusable: bool
    code: str
    message: str


def flag_record(
    name: str, text: str, *, unusable: bool, parameters: Sequence[str] = ()
) -> FlagRecord:
    """The record of a flag: its name, its text and the parameters it is about."""
    return {
        "name": name,
        "parameters": list(parameters),
        "text": text,
        "unusable": unusable,
        "code": name,
        "message": text,
    }


@dataclass(frozen=True)
class Flag:
    """One warning about a posterior.

    Attributes
    ----------
    code
        A stable name, for programs.
    message
        The warning in words.
    unusable
        Whether the intervals must not be used.
    parameters
        Numbers of the parameters it is about; all where empty.
    caution
        Whether intervals may be used all the same, since they are wide or lean a little
        on the prior: a result then records it among its cautions.
    """

    code: str
    message: str
    unusable: bool
    parameters: tuple[int, ...] = ()
    caution: bool = False

    def as_record(self, names: Sequence[str]) -> FlagRecord:
        """The flag as a result records it, with the parameters' names."""
        about = [names[index] for index in self.parameters]
        every = 1 < len(about) == len(names)
        shown = "all parameters" if every else ", ".join(about)
        message = f"{self.message}: {shown}" if about else self.message
        return flag_record(self.code, message, unusable=self.unusable, parameters=about)


@dataclass(frozen=True)
class Leeway:
    """How a flag that depends on draws may read for others of the same posterior.

    Attributes
    ----------
    flag
        The flag, with all parameters that it may be about.
    sure
        Those that it is about in any case.
    needed
        Whether it is raised in any case.
    told
        Whether its words tell an R-hat, which differs with the draws.
    """

    flag: Flag
    sure: tuple[int, ...] = ()
    needed: bool = True
    told: bool = False
