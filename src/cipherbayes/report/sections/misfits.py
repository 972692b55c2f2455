"""Where the fit misses: in words, and how much in each group of records."""

from __future__ import annotations

from collections.abc import Sequence

from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import interval, number, percent
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.record import FitTest, MeanRow, PrivateMetrics
from cipherbayes.study.schema import Study

PREDICTORS = {
    "odds ratio": "log odds",
    "hazard ratio": "log hazard",
    "rate ratio": "log rate",
}
"""What a linear predictor is, by what an effect is."""
OVER_TIME = "over time"

FARTHEST = 3.0
"""Half of the width of an interval of log odds, log hazards or log rates, a factor of
twenty, beyond which a group is said to be not known."""


def misfits(contents: Contents, metrics: PrivateMetrics) -> Markup:
    """What was tested, what was found, and the groups behind it."""
    tests = metrics.get("fit", [])
    if not tests:
        return Markup()
    missed = [each for each in tests if each["misfit"]]
    lead = (
        "In no group of records do residuals differ from zero by more than noise "
        "and chance explain. A misfit too small for this budget would not be seen."
        if not missed
        else "Residuals of the held-out rows show what the model misses:"
    )
    items = [
        tag("li", tag("strong", each["text"]) if each["misfit"] else each["text"])
        for each in tests
    ]
    share = percent(contents.record["interval"])
    found = _groups("What is missed, by group", missed, contents.study, share, "missed")
    every = _groups("All groups", tests, contents.study, share, "fit-groups")
    return join(
        tag("h3", "What fits and what does not"),
        tag("p", lead),
        tag("ul", items, id="fit"),
        _untested(contents.study, tests, metrics.get("calibration_slope")),
        found,
        tag(
            "details",
            tag("summary", "All groups in numbers"),
            every,
            tag("p", _reading(contents.study)),
        )
        if every
        else Markup(),
    )


def _untested(study: Study, tests: Sequence[FitTest], slope: MeanRow | None) -> Markup:
    """Features of which nothing is said, and why; and that one of them may be what
    makes predictions too extreme, or not extreme enough."""
    tested = {each["by"] for each in tests if each["kind"] == "feature"}
    names = [name for name in study.features if name not in tested]
    if not names:
        return Markup()
    said = (
        f"Not tested: {', '.join(names)}. What the held-out rows could tell of all "
        "groups together is within the noise."
    )
    if slope is not None and not slope["lower"] <= 1.0 <= slope["upper"]:
        extreme = "too" if slope["upper"] < 1.0 else "not"
        enough = "" if slope["upper"] < 1.0 else " enough"
        said += (
            f" That does not mean that they fit: the calibration slope, "
            f"{number(slope['mean'])} ({interval(slope['lower'], slope['upper'])}), "
            f"says that predictions are {extreme} extreme{enough}, and the effects of "
            "these features may be why."
        )
    return tag("p", said)


def predictor(study: Study) -> str:
    """What a group may lack of: the outcome itself, or a logarithm."""
    measure = str(study.model.measure)
    if measure in PREDICTORS:
        return PREDICTORS[measure]
    return study.model.outcome_columns().get("y", "outcome")


def _reading(study: Study) -> str:
    """How the table of groups is to be read."""
    halves = (
        " “Early less late” is how much more of it there is in the first half of the "
        "time than in the second."
        if study.model.predicts_over_time
        else ""
    )
    return (
        f"Missed is how much {predictor(study)} a group has beyond what was predicted, "
        f"compared with all groups together.{halves} Intervals are wide where a group "
        "has few rows, and some exclude zero by chance: the sentences above count how "
        "many were looked at. Not known: what was released of the group's rows is so "
        "near to its noise that a factor of twenty either way is left open."
    )


def _open(study: Study, lower: float | None, upper: float | None) -> bool:
    """Whether an interval of logarithms says next to nothing."""
    if study.model.measure is None or lower is None or upper is None:
        return False
    return upper - lower > 2.0 * FARTHEST or max(-lower, upper) > 2.0 * FARTHEST


def _groups(
    caption: str, tests: Sequence[FitTest], study: Study, share: str, id_: str
) -> Markup:
    rows: list[list[Content]] = []
    for each in tests:
        if each["kind"] == "predicted risk":
            continue  # a slope: among the scores
        late = ", early less late" if each["what"] == OVER_TIME else ""
        for group in each["groups"]:
            if group["mean"] is None:
                continue
            name = (
                "all rows"
                if each["kind"] == "all rows"
                else f"{each['by']} {group['group']}"
            )
            told: list[Content] = ["not known", ""]
            if not _open(study, group["lower"], group["upper"]):
                told = [
                    number(group["mean"]),
                    interval(group["lower"], group["upper"]),
                ]
            rows.append([f"{name}{late}", *told, number(each["p"], 2)])
    if not rows:
        return Markup()
    missed = f"Missed ({predictor(study)})"
    heads = ["Group", missed, f"{share} interval", "p of all its groups"]
    return table(caption, heads, rows, id_=id_)
