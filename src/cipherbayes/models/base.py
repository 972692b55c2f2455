"""What a model states: its parameters, the log-likelihood of a row, its gradient.

A model knows nothing of sites, noise or encryption. It sees prepared records in
blocks (:class:`Rows`) and answers with per-record gradients
(:class:`RecordGradients`) that can be bounded record by record and summed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from cipherbayes.models import kernels
from cipherbayes.models.formula import Formula, parse_formula
from cipherbayes.models.metrics import Metrics
from cipherbayes.typing import Floats

if TYPE_CHECKING:  # which imports this module
    from cipherbayes.models.held_out import HeldOutCheck
    from cipherbayes.models.influence import BoundedInfluence


@dataclass(frozen=True)
class CurveColumns:
    """The columns of a curve: a straight line, then bends.

    Attributes
    ----------
    first
        Place of the line; the bends follow it.
    values
        The columns on an even grid over the public range, [-1, 1] for the line, shape
        ``(columns, points)``.
    """

    first: int
    values: Floats

    @property
    def bends(self) -> range:
        """Places of the bends."""
        return range(self.first + 1, self.first + len(self.values))


@dataclass(frozen=True)
class Design:
    """The columns of the design matrix and how they relate to the user's units.

    Column j holds z_j = (f_j(x_j) - centre_j) / half_width_j, where f_j is the
    identity or the study's transform; the intercept is a constant column. A product
    is one of columns as they are here, moved and scaled: z_j = z_k z_l.

    Attributes
    ----------
    names
        One name per column, e.g. ``("intercept", "age", "sex[M]")``.
    centre, half_width
        The public affine map of each column (0 and 1 for 0/1 columns).
    intercept
        Value of the constant first column, or None if there is none.
    products
        Of which columns each of the last columns is the product, their places rising.
        What is left of a product without some of its columns is a column too.
    curves
        Columns that belong together.
    bends
        For each curve, where its line has been moved, the weights that make its bends
        of the public columns, the constant first; empty where they are as in public.
    """

    names: tuple[str, ...]
    centre: Floats
    half_width: Floats
    intercept: float | None
    products: tuple[tuple[int, ...], ...] = ()
    curves: tuple[CurveColumns, ...] = ()
    bends: tuple[Floats, ...] = ()

    @property
    def width(self) -> int:
        return len(self.names)

    @property
    def moved(self) -> int:
        """Columns that have a centre and a width of their own: no constant, no
        product, no bend of a curve."""
        bends = sum(len(curve.bends) for curve in self.curves)
        return self._own - (self.intercept is not None) - bends

    @property
    def moved_places(self) -> slice | list[int]:
        """Where these columns are."""
        first = 0 if self.intercept is None else 1
        if not self.curves:
            return slice(first, self._own)
        bends = {place for curve in self.curves for place in curve.bends}
        return [place for place in range(first, self._own) if place not in bends]

    @property
    def _own(self) -> int:
        """Columns that are no products."""
        return self.width - len(self.products)

    def to_user_scale(self, coefficients: Floats) -> Floats:
        """Coefficients of z turned into coefficients of f(x), last axis = columns.

        beta_j = b_j / h_j and intercept = v b_0 - sum_j b_j c_j / h_j, with v the
        value of the constant column. Of a product, each part of
        b_kl (f_k - c_k) (f_l - c_l) / h_k h_l goes to the coefficient that it
        multiplies.
        """
        user, shift = self._expanded(coefficients)
        if self.intercept is not None:
            user[..., 0] = coefficients[..., 0] * self.intercept - shift
        return user

    def shift(self, coefficients: Floats) -> Floats:
        """What the linear predictor of z loses where every f(x) is zero."""
        return self._expanded(coefficients)[1]

    def _expanded(self, coefficients: Floats) -> tuple[Floats, Floats]:
        user: Floats = coefficients / self.half_width
        first, last = 0 if self.intercept is None else 1, self._own
        if not self.products and not self.bends:
            shift: Floats = user[..., first:last] @ self.centre[first:last]
            return user, shift
        forms = self._forms()
        places: dict[tuple[int, ...], int] = {(j,): j for j in range(last)}
        places |= {parts: last + k for k, parts in enumerate(self.products)}
        user[..., first:] = 0.0
        shift = np.zeros(coefficients.shape[:-1])
        for column in range(first, self.width):
            parents = self.products[column - last] if column >= last else (column,)
            for parts in product(*(forms[parent] for parent in parents)):
                weight = float(np.prod([part[1] for part in parts]))
                if weight == 0.0:
                    continue
                kept = tuple(sorted(part[0] for part in parts if part[0] is not None))
                share = weight * coefficients[..., column]
                if kept:
                    user[..., places[kept]] += share
                else:
                    shift -= share
        return user, shift

    def _forms(self) -> dict[int, list[tuple[int | None, float]]]:
        """Each column, no product, as a sum of weights times public columns (None for
        the constant one)."""
        forms: dict[int, list[tuple[int | None, float]]] = {
            j: [
                (j, 1.0 / float(self.half_width[j])),
                (None, -float(self.centre[j] / self.half_width[j])),
            ]
            for j in range(self._own)
        }
        for curve, weights in zip(self.curves, self.bends, strict=False):
            sources = [None, curve.first, *curve.bends]
            for place, row in zip(curve.bends, weights.tolist(), strict=True):
                forms[place] = list(zip(sources, row, strict=True))
        return forms


def fill_products(design: Design, x: Floats) -> None:
    """Write the products of a block's columns, record by record, to its last rows."""
    first = design.width - len(design.products)
    for row, (one, *others) in enumerate(design.products, start=first):
        x[row] = x[one]
        for other in others:
            x[row] *= x[other]


