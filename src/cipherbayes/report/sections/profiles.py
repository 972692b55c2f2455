"""Predictions for made-up records: what one feature does, the others held still.

The reference record is that of ``result.json``: numbers at means where these are known,
else in the middle of their public range, categories at their first level. Nobody's row
is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cipherbayes.data.features import Feature, level_name
from cipherbayes.models.base import Model
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.effects import INVERSES, reference
from cipherbayes.results.result import Result
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats

MOST_PANELS = 6
CURVE_POINTS = 61

Value = float | str


@dataclass(frozen=True)
class Prediction:
    """A value of the feature, and what is predicted there, with its interval."""

    label: str
    value: Value
    mean: Floats
    lower: Floats
    upper: Floats


@dataclass(frozen=True)
class Panel:
    """One feature's predictions."""

    feature: str
    numeric: bool
    predictions: tuple[Prediction, ...]


def can_predict(study: Study) -> bool:
    """Whether the model has an outcome to predict from features alone."""
    return type(study.model).predict is not Model.predict


def reference_record(contents: Contents) -> dict[str, Value]:
    """The made-up record that all panels start from."""
    made = contents.record.get("reference")
    if made is None:  # a result of an earlier release
        made = reference(contents.study.features, preparation_of(contents.study).design)
    return made


def reference_words(contents: Contents) -> str:
    """Where the reference record's values come from."""
    numbers = "in the middle of their public ranges"
    if contents.record["moments"] is not None:
        numbers = "at the means that the study released, noise included"
    elif contents.record["privacy"]["epsilon"] is None and contents.record.get(
        "reference"
    ):
        numbers = "at the means of all rows"
    kinds = {feature.levels is None for feature in contents.study.features.values()}
    said = [f"numbers {numbers}"] * (True in kinds)
    said += ["categories at their first level"] * (False in kinds)
    return ", ".join(said)


def panels(contents: Contents, times: Floats | None) -> list[Panel]:
    """Predictions along the features with the largest effects, largest first."""
    base = reference_record(contents)
    found = []
    for name in _ranked(contents)[:MOST_PANELS]:
        feature = contents.study.features[name]
        values = _values(contents, name, feature, curve=times is None)
        records = [{**base, name: value} for value in values]
        predicted = predict(contents.result, records, times)
        found.append(
            Panel(
                feature=name,
                numeric=feature.levels is None,
                predictions=tuple(
                    Prediction(
                        label(value),
                        value,
                        *(predicted[key][k] for key in ("mean", "lower", "upper")),
                    )
                    for k, value in enumerate(values)
                ),
            )
        )
    return found


def predict(
    result: Result, records: Sequence[Mapping[str, Value]], times: Floats | None
) -> dict[str, Floats]:
    """Posterior predictive means and intervals of made-up records."""
    columns = {name: [record[name] for record in records] for name in records[0]}
    return result.predict(pa.table(columns), times=times, where="reference record")


def _ranked(contents: Contents) -> list[str]:
    """Features by the largest effect of a column of theirs, on the prepared scale."""
    design = preparation_of(contents.study).design
    mean = np.abs(contents.result.draws().mean(axis=0))
    sizes = {
        name: max(
            (
                mean[k]
                for k, column in enumerate(design.names)
                if column == name
                or (column.startswith(f"{name}[") and column != f"{name}[missing]")
            ),
            default=0.0,
        )
        for name in contents.study.features
    }
    return sorted(sizes, key=lambda name: -sizes[name])


def _moments(contents: Contents, name: str) -> tuple[float, float]:
    """Mean and spread of a prepared column: released ones; else the reference
    record's value and half of the range's."""
    moments = contents.record.get("moments")
    if moments is None:
        feature = contents.study.features[name]
        centre, half = feature.affine()
        typical = feature.transformed(np.array([reference_record(contents)[name]]))[0]
        return (float(typical) - centre) / half, 0.5
    design = preparation_of(contents.study).design
    place = design.names.index(name) - (design.intercept is not None)
    half = len(moments) // 2
    return moments[place], moments[half + place]


def _at(feature: Feature, deviations: float, moments: tuple[float, float]) -> float:
    """The raw value so many deviations from the mean, within the public range."""
    centre, half = feature.affine()
    mean, spread = moments
    z = min(max(mean + deviations * spread, -1.0), 1.0)
    return INVERSES[feature.transform](centre + half * z)


def _values(
    contents: Contents, name: str, feature: Feature, *, curve: bool
) -> list[Value]:
    if feature.levels is not None:
        return [level_name(level) for level in feature.levels[:4]]
    moments = _moments(contents, name)
    if not curve:
        return [_at(feature, d, moments) for d in (-1.0, 1.0)]
    # Two deviations of a uniform spread are the whole public range.
    places = np.linspace(-2.0, 2.0, CURVE_POINTS)
    return list(dict.fromkeys(_at(feature, float(d), moments) for d in places))


def label(value: Value) -> str:
    """A value as the page names it."""
    return value if isinstance(value, str) else f"{value:.3g}"
