"""The run again, from its totals: the same course, over an empty memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cipherbayes.errors import ProtocolError
from cipherbayes.inference.chains import Draws
from cipherbayes.protocols.plan import StudyPlan
from cipherbayes.protocols.rounds import Course
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.protocols.transcripts import Transcript
from cipherbayes.typing import Floats, Integers


@dataclass(frozen=True)
class Replayed:
    """What the totals imply.

    Attributes
    ----------
    rounds
        Totals taken.
    trajectory
        θ after each gradient round.
    questions
        SHA-256 of what each round must have asked.
    draws
        The posterior; None where the rounds do not suffice for one.
    moments
        Released means and standard deviations, where the study releases them.
    """

    rounds: int
    trajectory: list[Floats]
    questions: list[bytes]
    draws: Draws | None
    moments: Floats | None


def replay(plan: StudyPlan, transcript: Transcript, sizes: Sequence[int]) -> Replayed:
    """Take every total as the server of a run takes it.

    Parameters
    ----------
    sizes
        Sites, and so shares of noise, in each total.
    """
    memory = Checkpoint()
    course = course_of(plan, memory)
    questions = []
    for total, sites in zip(transcript.totals, sizes, strict=True):
        questions.append(_question_digest(plan, course))
        _refuse_impossible(plan, course, total.values)
        course.take(total.values, sites)
    return Replayed(
        rounds=course.round,
        trajectory=memory.trajectory(),
        questions=questions,
        draws=course.draws(),
        moments=course.moments(),
    )


def _question_digest(plan: StudyPlan, course: Course) -> bytes:
    """SHA-256 of what the present round asks, as ledgers keep it."""
    if plan.study.as_printed:
        # Its rounds have no phases, and its ledgers no questions to compare.
        return hashlib.sha256(course.question().tobytes()).digest()
    return course.asked().digest


def course_of(plan: StudyPlan, memory: Checkpoint) -> Course:
    """The course of a study, over a memory."""
    if plan.study.protocol != "encrypted-update":
        return Course(plan, memory)
    from cipherbayes.engine.encrypted_parties import course

    return course(plan, memory)


def _refuse_impossible(plan: StudyPlan, course: Course, values: Integers) -> None:
    """Raise ProtocolError for a total that no run of the study can have."""
    where = f"round {course.round + 1}"
    if plan.study.as_printed:
        return  # its rounds have no range
    if values.size != course.phase.dimension:
        raise ProtocolError("the total has another length", where=where)
    if not course.phase.in_range(values):
        raise ProtocolError("the total is outside the range", where=where)
