"""Prepared records in blocks, and their gradients, that a model works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.models.design import Design
from cipherbayes.typing import Floats

SHARE = "share of a person"
"""The role of the column that says by which each row counts."""
PLACE = "place of a person"
"""The role of the column with a number from the name of each row's person."""
BESIDE = "column of another fit"
"""What the roles of columns begin with that another fit has prepared."""


def absent_role(feature: str) -> str:
    """The role of the column that says which records have no value of a feature."""
    return f"absent {feature}"


@dataclass(frozen=True)
class Rows:
    """A block of m prepared records.

    Attributes
    ----------
    design
        The columns' meaning.
    x
        Design matrix, one row per *column* (shape ``(p, m)``), float64.
    outcome
        The model's outcome columns by role (``"y"``, or ``"time"`` and ``"event"``);
        :data:`SHARE` and :data:`PLACE` where several rows may be one person's;
        :func:`absent_role` of every feature whose missing values are drawn; and
        :data:`BESIDE` with a number for every column of another fit's design.
    squared_norms
        ``sum_j x[j] ** 2`` for each record, shape ``(m,)``.
    """

    design: Design
    x: Floats
    outcome: Mapping[str, Floats]
    squared_norms: Floats

    @property
    def count(self) -> int:
        return int(self.x.shape[1])

    @property
    def shares(self) -> Floats | None:
        """By which each row counts; None where every row counts once."""
        return self.outcome.get(SHARE)

    @property
    def own_outcome(self) -> dict[str, Floats]:
        """The model's outcome columns alone."""
        added = (SHARE, PLACE, BESIDE)
        return {r: v for r, v in self.outcome.items() if not r.startswith(added)}

    def beside(self, design: Design) -> Rows:
        """The same records as another fit prepares them."""
        columns = [self.outcome[f"{BESIDE} {j}"] for j in range(design.width)]
        x = np.array(columns).reshape(design.width, self.count)
        return Rows(design, x, self.own_outcome, kernels.squared_norms(x))


@dataclass(frozen=True)
class RecordGradients:
    """Gradients of m records; that of record i is ``(score_i * x_i, extra_i)``.

    ``score`` is None where no parameter multiplies the design matrix, ``extra``
    (shape ``(q, m)``) is None where every parameter does.
    """

    rows: Rows
    score: Floats | None
    extra: Floats | None = None

    @property
    def column_scores(self) -> Floats:
        """``score``, for whoever relies on parameters that multiply columns."""
        if self.score is None:
            raise ValueError("no parameter of this model multiplies a column")
        return self.score

    def matrix(self) -> Floats:
        """The gradients themselves, one column a record."""
        parts = [] if self.score is None else [self.score * self.rows.x]
        parts += [] if self.extra is None else [self.extra]
        return np.concatenate(parts)

    def norms(self) -> Floats:
        """Euclidean norm of each record's gradient."""
        if self.score is None:
            linear = np.zeros(self.rows.count)
        else:
            # |s|·‖x‖ first: the square of a huge score would overflow.
            linear = np.abs(self.score) * np.sqrt(self.rows.squared_norms)
        if self.extra is None:
            return linear
        largest = np.maximum(linear, np.abs(self.extra).max(axis=0))
        safe = np.where(largest > 0.0, largest, 1.0)
        squares = (linear / safe) ** 2 + ((self.extra / safe) ** 2).sum(axis=0)
        norms: Floats = largest * np.sqrt(squares)
        return norms

    def weighted_sum(self, weights: Floats | None = None) -> Floats:
        """``sum_i weights_i * gradient_i`` (all weights one where None)."""
        parts = []
        if self.score is not None:
            scores = self.score if weights is None else self.score * weights
            parts.append(kernels.weighted_sum(self.rows.x, scores))
        if self.extra is not None:
            parts.append(
                self.extra.sum(axis=1) if weights is None else self.extra @ weights
            )
        return np.concatenate(parts)
