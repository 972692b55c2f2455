"""Errors that a person can act on.

Every error a user can cause says what is wrong, where, and what to do next, in
one line. No message ever contains a data value, a key or a noise value.
"""

from __future__ import annotations


class CipherbayesError(Exception):
    """Base class: ``what`` is wrong, ``where`` it is, the ``remedy``.

    Parameters
    ----------
    what
        The problem, without a data value.
    where
        File, column, key, party or round the problem was found at.
    remedy
        What the reader can do about it.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        place = f"{where}: " if where else ""
        advice = f"; {remedy}" if remedy else ""
        # One line, also where a name in a study or a table holds a line's end.
        super().__init__(" ".join(f"{place}{what}{advice}".splitlines()))


class StudyError(CipherbayesError):
    """The study file says something impossible, unknown or contradictory."""


class DataError(CipherbayesError):
    """A table does not hold what the study says it holds."""


class PrivacyError(CipherbayesError):
    """A release would break, or cannot be shown to keep, the privacy promise."""


class BudgetError(PrivacyError):
    """A release would spend more than the budget that is left."""


class CryptoError(CipherbayesError):
    """Bytes, keys or parameters that the encryption layer refuses."""


class ProtocolError(CipherbayesError):
    """A party refuses a message: wrong round, roster, signature, study or range."""


class RunError(CipherbayesError):
    """A run cannot start, continue or be read back."""
