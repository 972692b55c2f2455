"""Charts as SVG inside the page.

Places are percentages of the chart's own box, so that lines and bands stretch with
the screen while text and points keep their size. Every chart is one image to a
screen reader, with a sentence that says what it shows; the numbers are in a table
beside it. Colours and dashes come from the page's style.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cipherbayes.report.markup import Markup, join, tag
from cipherbayes.report.numbers import Axis

LETTER, NARROW, IN_PANEL = 7.0, 144.0, 88.0
"""Pixels that a letter of an axis takes, and that the narrowest axis has: of a table by
itself, and of one in a panel beside others."""


@dataclass(frozen=True)
class Line:
    """A curve, perhaps with a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    lower: Sequence[float] | None = None
    upper: Sequence[float] | None = None
    stepped: bool = False


@dataclass(frozen=True)
class Point:
    """A point, perhaps with an interval."""

    x: float
    y: float
    lower: float | None = None
    upper: float | None = None
    radius: float = 4.0


@dataclass(frozen=True)
class Chart:
    """Axes and what is drawn on them.

    Attributes
    ----------
    title, said
        The caption, and the sentence that a screen reader speaks.
    diagonal
        Whether to draw the line y = x.
    levels
        Heights of dashed lines, with their names.
    """

    title: str
    said: str
    x: Axis
    y: Axis
    x_name: str
    y_name: str
    lines: Sequence[Line] = ()
    points: Sequence[Point] = ()
    diagonal: bool = False
    levels: Sequence[tuple[float, str]] = ()
    small: bool = False


def figure(chart: Chart) -> Markup:
    """The chart with its caption, axes and legend."""
    frame = tag(
        "div",
        tag("span", chart.y_name, class_="y-name"),
        _y_axis(chart.y, 5 if chart.small else 6),
        _plot(chart),
        _x_axis(chart.x, 4 if chart.small else 6),
        tag("span", chart.x_name, class_="x-name"),
        class_="frame",
        role="img",
        aria_label=f"{chart.title}. {chart.said}",
    )
    return tag(
        "figure",
        tag("figcaption", chart.title),
        frame,
        _legend(chart.lines),
        class_="chart small" if chart.small else "chart",
    )


def _plot(chart: Chart) -> Markup:
    x, y = chart.x, chart.y
    most = 5 if chart.small else 6
    grid = [
        _rule(x1=0, x2=100, y=100 - y.place(v), class_="grid") for v in y.ticks(most)
    ]
    marks: list[Markup] = []
    if chart.diagonal:
        marks.append(
            _line(0, 100 - y.place(x.low), 100, 100 - y.place(x.high), class_="ideal")
        )
    for value, _ in chart.levels:
        marks.append(_rule(x1=0, x2=100, y=100 - y.place(value), class_="level"))
    labels = [
        tag(
            "text", name, x="100%", y=_per(100 - y.place(value)), dy="-0.4em",
            class_="level-name", text_anchor="end",
        )
        for value, name in chart.levels
    ]  # fmt: skip
    curves = [
        join(_band(line, x, y, k), _curve(line, x, y, k))
        for k, line in enumerate(chart.lines)
    ]
    # Curves stretch: their own box is 100 by 100, whatever shape it is shown in.
    stretched = tag(
        "svg", curves, viewBox="0 0 100 100", preserveAspectRatio="none",
        width="100%", height="100%", overflow="visible",
    )  # fmt: skip
    if not curves:
        stretched = Markup()
    points = [_point(point, x, y) for point in chart.points]
    return tag(
        "svg", grid, marks, stretched, points, labels, class_="plot", aria_hidden="true"
    )


def _band(line: Line, x: Axis, y: Axis, k: int) -> Markup:
    if line.lower is None or line.upper is None:
        return Markup()
    there = list(zip(line.x, line.upper, strict=True))
    back = list(zip(line.x, line.lower, strict=True))[::-1]
    path = _path(there, x, y, line.stepped)
    path += _path(back, x, y, line.stepped).replace("M", "L", 1)
    return tag("path", d=f"{path}Z", class_=f"band s{k % 4}")


def _curve(line: Line, x: Axis, y: Axis, k: int) -> Markup:
    path = _path(list(zip(line.x, line.y, strict=True)), x, y, line.stepped)
    return tag("path", d=path, class_=f"line s{k % 4}")


def _path(
    points: Sequence[tuple[float, float]], x: Axis, y: Axis, stepped: bool = False
) -> str:
    parts = []
    for k, (across, up) in enumerate(points):
        left, top = x.place(across), round(100.0 - y.place(up), 3)
        if stepped and k:
            parts.append(f"H{left:g}")
        parts.append(f"{'L' if k else 'M'}{left:g} {top:g}")
    return "".join(parts)


def _point(point: Point, x: Axis, y: Axis) -> Markup:
    left, top = x.place(point.x), 100.0 - y.place(point.y)
    marks = []
    if point.lower is not None and point.upper is not None:
        low, high = 100.0 - y.place(point.lower), 100.0 - y.place(point.upper)
        marks.append(_line(left, low, left, high, class_="whisker"))
    marks.append(
        tag(
            "circle", cx=_per(left), cy=_per(top), r=f"{point.radius:.2g}", class_="dot"
        )
    )
    return join(marks)


