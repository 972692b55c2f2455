"""The forest plot: effects with their intervals, the clearest first."""

from __future__ import annotations

import math

from cipherbayes.report.charts import (
    interval_axis,
    interval_row,
)
from cipherbayes.report.effect_rows import Effect, Effects, own_step, strongest
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import (
    NONE,
    Axis,
    percent,
    resolved,
    round_step,
)
from cipherbayes.report.run_contents import Contents
from cipherbayes.report.sections.curves import (
    CHART,
    reference_in_words,
)

MOST_EFFECTS = 40
"""Rows of the forest plot; every parameter is in the table below it."""

SHORTEST = 5.0
"""Per cent of the axis below which an interval is hidden by its own dot."""


def forest(contents: Contents, effects: Effects) -> Markup:
    """What the lines are, and the plot."""
    shown = strongest(effects.rows, MOST_EFFECTS)
    axis = forest_axis(shown, effects)
    share = percent(contents.record["interval"])
    rows: list[list[Content]] = [
        [
            _breakable(effect.name),
            own_step(effect.name, effect.per),
            interval_row(
                axis, effect.estimate, effect.lower, effect.upper, effects.reference
            ),
            resolved(effect.estimate, effect.lower, effect.upper),
            _interval(effect),
            _direction(effect, effects.reference),
        ]
        for effect in shown
    ]
    text = (
        f"Each line is the {effects.measure} for one step of a feature, the others "
        "held still. "
    )
    formula = contents.record.get("formula")
    if formula is not None:
        text += (
            "They are effects at the reference record, which matters where the formula "
            f"has products ({reference_in_words(formula)}). "
        )
    what = "points without intervals"
    if any(effect.lower is not None for effect in shown):
        what = f"medians and {share} intervals"
        clear = [e for e in shown if not e.covers(effects.reference)]
        text += (
            f"{len(clear)} of {len(shown)} intervals do not hold "
            f"{effects.reference:g}, the value of no effect. "
        )
    else:
        text += (
            "These are points: this run has no intervals, so nothing here says how far "
            "they may be from the truth. "
        )
    if more := len(effects.rows) - len(shown):
        text += f"{more} less clear effects are in the table below only."
    if dots := [e for e in shown if _is_dot(e, axis)]:
        text += _too_short(dots, contents)
    return join(
        tag("p", text),
        table(
            f"Effects: {effects.measure}s, {what}",
            [
                "Feature",
                "Step",
                CHART,
                effects.measure.capitalize(),
                f"{share} interval",
                "Direction",
            ],
            rows,
            words=(1, 2),
            foot=["", "", interval_axis(axis), "", "", ""],
            class_="forest cards",
            id_="effects",
        ),
    )


def _breakable(name: str) -> Markup:
    """A parameter's name, to be broken before its level where it must be."""
    feature, bracket, level = name.partition("[")
    return join(feature, tag("wbr") if bracket else "", f"{bracket}{level}")


def _interval(effect: Effect) -> str:
    if effect.lower is None or effect.upper is None:
        return NONE
    lower, upper = (
        resolved(end, effect.lower, effect.upper)
        for end in (effect.lower, effect.upper)
    )
    return f"{lower} to {upper}"


def _is_dot(effect: Effect, axis: Axis) -> bool:
    """Whether an interval is too short to be seen beside the others."""
    if effect.lower is None or effect.upper is None:
        return False
    return axis.place(effect.upper) - axis.place(effect.lower) < SHORTEST


def _too_short(dots: list[Effect], contents: Contents) -> str:
    """What is said of intervals that look like dots, and how to see them."""
    said = f" Intervals too short to see: {', '.join(e.name for e in dots)}"
    for effect in dots:
        feature = contents.study.features.get(effect.name)
        if feature is None or feature.transform or feature.per is not None:
            continue
        if feature.levels is not None or not effect.per.startswith("1 unit"):
            continue
        low, high = feature.ends
        step = round_step((high - low) / 10.0)
        return (
            f"{said}. A step of one unit is small there; per = {step:g} in the study’s "
            f"[features] of {effect.name}, say, shows a larger one."
        )
    return f"{said}."


def forest_axis(shown: list[Effect], effects: Effects) -> Axis:
    """An axis that one huge interval does not squash the others on.

    Intervals more than ten times as wide as one that is wider than most (a quarter of
    them are wider still) reach beyond it.
    """

    def at(value: float) -> float:
        return math.log(value) if effects.ratios else value

    widths = {
        e.name: at(e.upper) - at(e.lower)
        for e in shown
        if e.lower is not None and e.upper is not None
    }
    wide = max(3 * (len(widths) - 1) // 4, len(widths) // 2)
    usual = sorted(widths.values())[wide] if widths else 0.0
    ends = [e.estimate for e in shown if widths.get(e.name, 0.0) <= 10.0 * usual]
    for e in shown:
        if e.lower is not None and e.upper is not None:
            ends += [e.lower, e.upper] if widths[e.name] <= 10.0 * usual else []
    return Axis.around(ends, log=effects.ratios, include=effects.reference)


def _direction(effect: Effect, reference: float) -> str:
    if effect.above is None:
        return NONE
    sign = ">" if effect.above >= 0.5 else "<"
    chance = effect.direction
    shown = "> 99.9 %" if chance > 0.999 else f"= {100 * chance:.1f} %"
    return f"P({sign} {reference:g}) {shown}"
