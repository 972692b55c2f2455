"""*What was found*: effects, predictions, and how good predictions were."""

from __future__ import annotations

import math

import numpy as np

from cipherbayes.models.survival import SurvivalCurves
from cipherbayes.report.charts import (
    Chart,
    Line,
    Point,
    figure,
    interval_axis,
    interval_row,
)
from cipherbayes.report.effect_rows import Effect, Effects, effects_of, strongest
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import (
    NONE,
    Axis,
    interval,
    number,
    percent,
)
from cipherbayes.report.run_contents import Contents
from cipherbayes.report.sections.checks import characteristics, private_checks
from cipherbayes.report.sections.curves import (
    CHART,
    formula_part,
    reference_in_words,
)
from cipherbayes.report.sections.incidence import incidence_part
from cipherbayes.report.sections.profiles import (
    CURVE_POINTS,
    Panel,
    can_predict,
    label,
    panels,
    reference_record,
    reference_words,
)
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats

MOST_EFFECTS = 40
"""Rows of the forest plot; every parameter is in the table below it."""

SHORTEST = 5.0
"""Per cent of the axis below which an interval is hidden by its own dot."""

METRICS = {
    "rows": "Rows held out",
    "auc": "AUC: a case is ranked above a non-case",
    "accuracy": "Accuracy at probability one half",
    "brier": "Brier score (smaller is better)",
    "log_score": "Mean log predictive density",
    "calibration_error": "Expected calibration error",
    "calibration_intercept": "Calibration intercept (0 is ideal)",
    "calibration_slope": "Calibration slope (1 is ideal)",
    "c_index": "Concordance index (Harrell)",
}


def findings_section(contents: Contents) -> Markup:
    """The whole section."""
    effects = effects_of(contents)
    return join(
        characteristics(contents),
        Markup() if effects is None else _forest(contents, effects),
        formula_part(contents),
        _posterior_table(contents),
        _predictions(contents),
        _held_out(contents),
    )


# -- effects ---------------------------------------------------------------


def _forest(contents: Contents, effects: Effects) -> Markup:
    shown = strongest(effects.rows, MOST_EFFECTS)
    axis = forest_axis(shown, effects)
    share = percent(contents.record["interval"])
    rows: list[list[Content]] = [
        [
            effect.name,
            effect.per,
            interval_row(
                axis, effect.estimate, effect.lower, effect.upper, effects.reference
            ),
            number(effect.estimate),
            interval(effect.lower, effect.upper),
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
            class_="forest",
            id_="effects",
        ),
    )


def _is_dot(effect: Effect, axis: Axis) -> bool:
    """Whether an interval is too short to be seen beside the others."""
    if effect.lower is None or effect.upper is None:
        return False
    return axis.place(effect.upper) - axis.place(effect.lower) < SHORTEST


def _too_short(dots: list[Effect], contents: Contents) -> str:
    """What is said of intervals that look like dots, and how to see them."""
    said = f" Too short to see: {', '.join(e.name for e in dots)}"
    for effect in dots:
        feature = contents.study.features.get(effect.name)
        if feature is None or feature.transform or feature.per is not None:
            continue
        if feature.low is None or not effect.per.startswith("1 unit"):
            continue
        assert feature.high is not None
        step = _round_up((feature.high - feature.low) / 10.0)
        return (
            f"{said}. A step of one unit is small there; per = {step:g} in the study’s "
            f"[features] of {effect.name}, say, shows a larger one."
        )
    return f"{said}."


