"""Effects under a formula: what changes between two made-up records.

With curves and products no single coefficient is "the effect of age". An effect is the
change of the linear predictor from one record to another, everything else as in the
reference record: a step of a number, a level against the reference level, the ends of
a curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cipherbayes.models.formula import Factor, Formula
from cipherbayes.models.transforms import transform_named
from cipherbayes.results.effects import median_row
from cipherbayes.results.made_up import MadeUp, Value
from cipherbayes.results.record import (
    ContrastRow,
    Curve,
    CurvePoint,
    EffectRow,
    FormulaRecord,
    SubgroupRow,
)
from cipherbayes.typing import Floats

POINTS = 61
"""Points of a curve."""
REACH = 2.0
"""Deviations on either side of the mean that a curve is drawn over."""


@dataclass(frozen=True)
class EffectStep:
    """A change of one feature.

    Attributes
    ----------
    name, per
        What it is of, and what it is called.
    low, high
        Values of the feature that are compared.
    share
        What part of that change the step is: of a straight line any two values tell
        the slope.
    """

    name: str
    per: str
    feature: str
    low: Value
    high: Value
    share: float = 1.0


@dataclass(frozen=True)
class Contrasts:
    """Contrasts of a posterior.

    Parameters
    ----------
    user
        Draws in the user's units, shape ``(s, d)``.
    tail
        Probability outside either end of an interval; None where there is none.
    """

    made_up: MadeUp
    user: Floats
    tail: float | None

    @property
    def measure(self) -> str:
        """What an effect is called, e.g. "odds ratio"."""
        model = self.made_up.study.model
        if model.measure is None:
            raise ValueError(f"a model of kind '{model.kind}' has no effects")
        return model.measure

    def effect(
        self, step: EffectStep, at: Mapping[str, Any] | None = None
    ) -> EffectRow:
        """What a step does to a record: the reference, but for ``at``."""
        change = step.share * self.change(step.feature, step.low, step.high, at)
        return self._row(step.name, step.per, change)

    def contrast(
        self, feature: str, value: Any, against: Any, at: Mapping[str, Any] | None
    ) -> ContrastRow:
        """What one value of a feature does against another."""
        high = self.made_up.checked(feature, value)
        low = self.made_up.checked(feature, against)
        change = self.change(feature, low, high, at)
        record = self.made_up.record(at)
        del record[feature]
        per = f"{_said(high)} against {_said(low)}"
        return {**self._row(feature, per, change), "at": record}

    def change(
        self, feature: str, low: Value, high: Value, at: Mapping[str, Any] | None
    ) -> Floats:
        """Draws of the linear predictor's change from one value to another."""
        base = self.made_up.record(at)
        ends = [{**base, feature: low}, {**base, feature: high}]
        values = self.made_up.in_user_units(ends)
        result: Floats = self.user[:, : len(values)] @ (values[:, 1] - values[:, 0])
        return result

    def curve(
        self,
        feature: str,
        at: Mapping[str, Any] | None = None,
        by: tuple[str, Value] | None = None,
    ) -> Curve:
        """The effect of every value of a number against the reference record's."""
        base = self.made_up.record(at)
        # Where the curve is one (or nothing) by its meaning is one of its points.
        values = sorted({*self._grid(feature), float(base[feature])})
        records = [base, *({**base, feature: value} for value in values)]
        columns = self.made_up.in_user_units(records)
        away = columns[:, 1:] - columns[:, :1]
        changes = self.user[:, : len(columns)] @ away
        model = self.made_up.study.model
        points: list[CurvePoint] = [
            {"value": value, **median_row(model.effect(changes[:, k]), self.tail)}
            for k, value in enumerate(values)
        ]
        return {
            "feature": feature,
            "measure": self.measure,
            "reference": float(base[feature]),
            "by": None if by is None else by[0],
            "level": None if by is None else by[1],
            "points": points,
        }

    def effects(self, formula: Formula) -> list[EffectRow]:
        """One row for each step, at the reference record."""
        rows = [self.effect(step) for step in self.steps(formula)]
        return [*rows, *self._indicators()]

    def summary(self, formula: Formula) -> FormulaRecord:
        """What ``result.json`` says besides effects."""
        return {
            "text": formula.text,
            "reference": dict(self.made_up.reference),
            "curves": list(self.curves(formula)),
            "subgroups": list(self.subgroups(formula)),
        }

    def curves(self, formula: Formula) -> Iterator[Curve]:
        """The curve of every number that has one, and in each level of a category that
        it has a product with."""
        curved = {f.column for term in formula.terms for f in term if f.curve}
        for feature in formula.columns:
            if feature not in curved:
                continue
            yield self.curve(feature)
            for other in _partners(formula, feature):
                if self.made_up.study.features[other].levels is not None:
                    for level in self.made_up.levels(other):
                        yield self.curve(feature, {other: level}, (other, level))

    def subgroups(self, formula: Formula) -> Iterator[SubgroupRow]:
        """What steps do in the groups of a feature that they have a product with."""
        for step in self.steps(formula):
            for other in _partners(formula, step.feature):
                for group in self._groups(other):
                    yield {
                        **self.effect(step, {other: group}),
                        "by": other,
                        "at": group,
                    }

    def steps(self, formula: Formula) -> Iterator[EffectStep]:
        """The steps of every feature, in the order of the formula."""
        for name in formula.columns:
            feature = self.made_up.study.features[name]
            if feature.levels is not None:
                first, *others = self.made_up.levels(name)
                for level in others:
                    per = f"{level} against {first}"
                    yield EffectStep(f"{name}[{level}]", per, name, first, level)
                continue
            factors = _mains(formula, name)
            if len(factors) > 1 or factors[0].curve:
                low, high = self._groups(name)
                per = f"{_said(high)} against {_said(low)}"
                yield EffectStep(name, per, name, low, high)
                continue
            yield self._line(factors[0])

    def _line(self, factor: Factor) -> EffectStep:
        """A step of a number whose (transformed) effect is a straight line."""
        feature = self.made_up.study.features[factor.column]
        transform = transform_named(factor.transform)
        words, size = transform.step, transform.step_size
        if feature.per is not None and factor.transform is None:
            words, size = f"{feature.per:g} units of {{}}", feature.per
        _, seen = self.made_up.preparation.line(factor.column)
        length = 2.0 * seen.affine()[1]
        return EffectStep(
            factor.text,
            words.format(factor.column),
            factor.column,
            *feature.ends,
            size / length,
        )

    def _indicators(self) -> Iterator[EffectRow]:
        names = self.made_up.preparation.design.names
        for name, feature in self.made_up.study.features.items():
            if feature.indicator:
                column = f"{name}[missing]"
                change = self.user[:, names.index(column)]
                per = f"missing against {feature.stand_in}"
                yield self._row(column, per, change)

    def _groups(self, name: str) -> list[Value]:
        if self.made_up.study.features[name].levels is not None:
            return [*self.made_up.levels(name)]
        return [self.made_up.near(name, deviations) for deviations in (-1.0, 1.0)]

    def _grid(self, name: str) -> list[float]:
        places = np.linspace(-REACH, REACH, POINTS)
        return [self.made_up.at(name, float(d)) for d in places]

    def _row(self, name: str, per: str, change: Floats) -> EffectRow:
        model = self.made_up.study.model
        found = median_row(model.effect(change), self.tail)
        return {
            "name": name,
            "per": per,
            "measure": self.measure,
            "estimate": found["estimate"],
            "lower": found["lower"],
            "upper": found["upper"],
            "above": None if self.tail is None else float((change > 0.0).mean()),
        }


def _mains(formula: Formula, column: str) -> list[Factor]:
    return [t[0] for t in formula.terms if len(t) == 1 and t[0].column == column]


def _partners(formula: Formula, column: str) -> list[str]:
    """Features that a feature has a product of two with."""
    found = []
    for term in formula.terms:
        columns = [factor.column for factor in term]
        if len(columns) == 2 and column in columns and len(set(columns)) == 2:
            found.append(columns[1] if columns[0] == column else columns[0])
    return list(dict.fromkeys(found))


def _said(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:g}"
