"""A snapshot as a page that renews itself until the run has ended."""

from __future__ import annotations

from statistics import median

from cipherbayes.report.charts import Chart, Line, bar_row, figure, trace
from cipherbayes.report.live.snapshot import Snapshot
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import Axis, duration, number, short
from cipherbayes.report.page import POLICY, style

REFRESH_SECONDS = 2
MOST_TRACES = 40
TRACE_POINTS = 300
WAITING = (
    f'<!doctype html><meta charset="utf-8"><title>starting</title>'
    f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}"><p>The run is starting.'
)


def page(snapshot: Snapshot) -> str:
    """The snapshot as a page that renews itself until the run has ended."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{snapshot.done}/{snapshot.rounds} {snapshot.study}"),
        tag("style", Markup(style())),
    ]
    if not snapshot.finished:
        head.append(tag("meta", http_equiv="refresh", content=str(REFRESH_SECONDS)))
    state: Content = "finished" if snapshot.finished else "running"
    left = "none" if snapshot.finished else _seconds(snapshot.left)
    if snapshot.left is not None and not snapshot.finished:
        left += " of rounds, then the posterior"
    if snapshot.drawing:
        state = "drawing the posterior from the released totals"
        left = f"not known; {_seconds(snapshot.answered)} so far"
    if snapshot.late:
        state = tag("strong", "waiting for a party", class_="bad")
    tiles: list[tuple[str, Content]] = [
        ("State", state),
        ("Round", f"{snapshot.done:,} of {snapshot.rounds:,}"),
        ("ε spent", _spent(snapshot)),
        ("A round takes", _seconds(snapshot.pace)),
        ("Time left", left),
    ]
    body = tag(
        "body",
        tag(
            "header",
            tag("p", "cipherbayes watch", class_="brand"),
            tag("h1", snapshot.study),
            tag(
                "dl",
                [tag("div", tag("dt", name), tag("dd", said)) for name, said in tiles],
                class_="tiles",
            ),
        ),
        tag(
            "main",
            _progress(snapshot),
            _parties(snapshot),
            _pace(snapshot),
            _traces(snapshot),
        ),
    )
    return f"<!doctype html>\n{tag('html', tag('head', head), body, lang='en')}\n"


def _spent(snapshot: Snapshot) -> Content:
    """ε so far beside what the study asks for, and whether it promises anything."""
    said = f"{number(snapshot.spent)} of {short(snapshot.budget)}"
    if snapshot.certified:
        return said
    if snapshot.spent > snapshot.budget:
        said = f"{number(snapshot.spent)}, claimed {short(snapshot.budget)}"
    return tag("strong", f"{said}: not certified", class_="bad")


def _seconds(value: float | None) -> str:
    return "not known yet" if value is None else duration(value)


def _progress(snapshot: Snapshot) -> Markup:
    rows: list[list[Content]] = [
        ["Rounds", bar_row([(100.0 * snapshot.done / snapshot.rounds, "private")])],
        ["ε", bar_row([(100.0 * snapshot.spent / snapshot.budget, "open")])],
    ]
    return table(
        "How far the run is, and how much of its budget it has spent",
        ["", tag("span", "chart", class_="unseen")],
        rows,
        words=(1,),
        class_="widths",
        id_="progress",
    )


def _parties(snapshot: Snapshot) -> Markup:
    lost = dict(snapshot.lost)
    since = (
        "none yet" if snapshot.answered is None else _ago(snapshot, snapshot.answered)
    )
    rows: list[list[Content]] = [
        [
            site,
            tag("strong", f"lost in round {lost[site] + 1}", class_="bad")
            if site in lost
            else "taking part",
            f"round {lost[site]}" if site in lost else since,
        ]
        for site in snapshot.sites
    ]
    if snapshot.parties:
        rows.append(["CSP", "taking part", since])
    if snapshot.late:
        for row in rows:
            if row[1] == "taking part":
                row[1] = tag("strong", "late, or waiting for another", class_="bad")
    return join(
        tag("h2", "Parties"),
        table(
            "Parties of the run. A round ends when every party has answered.",
            ["Party", "State", "Last answer"],
            rows,
            words=(1, 2),
            id_="parties",
        ),
    )


def _ago(snapshot: Snapshot, answered: float) -> str:
    if snapshot.finished:
        return "to the last round"
    return f"{duration(answered)} ago, to round {snapshot.done}"


def _pace(snapshot: Snapshot) -> Markup:
    """How long each round took."""
    seconds = snapshot.seconds
    if len(seconds) < 2:
        return Markup()
    every = max(-(-len(seconds) // TRACE_POINTS), 1)
    shown = seconds[::every]
    milliseconds = [1e3 * value for value in shown]
    typical = duration(median(seconds))
    return figure(
        Chart(
            title="How long a round takes",
            said=f"Median {typical}, longest {duration(max(seconds))}.",
            x=Axis(0.0, float(len(seconds))),
            y=Axis(0.0, 1.1 * max(*milliseconds, 1.0)),
            x_name="round",
            y_name="milliseconds",
            lines=[
                Line("", [float(k * every) for k in range(len(shown))], milliseconds)
            ],
            small=True,
        )
    )


def _traces(snapshot: Snapshot) -> Markup:
    if not snapshot.theta or len(snapshot.theta[0]) < 2:
        return tag("p", "No parameter has moved yet.")
    rows: list[list[Content]] = []
    shown = list(zip(snapshot.names, snapshot.theta, strict=True))[:MOST_TRACES]
    for name, path in shown:
        every = max(-(-len(path) // TRACE_POINTS), 1)
        rows.append([name, trace([path[::every]]), number(path[-1])])
    return join(
        tag("h2", "Parameters"),
        table(
            "θ after each round, on the scale of the prepared columns",
            ["Parameter", "Trace", "Now"],
            rows,
            words=(1,),
            class_="traces",
            id_="traces",
        ),
    )
