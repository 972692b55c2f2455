"""How good predictions were on rows that the fit has not seen."""

from __future__ import annotations

import math

from cipherbayes.models.metrics import Metrics
from cipherbayes.report.charts import (
    Chart,
    Point,
    figure,
)
from cipherbayes.report.markup import Markup, join, table, tag
from cipherbayes.report.numbers import (
    Axis,
    number,
    round_up,
)
from cipherbayes.report.run_contents import Contents
from cipherbayes.report.sections.calibration import SCORES as CALIBRATION_SCORES
from cipherbayes.report.sections.checks import private_checks
from cipherbayes.results.record import exact_scores, private_scores
from cipherbayes.study.schema import Study

METRICS = {
    "rows": "Rows held out",
    "auc": "AUC: a case is ranked above a non-case",
    "accuracy": "Accuracy at probability one half",
    "brier": "Brier score (smaller is better)",
    "log_score": "Mean log predictive density",
    "calibration_error": "Expected calibration error",
    **CALIBRATION_SCORES,
    "c_index": "Concordance index (Harrell)",
}


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


def held_out_part(contents: Contents) -> Markup:
    """Scores of held-out rows, or how a study gets them."""
    if not contents.record["metrics"]:
        return join(
            tag("h3", "Rows it has not seen"),
            tag(
                "p",
                "The study holds no rows out, so nothing is said of how good "
                f"predictions are on new rows. {how_to_hold_out(contents.study)}",
            ),
        )
    private = private_scores(contents.record)
    if private is not None:
        return private_checks(contents, private)
    metrics = exact_scores(contents.record)
    scores = {k: v for k, v in metrics.items() if isinstance(v, int | float)}
    rows = [
        [words, number(scores[key], 4) if key != "rows" else f"{scores[key]:,.0f}"]
        for key, words in METRICS.items()
        if key in scores
    ]
    known = set(METRICS) | {"calibration_table", "auc_at"}
    rows += [
        [key.replace("_", " "), number(value, 4)]
        for key, value in scores.items()
        if key not in known
    ]
    parts: list[str] = [
        table("Scores on the held-out rows", ["Score", "Value"], rows, id_="metrics")
    ]
    if bins := _entries(metrics, "calibration_table"):
        parts.insert(0, _calibration(bins))
    if times := _entries(metrics, "auc_at"):
        timed = [[number(at["time"], 4), number(at["auc"], 4)] for at in times]
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


def _entries(metrics: Metrics, name: str) -> list[dict[str, float | None]]:
    """A score that has several rows; none where the model has no such score."""
    found = metrics.get(name)
    return found if isinstance(found, list) else []


def _calibration(bins: list[dict[str, float | None]]) -> Markup:
    points = []
    for entry in bins:
        rows, predicted, observed = (
            float(entry[key] or 0.0) for key in ("rows", "predicted", "observed")
        )
        low, high = wilson(observed, rows)
        points.append(Point(predicted, observed, low, high))
    top = min(round_up(max(max(p.x, p.upper or 0.0) for p in points)), 1.0)
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
