"""What a formula adds to *What was found*: curves, and effects in groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cipherbayes.report.charts import (
    Chart,
    Line,
    figure,
    interval_axis,
    interval_row,
)
from cipherbayes.report.effect_rows import own_step
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import Axis, interval, number, percent
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.record import Curve, FormulaRecord, SubgroupRow

MOST_CURVES = 12
CHART = tag("span", "chart", class_="unseen")
"""Heading of a column that holds drawings."""


def formula_part(contents: Contents) -> Markup:
    """Curves and effects in groups; nothing for a study without a formula."""
    formula = contents.record.get("formula")
    if formula is None:
        return Markup()
    return join(_curves(contents, formula), _groups(contents, formula["subgroups"]))


def reference_in_words(formula: FormulaRecord) -> str:
    """The reference record of effects."""
    shown = [f"{name} {_short(value)}" for name, value in formula["reference"].items()]
    return ", ".join(shown)


def _curves(contents: Contents, formula: FormulaRecord) -> Markup:
    curves = formula["curves"][:MOST_CURVES]
    if not curves:
        return Markup()
    share = percent(contents.record["interval"])
    band = f"with {share} bands" if contents.result.has_intervals else "without bands"
    text = (
        f"Each curve is the {curves[0]['measure']} of a value against the reference "
        f"record’s, {band}; everything else is as in the reference record "
        f"({reference_in_words(formula)})."
    )
    if contents.result.has_intervals:
        text += (
            " A band is of the difference from the reference value: it closes there, "
            "whatever is known, and widens with the distance."
        )
    figures = [_figure(group) for group in _grouped(curves)]
    return join(
        tag("h3", "Curves", id="curves"),
        tag("p", text),
        tag("div", figures, class_="panels"),
        _curve_table(curves, share),
    )


def _grouped(curves: Sequence[Curve]) -> Iterator[list[Curve]]:
    """Curves that share a chart: those of one feature by another."""
    groups: dict[tuple[str, str | None], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve["feature"], curve["by"]), []).append(curve)
    yield from groups.values()


def _figure(curves: Sequence[Curve]) -> Markup:
    first = curves[0]
    measure, feature, by = first["measure"], first["feature"], first["by"]
    ratios = measure.endswith("ratio")
    lines, ends = [], []
    for curve in curves:
        points = [p for p in curve["points"] if p["estimate"] is not None]
        middle = [p["estimate"] or 0.0 for p in points]
        lower = [_else(p["lower"], p["estimate"]) for p in points]
        upper = [_else(p["upper"], p["estimate"]) for p in points]
        name = "" if by is None else f"{by} {_short(curve['level'])}"
        lines.append(Line(name, [p["value"] for p in points], middle, lower, upper))
        # The curve is to be seen, not how wide its band is at the far ends.
        inner = slice(len(points) // 6, -(len(points) // 6) or None)
        ends += [*middle, *lower[inner], *upper[inner]]
    x = [value for line in lines for value in line.x]
    said = "; ".join(
        f"{line.name or feature} at {_short(value)}: {number(middle)} "
        f"({interval(low, high)})"
        for line in lines
        for value, middle, low, high in _ends(line)
    )
    reference = 1.0 if ratios else 0.0
    return figure(
        Chart(
            title=f"{measure.capitalize()} by {feature}"
            + ("" if by is None else f", in groups of {by}"),
            said=said,
            x=Axis(min(x), max(x)),
            y=Axis.around(ends, log=ratios, include=reference),
            x_name=feature,
            y_name=f"{measure} against {_short(first['reference'])}",
            lines=lines,
            levels=[(reference, "no effect")],
            small=True,
        )
    )


def _curve_table(curves: Sequence[Curve], share: str) -> Markup:
    """The curves in numbers, at every tenth point."""
    rows: list[list[Content]] = [
        [
            curve["feature"]
            if curve["by"] is None
            else f"{curve['feature']}, {curve['by']} {_short(curve['level'])}",
            _short(point["value"]),
            number(point["estimate"]),
            interval(point["lower"], point["upper"]),
        ]
        for curve in curves
        for point in curve["points"][:: max(len(curve["points"]) // 6, 1)]
    ]
    return tag(
        "details",
        tag("summary", "The curves in numbers"),
        table(
            "Curves at some values",
            ["Curve", "At", curves[0]["measure"].capitalize(), f"{share} interval"],
            rows,
            id_="curve-values",
        ),
    )


def _groups(contents: Contents, rows: Sequence[SubgroupRow]) -> Markup:
    shown = [row for row in rows if row["estimate"] is not None]
    if not shown:
        return Markup()
    measure = shown[0]["measure"]
    ratios = measure.endswith("ratio")
    reference = 1.0 if ratios else 0.0
    ends = [row[key] for row in shown for key in ("estimate", "lower", "upper")]
    axis = Axis.around(
        [end for end in ends if end is not None], log=ratios, include=reference
    )
    share = percent(contents.record["interval"])
    lines: list[list[Content]] = [
        [
            row["name"],
            f"{own_step(row['name'], row['per'])} where {row['by']} is "
            f"{_short(row['at'])}",
            interval_row(
                axis, row["estimate"] or 0.0, row["lower"], row["upper"], reference
            ),
            number(row["estimate"]),
            interval(row["lower"], row["upper"]),
        ]
        for row in shown
    ]
    return join(
        tag("h3", "Effects in groups", id="groups"),
        tag(
            "p",
            "Where the formula has a product of two features, the effect of one "
            "depends on the other. Each line is an effect in one group, everything "
            "else as in the reference record.",
        ),
        table(
            f"{measure.capitalize()}s in groups",
            [
                "Feature",
                "Step",
                CHART,
                measure.capitalize(),
                f"{share} interval",
            ],
            lines,
            words=(1, 2),
            foot=["", "", interval_axis(axis), "", ""],
            class_="forest cards",
            id_="subgroups",
        ),
    )


def _ends(line: Line) -> Iterator[tuple[float, float, float, float]]:
    """Value, curve and band at the first and at the last point."""
    points = list(zip(line.x, line.y, line.lower or (), line.upper or (), strict=True))
    yield from (points[0], points[-1])


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _else(value: float | None, other: float | None) -> float:
    return value if value is not None else other or 0.0
