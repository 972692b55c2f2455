"""Passes over a Parquet table of a site, and plain scans of the same columns.

What gradient_pass.py and ``cipherbayes bench --growth`` both measure. Each measurement
is made in a process of its own, so that memory is its own too.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from cipherbayes.data.preparation import Feature, Preparation
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import open_table
from cipherbayes.inference.gradient import gradient_sum
from cipherbayes.models import Logistic

FEATURES = 20
ROW_GROUP = 1 << 20
CLIP = 1.0
MODEL = Logistic(outcome="y")
NAMES = [f"x{j}" for j in range(FEATURES)]
COLUMNS = [*NAMES, "y"]


def write_table(path: Path, rows: int) -> None:
    """A table as pyarrow writes it when it is asked for nothing special."""
    rng = np.random.default_rng(0)
    schema = pa.schema([(name, pa.float64()) for name in COLUMNS])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, ROW_GROUP):
            size = min(ROW_GROUP, rows - start)
            columns = [rng.normal(size=size) for _ in NAMES]
            columns.append((rng.random(size) < 0.3).astype(float))
            writer.write_table(pa.table(columns, schema=schema))


def streamed(path: Path) -> dict[str, float]:
    """The clipped gradient over the file, which is read again for every pass."""
    features = {name: Feature(low=-3.0, high=3.0) for name in NAMES}
    preparation = Preparation(features, intercept=1.0)
    table = PreparedTable(open_table(path), preparation, MODEL, memory_limit=0)
    theta = np.linspace(-0.3, 0.3, FEATURES + 1)
    return timed(lambda: gradient_sum(MODEL, theta, table, clip=CLIP))


def scan(path: Path, name: str) -> dict[str, float]:
    """Read the columns and do nothing with them."""
    return timed(lambda: SCANS[name](path))


def scan_dataset(path: Path) -> None:
    """A dataset's scanner, as it comes."""
    for _ in ds.dataset(path).scanner(columns=COLUMNS).to_batches():
        pass


def scan_unbuffered(path: Path, batch_size: int = 131_072) -> None:
    """A scanner that reads no column ahead."""
    options = ds.ParquetFragmentScanOptions(pre_buffer=False)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    dataset = ds.dataset(path, format=form)
    for _ in dataset.scanner(columns=COLUMNS, batch_size=batch_size).to_batches():
        pass


def scan_row_groups(path: Path) -> None:
    """The same, a row group at a time."""
    scan_unbuffered(path, ROW_GROUP)


def scan_batches(path: Path) -> None:
    """The file's own batches."""
    for _ in pq.ParquetFile(path).iter_batches(columns=COLUMNS):
        pass


def scan_whole(path: Path) -> None:
    """The whole table into memory."""
    pq.read_table(path, columns=COLUMNS)


def scan_duckdb(path: Path) -> None:
    """Into Arrow batches, as pyarrow's scans; DuckDB's own column sums are no scan."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        place = str(path).replace("'", "''")
        names = ", ".join(COLUMNS)
        query = f"SELECT {names} FROM read_parquet('{place}')"  # noqa: S608
        answer = connection.sql(query)
        read = getattr(answer, "to_arrow_reader", None) or answer.fetch_arrow_reader
        for _ in read(131_072):
            pass


def _has_duckdb() -> bool:
    return importlib.util.find_spec("duckdb") is not None


SCANS: dict[str, Callable[[Path], None]] = {
    "dataset": scan_dataset,
    "dataset, not pre-buffered": scan_unbuffered,
    "dataset by row groups, not pre-buffered": scan_row_groups,
    "iter_batches": scan_batches,
    "read_table": scan_whole,
    **({"DuckDB": scan_duckdb} if _has_duckdb() else {}),
}


def seconds_of(function: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def timed(function: Callable[[], object], repeats: int = 4) -> dict[str, float]:
    """Fewest seconds of several runs, by the clock and of CPU, and peak memory."""
    seconds, cpu = [], []
    for _ in range(repeats):
        started = time.process_time()
        seconds.append(seconds_of(function))
        cpu.append(time.process_time() - started)
    return {
        "seconds": min(seconds),
        "cpu_seconds": min(cpu),
        "peak_megabytes": peak_megabytes(),
    }


def peak_megabytes() -> float:
    """Peak resident memory; of Linux, since ru_maxrss remembers the parent's."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


def alone(function: Callable[..., Any], *arguments: object) -> Any:
    """Call the function in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)
