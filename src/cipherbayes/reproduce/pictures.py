"""Pictures that a printer without colour, and a reader without all of them, can read.

Okabe and Ito's palette, and never colour alone: every line has a dash pattern and a
marker of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cipherbayes.errors import RunError
from cipherbayes.reproduce.report import Curve, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = "osD^vPX"


def panels(count: int, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """An empty figure with panels side by side."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(
            "pictures need matplotlib, which is not installed",
            remedy="pip install 'cipherbayes[examples]'",
        ) from None
    figure = Figure(figsize=(4.6 * count, height), layout="constrained")
    axes = list(figure.subplots(1, count, squeeze=False)[0])
    for each in axes:
        each.grid(color="0.9", linewidth=0.6)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of the n-th line."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.4,
    }


def draw_curves(axes: Axes, curves: Sequence[Curve], **words: str) -> None:
    """Lines with sparse markers."""
    for number, curve in enumerate(curves):
        every = max(len(curve.x) // 8, 1)
        axes.plot(curve.x, curve.y, label=curve.label, markevery=every, **style(number))
    axes.set(**words)
    axes.legend(fontsize=6.5, frameon=False)


def over_epsilon(rows: Sequence[Row], metric: str) -> list[Curve]:
    """Mean over ε of each private setting; runs as printed at their claim."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        name, _, claim = row.setting.partition(", claimed ε = ")
        at = float(claim) if claim else row.epsilon
        if row.metric != metric or at is None or row.mean is None:
            continue
        label = f"{name}, K = {row.sites}" + (" (at its claim)" if claim else "")
        lines.setdefault(label, []).append((at, row.mean))
    return [
        Curve(label, *map(list, zip(*sorted(points), strict=True)))
        for label, points in lines.items()
    ]


def level_lines(axes: Axes, rows: Sequence[Row], metric: str) -> None:
    """Settings without a budget, as horizontal lines with their names."""
    for row in rows:
        if row.metric == metric and row.epsilon is None and row.mean is not None:
            axes.axhline(row.mean, color="0.45", linewidth=1.0, linestyle=":")
            axes.annotate(
                row.setting,
                (1.0, row.mean),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=6.5,
                color="0.3",
            )


def save(figure: Figure, path: Path) -> None:
    """Write an SVG that is the same for the same numbers."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "cipherbayes", "font.size": 8}):
        figure.savefig(path, metadata={"Date": None})
