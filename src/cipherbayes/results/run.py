"""Run a study: check it against its tables, sample, and put the result together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from cipherbayes.data.imputing import Expansion
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.snapshots import Query, remove_snapshot, take_snapshot
from cipherbayes.engine.local import TemporaryFolder, run_parties
from cipherbayes.engine.new_run import clear_folder, has_released, require_budgets
from cipherbayes.engine.run_folder import SNAPSHOTS, RunFolder
from cipherbayes.engine.table_identity import (
    ledger_of,
    refuse_equal_files,
    refuse_shared_ledgers,
)
from cipherbayes.errors import BudgetError, CipherbayesError, RunError, StudyError
from cipherbayes.inference.imputed import Expand
from cipherbayes.inference.multilevel import SiteTarget
from cipherbayes.inference.target import Target
from cipherbayes.models.rows import absent_role
from cipherbayes.protocols.certificate import no_budget
from cipherbayes.results.declared_records import warn_of_records
from cipherbayes.results.from_draws import assemble
from cipherbayes.results.from_private_run import assemble_private, score
from cipherbayes.results.notebook import notebook_progress
from cipherbayes.results.result import Result
from cipherbayes.storage.folders import held_folder
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import (
    as_sites,
    check_pooled,
    imputing_of,
    open_sites,
    preparation_of,
    refuse_equal_rows,
    resolve_prior,
    site_prior,
    slots_of,
    split_tables,
    with_sites,
)
from cipherbayes.typing import Floats, Progress

Given = ParamSpec("Given")
Made = TypeVar("Made")


def one_blas_thread(work: Callable[Given, Made]) -> Callable[Given, Made]:
    """A function during which the linear algebra library has one thread.

    Passes over records and chains have threads of their own. With those of a library
    inside of them threads wait for each other, on a busy machine for minutes.
    """

    @wraps(work)
    def limited(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with threadpool_limits(1, "blas"):
            return work(*args, **kwargs)

    return limited


@one_blas_thread
def run(
    study: Study,
    tables: Any = None,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a whole study on this machine.

    Parameters
    ----------
    study
        What to do.
    tables
        Site name -> path or frame; or one path or frame by itself, which is then all
        that there is. Left out: the paths and queries in the study's ``[sites]``.
    out
        Folder for the result: new, empty, or left by a run that released nothing. A
        private run that is interrupted is resumed from there (:func:`resume`). Left
        out: nothing is kept.
    progress
        Called with (rounds done, rounds in all). Left out: a bar in a notebook.

    Notes
    -----
    A table that is a file has its ledger beside it (``FILE.ledger``); a query's is
    where the study says; a frame's lasts only for the run.
    """
    require_study(study)
    study, tables = as_sites(study, tables)
    study = with_sites(study, tables)
    progress = notebook_progress() if progress is None else progress
    if study.private:
        warn_of_records(study, tables)
        if out is None:
            with TemporaryFolder() as folder:
                return _run_private(study, tables, folder, progress)
        with held_folder(Path(out)):
            return _run_private(study, tables, Path(out), progress)
    if out is None:
        return _run_without_privacy(study, tables, progress)
    with held_folder(Path(out)):
        clear_folder(Path(out))
        result = _run_without_privacy(study, tables, progress)
        result.save(Path(out))
    return result


def require_study(study: object) -> None:
    """Refuse what is no study, such as the path of its file."""
    if not isinstance(study, Study):
        raise StudyError(
            f"is no Study but of type {type(study).__name__}",
            where="run",
            remedy='read a study file with cb.Study.load("study.toml")',
        )


@one_blas_thread
def resume(out: str | Path, *, progress: Progress | None = None) -> Result:
    """Continue an interrupted private run: nothing is released twice."""
    progress = notebook_progress() if progress is None else progress
    path = Path(out)
    if (path / "result.json").exists():
        # A kill may have come between the result and the end of the run.
        with suppress(CipherbayesError):
            RunFolder.open(path).end()
        raise RunError(
            "is finished already",
            where=str(path),
            remedy="read result.json, or use `cipherbayes predict`",
        )
    started = time.perf_counter()
    folder = RunFolder.open(path)
    with held_folder(path):
        finished = run_parties(folder, None, progress)
        result = assemble_private(folder, finished, started, _held_out(folder))
        result.save(path)
        folder.end()
    return result


def _run_without_privacy(
    study: Study, tables: Mapping[str, Any] | None, progress: Progress
) -> Result:
    started = time.perf_counter()
    with TemporaryFolder() as scratch:
        # What a query returned is on the disk for as long as it is needed.
        prepared = open_sites(study, with_snapshots(study, tables, scratch))
        check_pooled(study, prepared)
        return _sampled(study, prepared, started, progress)


def _sampled(
    study: Study,
    prepared: Mapping[str, PreparedTable],
    started: float,
    progress: Progress,
) -> Result:
    """The exact posterior, by whoever holds all rows."""
    method = study.inference_method
    train, test = split_tables(study, prepared)
    target = target_of(study, train)
    draws = method.sample(target, study.inference, progress)
    learnt = target.expand.scales if isinstance(target.expand, Expansion) else None
    if isinstance(target.expand, Expansion) and not draws.is_point:
        drawn = target.expand
        constants = study.model.constants(preparation_of(study).design)
        theta = drawn.imputing.with_model_errors(
            draws.theta, drawn.scales, constants, study.inference.seed
        )
        draws = replace(draws, theta=theta)
    wall = time.perf_counter() - started
    return assemble(
        study,
        draws,
        privacy=no_budget(),
        timing={"site_s": 0.0, "server_s": 0.0, "csp_s": 0.0, "wall_s": wall},
        traffic={"per_round_site": 0, "total": 0},
        metrics=score(study, draws, test, learnt=learnt),
        warnings=[],
        column_models=learnt,
        spread=_spread(study, list(train.values())),
    )


