"""How far one record really moves what a site sums, at questions of an attacker.

The study's own path is driven: a prepared table, the model, the bounded sums, the
grid of every phase. Its promise is ‖S(D, q) − S(D', q)‖ ≤ Δ for neighbouring tables
D and D' and *every* question q, and that D and D' are either both answered or both
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.errors import CipherbayesError
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.typing import Integers
from cipherbayes.validation.neighbours import (
    CANARIES,
    SIZES,
    Neighbours,
    neighbours,
    questions,
)


@dataclass(frozen=True)
class Shift:
    """What one record did to the sums of a phase at one question.

    Attributes
    ----------
    name, question, near
        What was asked, of which tables.
    share
        ‖difference‖ / Δ of the worst of the phase's sums, in grid units; infinite
        where only one of the two tables was answered.
    difference
        The sums' difference in grid units; None where only one was answered.
    """

    phase: Phase
    name: str
    question: Question
    near: Neighbours
    share: float
    difference: Integers | None

    @property
    def told_apart(self) -> bool:
        """Whether an answer or a refusal alone tells the tables apart."""
        return self.difference is None


def worst_shifts(plan: StudyPlan, sizes: Sequence[int] = SIZES) -> list[Shift]:
    """For each phase the question at which one record moves the sums farthest."""
    worst: dict[int, Shift] = {}
    # Every canary in the smallest table, then one in each size, among records that
    # differ and among copies of one.
    cases = [(sizes[0], canary, False) for canary in range(CANARIES)]
    for number, rows in enumerate(sizes):
        cases += [(rows, number % CANARIES, alike) for alike in (False, True)]
    for rows, canary, alike in cases:
        near = neighbours(plan.study, rows, canary, seed=rows, alike=alike)
        for phase in _different(plan):
            for found in phase_shifts(plan, phase, near):
                known = worst.get(phase.first)
                if known is None or found.share > known.share:
                    worst[phase.first] = found
    return [
        replace(worst[_first_alike(plan, phase)], phase=phase) for phase in plan.phases
    ]


def _different(plan: StudyPlan) -> list[Phase]:
    """One of each group of phases that sum the same, on the same grid."""
    return [p for p in plan.phases if _first_alike(plan, p) == p.first]


def _first_alike(plan: StudyPlan, phase: Phase) -> int:
    """Number of the first phase whose sums, grids and bounds are this one's."""
    return next(p.first for p in plan.phases if _sums(p) == _sums(phase))


def _sums(phase: Phase) -> tuple[object, ...]:
    grids = tuple((part.step, part.sensitivity) for part in phase.parts)
    return phase.purpose, grids, phase.weighting


def phase_shifts(plan: StudyPlan, phase: Phase, near: Neighbours) -> list[Shift]:
    """What the record does at each of the questions, in one phase.

    A Poisson-sampled phase is asked as if every record took part: the sampling makes
    a record count less often, never more.
    """
    asked = [
        (name, question)
        for name, question in questions(plan, phase, near)
        if plan.usable_theta(phase, question.theta)
    ]
    return [shift_at(plan, phase, near, name, question) for name, question in asked]


def shift_at(
    plan: StudyPlan, phase: Phase, near: Neighbours, name: str, question: Question
) -> Shift:
    """What the record does to the sums of a phase at one question."""
    sums = [
        grid_sums(plan, phase, table, question) for table in (near.present, near.absent)
    ]
    if sums[0] is None and sums[1] is None:
        nothing = np.zeros(phase.dimension, dtype=np.int64)
        return Shift(phase, name, question, near, 0.0, nothing)
    if sums[0] is None or sums[1] is None:
        return Shift(phase, name, question, near, np.inf, None)
    difference: Integers = sums[0] - sums[1]
    share = max(
        float(np.linalg.norm(piece.astype(np.float64))) / part.sensitivity
        for part, piece in zip(phase.parts, phase.split(difference), strict=True)
    )
    return Shift(phase, name, question, near, share, difference)


def own_sums(plan: StudyPlan, table: PreparedTable) -> Contributions:
    """The sums of a table, as that of the study's first site."""
    site = next(iter(plan.study.sites), "site")
    return Contributions.of_site(plan.study, site, table)


def grid_sums(
    plan: StudyPlan, phase: Phase, table: PreparedTable, question: Question
) -> Integers | None:
    """A table's sums on the grid; None where it refuses."""
    whole = replace(phase, sums=replace(phase.sums, rate=1.0))
    try:
        # Every record counts as one of the part that the phase is about.
        return phase.on_grid(own_sums(plan, table).total(whole, question))
    except CipherbayesError:
        return None