def _legend(lines: Iterable[Line]) -> Markup:
    named = [(k, line.name) for k, line in enumerate(lines) if line.name]
    if not named:
        return Markup()
    entries = [
        tag(
            "li",
            tag(
                "svg",
                _line(0, 50, 100, 50, class_=f"line s{k % 4}"),
                class_="key",
                aria_hidden="true",
            ),
            name,
        )
        for k, name in named
    ]
    return tag("ul", entries, class_="legend")


def _x_axis(axis: Axis, most: int, width: float = NARROW) -> Markup:
    places = _apart(axis, [(v, axis.place(v)) for v in axis.ticks(most)], width)
    texts = [
        tag(
            "text", axis.label(v), x=_per(place), y="1em",
            text_anchor="start" if place < 3 else "end" if place > 97 else "middle",
        )
        for v, place in places
    ]  # fmt: skip
    return tag("svg", texts, class_="x-axis", aria_hidden="true")


def _apart(
    axis: Axis, places: Sequence[tuple[float, float]], width: float = NARROW
) -> list[tuple[float, float]]:
    """Those ticks whose labels do not run into each other on an axis so wide."""
    kept: list[tuple[float, float]] = []
    free = -math.inf
    for value, place in places:
        half = LETTER * len(axis.label(value)) / width * 50.0
        middle = half if place < 3 else 100.0 - half if place > 97 else place
        if middle - half >= free:
            kept.append((value, place))
            free = middle + half + LETTER / width * 100.0
    return kept


def _y_axis(axis: Axis, most: int) -> Markup:
    texts = [
        tag(
            "text", axis.label(v), x="100%", y=_per(100 - axis.place(v)), dy="0.35em",
            text_anchor="end",
        )
        for v in axis.ticks(most)
    ]  # fmt: skip
    return tag("svg", texts, class_="y-axis", aria_hidden="true")


# -- one row of a table ----------------------------------------------------


def interval_row(
    axis: Axis,
    mean: float,
    lower: float | None,
    upper: float | None,
    reference: float | None,
) -> Markup:
    """A dot and its interval, for a cell of a forest plot; no dot beyond the axis."""
    marks = [_rule(x=axis.place(v), y1=0, y2=100, class_="grid") for v in axis.ticks(5)]
    if reference is not None:
        marks.append(_rule(x=axis.place(reference), y1=0, y2=100, class_="null"))
    if lower is not None and upper is not None:
        clear = reference is not None and not lower <= reference <= upper
        kind = "whisker clear" if clear else "whisker"
        marks.append(
            _rule(x1=axis.place(lower), x2=axis.place(upper), y=50, class_=kind)
        )
        for end, beyond in ((lower, lower < axis.low), (upper, upper > axis.high)):
            place = axis.place(end)
            if not beyond:
                marks.append(_rule(x=place, y1=38, y2=62, class_=kind))
                continue
            sign, anchor = ("‹", "end") if end == lower else ("›", "start")
            arrow = tag("text", sign, x=_per(place), y="50%", dy="0.3em",
                        text_anchor=anchor, class_="arrow")  # fmt: skip
            marks.append(arrow)
    else:
        clear = False
    if axis.low <= mean <= axis.high:
        marks.append(
            tag(
                "circle", cx=_per(axis.place(mean)), cy="50%", r="4.5",
                class_="dot clear" if clear else "dot",
            )
        )  # fmt: skip
    return tag("svg", marks, class_="row", aria_hidden="true")


def interval_axis(axis: Axis, width: float = NARROW) -> Markup:
    """The axis under a forest plot's rows, which is so wide at least."""
    return _x_axis(axis, 5, width)


def bar_row(parts: Sequence[tuple[float, str]]) -> Markup:
    """Bars from the left, in per cent, one above the other."""
    height = 100.0 / (len(parts) + 1)
    marks = [
        tag(
            "rect", x="0", y=_per(height * (k + 0.5) + 6),
            width=_per(min(share, 100.0)), height=_per(height - 12),
            rx="2", class_=f"bar {kind}",
        )
        for k, (share, kind) in enumerate(parts)
    ]  # fmt: skip
    return tag("svg", marks, class_="row bars", aria_hidden="true")


def trace(chains: Sequence[Sequence[float]]) -> Markup:
    """A parameter's path through the rounds, one line a chain."""
    axis = Axis.around(value for chain in chains for value in chain)
    paths = []
    for k, chain in enumerate(chains):
        x = Axis(0.0, max(len(chain) - 1.0, 1.0))
        points = [(float(j), value) for j, value in enumerate(chain)]
        paths.append(tag("path", d=_path(points, x, axis), class_=f"line s{k % 4}"))
    return tag(
        "svg", paths, viewBox="0 0 100 100", preserveAspectRatio="none",
        class_="trace", aria_hidden="true",
    )  # fmt: skip


def _rule(
    *,
    class_: str,
    x: float | None = None,
    y: float | None = None,
    x1: float = 0,
    x2: float = 0,
    y1: float = 0,
    y2: float = 0,
) -> Markup:
    """A straight line across (``y``) or down (``x``)."""
    if x is not None:
        x1 = x2 = x
    if y is not None:
        y1 = y2 = y
    return _line(x1, y1, x2, y2, class_=class_)


def _line(x1: float, y1: float, x2: float, y2: float, *, class_: str) -> Markup:
    return tag(
        "line", x1=_per(x1), y1=_per(y1), x2=_per(x2), y2=_per(y2), class_=class_
    )


def _per(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"
