"""What an experiment is, and how one is run from end to end."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cipherbayes.errors import DataError, RunError
from cipherbayes.typing import Progress
from cipherbayes_research.paper.cells import (
    Cell,
    CellStore,
    Outcome,
    Results,
    Sources,
    compute_cells,
    known_cells,
)
from cipherbayes_research.paper.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = (
    "density",
    "logistic",
    "survival",
    "sites",
    "imbalance",
    "priors",
    "constants",
    "timing",
    "approximation",
    "peers",
)

USUAL_PLACES = (
    "set-a.tar.gz",
    "data/set-a.tar.gz",
    "examples/data/set-a.tar.gz",
)


@dataclass(frozen=True)
class Experiment:
    """One figure or table.

    Attributes
    ----------
    needs
        The data set that it reads.
    cells
        The fits it is made of; fewer where quick.
    compute
        One of them; a function of a module, called in worker processes.
    report
        What they say together.
    draw
        The picture of a report.
    parallel
        False where timings would disturb each other.
    """

    title: str
    needs: Literal["physionet2012", "flchain"] | None
    cells: Callable[[bool], list[Cell]]
    compute: Callable[[Cell, Sources], Outcome]
    report: Callable[[Results, bool], Report]
    draw: Callable[[Report], Figure]
    parallel: bool = True


def experiment(name: str) -> Experiment:
    """The experiment of a name, imported when asked for."""
    found = import_module(f"cipherbayes_research.paper.{name}").EXPERIMENT
    assert isinstance(found, Experiment)
    return found


def reproduce(
    name: str,
    *,
    out: Path,
    quick: bool = False,
    data: Path | None = None,
    finished: bool = False,
    progress: Progress = lambda done, total: None,
    workers: int | None = None,
) -> Report:
    """Run an experiment and write its table and picture.

    Parameters
    ----------
    out
        Folder for ``NAME.json``, ``NAME.csv``, ``NAME.svg`` and the cells that an
        interrupted run goes on from; with ``quick`` its subfolder ``quick``.
    data
        PhysioNet's ``set-a.tar.gz`` or folder, or a CSV of FLchain.
    finished
        Run nothing: table and picture of the cells that are finished.
    """
    if name not in NAMES:
        raise RunError(
            f"no experiment is called '{name}'", remedy=f"one of {', '.join(NAMES)}"
        )
    # Every core has a process of its own: more threads only get in each other's way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    chosen = experiment(name)
    folder = (out / "quick" if quick else out) / name
    cells, path = chosen.cells(quick), folder / "cells.jsonl"
    if finished:
        results = finished_cells(name, out, quick=quick)
        if not results:
            raise RunError(
                "no cell is finished",
                where=str(path),
                remedy="run it without --finished",
            )
    else:
        sources = _sources(chosen, out, data)
        store = CellStore(path, name=name, quick=quick)
        for cell, outcome in finished_cells(name, out, quick=quick).items():
            if cell not in store.results:
                store.keep(cell, outcome)
        results = compute_cells(
            store,
            cells,
            chosen.compute,
            sources,
            progress=progress,
            workers=workers if chosen.parallel else 0,
        )
    report = chosen.report(results, quick)
    if len(results) < len(cells):
        report.notes.append(f"{len(results)} of {len(cells)} cells are finished")
    report.write(folder)
    from cipherbayes_research.paper.pictures import save

    save(chosen.draw(report), folder / f"{name}.svg")
    return report


def finished_cells(name: str, out: Path, *, quick: bool = False) -> Results:
    """Cells that are known already, from this experiment or from another in the folder
    that computes them alike."""
    chosen = experiment(name)
    folder = out / "quick" if quick else out
    known: Results = {}
    for other in (*(each for each in NAMES if each != name), name):
        path = folder / other / "cells.jsonl"
        if not path.exists() or experiment(other).compute is not chosen.compute:
            continue
        try:
            known |= known_cells(path, name=other, quick=quick)
        except RunError:
            if other == name:
                raise
            # Another's, of another release or damaged, is not needed.
    return {cell: known[cell] for cell in chosen.cells(quick) if cell in known}


def _sources(chosen: Experiment, out: Path, data: Path | None) -> Sources:
    if chosen.needs == "flchain":
        return Sources(flchain=data)
    if chosen.needs is None:
        return Sources()
    archive = data or next((p for p in map(Path, USUAL_PLACES) if p.exists()), None)
    if archive is None:
        raise DataError(
            "needs PhysioNet 2012's set A",
            where="--data",
            remedy="give set-a.tar.gz, set-a.zip or the folder set-a",
        )
    from cipherbayes_research.datasets.physionet2012 import load_physionet2012
    from cipherbayes_research.datasets.splitting import write_table

    cached = out / "physionet2012.parquet"
    if data is not None or not cached.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_table(load_physionet2012(archive, missing="keep"), cached)
    return Sources(physionet=cached)
