"""How many other people's rows change when one person leaves a database.

    python research/benchmarks/query_order.py [--postgresql ADDRESS]

A mean for each person, and the first of a person's rows by a day that ties, with the
settings that a site's query runs under and with the database's own. ADDRESS is of a
database in which temporary tables may be made.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

QUERIES = {
    "mean": "SELECT p, AVG(v) AS v FROM {} GROUP BY p",
    "first row": "SELECT p, v FROM (SELECT *, ROW_NUMBER() OVER "
    "(PARTITION BY p ORDER BY d) AS r FROM {}) AS x WHERE r = 1",
}
CHANGED = "SELECT COUNT(*) FROM whole JOIN less USING (p) WHERE whole.v <> less.v"


def duckdb_rows(folder: Path, people: int, each: int) -> None:
    """Print how many rows change in DuckDB, with one thread and with two."""
    import duckdb

    rng = np.random.default_rng(0)
    p = np.repeat(np.arange(people), each)[rng.permutation(people * each)]
    table = pa.table(
        {"p": p, "v": rng.lognormal(0, 0.5, p.size), "d": rng.integers(0, 4, p.size)}
    )
    pq.write_table(table, folder / "whole.parquet")
    pq.write_table(table.filter(pa.array(p != 7)), folder / "less.parquet")
    for threads in ("1", "2"):
        for name, query in QUERIES.items():
            with duckdb.connect(config={"threads": threads}) as base:
                for part in ("whole", "less"):
                    rows = query.format(f"'{folder / part}.parquet'")
                    base.execute(f"CREATE TABLE {part} AS {rows}")
                (changed,) = base.execute(CHANGED).fetchone()
            print(f"DuckDB, {threads} threads, {name}: {changed:,} of {people:,}")


def postgresql_rows(address: str, people: int, each: int) -> None:
    """Print how many rows change in PostgreSQL, as sites read it and as it comes."""
    from cipherbayes.data.databases.postgresql import IN_ONE_ORDER

    dbapi = importlib.import_module("adbc_driver_postgresql.dbapi")
    with dbapi.connect(address) as connection, connection.cursor() as cursor:
        for statement in (
            "SELECT setseed(0.3)::text",
            f"CREATE TEMP TABLE a AS SELECT (random() * {people})::int AS p, "
            "exp(random()) AS v, (random() * 3)::int AS d "
            f"FROM generate_series(1, {people * each})",
            "CREATE TEMP TABLE b AS SELECT * FROM a WHERE p <> 7",
            "ANALYZE a",
            "ANALYZE b",
        ):
            cursor.execute(statement)
        for label, settings in (("as it comes", ()), ("as read", IN_ONE_ORDER)):
            for setting in settings:
                cursor.execute(setting)
            for name, query in QUERIES.items():
                for part, source in (("whole", "a"), ("less", "b")):
                    cursor.execute(f"DROP TABLE IF EXISTS {part}")
                    rows = query.format(source)
                    cursor.execute(f"CREATE TEMP TABLE {part} AS {rows}")
                cursor.execute(CHANGED)
                ((changed,),) = cursor.fetchall()
                print(f"PostgreSQL, {label}, {name}: {changed:,} of {people:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgresql", metavar="ADDRESS")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        duckdb_rows(Path(folder), people=300_000, each=8)
    if given.postgresql:
        postgresql_rows(given.postgresql, people=40_000, each=10)


if __name__ == "__main__":
    main()
