"""Bounded influence of models whose records have finitely many outcomes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cipherbayes.models.design import Design
from cipherbayes.models.influence import BoundedInfluence, Influence, InfluenceBound
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Bools, Floats


@dataclass(frozen=True)
class PossibleOutcome:
    """One of finitely many outcomes that every record of a block could have.

    Attributes
    ----------
    probability
        Under the model, shape ``(m,)``.
    score, extra
        Derivatives of its log probability in eta, shape ``(m,)``, and in the
        parameters that multiply no column, shape ``(q, m)``.
    observed
        Whether it is the record's own.
    """

    probability: Floats
    score: Floats
    extra: Floats
    observed: Bools


class EnumeratedInfluence(BoundedInfluence):
    """The score of one of finitely many outcomes, weighted where any of them is large.

    With s and e the derivatives of log p(y | x, theta) in eta and in the q parameters
    that multiply no column, and expectations over the outcomes y of a record,

        g = w (s x, e),    A = w E[(s x, e) (s x, e)'],
        w = min(1, D_g / √(‖x‖² max s² + max ‖e‖²), D_A / (‖x‖² E s² + E ‖e‖²)).

    *Unbiased.* w depends on x and theta alone and a score has mean zero, so E g = 0 at
    the true theta; there -dE g / dtheta = A, as the derivative of w multiplies zero,
    and E g g' = w² E[…] ≤ A.

    An outcome may be coarsened first, say a count held at a cap that x and theta
    decide: the score is then that of the coarsened outcome's likelihood, and all of the
    above holds with the cap where it is.

    Formal guarantees
    -----------------
    ‖g‖ ≤ w √(‖x‖² s² + ‖e‖²) ≤ D_g and ‖A‖_F ≤ w E[‖x‖² s² + ‖e‖²] ≤ D_A for every
    record, outcome and theta, with D_g = b √(C² + q) and D_A = v (C² + q) for public
    numbers b and v.

    Attributes
    ----------
    most_score, most_information
        b and v: about twice a usual score, and a large E s².
    extra_unit
        e is taken in the extra parameters over this number: a larger one lifts scores
        that are small beside the others out of the noise that all of them share.
    """

    most_score: ClassVar[float]
    most_information: ClassVar[float]
    extra_unit: ClassVar[float] = 1.0

    @abstractmethod
    def outcomes(self, theta: Floats, rows: Rows) -> Iterator[PossibleOutcome]:
        """Every outcome, one after the other; their probabilities add up to one."""

    def scores(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats]:
        """s of every record, and E s²."""
        score, information = np.zeros(rows.count), np.zeros(rows.count)
        for each in self.outcomes(theta, rows):
            information += each.probability * each.score**2
            score = np.where(each.observed, each.score, score)
        return score, information

    def at(self, theta: Floats, rows: Rows, bound: InfluenceBound) -> Influence:
        extras, count = len(self.model.extra_parameters()), rows.count
        score, extra = np.zeros(count), np.zeros((extras, count))
        information, cross = np.zeros(count), np.zeros((extras, count))
        corner = np.zeros((extras, extras, count))
        most, most_extra = np.zeros(count), np.zeros(count)
        for each in self.outcomes(theta, rows):
            own = self.extra_unit * each.extra
            weighted = each.probability * each.score
            information += weighted * each.score
            cross += weighted * own
            corner += each.probability * (own[:, None] * own[None])
            score = np.where(each.observed, each.score, score)
            extra = np.where(each.observed, own, extra)
            most = np.maximum(most, each.score**2)
            most_extra = np.maximum(most_extra, _add(own**2))
        largest, largest_matrix = self.sensitivities(bound)
        length = np.sqrt(rows.squared_norms * most + most_extra)
        size = rows.squared_norms * information + _add(
            [corner[j, j] for j in range(extras)]
        )
        weights = np.minimum(
            largest / np.maximum(length, largest),
            largest_matrix / np.maximum(size, largest_matrix),
        )
        return Influence(
            rows,
            score=weights * score,
            information=weights * information,
            extra=weights * extra if extras else None,
            cross=weights * cross if extras else None,
            corner=weights * corner if extras else None,
        )

    def basis(self, design: Design) -> Floats:
        basis = super().basis(design)
        basis[design.width :] *= self.extra_unit
        return basis

    def sensitivities(self, bound: InfluenceBound) -> tuple[float, float]:
        square = bound.clip**2 + len(self.model.extra_parameters())
        return self.most_score * float(np.sqrt(square)), self.most_information * square


def _add(parts: Iterable[Floats]) -> Floats | float:
    """A sum in one order, record by record."""
    total: Floats | float = 0.0
    for part in parts:
        total = total + part
    return total
