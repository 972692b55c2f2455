"""Scores of held-out rows and tests of the fit as tables: one number a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict, cast

from cipherbayes.results.record import ResultRecord, private_scores

TIMED = {"auc_at": "auc", "brier_at": "brier"}
"""Scores at several times, and what each is called."""
RATIO = "observed_over_expected"


class ScoreRow(TypedDict):
    """A score; of a group of rows, and by a time, where it is not of all of them.

    Exact scores of public rows have no interval.
    """

    score: str
    group: str
    time: float | None
    mean: float | None
    lower: float | None
    upper: float | None


class CalibrationRow(TypedDict):
    """Rows with about one prediction: what happened to them; exact ones have no
    interval."""

    predicted: float
    observed: float
    lower: float | None
    upper: float | None
    rows: float
    within_noise: bool


class FitRow(TypedDict):
    """What a group lacks, and the test that it belongs to."""

    by: str
    kind: str
    what: str
    group: str
    mean: float | None
    lower: float | None
    upper: float | None
    p: float
    misfit: bool


def score_rows(record: ResultRecord) -> Iterator[ScoreRow]:
    """Every score of the held-out rows."""
    metrics = cast(Mapping[str, Any], record["metrics"])
    for name, value in metrics.items():
        if name in TIMED:
            yield from (_timed(TIMED[name], each) for each in value)
        elif name == RATIO:
            for each in value:
                yield _score(RATIO, each, each["group"], each["time"])
                for part in ("observed", "expected"):
                    yield _score(part, each[part], each["group"], each["time"])
        elif not isinstance(value, bool | list):
            yield _score(name, value)


def _timed(score: str, entry: Mapping[str, Any]) -> ScoreRow:
    ends = {"lower": entry["lower"], "upper": entry["upper"]} if len(entry) > 2 else {}
    return _score(score, {"mean": entry[score], **ends}, time=entry["time"])


def _score(
    name: str, value: Any, group: str = "all rows", time: float | None = None
) -> ScoreRow:
    found = value if isinstance(value, Mapping) else {"mean": value}
    return {
        "score": name,
        "group": group,
        "time": time,
        "mean": found["mean"],
        "lower": found.get("lower"),
        "upper": found.get("upper"),
    }


def calibration_rows(record: ResultRecord) -> Iterator[CalibrationRow]:
    """Bins of predictions: what was predicted, and what happened."""
    metrics = cast(Mapping[str, Any], record["metrics"])
    for each in metrics.get("calibration_table", []):
        yield {
            "predicted": each["predicted"],
            "observed": each["observed"],
            "lower": each.get("lower"),
            "upper": each.get("upper"),
            "rows": each["rows"],
            "within_noise": each.get("within_noise", False),
        }


def fit_rows(record: ResultRecord) -> Iterator[FitRow]:
    """Every group of every test of the fit."""
    metrics = private_scores(record)
    for test in [] if metrics is None else metrics.get("fit", []):
        for group in test["groups"]:
            yield {
                "by": test["by"],
                "kind": test["kind"],
                "what": test["what"],
                "group": group["group"],
                "mean": group["mean"],
                "lower": group["lower"],
                "upper": group["upper"],
                "p": test["p"],
                "misfit": test["misfit"],
            }
