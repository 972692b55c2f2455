"""A whole round over FLARE against bare exchanges of the same sizes.

Three sites and the CSP, each a FLARE program of its own with TLS, all on this machine:
a study of 12 parameters, about as many as the example has, and one of 184, whose
messages have the same size and whose noise takes longer to draw. In one job, blocks of
rounds of the protocol take turns with blocks in which the same bytes travel and nobody
looks at them: as auxiliary requests (``bare``), which FLARE makes streams of, and in
one piece (``whole``), as the protocol sends them. The first shows what a round costs
against FLARE's own way to send it, the second what the protocol adds to its own.

Blocks, because sites draw noise ahead while they wait: a bare round between two full
ones would hide that work and pay for it. The first round of a block does not count.

    python research/benchmarks/flare_round.py [PARAMETERS ...]
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from nvflare.apis.event_type import EventType
from nvflare.apis.shareable import Shareable

import cipherbayes.engine.flare.controller as controlling
from cipherbayes.engine.flare import submitting
from cipherbayes.engine.flare.channels import FlareConnection, FlareCsp, FlareSite
from cipherbayes.engine.flare.executor import PartyExecutor
from cipherbayes.engine.flare.jobs import write_job
from cipherbayes.engine.party_client import ROUND
from cipherbayes.results.flare_server import ResultController
from cipherbayes.study.schema import Study
from flare_machines import Machines

BARE = "bare"
SITES = ("north", "south", "west")
BLOCK = 25
ROUNDS = 150
DIMENSIONS = (12, 184)


@cache
def some_bytes(size: int) -> bytes:
    """Bytes that look like a ciphertext's, made once: making them is no exchange."""
    return secrets.token_bytes(size)


class BareLine(FlareConnection):
    """A line that carries unsealed messages in one piece."""

    def exchange(self, body: bytes, want: int) -> bytes:
        reply = self._request_whole(_bare_request(body, want), BARE)
        assert reply is not None
        answer: bytes = reply["answer"]
        return answer


def _bare_request(body: bytes, want: int) -> Shareable:
    request = Shareable()
    request["body"], request["want"] = body, want
    return request


class BareExecutor(PartyExecutor):
    """A party that also answers bare requests with as many bytes as asked for."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_aux_message_handler(BARE, self._bare)

    @staticmethod
    def _bare(topic: str, request: Shareable, fl_ctx: Any) -> Shareable:
        reply = Shareable()
        reply["answer"] = some_bytes(request["want"])
        return reply


class BareController(ResultController):
    """A server that times its rounds and as many bare ones of both kinds."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self._times: dict[str, list[float]] = {"full": [], "bare": [], "whole": []}
        self._pool = ThreadPoolExecutor(len(SITES))
        self._sizes: dict[str, tuple[int, int]] = {}
        self._mark = 0.0

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        self._context, sizes = fl_ctx, self._sizes
        self._lines = {name: BareLine(name, fl_ctx) for name in (*SITES, "csp")}

        def measured(line: type) -> type:
            class Measured(line):  # type: ignore[misc]
                def _ask(self, verb: bytes, body: bytes, timeout: float) -> Any:
                    answer = super()._ask(verb, body, timeout)
                    if verb == ROUND and answer is not None:
                        sizes[self.name] = (len(body), len(answer))
                    return answer

            return Measured

        controlling.FlareSite = measured(FlareSite)  # type: ignore[assignment, attr-defined]
        controlling.FlareCsp = measured(FlareCsp)  # type: ignore[assignment, attr-defined]
        super().control_flow(abort_signal, fl_ctx)

    def _progress(self, done: int, rounds: int) -> None:
        if self._sizes:
            self._times["full"].append(time.perf_counter() - self._mark)
            if done % BLOCK == 0:
                self._times["bare"] += self._block(self._ask_bare)
                self._times["whole"] += self._block(self._ask_whole)
        super()._progress(done, rounds)
        self._say("running", times=self._times, sizes=self._sizes)
        self._mark = time.perf_counter()

    def _block(
        self, ask: Callable[[list[str], bytes, int], list[bytes]]
    ) -> list[float]:
        """Seconds of bare rounds."""
        times = []
        for _ in range(BLOCK):
            started = time.perf_counter()
            for names in (list(SITES), ["csp"]):
                asked, answered = self._sizes[names[0]]
                answers = ask(names, some_bytes(asked), answered)
                assert [len(answer) for answer in answers] == [answered] * len(names)
            times.append(time.perf_counter() - started)
        return times

    def _ask_bare(self, names: list[str], body: bytes, want: int) -> list[bytes]:
        replies = self._context.get_engine().send_aux_request(
            targets=names, topic=BARE, request=_bare_request(body, want), timeout=10.0,
            fl_ctx=self._context,
        )  # fmt: skip
        return [replies[name]["answer"] for name in names]

    def _ask_whole(self, names: list[str], body: bytes, want: int) -> list[bytes]:
        lines = [self._lines[name] for name in names]
        return list(self._pool.map(lambda line: line.exchange(body, want), lines))


