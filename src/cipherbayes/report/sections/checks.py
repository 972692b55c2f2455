"""Who the records are, and how well the fit does on protected held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from cipherbayes.protocols.budget_words import beyond_trials
from cipherbayes.report.markup import (
    Content,
    Markup,
    join,
    mean_and_interval,
    table,
    tag,
)
from cipherbayes.report.numbers import interval, number, percent
from cipherbayes.report.run_contents import Contents
from cipherbayes.report.sections.calibration import (
    BINARY_READING,
    SURVIVAL_READING,
    calibration,
)
from cipherbayes.report.sections.calibration import SCORES as CALIBRATION_SCORES
from cipherbayes.report.sections.misfits import misfits
from cipherbayes.results.record import (
    DescribeRow,
    ObservedOverExpected,
    PrivateMetrics,
    scores_by_name,
)

SCORES = {
    "rows": "Rows held out, about",
    "events": "Events among them, about",
    "auc": "AUC: a case is ranked above a non-case",
    "c_index": "Concordance up to the horizon",
    "brier": "Brier score (smaller is better)",
    "log_score": "Mean log predictive density",
    "rmse": "Root mean squared error",
    **CALIBRATION_SCORES,
    "risk_over_time": "Slope of the log hazard along the predicted one, late less "
    "early (0 is ideal)",
    "mean_predicted": "Mean prediction",
    "mean_observed": "Mean outcome",
    "predicted_over_observed": "Predicted over observed (1 is ideal)",
}

STATISTICS = {
    "sd": "standard deviation",
    "q1": "first quartile",
    "q3": "third quartile",
}
MOST_BESIDE = 5
"""Groups of records beside each other in a table, so that it fits a printed page."""


def private_checks(contents: Contents, metrics: PrivateMetrics) -> Markup:
    """Scores of held-out rows with intervals, and where the fit misses."""
    share = percent(contents.record["interval"])
    scores = scores_by_name(metrics)
    rows: list[list[Content]] = [
        [
            words,
            number(scores[key]["mean"]),
            interval(scores[key]["lower"], scores[key]["upper"]),
        ]
        for key, words in SCORES.items()
        if key in scores
    ]
    if "difference" in metrics:
        found = metrics["difference"]
        rows.append(
            [
                f"Log score less that of '{found['against']}', row by row (above 0: "
                "this fit predicts better; single rows are cut at ±½)",
                number(found["mean"]),
                interval(found["lower"], found["upper"]),
            ]
        )
    parts: list[str] = []
    if rows:
        heads = ["Score", "Mean", f"{share} interval"]
        parts.append(table("Scores on the held-out rows", heads, rows, id_="metrics"))
    if "calibration_slope" in scores:
        over_time = contents.study.model.predicts_over_time
        parts.append(tag("p", SURVIVAL_READING if over_time else BINARY_READING))
    if metrics.get("calibration_table"):
        parts.append(calibration(contents, metrics["calibration_table"]))
    if metrics.get("auc_at"):
        parts.append(_timed(metrics, contents))
    if metrics.get("observed_over_expected"):
        parts.append(_groups(metrics["observed_over_expected"], share))
    return join(
        tag("h3", "Rows it has not seen"),
        tag(
            "p",
            "The held-out rows are protected like all others: what is said of them was "
            "released with noise, within ε. Intervals count that they are a sample and "
            f"that noise was added.{_beyond(contents)}",
        ),
        join(*parts),
        misfits(contents, metrics),
    )


def _beyond(contents: Contents) -> str:
    """What is known of intervals that do not hold as often as they say."""
    said = None if contents.plan is None else beyond_trials(contents.plan)
    return "" if said is None else f" {said[0].upper()}{said[1:]}."


def _timed(metrics: PrivateMetrics, contents: Contents) -> Markup:
    """AUC and Brier score of who has the event by each time."""
    share = percent(contents.record["interval"])
    column = contents.study.model.outcome_columns().get("time", "time")
    brier = {at["time"]: at for at in metrics.get("brier_at", [])}
    rows: list[list[Content]] = []
    for at in metrics["auc_at"]:
        score = brier.get(at["time"])
        rows.append(
            [
                number(at["time"], 4),
                number(at["auc"]),
                interval(at["lower"], at["upper"]),
                "–" if score is None else number(score["brier"]),
                "–" if score is None else interval(score["lower"], score["upper"]),
            ]
        )
    heads = [column, "AUC", f"{share} interval", "Brier score", f"{share} interval"]
    return table("Who has the event by a time", heads, rows, id_="auc-at")


def _groups(entries: list[ObservedOverExpected], share: str) -> Markup:
    rows: list[list[Content]] = [
        [
            entry["group"],
            number(entry["time"], 4),
            number(entry["expected"]),
            number(entry["observed"]),
            number(entry["mean"]),
            interval(entry["lower"], entry["upper"]),
        ]
        for entry in entries
    ]
    return table(
        "Events by a time: observed over expected, by predicted risk",
        [
            "Predicted risk",
            "Time",
            "Expected share",
            "Observed share",
            "Ratio",
            f"{share} interval",
        ],
        rows,
        id_="observed-over-expected",
    )


_Told = tuple[str, str]
"""A number and its interval, in words."""


def characteristics(contents: Contents) -> Markup:
    """The table of the records' characteristics; nothing where there is none.

    All records first, then, folded, by each grouping, a few groups beside each other.
    """
    rows = contents.record.get("describe", [])
    if not rows:
        return Markup()
    binary = _binary_columns(rows)
    cells: dict[str, dict[str, _Told]] = {}
    counts: dict[tuple[str, str, str], float] = {}
    for row in rows:
        kind, level = row["statistic"].partition(": ")[::2]
        if kind == "count":
            counts[row["column"], level, row["group"]] = row["mean"]
            continue  # beside its share; the file has its interval too
        if row["column"] in binary and row["statistic"] == "share: 0":
            continue  # the rest of the ones; the file has both
        count = counts.get((row["column"], level, row["group"]))
        told = _mean(row) if count is None else f"{_mean(row)} (n = {count:,.0f})"
        cells.setdefault(_characteristic(row), {})[row["group"]] = told, _spread(row)
    share = percent(contents.record["interval"])
    said = f"Characteristics, with {share} intervals for noise and width of ranges"
    parts: list[Markup] = []
    for groups in _beside(list(dict.fromkeys(row["group"] for row in rows))):
        known = {
            what: row
            for what, row in cells.items()
            if any(group in row for group in groups)
        }
        if len(groups) == 1:
            parts.append(_of_one_group(said, groups[0], known, share))
        else:
            parts.append(_of_groups(said, groups, known))
        said = "The same by group, each interval below its number"
    first, *others = parts
    folded = tag("details", tag("summary", "The same by group"), *others)
    return tag(
        "div",
        tag("h3", "Who the records are"),
        first,
        folded if others else Markup(),
        id="characteristics",
    )


def _binary_columns(rows: Sequence[DescribeRow]) -> set[str]:
    """Columns whose levels are 0 and 1."""
    levels: dict[str, set[str]] = {}
    for row in rows:
        kind, level = row["statistic"].partition(": ")[::2]
        if kind == "share":
            levels.setdefault(row["column"], set()).add(level)
    return {column for column, known in levels.items() if known == {"0", "1"}}


def _characteristic(row: DescribeRow) -> str:
    """What a row tells: ``age: mean``, ``sex: share of F``."""
    if not row["column"]:
        return "Records"
    kind, level = row["statistic"].partition(": ")[::2]
    words = STATISTICS.get(kind, kind)
    return f"{row['column']}: {words}{f' of {level}' if level else ''}"


def _of_one_group(
    said: str, group: str, cells: Mapping[str, Mapping[str, _Told]], share: str
) -> Markup:
    body: list[list[Content]] = [[what, *found[group]] for what, found in cells.items()]
    return table(
        said,
        ["What", "All records" if group == "all" else group, f"{share} interval"],
        body,
        class_="characteristics",
    )


def _of_groups(
    said: str,
    groups: Sequence[str],
    cells: Mapping[str, Mapping[str, _Told]],
) -> Markup:
    body: list[list[Content]] = [
        [what, *(mean_and_interval(*found[g]) if g in found else "" for g in groups)]
        for what, found in cells.items()
    ]
    return table(said, ["What", *groups], body, class_="characteristics")


def _is_share(row: DescribeRow) -> bool:
    """Whether a row tells a part of the records, which is written in percent."""
    return row["statistic"].startswith("share") or row["statistic"] == "missing share"


def _mean(row: DescribeRow) -> str:
    if _is_share(row):
        return f"{number(100 * row['mean'])} %"
    exact = row["lower"] == row["upper"]
    return f"{row['mean']:,.0f}" if exact else number(row["mean"])


def _spread(row: DescribeRow) -> str:
    """The interval; a number that is exact has none."""
    exact = row["lower"] == row["upper"]
    if _is_share(row) and not exact:
        return f"{interval(100 * row['lower'], 100 * row['upper'])} %"
    return "exact" if exact else interval(row["lower"], row["upper"])


def _beside(groups: list[str]) -> list[list[str]]:
    """Groups that share a table: of one grouping, and no more than a page is wide."""
    found: list[list[str]] = []
    for _, same in groupby(groups, lambda group: group.partition(": ")[0]):
        together = list(same)
        tables = -(-len(together) // MOST_BESIDE)
        size = -(-len(together) // tables)
        found += [together[k : k + size] for k in range(0, len(together), size)]
    return found
