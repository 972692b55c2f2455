"""What the model predicts for a made-up record as one feature changes."""

from __future__ import annotations

import numpy as np

from cipherbayes.models.survival import SurvivalCurves, cause_of
from cipherbayes.report.charts import (
    IN_PANEL,
    Chart,
    Line,
    figure,
    interval_axis,
    interval_row,
)
from cipherbayes.report.markup import (
    Content,
    Markup,
    join,
    mean_and_interval,
    table,
    tag,
)
from cipherbayes.report.numbers import (
    Axis,
    interval,
    number,
    percent,
    round_up,
)
from cipherbayes.report.run_contents import Contents
from cipherbayes.report.sections.curves import (
    CHART,
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
from cipherbayes.report.sections.site_predictions import at_sites_part
from cipherbayes.typing import Floats


def predictions_part(contents: Contents) -> Markup:
    """A panel for each feature; nothing where the model predicts nothing."""
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
    if study.hierarchy is not None:
        text += " They are of a site in the middle of this study’s; others come below."
    cause = cause_of(study.model)
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
        at_sites_part(contents, times),
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
    y = Axis(0.0, min(round_up(top), 1.0)) if binary else Axis.around([lowest, top])
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
            number(float(p.mean))
            if point
            else mean_and_interval(
                number(float(p.mean)), interval(float(p.lower), float(p.upper))
            ),
        ]
        for p in panel.predictions
    ]
    share = percent(contents.record["interval"])
    heading = "Mean" if point else f"Mean, {share} interval"
    return tag(
        "div",
        table(
            title,
            [panel.feature, CHART, heading],
            rows,
            words=(1,),
            foot=["", interval_axis(axis, IN_PANEL), ""],
            class_="forest",
        ),
        class_="chart small",
    )