def make_study(
    folder: Path,
    rounds: int,
    dimension: int,
    rows: int = 1000,
    names_of_sites: Sequence[str] = SITES,
) -> Study:
    """A logistic study with so many rows at each site."""
    rng = np.random.default_rng(1)
    names = [f"x{i}" for i in range(dimension - 1)]
    sites = {}
    for site in names_of_sites:
        frame = pd.DataFrame(rng.uniform(-1, 1, (rows, len(names))), columns=names)
        frame["y"] = (rng.random(rows) < 0.5).astype(int)
        frame.to_parquet(folder / f"{site}.parquet")
        sites[site] = {"data": str(folder / f"{site}.parquet")}
    return Study.model_validate(
        {
            "study": {"name": "bench", "protocol": "secure-sum"},
            "model": {"kind": "logistic", "outcome": "y"},
            "features": {name: {"low": -1, "high": 1} for name in names},
            "privacy": {"epsilon": 3.0, "records": rows * len(sites)},
            "inference": {"method": "psgld", "rounds": rounds},
            "sites": sites,
        }
    )


def measure(folder: Path, rounds: int, dimension: int) -> dict[str, Any]:
    """Times of full and bare rounds in one job, in milliseconds."""
    study = make_study(folder, rounds, dimension)
    machines = Machines(folder, study)
    ours = ("flare_round.BareController", "flare_round.BareExecutor")
    for name in machines.parties:
        path = machines.kits[name].path / "local" / "resources.json"
        resources = json.loads(path.read_text())
        resources["class_allow_list"] += ours
        path.write_text(json.dumps(resources))
    machines.start(path=Path(__file__).resolve().parent)
    try:
        machines.wait_for()
        return _follow(machines, study, ours, folder)  # type: ignore[no-any-return]
    finally:
        machines.stop()


def _follow(machines: Machines, study: Study, ours: Any, folder: Path) -> Any:
    honest = write_job.__globals__["ALLOWED_CLASSES"]
    write_job.__globals__["ALLOWED_CLASSES"] = ours
    status: dict[str, Any] = {}
    began, first = 0.0, 0.0
    try:
        with submitting._session(machines.kits["admin"]) as session:
            run = secrets.token_hex(16)
            job = session.submit_job(str(write_job(folder / "job", study, run)))
            began = time.perf_counter()
            while status.get("state") not in ("finished", "failed"):
                try:
                    status = session.do_app_command(job, "cipherbayes", {})
                except Exception:
                    time.sleep(0.1)
                if status.get("done") and not first:
                    first = time.perf_counter() - began
                time.sleep(0.2)
    finally:
        write_job.__globals__["ALLOWED_CLASSES"] = honest
    if status["state"] == "failed":
        raise SystemExit(status["error"])
    # The first round of a block pays or gains for the block before it; the first block
    # warms up connections and caches, of both kinds alike.
    times = {
        name: [v for i, v in enumerate(values) if i >= BLOCK and i % BLOCK]
        for name, values in status["times"].items()
    }
    medians = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    record = json.loads(base64.b64decode(status["files"]["result.json"]))
    parts = ("site_s", "server_s", "csp_s")
    return {
        "rounds": len(times["full"]),
        "sizes": status["sizes"],
        "full_ms": medians["full"],
        "bare_ms": medians["bare"],
        "whole_ms": medians["whole"],
        "ratio": medians["full"] / medians["bare"],
        "ratio_to_whole": medians["full"] / medians["whole"],
        "computing_ms": {
            part: 1e3 * record["timing"][part] / record["rounds"] for part in parts
        },
        "first_round_s": first,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    dimensions = [int(word) for word in sys.argv[1:]] or DIMENSIONS
    shared = Path("/dev/shm")
    found = {}
    for dimension in dimensions:
        with tempfile.TemporaryDirectory(
            dir=shared if shared.is_dir() else None
        ) as folder:
            found[f"d = {dimension}"] = measure(Path(folder), ROUNDS, dimension)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    # Job processes import this module by name; so must this one.
    from flare_round import main as run

    run()
