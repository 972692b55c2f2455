"""What a table contributes to a release: bounded sums over its records."""

from __future__ import annotations

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.rescaled import RescaledTable
from cipherbayes.errors import ProtocolError
from cipherbayes.inference.gradient import gradient_sum
from cipherbayes.inference.influence import influence_sums
from cipherbayes.models import Model, Rows
from cipherbayes.phases import Phase
from cipherbayes.privacy.noise import poisson_sample
from cipherbayes.typing import Floats


class Contributions:
    """One table's sums, for any release of a study.

    Parameters
    ----------
    model
        Whose gradients are summed.
    table
        The records.
    standardise
        Whether gradients are asked for on columns standardised by released
        moments, which then precede θ in the question.

    Formal guarantees
    -----------------
    A record changes the sum of a phase by at most ``phase.privacy.clip`` in
    Euclidean norm, whatever the question is: a count changes by one, the moments'
    columns lie in [-1, 1], and gradients and information matrices are bounded
    record by record (the latter to ``phase.information.clip``). In a
    Poisson-sampled phase every record takes part independently, drawn from the
    operating system's randomness.
    """

    def __init__(
        self, model: Model, table: PreparedTable, *, standardise: bool = False
    ) -> None:
        self._model = model
        self._table = table
        self._standardise = standardise

    @property
    def count(self) -> int:
        """Records in the table."""
        return self._table.count

    def total(self, phase: Phase, question: Floats) -> Floats:
        """The sum that a phase asks for, before grid and noise."""
        if phase.purpose == "records":
            return np.array([float(self._table.count)])
        if phase.purpose == "moments":
            return self._moments(phase)
        table, theta = self._asked(phase, question)
        if phase.purpose == "influence":
            return self._influence(phase, table, theta)
        rows = None
        if phase.privacy.rate < 1.0:
            rows = poisson_sample(table.count, phase.privacy.rate)
        return gradient_sum(
            self._model, theta, table, rows=rows, clip=phase.privacy.clip
        )

    def _moments(self, phase: Phase) -> Floats:
        first = 0 if self._table.design.intercept is None else 1

        def sums(block: Rows) -> Floats:
            z = block.x[first:]
            return np.concatenate([z.sum(axis=1), (z * z).sum(axis=1)])

        return sum(self._table.map(sums), start=np.zeros(phase.dimension))

    def _influence(self, phase: Phase, table: PreparedTable, theta: Floats) -> Floats:
        assert phase.weighting is not None
        sums = influence_sums(
            self._model,
            theta,
            table,
            phase.weighting,
            fisher=phase.information is not None,
        )
        if sums.fisher is None:
            return sums.gradient
        return np.concatenate([sums.gradient, sums.fisher])

    def _asked(self, phase: Phase, question: Floats) -> tuple[PreparedTable, Floats]:
        """The table as the question wants it, and θ."""
        table = self._table
        columns = table.design.width - (table.design.intercept is not None)
        extra = 2 * columns if self._standardise else 0
        if question.size != extra + phase.privacy.dimension:
            raise ProtocolError("the question does not have the study's length")
        if self._standardise:
            mean, sd = question[:columns], question[columns:extra]
            if np.abs(mean).max() > 1.0 or sd.min() <= 0.0 or sd.max() > 1.0:
                raise ProtocolError("the question's moments are impossible")
            table = RescaledTable(table, mean, sd)
        return table, question[extra:]
