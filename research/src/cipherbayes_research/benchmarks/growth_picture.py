"""The picture of a secure sum's growth: a panel for each quantity that varies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cipherbayes_research.benchmarks.growth_axes import Point
from cipherbayes_research.paper.pictures import panels, style

WORDS = {
    "d": "parameters d",
    "sites": "sites K",
    "rows": "rows of a site",
    "rounds": "rounds",
}
LINES = {
    "site_ms": "a site, ms a round",
    "server_ms": "server, ms a round",
    "csp_ms": "CSP, ms a round",
    "study_cpu_s": "all rounds of all parties, s",
}


def draw(points: Sequence[Point], path: Path) -> None:
    """CPU time against each quantity, both scales logarithmic."""
    axes = list(dict.fromkeys(point["axis"] for point in points))
    figure, drawn = panels(len(axes), lines=2 if len(axes) == 4 else 1)
    every: list[Any] = list(points)
    values = [point[name] for point in every for name in LINES]
    for place, axis in zip(drawn, axes, strict=True):
        line: list[Any] = [point for point in points if point["axis"] == axis]
        for number, (name, words) in enumerate(LINES.items()):
            at = [point["value"] for point in line]
            place.loglog(at, [p[name] for p in line], label=words, **style(number))
        place.set_xlabel(WORDS[axis])
        place.set_ylabel("CPU time")
        # The same scale everywhere, so that the panels can be compared.
        place.set_ylim(min(values) / 1.3, max(values) * 1.3)
    drawn[0].legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})
