"""``cipherbayes check``: a study's tables, before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cipherbayes.cli.console import console
from cipherbayes.errors import DataError

if TYPE_CHECKING:
    from cipherbayes.data.snapshots import Query
    from cipherbayes.engine.table_check import TableProblems
    from cipherbayes.study.schema import Study


def check(
    study: Annotated[Path, typer.Argument(help="The study file (TOML).")],
) -> None:
    """Say everything that keeps a study's tables from a run; spend nothing.

    Of each table that is on this machine: columns, levels, missing values, outcomes.
    """
    from cipherbayes.data.snapshots import Query
    from cipherbayes.engine.table_check import check_table
    from cipherbayes.study.schema import Study
    from cipherbayes.study.tables import with_sites

    loaded = with_sites(Study.load(study), None)
    wrong = 0
    for name, site in loaded.sites.items():
        if isinstance(site.table, Query):
            shown, found = check_query(loaded, name, site.table, study.parent)
        elif site.table is None:
            continue
        else:
            shown, found = str(site.table), check_table(loaded, name, site.table)
        print_problems(shown, found)
        wrong += len(found.problems)
    if wrong:
        raise typer.Exit(1)


def check_query(
    study: Study, site: str, query: Query, folder: Path
) -> tuple[str, TableProblems]:
    """A query's name, and what is wrong with the rows that it gives now."""
    from cipherbayes.data.snapshots import short_snapshot
    from cipherbayes.engine.table_check import check_table

    for doubt in query.doubts():
        console.print(
            f"warning: {doubt}", highlight=False, markup=False, soft_wrap=True
        )
    with short_snapshot(query, folder) as rows:
        return query.name, check_table(study, site, rows)


def print_problems(source: str, found: TableProblems) -> None:
    """What is wrong with a table, one line each, and whether it fits."""
    for problem in found.problems:
        console.print(f"- {problem}", highlight=False, markup=False, soft_wrap=True)
    rows = "" if found.rows is None else f" ({found.rows:,} rows)"
    verdict = f"does not fit, {len(found.problems)} problem(s)"
    console.print(
        f"{source}{rows}: {verdict if found.problems else 'fits the study'}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def all_problems(study: Study, first: DataError) -> DataError:
    """All that is wrong with the files of a run that a table's fault has ended; where
    it is more than one thing, standard error has a line for each.

    For whoever runs a study on tables of his own: other parties are told nothing. A
    wrong header line is one fault, however many columns it hides.
    """
    from cipherbayes.engine.table_check import check_table

    if first.what.startswith("has no column"):
        return first
    files = {
        name: site.table
        for name, site in study.sites.items()
        if isinstance(site.table, str | Path)
    }
    found = [
        problem
        for name, file in files.items()
        for problem in check_table(study, name, file).problems
    ]
    if not any(problem.startswith(str(first)) for problem in found):
        found.insert(0, str(first))
    if len(found) == 1:
        return DataError(found[0])
    for problem in found:
        typer.echo(f"- {problem}", err=True)
    return DataError(
        f"{len(found)} things are wrong with the tables",
        remedy="correct them; `cipherbayes check` lists them without a run",
    )
