"""Two fits of one outcome, compared by how well they predict held-out rows."""

from __future__ import annotations

import math
from typing import TypedDict

from scipy.special import ndtri

from cipherbayes.errors import StudyError
from cipherbayes.results.record import MeanRow, ResultRecord, private_scores
from cipherbayes.results.result import Result
from cipherbayes.study.checking_rules import outcome_of
from cipherbayes.study.schema import Study


class Comparison(TypedDict):
    """The difference of two mean held-out log scores, first less second.

    ``better`` names the study whose score is higher, None where the interval holds
    zero, or where the two are of other records, which ``caution`` says; ``paired`` says
    whether the same rows were compared one by one.
    """

    first: str
    second: str
    interval: float
    mean: float
    lower: float
    upper: float
    better: str | None
    paired: bool
    caution: str | None


def compare(
    first: Result, second: Result, *, names: tuple[str, str] | None = None
) -> Comparison:
    """Compare two private studies of one outcome by their held-out log scores.

    Where one of them names the other (``[evaluation] against``), its run has released
    the difference row by row. Else each score was released by its own run, and the
    interval treats the two as independent: where both scored the same rows they go up
    and down together, and it is wider than it need be. Neither releases more. Row by
    row, a difference beyond ±½ counts as ±½, so the mean is of differences so cut.

    Parameters
    ----------
    names
        What the two are called where both studies have one name, e.g. their folders;
        else they are told apart as ``(first)`` and ``(second)``.

    Raises
    ------
    StudyError
        Where a result has no private score, outcomes differ, or both are one run.
    """
    if _one_run(first.record, second.record):
        raise StudyError(
            "is compared with itself",
            where=f"study '{first.study.name}'",
            remedy="give the folders of two runs",
        )
    called = _distinct_names(first, second, names)
    share = min(first.record["interval"], second.record["interval"])
    for sign, result, other in ((1.0, first, second), (-1.0, second, first)):
        private = private_scores(result.record)
        found = None if private is None else private.get("difference")
        if found and found["study_hash"] == other.record["study_hash"]:
            ends = sorted((sign * found["lower"], sign * found["upper"]))
            share = result.record["interval"]
            mean = sign * found["mean"]
            return _comparison(called, share, mean, *ends, paired=True)
    scores = [_log_score(result) for result in (first, second)]
    if outcome_of(first.study.model) != outcome_of(second.study.model):
        raise StudyError(
            "predict different outcomes or causes, or over different horizons",
            where=f"studies '{first.study.name}' and '{second.study.name}'",
            remedy="compare fits of one outcome",
        )
    mean = scores[0]["mean"] - scores[1]["mean"]
    sd = math.hypot(_sd(first, scores[0]), _sd(second, scores[1]))
    reach = float(ndtri(0.5 + share / 2.0)) * sd
    apart = _comparison(called, share, mean, mean - reach, mean + reach, paired=False)
    caution = why_other_records(first.study, second.study)
    if caution is None:
        return apart
    return {**apart, "better": None, "caution": caution}


def _one_run(first: ResultRecord, second: ResultRecord) -> bool:
    """Whether two results are of one run; without a number, by their estimates."""
    if run := first.get("run"):
        return run == second.get("run")
    return bool(first.get("posterior")) and first == second


def why_other_records(first: Study, second: Study) -> str | None:
    """Why two studies are of other records; None where nothing shows it.

    A log score is that of a fit and of its records: where outcomes are rarer, or rows
    easier, every fit has a higher one.
    """
    known = [study.privacy for study in (first, second) if study.privacy is not None]
    differ = {
        "sites": set(first.sites) != set(second.sites),
        "records": len({privacy.records for privacy in known}) > 1,
        "privacy.unit": len({privacy.unit for privacy in known}) > 1,
    }
    names = [name for name, other in differ.items() if other]
    if not names:
        return None
    return (
        f"no verdict: the studies differ in {', '.join(names)}, so they scored other "
        "records, and a score is higher too where outcomes are rarer; compare fits of "
        "the same tables"
    )


def _distinct_names(
    first: Result, second: Result, names: tuple[str, str] | None
) -> tuple[str, str]:
    """The studies' names, or others where these are equal."""
    one, other = first.study.name, second.study.name
    if one != other:
        return one, other
    return names or (f"{one} (first)", f"{other} (second)")


def _comparison(
    called: tuple[str, str],
    share: float,
    mean: float,
    lower: float,
    upper: float,
    *,
    paired: bool,
) -> Comparison:
    better = None
    if lower > 0.0 or upper < 0.0:
        better = called[0] if lower > 0.0 else called[1]
    return {
        "first": called[0],
        "second": called[1],
        "interval": share,
        "mean": mean,
        "lower": lower,
        "upper": upper,
        "better": better,
        "paired": paired,
        "caution": None,
    }


def _log_score(result: Result) -> MeanRow:
    private = private_scores(result.record)
    if private is None or "log_score" not in private:
        raise StudyError(
            "has no private score of held-out rows with a log score",
            where=f"study '{result.study.name}'",
            remedy="run it with [evaluation] holdout, in a private study of a "
            "binary or a survival outcome",
        )
    return private["log_score"]


def _sd(result: Result, score: MeanRow) -> float:
    """Standard deviation of a score, from its interval."""
    reach = 2.0 * float(ndtri(0.5 + result.record["interval"] / 2.0))
    return float((score["upper"] - score["lower"]) / reach)
