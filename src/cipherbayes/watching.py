"""A page on this machine that follows a running study.

It shows θ after each round, ε, the parties and the pace: what the server holds
anyway, all of it released and private already.

Formal guarantees
-----------------
Reads the server's checkpoint and the public study, read-only; never a table, a
ledger, a key or a site's folder. Listens on the loopback interface only and answers
only requests addressed to it by that name, so that a page on the internet cannot
read it through a name that it points at this machine (DNS rebinding). The page has
no script and loads nothing.

Edge cases
----------
Other users of the same machine can open the page.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import numpy as np

from cipherbayes.engine.assembly import RunFolder
from cipherbayes.errors import RunError
from cipherbayes.planning import StudyPlan
from cipherbayes.privacy.accountant import epsilon
from cipherbayes.report.charts import Chart, Line, bar_row, figure, trace
from cipherbayes.report.checkpoint import lost_sites, open_read_only, round_times
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import Axis, duration, number, short
from cipherbayes.report.page import POLICY, style
from cipherbayes.tables import preparation_of

HOST = "127.0.0.1"
REFRESH_SECONDS = 2
MOST_TRACES = 40
TRACE_POINTS = 300
RECENT = 30
"""Rounds that the pace is taken from."""
LATE_SECONDS, LATE_FACTOR = 10.0, 10.0
"""A round is late after so long, and so many times the pace."""

Lost = tuple[tuple[str, int], ...]
Times = tuple[tuple[int, float], ...]
WAITING = (
    f'<!doctype html><meta charset="utf-8"><title>starting</title>'
    f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}"><p>The run is starting.'
)


@dataclass(frozen=True)
class Snapshot:
    """Where a run stands.

    Attributes
    ----------
    done, rounds
        Rounds finished and planned.
    spent
        ε of the rounds finished.
    theta
        θ after each gradient round on the prepared scale, one list a parameter.
    lost
        Sites that dropped out, and in which round.
    seconds
        How long each round took, as the server's checkpoint has it, resumed rounds
        and the first one left out.
    answered
        Seconds since the last round ended: since every party taking part, the CSP
        included, last answered. None before that.
    parties
        Whether there are a server and a CSP.
    """

    study: str
    names: tuple[str, ...]
    sites: tuple[str, ...]
    done: int
    rounds: int
    spent: float
    budget: float
    delta: float
    theta: tuple[tuple[float, ...], ...]
    lost: tuple[tuple[str, int], ...]
    finished: bool
    seconds: tuple[float, ...]
    answered: float | None
    parties: bool

    @property
    def pace(self) -> float | None:
        """Seconds a round, the median of the last thirty; None before there are two."""
        return median(self.seconds[-RECENT:]) if self.seconds else None

    @property
    def left(self) -> float | None:
        """Seconds to the end at this pace."""
        return None if self.pace is None else self.pace * (self.rounds - self.done)

    @property
    def late(self) -> bool:
        """Whether the round that is under way takes far longer than those before."""
        if self.finished or self.answered is None or self.pace is None:
            return False
        return self.answered > LATE_SECONDS + LATE_FACTOR * self.pace

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "study": self.study,
            "round": self.done,
            "rounds": self.rounds,
            "epsilon_spent": self.spent,
            "epsilon": self.budget,
            "delta": self.delta,
            "theta": {n: list(t) for n, t in zip(self.names, self.theta, strict=True)},
            "lost": [{"site": site, "round": number} for site, number in self.lost],
            "finished": self.finished,
            "seconds_a_round": self.pace,
            "seconds_left": self.left,
            "round_seconds": list(self.seconds),
            "seconds_since_last_answer": self.answered,
            "late": self.late,
        }


@dataclass
class Watcher:
    """Looks at a run's folder again and again."""

    folder: Path
    plan: StudyPlan
    _known: dict[int, float] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Watcher:
        """Watch a private run; its folder is made when the run begins."""
        return cls(path, RunFolder.open(path).plan)

    def look(self) -> Snapshot:
        """The run as it stands now."""
        study = self.plan.study
        privacy = study.privacy
        assert privacy is not None
        done, theta, lost, times = self._checkpoint()
        names = study.model.parameters(preparation_of(study).design)
        finished = (self.folder / "result.json").exists()
        return Snapshot(
            study=study.name,
            names=names,
            sites=tuple(sorted(study.sites)),
            done=done,
            rounds=self.plan.rounds,
            spent=self._spent(done),
            budget=privacy.epsilon,
            delta=privacy.delta,
            theta=tuple(tuple(column.tolist()) for column in theta.T)
            if theta.size
            else tuple(() for _ in names),
            lost=lost,
            finished=finished,
            seconds=_durations(times),
            answered=max(time.time() - times[-1][1], 0.0) if times else None,
            parties=self.plan.scheme is not None,
        )

    def _checkpoint(self) -> tuple[int, Any, Lost, Times]:
        path = self.folder / "server" / "checkpoint.sqlite"
        empty = np.zeros((0, 0))
        if not path.is_file():
            return 0, empty, (), ()
        try:
            with closing(open_read_only(path)) as database:
                rows = database.execute(
                    "SELECT round, theta FROM rounds ORDER BY round"
                ).fetchall()
                kept = {n for (n,) in database.execute("SELECT name FROM facts")}
                lost, times = lost_sites(database), round_times(database)
        except sqlite3.OperationalError:
            return 0, empty, (), ()  # not laid out yet
        except sqlite3.DatabaseError:
            raise RunError(
                "the server's checkpoint cannot be read",
                where=str(path),
                remedy="see run.log in the same folder",
            ) from None
        if not rows:
            ready = sum(p.rounds for p in self.plan.preparatory if p.purpose in kept)
            return ready, empty, lost, ()
        theta = np.array([np.frombuffer(data, dtype=np.float64) for _, data in rows])
        return int(rows[-1][0]) + 1, theta, lost, times

    def _spent(self, done: int) -> float:
        if done not in self._known:
            assert self.plan.study.privacy is not None
            delta = self.plan.study.privacy.delta
            event = self.plan.event_after(done)
            self._known[done] = 0.0 if event is None else epsilon(event, delta)
        return self._known[done]


