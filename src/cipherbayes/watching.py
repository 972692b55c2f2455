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
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np

from cipherbayes.engine.assembly import RunFolder
from cipherbayes.errors import RunError
from cipherbayes.planning import StudyPlan
from cipherbayes.privacy.accountant import epsilon
from cipherbayes.report.charts import bar_row, trace
from cipherbayes.report.checkpoint import lost_sites, open_read_only
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import duration, number, short
from cipherbayes.report.page import POLICY, style
from cipherbayes.tables import preparation_of

HOST = "127.0.0.1"
REFRESH_SECONDS = 2
MOST_TRACES = 40
TRACE_POINTS = 300
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
    pace, left
        Seconds a round and to the end, by what was seen so far; None before that.
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
    pace: float | None
    left: float | None

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
        }


@dataclass
class Watcher:
    """Looks at a run's folder again and again; remembers only when rounds came."""

    folder: Path
    plan: StudyPlan
    _seen: list[tuple[float, int]] = field(default_factory=list)
    _known: dict[int, float] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def open(cls, path: Path) -> Watcher:
        """Watch a private run; its folder is made when the run begins."""
        return cls(path, RunFolder.open(path).plan)

    def look(self) -> Snapshot:
        """The run as it stands now."""
        study = self.plan.study
        privacy = study.privacy
        assert privacy is not None
        done, theta, lost = self._checkpoint()
        pace = self._pace(done)
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
            pace=pace,
            left=None if pace is None else pace * (self.plan.rounds - done),
        )

    def _checkpoint(self) -> tuple[int, Any, tuple[tuple[str, int], ...]]:
        path = self.folder / "server" / "checkpoint.sqlite"
        empty = np.zeros((0, 0))
        if not path.is_file():
            return 0, empty, ()
        try:
            with closing(open_read_only(path)) as database:
                rows = database.execute(
                    "SELECT round, theta FROM rounds ORDER BY round"
                ).fetchall()
                kept = {n for (n,) in database.execute("SELECT name FROM facts")}
                lost = lost_sites(database)
        except sqlite3.OperationalError:
            return 0, empty, ()  # not laid out yet
        except sqlite3.DatabaseError:
            raise RunError(
                "the server's checkpoint cannot be read",
                where=str(path),
                remedy="see run.log in the same folder",
            ) from None
        if not rows:
            ready = sum(p.rounds for p in self.plan.preparatory if p.purpose in kept)
            return ready, empty, lost
        theta = np.array([np.frombuffer(data, dtype=np.float64) for _, data in rows])
        return int(rows[-1][0]) + 1, theta, lost

    def _spent(self, done: int) -> float:
        if done not in self._known:
            assert self.plan.study.privacy is not None
            delta = self.plan.study.privacy.delta
            event = self.plan.event_after(done)
            self._known[done] = 0.0 if event is None else epsilon(event, delta)
        return self._known[done]

    def _pace(self, done: int) -> float | None:
        """Seconds a round over the last thirty rounds that were seen to come."""
        with self._lock:
            if not self._seen or self._seen[-1][1] != done:
                self._seen.append((time.monotonic(), done))
                del self._seen[:-30]
            (first, start), (last, end) = self._seen[0], self._seen[-1]
        return (last - first) / (end - start) if end > start else None


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
    state = "finished" if snapshot.finished else "running"
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
        tag("main", _progress(snapshot), _parties(snapshot), _traces(snapshot)),
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
    rows: list[list[Content]] = [
        [
            site,
            tag("strong", f"lost in round {lost[site] + 1}", class_="bad")
            if site in lost
            else "taking part",
        ]
        for site in snapshot.sites
    ]
    return join(
        tag("h2", "Parties"),
        table("Sites of the run", ["Site", "State"], rows, words=(1,), id_="parties"),
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