SHARE = "share of a person"
PLACE = "place of a person"
BESIDE = "column of another fit"
"""The role of the column that says by which each row counts."""


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
        :data:`SHARE` and :data:`PLACE` where several rows may be one person's; and
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

    def norms(self) -> Floats:
        """Euclidean norm of each record's gradient."""
        if self.score is None:
            assert self.extra is not None
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


class Model(BaseModel, ABC):
    """One likelihood, as the study's ``[model]`` table describes it.

    A subclass is one file: its fields are the keys of the table, its class attributes
    what is true of every study with it. Theta is on the scale of the
    prepared columns throughout; only :meth:`to_user_scale`, predictions and the
    densities of :meth:`log_likelihood` are in the user's own units.

    Attributes
    ----------
    kind
        Its name in a study file.
    roles
        Role of each outcome column -> the field naming it; an optional column's
        field may be None.
    family
        Sort of outcome, for readers; nothing depends on it.
    needs_intercept
        Whether the design matrix starts with a constant column.
    measure
        What :meth:`effect` of a coefficient is called, e.g. "odds ratio"; None
        where coefficients mean nothing by themselves.
    predicts_over_time
        Whether :meth:`predict` needs times.
    near_gaussian
        Whether one metric serves the whole posterior; else samplers adapt theirs.
    response
        Fields that the left-hand side of a formula fills, in its order; none where a
        model takes no formula.
    formula
        The outcome and the terms, in the place of the outcome's fields and of main
        effects: see :mod:`cipherbayes.models.formula`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    roles: ClassVar[Mapping[str, str]] = {}
    family: ClassVar[str]
    needs_intercept: ClassVar[bool] = True
    measure: ClassVar[str | None] = None
    predicts_over_time: ClassVar[bool] = False
    near_gaussian: ClassVar[bool] = True
    response: ClassVar[tuple[str, ...]] = ("outcome",)
    kind: str
    formula: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_formula(cls, given: Any) -> Any:
        """Fill in the fields that a formula states."""
        if not isinstance(given, Mapping) or not isinstance(given.get("formula"), str):
            return given
        try:
            stated = _stated(cls, parse_formula(given["formula"]))
        except ValueError as error:
            raise ValueError(f"formula: {error}") from None
        for key, value in stated.items():
            if given.get(key, value) != value:
                raise ValueError(
                    f"formula says that {key} is '{value}': remove {key}, or make them "
                    "agree"
                )
        return {**given, **stated}

    @property
    def terms(self) -> Formula | None:
        """The formula, taken apart."""
        return None if self.formula is None else parse_formula(self.formula)

    def outcome_columns(self) -> dict[str, str]:
        """Role of each outcome column that is read -> the user's name for it."""
        columns = {role: getattr(self, field) for role, field in self.roles.items()}
        return {role: name for role, name in columns.items() if name is not None}

    @abstractmethod
    def prepare_outcome(self, raw: Mapping[str, Floats]) -> dict[str, Floats]:
        """Outcome columns, checked and scaled, one for every role; raises ValueError
        with a message (naming the column, never a value) where a row is impossible.

        Outcomes beyond the public range are held at its ends: :meth:`out_of_range`.
        """

    def out_of_range(self, raw: Mapping[str, Floats]) -> str | None:
        """What to tell the owner of outcomes that lie beyond the public range.

        Such values are a mistake of units more often than not. A private study must
        not refuse because of them, since a refusal would tell that they are there.
        None where there are none.
        """
        return None

    def check_outcomes(self, outcome: Mapping[str, Floats]) -> None:
        """Raise ValueError where the prepared outcomes of *all* rows together
        cannot be learnt from. The answer depends on every row, so it is only for
        whoever holds all of them."""

    def extra_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that multiply no column: a shape, a baseline."""
        return ()

    def parameters(self, design: Design) -> tuple[str, ...]:
        """Names of the parameters, in the order of theta: columns, then extras."""
        extra = self.extra_parameters()
        clash = sorted(set(extra) & set(design.names))
        if clash:
            raise ValueError(
                f"'{clash[0]}' is a parameter of the {self.kind} model and a column: "
                "rename the feature"
            )
        return (*design.names, *extra)

    def constants(self, design: Design) -> tuple[int, ...]:
        """Places of the parameters that multiply a constant and no feature."""
        first = self.parameters(design)[:1]
        return (0,) if design.intercept is not None and first == ("intercept",) else ()

    @abstractmethod
    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        """Log density of each record in the user's units, shape ``(m,)``."""

    @abstractmethod
    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        """Gradient of each record's log-likelihood."""

    def gradient_sum(self, theta: Floats, rows: Rows) -> Floats:
        """Sum of the records' gradients, none of them bounded.

        A model may add them up without forming each by itself.
        """
        return self.gradients(theta, rows).weighted_sum()

    def information_diagonal(self, theta: Floats, rows: Rows) -> Floats:
        """``-sum_i d²(log-likelihood_i) / d theta_j²`` for each parameter j.

        Unless a model knows better, by central differences of its gradient: two
        passes for every parameter.
        """
        result = np.empty_like(theta)
        for j in range(theta.size):
            step = 1e-5 * (1.0 + abs(theta[j]))
            ahead, behind = theta.copy(), theta.copy()
            ahead[j] += step
            behind[j] -= step
            change = self.gradient_sum(behind, rows) - self.gradient_sum(ahead, rows)
            result[j] = change[j] / (ahead[j] - behind[j])
        return result

    @property
    def bounded_influence(self) -> BoundedInfluence | None:
        """What the noise-aware posterior needs; None where a model states nothing.

        See :mod:`cipherbayes.models.influence`.
        """
        return None

    @property
    def held_out_check(self) -> HeldOutCheck | None:
        """How private held-out rows check it; None where a model states nothing.

        See :mod:`cipherbayes.models.held_out`.
        """
        return None

    def curvature(self, design: Design) -> float:
        """A public guess of -d²(log-likelihood of a record) / d eta².

        Only scales the automatic step and the widths that a plan forecasts; privacy
        does not depend on it.
        """
        return 0.25

    def largest_curvature(self, design: Design) -> float:
        """A public guess of the largest eigenvalue of a record's information.

        Columns on public bounds rarely fill their range and move together in part:
        each is counted as a tenth of the intercept. An automatic step stays stable
        if that is four times too little.
        """
        first = 0.0 if design.intercept is None else design.intercept**2
        columns = design.width - (design.intercept is not None)
        return self.curvature(design) * (first + columns / 10.0)

    def predict(self, draws: Floats, rows: Rows, times: Floats | None = None) -> Floats:
        """What each draw of theta (shape ``(s, d)``) says of each record.

        A binary model answers P(y = 1), one of numbers or counts the mean of y,
        shape ``(s, m)``; a survival model S(t | x) at ``times`` in the user's units,
        shape ``(s, m, k)``.
        """
        raise ValueError(
            f"a model of kind '{self.kind}' has no outcome to predict: "
            "read its posterior instead"
        )

    def fitted(self, theta: Floats, rows: Rows) -> Floats | None:
        """What :meth:`metrics` compare with the outcome: a probability, a mean, a
        risk; shape ``(m,)``. None where a model predicts nothing."""
        return None

    def metrics(self, outcome: Mapping[str, Floats], fitted: Floats) -> Metrics:
        """How well the mean of :meth:`fitted` over the draws fits held-out outcomes.

        Parameters
        ----------
        outcome
            The prepared outcome columns of all held-out rows.
        """
        return {}

    def effect(self, change: Floats) -> Floats:
        """What a change of the linear predictor does, as ``measure`` names it."""
        ratio: Floats = np.exp(change)
        return ratio

    def to_user_scale(self, draws: Floats, design: Design) -> Floats:
        """Draws of theta (last axis) on the user's own units."""
        user = np.array(draws, dtype=np.float64)
        user[..., : design.width] = design.to_user_scale(draws[..., : design.width])
        return user


