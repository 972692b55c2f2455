"""How a secure sum grows: with d, the sites, the rows of a site, and the rounds.

One quantity varies, the others stay at the base. Every point is a run of its own in a
process of its own: all parties with their keys, ledgers and checkpoints on disk, pSGLD,
each round timed. Times are CPU time, medians over the rounds; the noise is in a site's
time. An exponent p says that a measure grows as value^p from the middle of an axis to
its end; what is small there is still mostly its fixed part, so p may go on to grow.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.storage.custody import VARIABLE
from cipherbayes_research.benchmarks.iteration import bench_study, random_table
from cipherbayes_research.benchmarks.scans import alone, peak_megabytes

BASE: Mapping[str, int] = {"d": 32, "sites": 4, "rows": 1_000, "rounds": 20}
AXES: Mapping[str, Sequence[int]] = {
    "d": (8, 32, 128, 512, 2048),
    "sites": (2, 8, 32, 128, 512),
    "rows": (1_000, 4_000, 16_000, 64_000, 256_000),
    "rounds": (20, 80, 320, 1280),
}
WARM_UP = 2
MEASURES = (
    "site_ms", "server_ms", "csp_ms", "study_cpu_s", "megabytes", "site_bytes",
    "disk_bytes",
)  # fmt: skip


class Point(TypedDict):
    """One run: where it stands on its axis, and what it took.

    ``site_ms``, ``server_ms``, ``csp_ms`` and ``site_bytes`` are of one round and one
    site; ``study_cpu_s`` is all parties' rounds together, ``megabytes`` the peak of the
    one process that holds them all, ``disk_bytes`` what all of them keep.
    """

    axis: str
    value: int
    d: int
    sites: int
    rows: int
    rounds: int
    site_ms: float
    server_ms: float
    csp_ms: float
    study_cpu_s: float
    megabytes: float
    site_bytes: int
    disk_bytes: int


def measure(axes: Sequence[str], folder: Path) -> Iterator[Point]:
    """The points of some axes, one after the other."""
    for axis in axes:
        for value in AXES[axis]:
            yield alone(run_point, axis, value, str(folder))


def exponents(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """For each axis the exponent of each measure, over the end of its points."""
    fitted: dict[str, dict[str, float]] = {}
    for axis in dict.fromkeys(point["axis"] for point in points):
        line: list[Any] = [point for point in points if point["axis"] == axis]
        late = line[len(line) // 2 :] if len(line) > 2 else line
        x = [math.log(point["value"]) for point in late]
        fitted[axis] = {
            name: float(np.polyfit(x, [math.log(point[name]) for point in late], 1)[0])
            for name in MEASURES
        }
    return fitted


def run_point(axis: str, value: int, folder: str) -> Point:
    """One run of all parties, round by round."""
    size = {**BASE, axis: value}
    study = bench_study(size["d"], size["sites"], size["rounds"], size["rows"])
    table = random_table(study, size["rows"])
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        os.environ[VARIABLE] = str(Path(scratch) / "state")
        place = Path(scratch) / "run"
        times, message = _rounds(
            RunFolder.create(place, study, dict.fromkeys(study.sites)), table
        )
        kept = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    late = {name: statistics.median(each[WARM_UP:]) for name, each in times.items()}
    return {
        "axis": axis,
        "value": value,
        "d": size["d"],
        "sites": size["sites"],
        "rows": size["rows"],
        "rounds": size["rounds"],
        "site_ms": 1e3 * late["sites"] / size["sites"],
        "server_ms": 1e3 * late["server"],
        "csp_ms": 1e3 * late["csp"],
        "study_cpu_s": sum(map(sum, times.values())),
        "megabytes": peak_megabytes(),
        "site_bytes": message,
        "disk_bytes": kept,
    }


def _rounds(folder: RunFolder, table: Any) -> tuple[dict[str, list[float]], int]:
    """CPU seconds of each round for each kind of party, and a site's message."""
    server, _ = folder.server()
    csp = folder.csp()
    parties = {name: folder.site(name, table) for name in folder.study.sites}
    offer = csp.offer()
    manifest = server.convene([site.enrol() for site in parties.values()], offer)
    csp.join(manifest)
    for site in parties.values():
        site.join(manifest, offer)
    times: dict[str, list[float]] = {"sites": [], "server": [], "csp": []}
    message = 0
    while not server.finished:
        clock = [time.process_time()]
        _, request = server.request()
        clock.append(time.process_time())
        answers = {name: site.handle(request) for name, site in parties.items()}
        clock.append(time.process_time())
        question = server.collect(answers)
        assert question is not None  # nobody is lost here
        clock.append(time.process_time())
        total = csp.handle(question)
        clock.append(time.process_time())
        server.accept(total)
        clock.append(time.process_time())
        ask, sites, collect, decrypt, accept = np.diff(clock)
        times["server"].append(float(ask + collect + accept))
        times["sites"].append(float(sites))
        times["csp"].append(float(decrypt))
        message = max(map(len, answers.values()))
    return times, message
