"""The run again, from its totals: the same rounds, over an empty memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cipherbayes.inference.chains import Draws
from cipherbayes.protocols.plan import Plan
from cipherbayes.protocols.rounds import Closing
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.protocols.transcripts import Transcript
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class Replayed:
    """What the totals imply.

    Attributes
    ----------
    rounds
        Totals taken.
    trajectory, memory
        θ after each round of the fit, and what the method remembers after the last.
    lost
        The round from which on a site is in no total.
    questions
        SHA-256 of what each round must have asked.
    draws
        The posterior; None where the rounds do not suffice for one.
    moments
        Released means and standard deviations, where the study releases them.
    closing
        What rounds after the posterior released.
    """

    rounds: int
    trajectory: list[Floats]
    memory: Floats | None
    lost: Mapping[str, int]
    questions: list[bytes]
    draws: Draws | None
    moments: Floats | None
    column_models: Floats | None
    range_ends: Floats | None
    closing: Mapping[str, Closing]


def replay(plan: Plan, transcript: Transcript, sizes: Sequence[int]) -> Replayed:
    """Take every total as the server of a run takes it.

    Parameters
    ----------
    sizes
        Sites, and so shares of noise, in each total.
    """
    memory = Checkpoint()
    rounds = plan.protocol.rounds(plan, memory)
    questions = []
    absent = _lost(plan, transcript)
    for total, sites, lost in zip(transcript.totals, sizes, absent, strict=True):
        questions.append(rounds.question_digest())
        where = f"round {rounds.round + 1}"
        rounds.check_total(total.values, "the total", where=where)
        rounds.take(total.values, sites, lost)
    last = memory.last_state()
    return Replayed(
        rounds=rounds.round,
        trajectory=memory.trajectory(),
        memory=None if last is None else last[1].memory,
        lost=_first_without(absent),
        questions=questions,
        draws=rounds.draws(),
        moments=rounds.moments(),
        column_models=rounds.column_models(),
        range_ends=rounds.range_ends(),
        closing=rounds.closing(),
    )


def _lost(plan: Plan, transcript: Transcript) -> list[tuple[str, ...]]:
    """The study's sites that are not in each total."""
    if transcript.pooled:
        return [()] * len(transcript.totals)
    everyone = sorted(plan.study.sites)
    return [
        tuple(site for site in everyone if site not in roster.sites)
        for roster in transcript.rosters(plan)
    ]


def _first_without(absent: Sequence[Sequence[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, sites in enumerate(absent):
        for site in sites:
            found.setdefault(site, number)
    return found
