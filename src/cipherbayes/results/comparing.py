"""Two fits of one outcome, compared by how well they predict held-out rows."""

from __future__ import annotations

import math
from typing import Any, TypedDict

from scipy.special import ndtri

from cipherbayes.errors import StudyError
from cipherbayes.results.result import Result


class Comparison(TypedDict):
    """The difference of two mean held-out log scores, first less second.

    ``better`` names the study whose score is higher, None where the interval holds
    zero.
    """

    first: str
    second: str
    interval: float
    mean: float
    lower: float
    upper: float
    better: str | None


def compare(first: Result, second: Result) -> Comparison:
    """Compare two private studies of one outcome by their held-out log scores.

    Each score was released with noise by its own run, so a comparison releases nothing
    more. The interval treats the two as independent: where both scored the same rows
    they go up and down together, and it is wider than it need be.

    Raises
    ------
    StudyError
        Where a result has no private score, or outcomes differ.
    """
    for result in (first, second):
        if not result.metrics.get("private") or "log_score" not in result.metrics:
            raise StudyError(
                "has no private score of held-out rows with a log score",
                where=f"study '{result.study.name}'",
                remedy="run it with [evaluation] holdout, in a private study of a "
                "binary or a survival outcome",
            )
    if _outcome(first) != _outcome(second):
        raise StudyError(
            "predict different outcomes or causes, or over different horizons",
            where=f"studies '{first.study.name}' and '{second.study.name}'",
            remedy="compare fits of one outcome",
        )
    share = min(first.record["interval"], second.record["interval"])
    mean = first.metrics["log_score"]["mean"] - second.metrics["log_score"]["mean"]
    sd = math.hypot(_sd(first), _sd(second))
    reach = float(ndtri(0.5 + share / 2.0)) * sd
    lower, upper = mean - reach, mean + reach
    better = None
    if lower > 0.0 or upper < 0.0:
        better = (first if lower > 0.0 else second).study.name
    return {
        "first": first.study.name,
        "second": second.study.name,
        "interval": share,
        "mean": mean,
        "lower": lower,
        "upper": upper,
        "better": better,
    }


def _outcome(result: Result) -> tuple[Any, ...]:
    model = result.study.model
    columns = tuple(sorted(model.outcome_columns().items()))
    cause = getattr(model, "cause", None)
    return model.family, columns, getattr(model, "horizon", None), cause


def _sd(result: Result) -> float:
    """Standard deviation of a score, from its interval."""
    score = result.metrics["log_score"]
    reach = 2.0 * float(ndtri(0.5 + result.record["interval"] / 2.0))
    return float((score["upper"] - score["lower"]) / reach)
