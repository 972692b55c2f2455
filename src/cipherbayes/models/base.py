"""What a model states: its parameters, the log-likelihood of a row, its gradient.

A model knows nothing of sites, noise or encryption. It sees prepared records in
blocks (:class:`~cipherbayes.models.rows.Rows`) and answers with per-record gradients
(:class:`~cipherbayes.models.rows.RecordGradients`) that can be bounded record by record
and summed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from cipherbayes.errors import StudyValueError, invalid_field, problem_to_name
from cipherbayes.models.design import Design
from cipherbayes.models.formula import Formula, parse_formula
from cipherbayes.models.metrics import Metrics
from cipherbayes.models.outcomes import FAMILY_RANGES, OutcomeRange
from cipherbayes.models.prior import Prior, ResolvedPrior
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.typing import Floats

if TYPE_CHECKING:  # which imports this module
    from cipherbayes.models.held_out import HeldOutCheck
    from cipherbayes.models.influence import BoundedInfluence


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
        Sort of outcome: ``binary``, ``ordered``, ``count``, ``number``, ``survival`` or
        ``vector``. Reports choose words by it.
    title
        What a paper calls the model; its kind where it states none.
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
    title: ClassVar[str | None] = None
    needs_intercept: ClassVar[bool] = True
    measure: ClassVar[str | None] = None
    predicts_over_time: ClassVar[bool] = False
    near_gaussian: ClassVar[bool] = True
    response: ClassVar[tuple[str, ...]] = ("outcome",)
    kind: str
    formula: str | None = None

    if not TYPE_CHECKING:  # type checkers know the fields of each model

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                problems = error.errors(include_url=False)
                known = list(type(self).model_fields)
                first = problem_to_name(problems, lambda _: known)
                named = (first["loc"], (first.get("meant"),))
                others = [
                    (each["type"], ".".join(str(part) for part in each["loc"]))
                    for each in problems
                    if each["loc"] not in named
                ]
                key = ".".join(str(part) for part in first["loc"])
                what, remedy = invalid_field(first, key, others)
                where = type(self).__name__
                raise StudyValueError(what, where=where, remedy=remedy) from None

        # Pydantic's own way in, which a study takes, does not lead through here.
        __init__.__pydantic_base_init__ = True

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

    @property
    def outcome_ranges(self) -> Mapping[str, OutcomeRange]:
        """What the outcome columns may hold, by role; audits make up outcomes by it.

        A model states it where it has several outcome columns, or where its one outcome
        is not any value of its family: see :mod:`cipherbayes.models.outcomes`.
        """
        if not self.roles:
            return {}
        return dict.fromkeys(self.roles, FAMILY_RANGES[self.family])

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

    def shapes(self, design: Design) -> tuple[int, ...]:
        """Places of the parameters that are neither an effect nor a constant."""
        beyond = range(design.width, len(self.parameters(design)))
        constants = self.constants(design)
        return tuple(place for place in beyond if place not in constants)

    def prior_of(self, prior: Prior, design: Design) -> ResolvedPrior:
        """A study's prior of the parameters, in the order of theta."""
        names, constants = self.parameters(design), self.constants(design)
        return prior.resolve(names, constants, self.shapes(design))

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

    def gradient_sums(self, thetas: Floats, rows: Rows) -> Floats:
        """:meth:`gradient_sum` at several thetas, one row each."""
        return np.array([self.gradient_sum(theta, rows) for theta in thetas])

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

    def curvature_of(self, events: float, design: Design) -> float:
        """The same as :meth:`curvature` where the share of records with the event, or
        the mean count, is known."""
        return self.curvature(design)

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
        risk; shape ``(m,)``. None where a model predicts nothing.

        Formal guarantees
        -----------------
        Each record's has the same bits whatever records are beside it: held-out rows
        are counted by it, and a library's matrix product is not of that kind.
        """
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
