"""Experiments as cells: each computed once, kept at once, on all cores.

A full experiment is hundreds of independent fits. Each is a :class:`Cell`; what a
cell gave is appended to ``cells.jsonl`` the moment it is known, so that an
interrupted experiment goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cipherbayes.errors import RunError
from cipherbayes.typing import Progress
from cipherbayes.version import __version__

Outcome = dict[str, Any]


@dataclass(frozen=True, order=True)
class Cell:
    """One fit of an experiment.

    Attributes
    ----------
    kind
        What is run, in the experiment's own words.
    split
        Number of the split into training and test rows.
    sites
        K; 1 where all rows are in one place.
    epsilon
        The budget, or the paper's claim; 0 for none.
    choice
        What else distinguishes it: a prior, a constant, a peer's setting.
    """

    kind: str
    split: int = 0
    sites: int = 1
    epsilon: float = 0.0
    choice: str = ""


Results = dict[Cell, Outcome]


@dataclass(frozen=True)
class Sources:
    """Where the data of an experiment is.

    Attributes
    ----------
    physionet
        PhysioNet 2012 as a Parquet table, missing values empty.
    flchain
        A CSV of R's ``survival::flchain``; None for scikit-survival's copy.
    """

    physionet: Path | None = None
    flchain: Path | None = None


def known_cells(path: Path, *, name: str, quick: bool) -> Results:
    """What a file of cells holds; the file is left as it is.

    Raises
    ------
    RunError
        For the cells of another experiment or release, and for a damaged file.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    try:
        same = json.loads(lines[0]) == _header(name, quick)
    except ValueError:
        same = False
    if not same:
        raise RunError(
            "holds another experiment, or one of another release",
            where=str(path),
            remedy="give another --out, or remove the file to start again",
        )
    results: Results = {}
    # What follows the last newline was cut off while it was written.
    for line in lines[1:-1]:
        try:
            entry = json.loads(line)
            results[Cell(**entry["cell"])] = entry["outcome"]
        except (ValueError, KeyError, TypeError):
            raise RunError(
                "is damaged",
                where=str(path),
                remedy="remove it to start again",
            ) from None
    return results


def _header(name: str, quick: bool) -> dict[str, Any]:
    return {"reproduce": name, "quick": quick, "release": __version__}


class CellStore:
    """What cells gave, one JSON line each, behind a header that names the run."""

    def __init__(self, path: Path, *, name: str, quick: bool) -> None:
        self._path = path
        self.results: Results = {}
        if path.exists():
            self.results = known_cells(path, name=name, quick=quick)
            self._drop_what_was_cut_off()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            header = json.dumps(_header(name, quick))
            path.write_text(header + "\n", encoding="utf-8")

    def _drop_what_was_cut_off(self) -> None:
        whole, newline, rest = self._path.read_text(encoding="utf-8").rpartition("\n")
        if rest:
            self._path.write_text(whole + newline, encoding="utf-8")

    def keep(self, cell: Cell, outcome: Outcome) -> None:
        """Make an outcome durable."""
        entry = {"cell": asdict(cell), "outcome": outcome}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.results[cell] = outcome


def compute_cells(
    store: CellStore,
    cells: Sequence[Cell],
    compute: Callable[[Cell, Sources], Outcome],
    sources: Sources,
    *,
    progress: Progress,
    workers: int | None = None,
) -> Results:
    """Compute what the store does not hold yet, in processes.

    Parameters
    ----------
    compute
        A function of a module, since it is called in other processes.
    workers
        Processes; one for each core where None, none at all where 0.
    """
    missing = [cell for cell in cells if cell not in store.results]
    done = len(cells) - len(missing)
    progress(done, len(cells))
    for cell, outcome in _outcomes(missing, compute, sources, workers):
        store.keep(cell, outcome)
        done += 1
        progress(done, len(cells))
    return {cell: store.results[cell] for cell in cells}


def _outcomes(
    cells: Sequence[Cell],
    compute: Callable[[Cell, Sources], Outcome],
    sources: Sources,
    workers: int | None,
) -> Iterable[tuple[Cell, Outcome]]:
    count = (os.cpu_count() or 1) if workers is None else workers
    count = min(count, len(cells))
    if count <= 1:
        for cell in cells:
            yield cell, compute(cell, sources)
        return
    # Forked children of a process with threads may hang: start them afresh.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(compute, cell, sources): cell for cell in cells}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
