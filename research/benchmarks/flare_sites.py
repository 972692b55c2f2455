"""A study with many sites, each a FLARE program of its own on this machine.

    python research/benchmarks/flare_sites.py [SITES ...]

For each number of sites: seconds from the start of the programs until all have joined
the server, seconds from ``submit`` to the result, the median of a round, and the memory
that the programs take (each process's share of what it shares counted once). A site is
two processes: FLARE's client, and the job that it starts.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from cipherbayes.protocols.stores import CheckpointReader
from cipherbayes.storage.custody import VARIABLE
from flare_machines import Machines
from flare_round import make_study

NUMBERS = (8, 16, 32)
PARAMETERS = 12
ROUNDS = 30
JOIN_SECONDS = 600.0
AT_ONCE = 4
"""Parties that start at the same time."""


@contextmanager
def own_state(folder: str) -> Iterator[None]:
    """Nothing of this user's tables is known while the block runs.

    Tables here are made up, and the same in every run.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(Path(folder) / "state")
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def memory(process: int) -> float:
    """Megabytes of a process and of all that it started."""
    total = 0.0
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # a thread that has just ended
            continue
        total += sum(memory(int(child)) for child in children)
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return total
    own = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return total + int(own.split()[1]) / 1024.0


class MemoryWatch(threading.Thread):
    """The most memory that each party's processes took, looked at every few seconds."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, float] = {}
        self._machines = machines
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(3.0):
            for name, process in list(self._machines.running.items()):
                now = memory(process.pid)
                self.most[name] = max(self.most.get(name, 0.0), now)

    def end(self) -> None:
        self._over.set()
        self.join()


def round_seconds(machines: Machines, out: Path) -> list[float]:
    """Seconds from the end of each round to that of the next, as the server saw it."""
    run = json.loads((out / "submission.json").read_text())["run"]
    kept = machines.kits["server"].path / "runs" / run / "checkpoint.sqlite"
    with CheckpointReader(kept) as reader:
        ends = [at for _, at in reader.round_times()]
    return [later - earlier for earlier, later in pairwise(ends)]


def start_all(machines: Machines) -> None:
    """Start all parties, a few at a time.

    FLARE's client gives up where a busy machine keeps it from its connection for 15
    seconds; it is then started again, as its service would.
    """
    machines.start("server")
    machines.wait_for_server(JOIN_SECONDS)
    deadline = time.monotonic() + JOIN_SECONDS
    waiting = list(machines.parties[1:])
    while waiting:
        now = waiting[:AT_ONCE]
        for name in now:
            if name in machines.running and machines.running[name].poll() is not None:
                del machines.running[name]
        machines.start(*now)
        time.sleep(0.5)
        waiting = [name for name in waiting if not machines.joined(name)]
        if time.monotonic() > deadline:
            raise TimeoutError(f"not joined: {waiting}")


def measure(folder: Path, sites: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """One study, from installed kits to its result."""
    names = tuple(f"s{number:02d}" for number in range(sites))
    study = make_study(folder, rounds, PARAMETERS, 200, names)
    machines = Machines(folder, study)
    watch = MemoryWatch(machines)
    started = time.perf_counter()
    try:
        start_all(machines)
        joined = time.perf_counter()
        watch.start()
        result = machines.submit(folder / "out")
        ended = time.perf_counter()
        watch.end()
        each = round_seconds(machines, folder / "out")
    finally:
        machines.stop()
    site_memory = [watch.most[name] for name in names if name in watch.most]
    return {
        "sites": sites,
        "rounds": result.record["rounds"],
        "join_s": joined - started,
        "submit_s": ended - joined,
        "round_s": statistics.median(each),
        "site_mb": statistics.median(site_memory),
        "server_mb": watch.most["server"],
        "csp_mb": watch.most["csp"],
        "all_mb": sum(watch.most.values()),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:]] or NUMBERS
    for sites in numbers:
        with tempfile.TemporaryDirectory() as folder, own_state(folder):
            print(json.dumps(measure(Path(folder), sites)), flush=True)


if __name__ == "__main__":
    main()