def _durations(times: Times) -> tuple[float, ...]:
    """How long each round took; not the ones a clock that was set back spoils."""
    pairs = pairwise(times)
    return tuple(b - a for (k, a), (j, b) in pairs if j == k + 1 and b >= a)


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
    if snapshot.late:
        state = tag("strong", "waiting for a party", class_="bad")
    tiles: list[tuple[str, Content]] = [
        ("State", state),
        ("Round", f"{snapshot.done:,} of {snapshot.rounds:,}"),
        ("ε spent", f"{number(snapshot.spent)} of {short(snapshot.budget)}"),
        ("A round takes", _seconds(snapshot.pace)),
        ("Time left", "none" if snapshot.finished else _seconds(snapshot.left)),
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
    since = "none yet" if snapshot.answered is None else _ago(snapshot)
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


def _ago(snapshot: Snapshot) -> str:
    assert snapshot.answered is not None
    if snapshot.finished:
        return "to the last round"
    return f"{duration(snapshot.answered)} ago, to round {snapshot.done}"


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


@contextmanager
def following(folder: Path) -> Iterator[str]:
    """Serve a run that is about to be laid out in a folder."""
    found: list[Watcher] = []

    def look() -> Snapshot | None:
        if not found:
            if not (folder / "run.json").is_file():
                return None
            found.append(Watcher.open(folder))
        return found[0].look()

    with serving(look) as address:
        yield address


@contextmanager
def serving(look: Callable[[], Snapshot | None], port: int = 0) -> Iterator[str]:
    """Serve the page on loopback for the length of a block; its address.

    Parameters
    ----------
    look
        Where the run stands; None before it has begun.
    """
    names: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        """GET / and GET /state.json, by this machine's own name only."""

        server_version = "cipherbayes"
        sys_version = ""

        def do_GET(self) -> None:
            if self.headers.get("Host") not in names:
                self._answer(403, "text/plain", "ask for this page on loopback")
                return
            if self.path not in ("/", "/state.json"):
                self._answer(404, "text/plain", "no such page")
                return
            seen = look()
            if self.path == "/":
                self._answer(200, "text/html", WAITING if seen is None else page(seen))
            else:
                document = json.dumps(None if seen is None else seen.document())
                self._answer(200, "application/json", document)

        def _answer(self, status: int, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("X-Frame-Options", "DENY")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing: the terminal belongs to the run."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as problem:
        raise RunError(
            f"cannot listen on port {port} ({problem.strerror})",
            where="--port",
            remedy="choose another, or leave it out",
        ) from None
    names += [f"{host}:{server.server_port}" for host in (HOST, "localhost")]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
