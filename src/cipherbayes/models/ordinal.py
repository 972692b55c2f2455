"""Ordered logistic regression: a grade, a stage, a score of few levels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.special import expit

from cipherbayes.models import kernels
from cipherbayes.models.base import Model, refuse_times
from cipherbayes.models.design import Design
from cipherbayes.models.enumerated_influence import EnumeratedInfluence, PossibleOutcome
from cipherbayes.models.held_out_numbers import OrdinalCheck
from cipherbayes.models.metrics import Metrics, numeric_metrics
from cipherbayes.models.outcomes import OutcomeRange, between, require_finite
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.typing import Floats

LARGEST_LOG_GAP = 30.0
"""The logarithm of a gap is held within ± this."""


@register
class Ordinal(Model):
    """A class y = 0, …, K - 1 with P(y > k) = F(eta - d_k), F the logistic function.

    d_0 = 0, d_k = d_(k-1) + exp(t_k), eta = x'beta with an intercept: proportional
    odds (McCullagh 1980). With a = eta - d_(y-1) and b = eta - d_y,

        p(y) = F(a) - F(b) = F(a) F(-b) (1 - exp(-(a - b))),

    where F(a) is one for the lowest class and F(-b) for the highest, and the last
    factor is there for those between. d log p / d eta = F(-a) - F(b), and

        d log p / d t_j = -exp(t_j) d log p / d eta                for j < y,
        d log p / d t_y = exp(t_y) (F(b) + 1 / (exp(exp(t_y)) - 1)),

    zero for j > y; exp(beta) is the odds ratio of a higher class, whichever the class.
    Two classes are logistic regression.

    Parameters
    ----------
    outcome
        Column of classes, coded 0, 1, …, classes - 1 from the lowest.
    classes
        How many there are.

    References
    ----------
    McCullagh (1980), Regression models for ordinal data, JRSS B 42.
    """

    roles: ClassVar[Mapping[str, str]] = {"y": "outcome"}
    family: ClassVar[str] = "ordered"
    measure: ClassVar[str | None] = "odds ratio"
    title: ClassVar[str | None] = "ordinal (proportional-odds) regression"
    kind: Literal["ordinal"] = "ordinal"
    outcome: str
    classes: int = Field(ge=3, le=20)

    @property
    def outcome_ranges(self) -> Mapping[str, OutcomeRange]:
        return {"y": between(0, self.classes - 1, whole=True)}

    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        y = raw["y"]
        require_finite(y, self.outcome)
        if not np.all((y == np.floor(y)) & (y >= 0.0) & (y < self.classes)):
            raise ValueError(
                f"outcome column '{self.outcome}' has values that are no class 0 to "
                f"{self.classes - 1}: code the lowest class as 0 and the next as 1, 2 "
                "and so on (classes coded from 1: take 1 off), or correct model.classes"
            )
        return {"y": y}

    def check_outcomes(self, outcome: Mapping[str, Floats]) -> None:
        absent = sorted(set(range(self.classes)) - set(outcome["y"].astype(int)))
        if absent:
            raise ValueError(
                f"no row of column '{self.outcome}' is of class {absent[0]}: join "
                "classes that nobody is in"
            )

    def extra_parameters(self) -> tuple[str, ...]:
        return tuple(f"log_gap[{k}-{k + 1}]" for k in range(1, self.classes - 1))

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        below, above, gap, _ = self._own(theta, rows)
        between: Floats = np.log(-np.expm1(-gap))
        return between - np.logaddexp(0.0, -below) - np.logaddexp(0.0, above)

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        below, above, _, y = self._own(theta, rows)
        more = expit(above)
        score: Floats = expit(-below) - more
        gaps = self._gaps(theta)
        extra = np.zeros((len(gaps), rows.count))
        for j, each in enumerate(gaps, start=1):
            own = each * more + _share(each)
            extra[j - 1] = np.where(y == j, own, np.where(y > j, -each * score, 0.0))
        return RecordGradients(rows, score=score, extra=extra)

    def outcomes(self, theta: Floats, rows: Rows) -> Iterator[PossibleOutcome]:
        """Probability and scores of each class in turn."""
        eta, y = self._eta(theta, rows), rows.outcome["y"]
        gaps = self._gaps(theta)
        for k, (below, above) in enumerate(self._ends(eta, gaps)):
            one = np.ones_like(eta)
            less = one * 0.0 if below is None else expit(-below)
            more = one * 0.0 if above is None else expit(above)
            probability = (1.0 - less if below is None else expit(below)) * (
                1.0 - more if above is None else expit(-above)
            )
            score = less - more
            extra = np.zeros((len(gaps), rows.count))
            for j in range(min(k - 1, len(gaps))):
                extra[j] = -gaps[j] * score
            if k == self.classes - 1:
                extra[k - 2] = -gaps[k - 2] * score
            elif k > 0:
                probability = probability * -np.expm1(-gaps[k - 1])
                extra[k - 1] = gaps[k - 1] * more + _share(gaps[k - 1])
            yield PossibleOutcome(probability, score, extra, y == k)

    @property
    def held_out_check(self) -> OrdinalCheck:
        return OrdinalCheck(self)

    @property
    def bounded_influence(self) -> OrdinalInfluence:
        return OrdinalInfluence(self)

    def curvature(self, design: Design) -> float:
        return 0.3

    def predict(self, draws: Floats, rows: Rows, times: Floats | None = None) -> Floats:
        """The mean class."""
        refuse_times(self, times)
        eta: Floats = draws[:, : rows.design.width] @ rows.x
        return self._mean_class(draws, rows, eta)

    def fitted(self, theta: Floats, rows: Rows) -> Floats:
        mean: Floats = self._mean_class(theta[None], rows, self._eta(theta, rows))[0]
        return mean

    def _mean_class(self, draws: Floats, rows: Rows, eta: Floats) -> Floats:
        mean = expit(np.atleast_2d(eta))
        distance = np.zeros((len(draws), 1))
        for j in range(self.classes - 2):
            distance = distance + _gap(draws[:, rows.design.width + j, None])
            mean = mean + expit(eta - distance)
        return np.asarray(mean)

    def metrics(self, outcome: Mapping[str, Floats], fitted: Floats) -> Metrics:
        return numeric_metrics(outcome["y"], fitted)

    def _eta(self, theta: Floats, rows: Rows) -> Floats:
        return kernels.linear_predictor(theta[: rows.design.width], rows.x)

    def _gaps(self, theta: Floats) -> list[float]:
        return [float(_gap(each)) for each in theta[theta.size - self.classes + 2 :]]

    def _own(self, theta: Floats, rows: Rows) -> tuple[Floats, Floats, Floats, Floats]:
        """a, b and their distance for each record's own class; infinite beyond the
        lowest and the highest. And the classes."""
        y = rows.outcome["y"]
        place = y.astype(np.int64)
        eta, gaps = self._eta(theta, rows), self._gaps(theta)
        ends = np.concatenate([[-np.inf, 0.0], np.cumsum(gaps), [np.inf]])
        between = np.array([np.inf, *gaps, np.inf])
        return eta - ends[place], eta - ends[place + 1], between[place], y

    def _ends(
        self, eta: Floats, gaps: list[float]
    ) -> Iterator[tuple[Floats | None, Floats | None]]:
        """a and b of each class; None beyond the lowest and the highest."""
        below, distance = None, 0.0
        for k in range(self.classes - 1):
            above = eta - distance
            yield below, above
            below = above
            distance += gaps[k] if k < len(gaps) else 0.0
        yield below, None


class OrdinalInfluence(EnumeratedInfluence):
    """|s| ≤ 1; E s² ≤ 1/3, as s is a mean of 1 - 2 U over the part of a uniform U that
    belongs to a class, and E (1 - 2 U)² = 1/3."""

    model: Ordinal

    most_score: ClassVar[float] = 1.0
    most_information: ClassVar[float] = 1.0 / 3.0

    def outcomes(self, theta: Floats, rows: Rows) -> Iterator[PossibleOutcome]:
        return self.model.outcomes(theta, rows)


def _gap(log_gap: Floats) -> Floats:
    held: Floats = np.exp(np.clip(log_gap, -LARGEST_LOG_GAP, LARGEST_LOG_GAP))
    return held


def _share(gap: float) -> float:
    """gap / (exp(gap) - 1)."""
    return gap / float(np.expm1(min(gap, 700.0)))
