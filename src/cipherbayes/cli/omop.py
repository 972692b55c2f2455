"""``cipherbayes omop``: a synthetic OMOP database, to try a study over a query."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cipherbayes.cli.console import console
from cipherbayes.errors import RunError


def omop(
    database: Annotated[
        str,
        typer.Argument(
            help="An empty database: postgresql:///NAME, sqlite:FILE or duckdb:FILE."
        ),
    ],
    people: Annotated[int, typer.Option(min=1, help="People in it.")] = 2000,
    seed: Annotated[
        int, typer.Option(min=0, help="Another seed gives another hospital.")
    ] = 1,
    query: Annotated[
        Path, typer.Option(help="File for the example's cohort query.")
    ] = Path("cohort.sql"),
) -> None:
    """Fill an empty database with synthetic OMOP records, and write a cohort query."""
    from cipherbayes.data import omop as example

    text = example.cohort_query(database)
    if query.exists() and query.read_text(encoding="utf-8") != text:
        raise RunError(
            "exists and is another query",
            where=str(query),
            remedy="choose another --query",
        )
    example.build(database, example.synthetic_omop(people, seed))
    query.write_text(text, encoding="utf-8")
    console.print(f"{people:,} people, nobody's records", soft_wrap=True)
    console.print(f"cohort query: {query}", soft_wrap=True)
