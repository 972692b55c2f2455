"""What was predicted of protected held-out rows against what happened to them."""

from __future__ import annotations

import math

from cipherbayes.report.charts import Chart, Point, figure
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import Axis, interval, number, percent
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.record import CalibrationBin

SCORES = {
    "calibration_in_the_large": "Calibration in the large (0 is ideal)",
    "calibration_slope": "Calibration slope (1 is ideal)",
    "calibration_intercept": "Intercept beside that slope (0 is ideal)",
}
"""What scores of log odds are called."""
BINARY_READING = (
    "Calibration in the large is the intercept a in log odds = a + predicted log odds, "
    "the calibration slope b in log odds = a + b × predicted log odds; the intercept "
    "beside that slope is the a of the latter, and is to be read with b only."
)
SURVIVAL_READING = (
    "The calibration slope is that of the log of the cumulative hazard up to the "
    "horizon along the predicted one. Calibration in the large is observed over "
    "expected of all rows at the horizon."
)
SMALLEST, LARGEST = 2.5, 8.0
"""Radius of the point of a bin with hardly any rows, and of the fullest one."""


def calibration(contents: Contents, bins: list[CalibrationBin]) -> Markup:
    """The curve of bins that have rows, and the table of all of them."""
    share = percent(contents.record["interval"])
    rows: list[list[Content]] = [
        [
            number(each["predicted"]),
            number(each["observed"]),
            interval(each["lower"], each["upper"]),
            _rows(each),
        ]
        for each in bins
    ]
    numbers = table(
        "Calibration by predicted bin",
        ["Predicted", "Observed", f"{share} interval", "Rows, about"],
        rows,
        id_="calibration",
    )
    told = [each for each in bins if not each.get("within_noise", False)]
    drawn = (
        _figure(told, share)
        if told
        else tag("p", "No bin of predictions has more rows than the noise of a count.")
    )
    return tag("div", drawn, numbers, class_="beside")


def _rows(each: CalibrationBin) -> str:
    count = f"{each['rows']:,.0f}"
    return f"{count} (within noise)" if each.get("within_noise", False) else count


def _figure(bins: list[CalibrationBin], share: str) -> Markup:
    most = max(each["rows"] for each in bins)
    points = [
        Point(
            each["predicted"],
            each["observed"],
            each["lower"],
            each["upper"],
            radius=SMALLEST
            + (LARGEST - SMALLEST) * math.sqrt(max(each["rows"], 0.0) / most),
        )
        for each in bins
    ]
    reach = [v for p in points for v in (p.x, p.lower or p.y, p.upper or p.y)]
    low, high = min(reach), max(reach)
    axis = Axis(min(low, 0.0), high) if low > -high else Axis(low, high)
    return join(
        figure(
            Chart(
                title="Calibration: what was predicted against what happened",
                said=f"{len(points)} groups of held-out rows by their prediction; a "
                "point is the larger the more rows it stands for.",
                x=axis,
                y=axis,
                x_name="predicted (a point's size: how many rows)",
                y_name=f"observed ({share} interval)",
                points=points,
                diagonal=True,
            )
        )
    )