def forest_axis(shown: list[Effect], effects: Effects) -> Axis:
    """An axis that one huge interval does not squash the others on.

    Intervals more than ten times as wide as the middle one reach beyond it.
    """

    def at(value: float) -> float:
        return math.log(value) if effects.ratios else value

    widths = {
        e.name: at(e.upper) - at(e.lower)
        for e in shown
        if e.lower is not None and e.upper is not None
    }
    usual = sorted(widths.values())[len(widths) // 2] if widths else 0.0
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


# -- predictions -----------------------------------------------------------


def _predictions(contents: Contents) -> Markup:
    study = contents.study
    if not can_predict(study):
        return Markup()
    times = None
    if isinstance(study.model, SurvivalCurves):
        until = float(study.model.reference_times()[-1])
        times = np.linspace(0.0, until, CURVE_POINTS)
    made = panels(contents, times)
    if times is not None:
        figures = [_survival_panel(panel, times, contents) for panel in made]
    else:
        top = max(float(p.upper) for panel in made for p in panel.predictions)
        figures = [_curve_panel(panel, contents, top) for panel in made]
    record = reference_record(contents)
    said = ", ".join(f"{name} {label(v)}" for name, v in list(record.items())[:12])
    point = _is_point(contents)
    share = percent(contents.record["interval"])
    text = (
        "What the model predicts when one feature changes and the others stay as in a "
        f"made-up reference record ({said}{', …' if len(record) > 12 else ''}: "
        f"{reference_words(contents)}), "
        + (
            "without bands: this method gives a point."
            if point
            else f"with {share} bands."
        )
        + " Nobody’s row is shown."
    )
    cause = getattr(study.model, "cause", None)
    if times is not None and cause is not None:
        text += (
            f" The curves are those of cause {cause} alone: hypothetical survival if "
            "all other causes were taken away, not the share of patients who are alive "
            "or free of this event. "
            + (
                "The cumulative incidences below count all causes."
                if contents.causes
                else "A report with the runs of all causes (report --causes) shows it."
            )
        )
    if left_out := len(study.features) - len(made):
        text += f" Features with smaller effects are left out ({left_out})."
    return join(
        tag("h3", "Predictions" if times is None else "Survival curves"),
        tag("p", text),
        tag("div", figures, class_="panels"),
        incidence_part(contents),
    )


def _is_point(contents: Contents) -> bool:
    return all(row["lower"] is None for row in contents.record["posterior"])


def _survival_panel(panel: Panel, times: Floats, contents: Contents) -> Markup:
    column = contents.study.model.outcome_columns()["time"]
    lines = [
        Line(
            f"{panel.feature} {p.label}",
            times.tolist(),
            p.mean.tolist(),
            p.lower.tolist(),
            p.upper.tolist(),
        )
        for p in panel.predictions
    ]
    said = "; ".join(
        f"{panel.feature} {p.label}: {100 * p.mean[-1]:.0f} % event-free at "
        f"{times[-1]:g} ({100 * p.lower[-1]:.0f} to {100 * p.upper[-1]:.0f})"
        for p in panel.predictions
    )
    return figure(
        Chart(
            title=f"Survival by {panel.feature}",
            said=said,
            x=Axis(0.0, float(times[-1])),
            y=Axis(0.0, 1.0),
            x_name=column,
            y_name="event-free",
            lines=lines,
            small=True,
        )
    )


def _curve_panel(panel: Panel, contents: Contents, top: float) -> Markup:
    binary = contents.study.model.family == "binary"
    outcome = next(iter(contents.study.model.outcome_columns().values()), "outcome")
    y_name = f"P({outcome})" if binary else f"mean {outcome}"
    lowest = min(float(p.lower) for p in panel.predictions)
    y = Axis(0.0, min(_round_up(top), 1.0)) if binary else Axis.around([lowest, top])
    ends = (panel.predictions[0], panel.predictions[-1])
    said = "; ".join(
        f"{panel.feature} {p.label}: {number(float(p.mean))} "
        f"({interval(float(p.lower), float(p.upper))})"
        for p in ends
    )
    title = f"{y_name} by {panel.feature}"
    if panel.numeric:
        x = [float(p.value) for p in panel.predictions]
        line = Line(
            "",
            x,
            [float(p.mean) for p in panel.predictions],
            [float(p.lower) for p in panel.predictions],
            [float(p.upper) for p in panel.predictions],
        )
        chart = Chart(
            title, said, Axis(x[0], x[-1]), y, panel.feature, y_name, [line], small=True
        )
        return figure(chart)
    axis = Axis(0.0, y.high) if binary else y
    point = _is_point(contents)
    rows: list[list[Content]] = [
        [
            p.label,
            interval_row(axis, float(p.mean), float(p.lower), float(p.upper), None),
            number(float(p.mean)),
            *([] if point else [interval(float(p.lower), float(p.upper))]),
        ]
        for p in panel.predictions
    ]
    share = percent(contents.record["interval"])
    return tag(
        "div",
        table(
            title,
            [panel.feature, CHART, "Mean", *([] if point else [f"{share} interval"])],
            rows,
            words=(1,),
            foot=["", interval_axis(axis), *[""] * (1 if point else 2)],
            class_="forest",
        ),
        class_="chart small",
    )


def _round_up(value: float) -> float:
    step = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return math.ceil(value / step - 1e-9) * step


# -- held-out rows ---------------------------------------------------------


def how_to_hold_out(study: Study) -> str:
    """What a study may add to have its predictions scored."""
    if study.privacy is None:
        return "An [evaluation] table holds some out and scores them."
    hierarchy = study.hierarchy
    stratified = hierarchy is not None and hierarchy.baseline == "stratified"
    checked = study.rules.noise_aware and study.model.held_out_check is not None
    kept = study.preparation.row_norm is None and study.privacy.person is None
    if not checked or stratified or not kept:
        return "A study of this kind has no private check of them."
    return (
        "An [evaluation] table holds some out and scores them, with noise and within "
        "the budget."
    )


def _held_out(contents: Contents) -> Markup:
    metrics = contents.record["metrics"]
    if not metrics:
        return join(
            tag("h3", "Rows it has not seen"),
            tag(
                "p",
                "The study holds no rows out, so nothing is said of how good "
                f"predictions are on new rows. {how_to_hold_out(contents.study)}",
            ),
        )
    if metrics.get("private"):
        return private_checks(contents)
    rows = [
        [words, number(metrics[key], 4) if key != "rows" else f"{metrics[key]:,.0f}"]
        for key, words in METRICS.items()
        if metrics.get(key) is not None
    ]
    known = set(METRICS) | {"calibration_table", "auc_at"}
    rows += [
        [key.replace("_", " "), number(value, 4)]
        for key, value in metrics.items()
        if key not in known and isinstance(value, int | float)
    ]
    parts: list[str] = [
        table("Scores on the held-out rows", ["Score", "Value"], rows, id_="metrics")
    ]
    if metrics.get("calibration_table"):
        parts.insert(0, _calibration(metrics["calibration_table"]))
    if metrics.get("auc_at"):
        timed = [
            [number(at["time"], 4), number(at["auc"], 4)] for at in metrics["auc_at"]
        ]
        parts.append(
            table(
                "Who has the event by a time: AUC at the quartiles of event times",
                [
                    f"{contents.study.model.outcome_columns().get('time', 'time')}",
                    "AUC",
                ],
                timed,
                id_="auc-at",
            )
        )
    return join(
        tag("h3", "Rows it has not seen"),
        tag("div", parts, class_="beside"),
    )


def _calibration(bins: list[dict[str, float]]) -> Markup:
    points = []
    for entry in bins:
        low, high = wilson(entry["observed"], entry["rows"])
        points.append(Point(entry["predicted"], entry["observed"], low, high))
    top = min(_round_up(max(max(p.x, p.upper or 0.0) for p in points)), 1.0)
    gap = max(abs(p.x - p.y) for p in points)
    return figure(
        Chart(
            title="Calibration: what was predicted against what happened",
            said=f"{len(points)} groups of held-out rows; the largest gap between "
            f"predicted and observed share is {number(gap)}.",
            x=Axis(0.0, top),
            y=Axis(0.0, top),
            x_name="predicted probability",
            y_name="observed share (90 % interval)",
            points=points,
            diagonal=True,
        )
    )


def wilson(share: float, count: float, z: float = 1.645) -> tuple[float, float]:
    """Wilson's 90 % interval of a share of ``count`` rows.

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n). Wilson (1927), JASA 22.
    """
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)