def _stated(model: type[Model], formula: Formula) -> dict[str, str]:
    """Fields of a model that a formula fills in."""
    fields, kind = model.response, model.model_fields["kind"].default
    if not fields:
        raise ValueError(f"a model of kind '{kind}' takes no formula: remove it")
    if formula.survival != (fields[0] == "time"):
        raise ValueError(
            f"a model of kind '{kind}' has a survival time: write Surv(time, event) ~"
            if fields[0] == "time"
            else f"a model of kind '{kind}' has one outcome: write its column before ~"
        )
    if len(formula.response) == 3:
        if "entry" not in model.model_fields:
            raise ValueError(
                f"a model of kind '{kind}' has no entry: write Surv(time, event) ~"
            )
        fields = ("entry", *fields)
    if not formula.intercept and not model.needs_intercept:
        raise ValueError(f"a model of kind '{kind}' has a baseline: remove - 1")
    stated = dict(zip(fields, formula.response, strict=True))
    for key, column in (("exposure", formula.exposure), ("offset", formula.offset)):
        if column is None:
            continue
        if key not in model.model_fields:
            raise ValueError(
                f"a model of kind '{kind}' has no offset: offset(...) is for counts"
            )
        stated[key] = column
    return stated


def refuse_times(model: Model, times: Floats | None) -> None:
    """Refuse times for a prediction that is one number."""
    if times is not None:
        raise ValueError(
            f"a model of kind '{model.kind}' predicts one number for a row, not a "
            "curve: leave the times out"
        )


def require_finite(values: Floats, column: str) -> None:
    """Refuse an outcome column with missing or infinite values."""
    if np.isnan(values).any():
        raise ValueError(
            f"outcome column '{column}' has missing values: "
            "remove the rows without an outcome"
        )
    if np.isinf(values).any():
        raise ValueError(
            f"outcome column '{column}' has infinite values: "
            "correct or remove those rows"
        )


def require_binary(values: Floats, column: str) -> None:
    """Refuse an outcome column with anything but zeros and ones."""
    require_finite(values, column)
    if not np.all((values == 0.0) | (values == 1.0)):
        raise ValueError(
            f"outcome column '{column}' is not binary: recode it to 0 and 1"
        )
