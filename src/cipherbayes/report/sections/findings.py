"""*What was found*: effects, predictions, and how good predictions were."""

from __future__ import annotations

from cipherbayes.report.effect_rows import effects_of
from cipherbayes.report.markup import Markup, join, table, tag
from cipherbayes.report.numbers import (
    number,
    percent,
)
from cipherbayes.report.run_contents import Contents
from cipherbayes.report.sections.checks import characteristics
from cipherbayes.report.sections.curves import (
    formula_part,
)
from cipherbayes.report.sections.forest import forest
from cipherbayes.report.sections.held_out import held_out_part
from cipherbayes.report.sections.predictions import predictions_part


def findings_section(contents: Contents) -> Markup:
    """The whole section."""
    effects = effects_of(contents)
    return join(
        Markup() if effects is None else forest(contents, effects),
        formula_part(contents),
        _posterior_table(contents),
        characteristics(contents),
        predictions_part(contents),
        held_out_part(contents),
    )


def _posterior_table(contents: Contents) -> Markup:
    record = contents.record
    share = percent(record["interval"])
    rows = [
        [
            row["name"],
            number(row["mean"], 4),
            number(row["sd"]),
            number(row["lower"], 4),
            number(row["upper"], 4),
        ]
        for row in record["posterior"]
    ]
    whole = table(
        "Every parameter on your own units, as in result.json",
        ["Parameter", "Mean", "Sd", f"Lower ({share})", f"Upper ({share})"],
        rows,
        id_="posterior",
    )
    return join(tag("h3", "All parameters"), tag("p", _units(contents)), whole)


def _units(contents: Contents) -> str:
    measure = contents.study.model.measure
    text = "Parameters are on your own units."
    if measure is not None and measure.endswith("ratio"):
        text = f"Coefficients are logarithms of {measure}s per unit of the feature."
    if contents.study.model.formula is not None:
        text += (
            " With products a coefficient is that at zero of the other features, and "
            "those of a curve belong together: read effects, groups and curves instead."
        )
    if any(feature.transform for feature in contents.study.features.values()):
        text += " A transformed feature counts in its transformed unit."
    return text
