"""How a party says no: a code for programs, a line for people, no data."""

from __future__ import annotations

from cipherbayes.errors import (
    BudgetError,
    CipherbayesError,
    CryptoError,
    PrivacyError,
    ProtocolError,
)
from cipherbayes.protocol.messages import MAX_TEXT, Reason, Refusal


class RefusalError(ProtocolError):
    """A check that failed, with the code its refusal carries."""

    def __init__(self, reason: Reason, what: str, *, where: str = "") -> None:
        super().__init__(what, where=where)
        self.reason = reason


def refuse(party: str, error: CipherbayesError) -> Refusal:
    """The refusal that an error amounts to.

    Only ``what`` is sent: ``where`` and ``remedy`` may name files of the party.
    """
    if isinstance(error, RefusalError):
        reason = error.reason
    elif isinstance(error, BudgetError):
        reason = Reason.BUDGET
    elif isinstance(error, CryptoError):
        reason = Reason.WRONG_KEY
    elif isinstance(error, ProtocolError):
        signature = "signature" in error.what
        reason = Reason.BAD_SIGNATURE if signature else Reason.MALFORMED
    elif isinstance(error, PrivacyError):
        reason = Reason.RANGE
    else:
        reason = Reason.UNAVAILABLE
    return Refusal(party, reason, error.what[:MAX_TEXT])
