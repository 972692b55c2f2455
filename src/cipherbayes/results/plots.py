"""Pictures of a result, for a notebook or a paper, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cipherbayes.errors import RunError
from cipherbayes.models.survival import require_survival_curves
from cipherbayes.results.effects import step_words
from cipherbayes.typing import Floats

if TYPE_CHECKING:  # an extra; and a module that imports this one
    from matplotlib.axes import Axes

    from cipherbayes.results.result import Result

MOST_CURVES = 8
CURVE_TIMES = 101
"""Times between zero and the horizon at which a curve is drawn."""


def plot_effects(result: Result, axes: Axes | None = None) -> Axes:
    """A forest plot: one line an effect, or a parameter where there are no effects."""
    rows: list[tuple[str, float, float | None, float | None]]
    effects = [row for row in result.effects() if row["estimate"] is not None]
    if effects:
        measure = effects[0]["measure"]
        rows = [
            (step_words(row), row["estimate"] or 0.0, row["lower"], row["upper"])
            for row in effects
        ]
    else:
        measure = "parameter"
        rows = [
            (row["name"], row["mean"], row["lower"], row["upper"])
            for row in result.summary()
        ]
    axes = _axes(axes, height=1.2 + 0.32 * len(rows))
    ratios = measure.endswith("ratio")
    if ratios:
        _ratio_axis(axes, [end for row in rows for end in row[1:] if end is not None])
    axes.axvline(1.0 if ratios else 0.0, color="0.6", linewidth=0.8)
    for place, (_, middle, lower, upper) in enumerate(rows):
        if lower is not None and upper is not None:
            axes.plot([lower, upper], [place, place], color="C0", linewidth=1.6)
        axes.plot([middle], [place], "o", color="C0", markersize=5)
    axes.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"{measure}{_interval_words(result)}")
    axes.set_title(f"{result.study.name}\n{result.promise}", fontsize="small")
    return axes


def plot_survival(
    result: Result,
    table: Any = None,
    *,
    labels: Sequence[str] | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Survival curves with their intervals: of the reference record, or of each row
    of a table."""
    model = require_survival_curves(result.study.model)
    until = float(model.reference_times()[-1])
    times: Floats = np.linspace(0.0, until, CURVE_TIMES)
    if table is None:
        baseline = result.baseline()
        assert baseline is not None
        points = baseline["survival"]
        times = np.array([0.0, *(point["time"] for point in points)])
        curves = [
            np.array(
                [[1.0, *(_or_nan(p[key]) for p in points)]
                 for key in ("estimate", "lower", "upper")]
            )
        ]  # fmt: skip
        labels = ["reference record"] if labels is None else labels
    else:
        found = result.predict(table, times=times)
        count = len(found["mean"])
        if count > MOST_CURVES:
            raise RunError(
                f"{count} curves cannot be told apart in one picture",
                where="plot_survival",
                remedy=f"give at most {MOST_CURVES} rows",
            )
        curves = [
            np.stack([found[key][k] for key in ("mean", "lower", "upper")])
            for k in range(count)
        ]
        labels = [f"row {k + 1}" for k in range(count)] if labels is None else labels
    if len(labels) != len(curves):
        raise RunError(
            f"{len(labels)} labels for {len(curves)} curves",
            where="plot_survival",
            remedy="give one label for each row",
        )
    axes = _axes(axes, height=3.6)
    for k, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        axes.plot(times, curve[0], color=f"C{k}", label=label)
        if result.has_intervals:
            axes.fill_between(
                times, curve[1], curve[2], color=f"C{k}", alpha=0.2, linewidth=0.0
            )
    axes.set_xlim(0.0, until)
    axes.set_ylim(0.0, 1.0)
    axes.set_xlabel(result.study.model.outcome_columns()["time"])
    axes.set_ylabel(f"event-free{_interval_words(result)}")
    axes.set_title(f"{result.study.name}\n{result.promise}", fontsize="small")
    axes.legend(frameon=False)
    return axes


def _axes(axes: Axes | None, height: float) -> Axes:
    """The caller's axes, or new ones that a notebook shows by itself."""
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError:
        raise RunError(
            "pictures need matplotlib, which is not installed",
            where="plot",
            remedy="pip install 'cipherbayes[plots]'; the report has pictures without",
        ) from None
    made: Axes = pyplot.subplots(figsize=(6.4, height), layout="constrained")[1]
    return made


def _ratio_axis(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis whose labels are plain numbers, however short it is."""
    from matplotlib import ticker

    axes.set_xscale("log")
    short = max(values) < 5.0 * min(values)
    axes.xaxis.set_major_locator(
        ticker.MaxNLocator(5, steps=[1, 2, 5, 10])
        if short
        else ticker.LogLocator(subs=(1.0, 2.0, 5.0))
    )
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _interval_words(result: Result) -> str:
    if not result.has_intervals:
        return " (points without intervals)"
    return f" ({100.0 * result.record['interval']:g} % intervals)"


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
