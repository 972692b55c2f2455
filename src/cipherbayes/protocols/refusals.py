"""How a party refuses: a code for programs, a line for people, no data.

Everything that a party says about an error to somebody else passes through here. An
error knows more than others may learn: a column, a line, a path, what other studies
have spent. So one text leaves for everything that rows, tables and files decide; the
error itself goes to the party's own log.
"""

from __future__ import annotations

import traceback
from typing import TypeVar

from cipherbayes.errors import BudgetError, CipherbayesError, CryptoError, ProtocolError
from cipherbayes.protocols.messages import MAX_TEXT, Reason, Refusal

CANNOT = "cannot take part; the reason is in this party's own log"
"""What is said whatever the rows, the table or the files of a party have decided."""
NO_BUDGET = "the budget of this party's table does not allow it"
"""What is said of a budget: its size, and who spent it, are its owner's business."""
_CSP = "csp"

T = TypeVar("T")


class RefusalError(ProtocolError):
    """A check that failed, with the code its refusal carries.

    Its text is sent: it may depend on the question and on public numbers alone.
    """

    def __init__(
        self, reason: Reason, what: str, *, where: str = "", remedy: str = ""
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.reason = reason


def joined(taken: T | None) -> T:
    """What a site took when it joined a run; one that has not joined refuses."""
    if taken is None:
        raise RefusalError(Reason.WRONG_RUN, "the site has not joined a run")
    return taken


def convened(taken: T | None) -> T:
    """What a server took when it convened a run."""
    if taken is None:
        raise ProtocolError("the run has not been convened", where="server")
    return taken


def said_outside(party: str, error: BaseException) -> str:
    """What others may read of an error.

    Formal guarantees
    -----------------
    For a party with records this is a function of the error's class, except for a
    :class:`~cipherbayes.errors.ProtocolError`, which judges what came from outside
    and no record. The CSP has no records: what it says of ciphertexts is sent too.

    Edge cases
    ----------
    That a party refuses at all, and in which step, is seen by others and may depend
    on its rows.
    """
    if isinstance(error, BudgetError):
        return NO_BUDGET
    judges_others = (ProtocolError, CryptoError) if party == _CSP else ProtocolError
    if isinstance(error, judges_others):
        return error.what[:MAX_TEXT]
    return CANNOT


def told_inside(error: BaseException) -> str:
    """What a party's own log says of an error.

    Of one that nobody foresaw, its class and where it was raised: its text may hold a
    value.
    """
    if isinstance(error, CipherbayesError):
        return str(error)
    places = traceback.extract_tb(error.__traceback__)
    last = f" in {places[-1].filename}, line {places[-1].lineno}" if places else ""
    own = [p for p in places if "cipherbayes" in p.filename]
    through = f", reached from {own[-1].name}, line {own[-1].lineno}" if own else ""
    return f"unexpected {type(error).__name__}{last}{through}; please report it"


def refuse(party: str, error: BaseException) -> Refusal:
    """The refusal that an error amounts to."""
    if isinstance(error, RefusalError):
        reason = error.reason
    elif isinstance(error, BudgetError):
        reason = Reason.BUDGET
    elif isinstance(error, ProtocolError):
        signature = "signature" in error.what
        reason = Reason.BAD_SIGNATURE if signature else Reason.MALFORMED
    elif isinstance(error, CryptoError) and party == _CSP:
        reason = Reason.WRONG_KEY
    else:
        reason = Reason.UNAVAILABLE
    return Refusal(party, reason, said_outside(party, error))