def _spread(study: Study, tables: Sequence[PreparedTable]) -> Floats:
    """Means, then deviations, of the columns that moments would move, over all rows
    that have a value of them."""
    prepared = preparation_of(study)
    total, squares, count = 0.0, 0.0, 0.0
    for block in (block for table in tables for block in table.blocks()):
        there = np.ones_like(block.x)
        for name, known in study.features.items():
            if known.imputed:
                there[prepared.owners[name]] = 1.0 - block.outcome[absent_role(name)]
        total = total + (block.x * there).sum(axis=1)
        squares = squares + (block.x**2 * there).sum(axis=1)
        count = count + there.sum(axis=1)
    mean = np.asarray(total / np.maximum(count, 1.0))
    variance = np.maximum(squares / np.maximum(count, 1.0) - mean**2, 0.0)
    places = prepared.moved
    return np.concatenate([mean[places], np.sqrt(variance)[places]])


def target_of(study: Study, train: Mapping[str, PreparedTable]) -> Target:
    """The log posterior of all tables, of sites that are alike or may differ."""
    prior = resolve_prior(study, preparation_of(study).design)
    slots, tables = slots_of(study), list(train.values())
    expand = _imputing_from(study, tables)
    if slots is None:
        return Target(study.model, prior, tables, expand=expand)
    whole = site_prior(study, slots, prior)
    return SiteTarget(study.model, prior, tables, whole, tuple(train), expand=expand)


def _imputing_from(study: Study, tables: Sequence[PreparedTable]) -> Expand | None:
    """How missing values are drawn, from models of all tables together."""
    imputing = imputing_of(study)
    if imputing is None:
        return None
    models = imputing.models
    learnt = None
    if models.length:
        sums = [
            models.sums(block, block) for table in tables for block in table.blocks()
        ]
        learnt = models.learn(np.sum(sums, axis=0), 0.0)
    return Expansion(imputing, tables, learnt)


def _run_private(
    study: Study, tables: Mapping[str, Any] | None, path: Path, progress: Progress
) -> Result:
    started = time.perf_counter()
    folder, prepared = _new_folder(study, tables, path)
    try:
        require_budgets(folder.plan, {n: folder.local(n) for n in study.sites})
    except BudgetError:
        clear_folder(path)
        raise
    try:
        train, test = split_tables(study, prepared)
        finished = run_parties(folder, train, progress)
    except CipherbayesError:
        # A run that can only begin anew leaves no rows behind.
        if (path / SNAPSHOTS).exists() and not has_released(path):
            remove_snapshot(path / SNAPSHOTS)
        raise
    result = assemble_private(folder, finished, started, test)
    result.save(path)
    folder.end()
    return result


def _new_folder(
    study: Study, tables: Mapping[str, Any] | None, path: Path
) -> tuple[RunFolder, dict[str, PreparedTable]]:
    """A folder for a run whose tables are right, and the tables."""
    if tables is not None or not any(site.database for site in study.sites.values()):
        return _checked_folder(study, tables, path)
    clear_folder(path)
    try:
        sources = with_snapshots(study, None, path / SNAPSHOTS)
        return _checked_folder(study, sources, path, cleared=True)
    except BaseException:
        if not (path / "run.json").exists():
            remove_snapshot(path / SNAPSHOTS)
        raise


def _checked_folder(
    study: Study,
    tables: Mapping[str, Any] | None,
    path: Path,
    *,
    cleared: bool = False,
) -> tuple[RunFolder, dict[str, PreparedTable]]:
    """The folder, if no two tables are the same, and the tables."""
    prepared = open_sites(study, tables)
    sources = tables or {name: site.data for name, site in study.sites.items()}
    files = {n: s for n, s in sources.items() if isinstance(s, str | Path)}
    located = study.model_copy(
        update={
            "sites": {
                name: site.model_copy(
                    update={"data": str(files[name]) if name in files else None}
                )
                for name, site in study.sites.items()
            }
        }
    )
    if study.study.engine == "local-processes" and len(files) < len(study.sites):
        raise StudyError(
            'engine = "local-processes" needs tables that are files',
            where=f"study '{study.name}'",
            remedy='write the frames to Parquet, or set engine = "in-process"',
        )
    ledgers = {
        name: ledger_of(site, files[name]) if name in files else None
        for name, site in study.sites.items()
    }
    refuse_equal_files({name: Path(file) for name, file in files.items()})
    refuse_equal_rows(prepared)
    refuse_shared_ledgers(ledgers)
    if not cleared:
        clear_folder(path)
    return RunFolder.create(path, located, ledgers), prepared


def with_snapshots(
    study: Study, tables: Mapping[str, Any] | None, folder: Path
) -> Mapping[str, Any]:
    """The tables by site, where every query of the study has become a file."""
    if tables is not None:
        return tables
    sources = {name: site.table for name, site in study.sites.items()}
    return {
        name: take_snapshot(source, folder / name)
        if isinstance(source, Query)
        else source
        for name, source in sources.items()
    }


def _held_out(folder: RunFolder) -> dict[str, PreparedTable]:
    """The held-out rows of a resumed run."""
    if folder.study.evaluation is None or folder.study.checks_privately:
        return {}
    sources = {name: folder.local(name)["data"] for name in folder.study.sites}
    return split_tables(folder.study, open_sites(folder.study, sources))[1]
