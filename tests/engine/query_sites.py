"""A small study whose tables are queries."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
from parties import small_study

from cipherbayes.privacy.ledger import Ledger
from cipherbayes.study.schema import Study
from conftest import logistic_frame

QUERY = "SELECT age, sex, death FROM admissions -- all of them\n;\n"


def fill(file: Path, frame: pd.DataFrame, table: str = "admissions") -> None:
    """Put a frame into a database of SQLite."""
    with closing(sqlite3.connect(file)) as database:
        frame.to_sql(table, database, index=False, if_exists="replace")


def sqlite_study(
    folder: Path, names: Sequence[str] = ("a", "b"), rows: int = 60, **changes: Any
) -> Study:
    """A study whose sites have a SQLite database, a query and a ledger each."""
    folder.mkdir(parents=True, exist_ok=True)
    sites = {}
    for seed, name in enumerate(names):
        fill(folder / f"{name}.sqlite", logistic_frame(rows, seed=seed))
        (folder / f"{name}.sql").write_text(QUERY)
        sites[name] = {
            "database": f"sqlite:{folder / name}.sqlite",
            "query": str(folder / f"{name}.sql"),
            "ledger": str(folder / f"{name}.ledger"),
        }
    return with_sites(small_study(names, **changes), sites)


def with_sites(study: Study, sites: dict[str, dict[str, Any]]) -> Study:
    """The study with other entries in ``[sites]``."""
    document = study.model_dump(mode="json", exclude_none=True)
    return Study.model_validate({**document, "sites": sites})


def with_entry(study: Study, site: str, **fields: Any) -> Study:
    """The study with another entry for one site."""
    document = study.model_dump(mode="json", exclude_none=True)["sites"]
    return with_sites(study, {**document, site: {**document[site], **fields}})


def spent(ledger: Path) -> float:
    """What a ledger has been charged."""
    book = Ledger.read(ledger)
    try:
        return book.spent()
    finally:
        book.close()
