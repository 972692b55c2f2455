"""Plain scans of a Parquet table: every way that pyarrow and DuckDB have.

What gradient_pass.py and ``cipherbayes bench --growth`` compare passes with.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq

ROW_GROUP = 1 << 20
"""Rows of a row group, as pyarrow writes them when it is asked for nothing special."""


def columns_of(path: Path) -> list[str]:
    """All columns of a table."""
    return list(pq.read_schema(path).names)


def scan(path: Path, name: str) -> dict[str, float]:
    """Read the columns and do nothing with them."""
    return timed(lambda: SCANS[name](path))


def scan_dataset(path: Path) -> None:
    """A dataset's scanner, as it comes."""
    for _ in ds.dataset(path).scanner(columns=columns_of(path)).to_batches():
        pass


def scan_unbuffered(path: Path, batch_size: int = 131_072) -> None:
    """A scanner that reads no column ahead."""
    options = ds.ParquetFragmentScanOptions(pre_buffer=False)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    dataset = ds.dataset(path, format=form)
    columns = columns_of(path)
    for _ in dataset.scanner(columns=columns, batch_size=batch_size).to_batches():
        pass


def scan_row_groups(path: Path) -> None:
    """A scanner that reads no column ahead, and one row group at a time."""
    scan_unbuffered(path, ROW_GROUP)


def scan_batches(path: Path) -> None:
    """The file's own batches."""
    for _ in pq.ParquetFile(path).iter_batches(columns=columns_of(path)):
        pass


def scan_whole(path: Path) -> None:
    """The whole table into memory."""
    pq.read_table(path, columns=columns_of(path))


def scan_duckdb(path: Path) -> None:
    """Into Arrow batches, as pyarrow's scans; DuckDB's own column sums are no scan."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        place = str(path).replace("'", "''")
        names = ", ".join(columns_of(path))
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


def cost_of(function: Callable[[], object]) -> tuple[float, float]:
    """Seconds that one call takes, by the clock and of CPU in all threads."""
    started = time.process_time()
    seconds = seconds_of(function)
    return seconds, time.process_time() - started


def timed(function: Callable[[], object], repeats: int = 4) -> dict[str, float]:
    """Fewest seconds of several runs, by the clock and of CPU, and peak memory."""
    costs = [cost_of(function) for _ in range(repeats)]
    return {
        "seconds": min(seconds for seconds, _ in costs),
        "cpu_seconds": min(cpu for _, cpu in costs),
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
