"""What earlier rounds released, as a site may believe it: signed by the CSP."""

from __future__ import annotations

from collections.abc import Sequence

from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.protocols.messages import DecryptReply, Reason
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.refusals import RefusalError
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.typing import Floats


def released_scales(
    plan: StudyPlan,
    phase: Phase,
    replies: Sequence[DecryptReply],
    *,
    run: bytes,
    csp: Identity,
) -> Floats | None:
    """How a phase sees the columns, from the CSP's signed totals.

    Parameters
    ----------
    phase
        Whose question it is part of.
    replies
        The totals of all preparatory rounds before the phase, in order.
    run, csp
        Whose totals they must be, and who must have signed them.

    Returns
    -------
    Windows, or means and standard deviations, as
    :meth:`~cipherbayes.protocols.study_plan.StudyPlan.digest` keeps them; None where
    nothing was released that tells.

    Formal guarantees
    -----------------
    What comes back is a function of the run's released totals. Whatever they are
    (also where the CSP itself lies), every centre or mean is within [-1, 1] and every
    half width or standard deviation within [10⁻⁴, 1].

    Raises
    ------
    RefusalError
        Unless there is exactly one signed total for each preparatory round before the
        phase; that depends on the message alone.
    """
    rounds = [
        (earlier, earlier.first + number)
        for earlier in plan.before(phase)
        for number in range(earlier.rounds)
    ]
    if len(replies) != len(rounds):
        raise RefusalError(
            Reason.WRONG_ROUND, "the request lacks the totals of earlier rounds"
        )
    for reply, (earlier, number) in zip(replies, rounds, strict=True):
        _check(plan, reply, earlier, number, run)
        reply.verify(csp)
    return plan.scales(phase, plan.facts([reply.values for reply in replies]))


def _check(
    plan: StudyPlan, reply: DecryptReply, phase: Phase, number: int, run: bytes
) -> None:
    given, expected = reply.round_id, (run, plan.study_hash, number, phase.purpose)
    if (given.run, given.study, given.round, given.purpose) != expected:
        raise RefusalError(
            Reason.WRONG_ROUND, "a total of the request is of another round"
        )
    if reply.values.size != phase.dimension or not phase.in_range(reply.values):
        raise RefusalError(Reason.RANGE, "a total of the request is out of range")
