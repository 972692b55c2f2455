"""Predictions for made-up records: what one feature does, the others held still.

The reference record is that of ``result.json``: the study's; what it leaves open has
numbers at means where these are known, else in the middle of their public range, and
categories at their reference level. Nobody's row is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cipherbayes.data.features import Feature
from cipherbayes.models.base import Model
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.made_up import Value
from cipherbayes.results.result import Result
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats

MOST_PANELS = 6
CURVE_POINTS = 61


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
    return contents.result.made_up.reference


def reference_words(contents: Contents) -> str:
    """Where the reference record's values come from."""
    study, record = contents.study, contents.record
    numbers = "in the middle of their public ranges"
    if record["moments"] is not None:
        numbers = "at the means that the study released, noise included"
    elif record["privacy"]["epsilon"] is None and record.get("reference"):
        numbers = "at the means of all rows"
    stated = study.reference or {}
    left = [f for name, f in study.features.items() if name not in stated]
    said = [f"{', '.join(stated)} as the study states"] * bool(stated)
    said += [f"numbers {numbers}"] * any(f.levels is None for f in left)
    said += ["categories at their reference level"] * any(f.levels for f in left)
    return "; ".join(said)


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


def strongest_values(contents: Contents) -> tuple[str, list[Value]]:
    """The feature with the largest effect, and some values of it."""
    name = _ranked(contents)[0]
    feature = contents.study.features[name]
    return name, _values(contents, name, feature, curve=False)


def predict(
    result: Result, records: Sequence[Mapping[str, Value]], times: Floats | None
) -> dict[str, Floats]:
    """Posterior predictive means and intervals of made-up records."""
    columns = {name: [record[name] for record in records] for name in records[0]}
    return result.predict_at_common(
        pa.table(columns), times=times, where="reference record"
    )


def _ranked(contents: Contents) -> list[str]:
    """Features by the largest effect of a column of theirs, on the prepared scale."""
    owners = preparation_of(contents.study).owners
    mean = np.abs(contents.result.draws().mean(axis=0))
    sizes = {
        name: max((mean[k] for k in owners.get(name, ())), default=0.0)
        for name in contents.study.features
    }
    return sorted(sizes, key=lambda name: -sizes[name])


def _values(
    contents: Contents, name: str, feature: Feature, *, curve: bool
) -> list[Value]:
    made_up = contents.result.made_up
    if feature.levels is not None:
        return [*made_up.levels(name)[:4]]
    if not curve:
        return [made_up.at(name, d) for d in (-1.0, 1.0)]
    # Two deviations of a uniform spread are the whole public range.
    places = np.linspace(-2.0, 2.0, CURVE_POINTS)
    return list(dict.fromkeys(made_up.at(name, float(d)) for d in places))


def label(value: Value) -> str:
    """A value as the page names it."""
    return value if isinstance(value, str) else f"{value:.3g}"
