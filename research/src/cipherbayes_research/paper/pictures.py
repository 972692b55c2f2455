"""Pictures that a printer without colour, and a reader without all of them, can read.

Okabe and Ito's palette, and never colour alone: every line has a dash pattern and a
marker of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cipherbayes.errors import RunError
from cipherbayes_research.paper.report import Curve, Report, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = "osD^vPX"
WORDS = {"auc": "AUC", "accuracy": "accuracy", "c_index": "C-index"}


def panels(
    count: int, height: float = 3.6, width: float = 4.6, lines: int = 1
) -> tuple[Figure, list[Axes]]:
    """An empty figure with panels side by side, perhaps in several lines."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(
            "pictures need matplotlib, which is not installed",
            remedy="pip install 'cipherbayes-research[examples]'",
        ) from None
    across = count // lines
    figure = Figure(figsize=(width * across, height * lines), layout="constrained")
    axes = list(figure.subplots(lines, across, squeeze=False).flat)
    for each in axes:
        each.grid(color="0.9", linewidth=0.6)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of the n-th line, the same again after 49 lines."""
    again, place = divmod(number, len(COLOURS))
    return {
        "color": COLOURS[place],
        "linestyle": DASHES[(place + again) % len(DASHES)],
        "marker": MARKERS[(place + 3 * again) % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.4,
    }


def draw_curves(axes: Axes, curves: Sequence[Curve], **words: str) -> None:
    """Lines with sparse markers, and their names."""
    _plot(axes, curves, [curve.label for curve in curves])
    axes.set(**words)
    axes.legend(fontsize=6.5, frameon=False)


def draw_together(figure: Figure, parts: Iterable[tuple[Axes, list[Curve]]]) -> None:
    """Lines of several panels; a name looks alike in all and is told once, below."""
    parts = list(parts)
    labels = [curve.label for _, curves in parts for curve in curves]
    names = list(dict.fromkeys(labels))
    lines: dict[str, Line2D] = {}
    for axes, curves in parts:
        lines |= _plot(axes, curves, names)
    figure.legend(
        [lines[name] for name in names],
        names,
        loc="outside lower center",
        ncols=3 if len(figure.axes) > 2 else 2,
        fontsize=7,
        frameon=False,
    )


def _plot(
    axes: Axes, curves: Sequence[Curve], names: Sequence[str]
) -> dict[str, Line2D]:
    lines = {}
    for curve in curves:
        every = max(len(curve.x) // 8, 1)
        look = style(names.index(curve.label))
        (lines[curve.label],) = axes.plot(
            curve.x, curve.y, label=curve.label, markevery=every, **look
        )
    return lines


def draw_budgets(shown: Report, metrics: Sequence[str]) -> Figure:
    """Learning curves where there are any, and each metric over ε.

    The first metric has a second panel for certified runs alone, which lie close
    together, with the settings without a budget. A run as printed stands at its claim.
    """
    learning = shown.curves.get("learning")
    if learning:
        figure, (first, *axes) = panels(len(metrics) + 2, 3.4, lines=2)
        first.set(
            title="learning curves, ε = 1 (claimed or certified)",
            xlabel="share of the run",
            ylabel=f"test {WORDS[metrics[0]]}",
        )
        parts = [(first, learning)]
    else:
        figure, axes = panels(len(metrics) + 1, height=4.6)
        parts = []
    certified = [row for row in shown.rows if row.certified or row.epsilon is None]
    certified = [row for row in certified if ", claimed ε = " not in row.setting]
    choices = [(metrics[0], certified, ", certified runs alone")]
    choices += [(metric, shown.rows, "") for metric in metrics]
    for each, (metric, rows, words) in zip(axes, choices, strict=True):
        parts.append((each, over_epsilon(rows, metric)))
        if words:
            level_lines(each, rows, metric)
        each.set(title=f"test {WORDS[metric]}{words}", xlabel="ε, certified or claimed")
        each.set_xscale("log")
    draw_together(figure, parts)
    return figure


def over_epsilon(rows: Sequence[Row], metric: str) -> list[Curve]:
    """Mean over ε of each private setting; runs as printed at their claim."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        name, _, claim = row.setting.partition(", claimed ε = ")
        at = float(claim) if claim else row.epsilon
        if row.metric != metric or at is None or row.mean is None:
            continue
        label = f"{name}, K = {row.sites}"
        lines.setdefault(label, []).append((at, row.mean))
    return [
        Curve(label, *map(list, zip(*sorted(points), strict=True)))
        for label, points in lines.items()
    ]


def level_lines(axes: Axes, rows: Sequence[Row], metric: str) -> None:
    """Settings without a budget, as horizontal lines with their names."""
    levels = [
        (row.mean, row.setting)
        for row in rows
        if row.metric == metric and row.epsilon is None and row.mean is not None
    ]
    for number, (level, name) in enumerate(sorted(levels)):
        # Neighbours may be too close for their names: left and right in turn.
        side = number % 2
        axes.axhline(level, color="0.45", linewidth=1.0, linestyle=":")
        axes.annotate(
            name,
            (float(side), level),
            xycoords=("axes fraction", "data"),
            ha=("left", "right")[side],
            va="bottom",
            fontsize=6.5,
            color="0.3",
        )


def save(figure: Figure, path: Path) -> None:
    """Write an SVG that is the same for the same numbers."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "cipherbayes", "font.size": 8}):
        figure.savefig(path, metadata={"Date": None})
