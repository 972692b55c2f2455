"""The private pooled run: all tables in one place, every total noised.

The paper's setting (2): one curator holds all records, bounds each record's
gradient, adds the whole noise to every sum, and updates θ from released totals
only. Each table's ledger is charged before a total is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np

from cipherbayes.errors import CipherbayesError, RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import NoiseSource
from cipherbayes.protocols.answers import (
    answer_vector,
    charged_answer,
    noised_answer,
    require_order,
    require_theta,
)
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.refusals import CANNOT, told_inside
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.typing import Floats, Integers

log = logging.getLogger("cipherbayes.curator")


class Curator:
    """Whoever holds all tables.

    Formal guarantees
    -----------------
    A round's total is the sum over all tables on the grid plus one discrete
    Gaussian of parameter σ Δ. It is charged to every table's ledger before it is
    computed: first to all but one, then, with the answer, to the last. A kill in
    between leaves entries without a release, never a release without its entries.
    Rounds are answered in order: a round is refused while one before it has no answer.
    """

    def __init__(
        self,
        *,
        run: bytes,
        plan: StudyPlan,
        tables: Mapping[str, tuple[Contributions, Ledger]],
        noise: NoiseSource,
    ) -> None:
        self._run = run
        self._plan = plan
        self._tables = [contributions for contributions, _ in tables.values()]
        self._ledgers = {name: ledger for name, (_, ledger) in tables.items()}
        self._noise = noise
        plan.check_site(
            ", ".join(tables),
            sum(contributions.count for contributions in self._tables),
        )

    def release(self, number: int, phase: Phase, question: Question) -> Integers:
        """The noised total of a round, in grid units.

        What nobody foresaw may depend on the records: one text stands for all of it.
        """
        try:
            return self._released(number, phase, question)
        except CipherbayesError:
            raise
        except Exception as error:
            log.warning("round %d: %s", number, told_inside(error))
            raise RunError(
                CANNOT, where="curator", remedy="then `cipherbayes resume`"
            ) from None

    def _released(self, number: int, phase: Phase, question: Question) -> Integers:
        done = min(book.rounds(self._run, n) for n, book in self._ledgers.items())
        require_order(number, done)
        require_theta(self._plan, phase, question.theta)

        def total() -> bytes:
            sums = [table.total(phase, question) for table in self._tables]
            total: Floats = np.sum(sums, axis=0)
            return noised_answer(phase, total, self._noise, number)

        def charge(name: str, compute: Callable[[], bytes]) -> bytes:
            return charged_answer(
                self._ledgers[name],
                self._plan,
                phase,
                question,
                run=self._run,
                site=name,
                number=number,
                compute=compute,
            )

        *others, last = self._ledgers
        for name in others:
            charge(name, lambda: b"")
        return answer_vector(charge(last, total))
