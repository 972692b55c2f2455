"""How a site or a curator answers a round: the question is checked, the sum noised
once, the ledger charged, and the stored answer read back where it is asked again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import NoiseSource
from cipherbayes.protocols.messages import Reason
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.refusals import RefusalError
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.typing import Floats, Integers


def require_theta(plan: StudyPlan, phase: Phase, theta: Floats) -> None:
    """Refuse a question that the study does not allow: the question alone decides."""
    if not plan.usable_theta(phase, theta):
        raise RefusalError(
            Reason.MALFORMED,
            "theta has another length or is farther out than the study allows",
        )


def require_order(number: int, answered: int) -> None:
    """Refuse a round while one before it has no answer."""
    if number > answered:
        raise RefusalError(Reason.WRONG_ROUND, "rounds are answered in order")


def noise_label(number: int) -> str:
    """The name under which a round's noise is drawn."""
    return f"round {number}"


def noised_answer(
    phase: Phase, total: Floats, noise: NoiseSource, number: int
) -> bytes:
    """A sum on the grid with its noise, as ledgers keep it."""
    vector = phase.noised(total, noise, noise_label(number))
    return vector.astype("<i8").tobytes()


def answer_vector(answer: bytes) -> Integers:
    """An answer that a ledger has kept."""
    return np.frombuffer(answer, dtype="<i8").astype(np.int64)


def charged_answer(
    ledger: Ledger,
    plan: StudyPlan,
    phase: Phase,
    question: Question,
    *,
    run: bytes,
    site: str,
    number: int,
    compute: Callable[[], bytes],
) -> bytes:
    """The answer to a round: computed and recorded once, read back after."""
    return ledger.release(
        run=run,
        site=site,
        round=number,
        purpose=phase.purpose,
        study=plan.study_hash,
        question=question.digest,
        event=phase.release,
        compute=compute,
    )
