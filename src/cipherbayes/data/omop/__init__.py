"""A small synthetic OMOP database, and a cohort query that real ones answer too.

Nobody's records: people are drawn from a model of 30-day mortality whose effects are
known (:data:`TRUTH`), and laid out in the tables of the OMOP common data model 5.4 that
a cohort of admissions needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import closing
from datetime import date
from importlib.resources import files
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from cipherbayes.data.databases import (
    DuckDatabase,
    PostgresDatabase,
    SqliteDatabase,
    open_database,
)
from cipherbayes.errors import DataError
from cipherbayes.typing import Floats, Integers

TRUTH: Mapping[str, float] = {
    "intercept": -2.0,
    "age": 0.05,
    "male": 0.3,
    "days_in_hospital_before": 0.02,
    "diabetes": 0.4,
    "heart_failure": 0.9,
    "creatinine": 0.25,
    "lactate": 0.35,
}
"""Log odds of death within 30 days, by unit; centred at 65 years, 1.1 and 1.8."""

MALE, FEMALE, INPATIENT = 8507, 8532, 9201
DIABETES, HEART_FAILURE = 201826, 319835
ANCESTORS = {DIABETES: 201820, HEART_FAILURE: 316139}
CREATININE, LACTATE = (3016723, 8840), (3047181, 8753)
_TYPE = 32817  # "EHR", what all records come from
_EPOCH = date(1970, 1, 1)
_FIRST, _END = date(2023, 1, 1), date(2023, 7, 1)


def cohort_query(database: str) -> str:
    """The example's SELECT, in the words of the database that an address names."""
    text = (files(__package__) / "cohort.sql").read_text(encoding="utf-8")
    if not isinstance(open_database(database), SqliteDatabase):
        return text
    for day in ("a.day - v.visit_start_date", "a.day - m.measurement_date"):
        later, earlier = day.split(" - ")
        text = text.replace(day, f"julianday({later}) - julianday({earlier})")
    return (
        text.replace(
            "v.visit_end_date - v.visit_start_date",
            "julianday(v.visit_end_date) - julianday(v.visit_start_date)",
        )
        .replace("d.death_date - a.day", "julianday(d.death_date) - julianday(a.day)")
        .replace("EXTRACT(YEAR FROM a.day)", "CAST(strftime('%Y', a.day) AS INTEGER)")
        .replace("DATE '", "'")
        .replace("PostgreSQL and DuckDB;", "SQLite;")
    )


def synthetic_omop(people: int, seed: int) -> dict[str, pa.Table]:
    """Tables of so many people, each admitted once, some of them before."""
    rng = np.random.default_rng(seed)
    person = np.arange(1, people + 1)
    male = rng.random(people) < 0.55
    age = np.clip(rng.normal(65, 16, people), 18, 100).astype(int)
    day = rng.integers((_FIRST - _EPOCH).days, (_END - _EPOCH).days, people)
    before = np.where(rng.random(people) < 0.3, rng.integers(1, 30, people), 0)
    diabetes = rng.random(people) < 0.25
    failure = rng.random(people) < 0.1 + 0.002 * (age - 18)
    creatinine = np.exp(rng.normal(0.1, 0.4, people)).round(2)
    lactate = np.exp(rng.normal(0.6, 0.5, people)).round(1)
    eta = (
        TRUTH["intercept"]
        + TRUTH["age"] * (age - 65)
        + TRUTH["male"] * male
        + TRUTH["days_in_hospital_before"] * before
        + TRUTH["diabetes"] * diabetes
        + TRUTH["heart_failure"] * failure
        + TRUTH["creatinine"] * (creatinine - 1.1)
        + TRUTH["lactate"] * (lactate - 1.8)
    )
    dies = rng.random(people) < 1.0 / (1.0 + np.exp(-eta))
    survives = rng.integers(0, 31, people)
    stay = np.minimum(rng.integers(1, 20, people), np.where(dies, survives, 20))
    year = day.astype("datetime64[D]").astype("datetime64[Y]").astype(int) + 1970
    again = np.flatnonzero(before)
    earlier = day[again] - 200
    return {
        "person": pa.table(
            {
                "person_id": person,
                "gender_concept_id": np.where(male, MALE, FEMALE),
                "year_of_birth": year - age,
                "race_concept_id": np.zeros(people, dtype=int),
                "ethnicity_concept_id": np.zeros(people, dtype=int),
            }
        ),
        "visit_occurrence": _visits(
            np.concatenate([person, person[again]]),
            np.concatenate([day, earlier]),
            np.concatenate([day + stay, earlier + before[again]]),
        ),
        "condition_occurrence": _conditions(person, day, diabetes, failure),
        "concept_ancestor": pa.table(
            {
                "ancestor_concept_id": list(ANCESTORS.values()),
                "descendant_concept_id": list(ANCESTORS),
                "min_levels_of_separation": [1] * len(ANCESTORS),
                "max_levels_of_separation": [1] * len(ANCESTORS),
            }
        ),
        "measurement": _measurements(rng, person, day, creatinine, lactate),
        "death": pa.table(
            {
                "person_id": person[dies],
                "death_date": _days((day + survives)[dies]),
                "death_type_concept_id": np.full(int(dies.sum()), _TYPE),
            }
        ),
    }


def _days(days: Integers) -> pa.Array:
    return pa.array(np.asarray(days, dtype=np.int32)).cast(pa.date32())


def _visits(person: Integers, start: Integers, end: Integers) -> pa.Table:
    return pa.table(
        {
            "visit_occurrence_id": np.arange(1, person.size + 1),
            "person_id": person,
            "visit_concept_id": np.full(person.size, INPATIENT),
            "visit_start_date": _days(start),
            "visit_end_date": _days(end),
            "visit_type_concept_id": np.full(person.size, _TYPE),
        }
    )


def _conditions(
    person: Integers, day: Integers, diabetes: Any, failure: Any
) -> pa.Table:
    who = np.concatenate([person[diabetes], person[failure]])
    when = np.concatenate([day[diabetes], day[failure]]) - 400
    what = np.repeat([DIABETES, HEART_FAILURE], [diabetes.sum(), failure.sum()])
    return pa.table(
        {
            "condition_occurrence_id": np.arange(1, who.size + 1),
            "person_id": who,
            "condition_concept_id": what,
            "condition_start_date": _days(when),
            "condition_type_concept_id": np.full(who.size, _TYPE),
        }
    )


def _measurements(
    rng: np.random.Generator,
    person: Integers,
    day: Integers,
    creatinine: Floats,
    lactate: Floats,
) -> pa.Table:
    """Two values of each kind, of which the later counts; some were never measured."""
    columns: list[list[Any]] = [[], [], [], [], []]
    for (concept, unit), values, share in (
        (CREATININE, creatinine, 0.95),
        (LACTATE, lactate, 0.8),
    ):
        kept = rng.random(person.size) < share
        for back, noise in ((9, 1.3), (1, 1.0)):
            count = int(kept.sum())
            columns[0].append(person[kept])
            columns[1].append(np.full(count, concept))
            columns[2].append(day[kept] - back)
            columns[3].append(values[kept] * noise)
            columns[4].append(np.full(count, unit))
    who, what, when, value, unit_ids = (np.concatenate(c) for c in columns)
    return pa.table(
        {
            "measurement_id": np.arange(1, who.size + 1),
            "person_id": who,
            "measurement_concept_id": what,
            "measurement_date": _days(when),
            "measurement_type_concept_id": np.full(who.size, _TYPE),
            "value_as_number": value,
            "unit_concept_id": unit_ids,
        }
    )


def build(address: str, tables: Mapping[str, pa.Table]) -> None:
    """Write tables into a database that has none of their names yet.

    Whole or not at all: a database that holds records is never changed.
    """
    database = open_database(address)
    try:
        if isinstance(database, DuckDatabase):
            _build_duckdb(database, tables)
        elif isinstance(database, PostgresDatabase):
            _ingest("adbc_driver_postgresql.dbapi", database.url, tables)
        elif isinstance(database, SqliteDatabase):
            _ingest("adbc_driver_sqlite.dbapi", str(database.path), tables)
    except ImportError:
        _refuse(
            database.name,
            "the driver is not installed",
            'pip install "cipherbayes[database]"',
        )
    except DataError:
        raise
    except Exception:  # each driver has its own, and none is for a study's reader
        _refuse(
            database.name,
            "cannot be filled",
            "give an empty database that this user may write: tables that exist are "
            "never changed",
        )


def _build_duckdb(database: DuckDatabase, tables: Mapping[str, pa.Table]) -> None:
    duckdb = importlib.import_module("duckdb")
    if database.path.is_dir():
        _refuse(database.name, "is a folder", "name a file")
    with duckdb.connect(str(database.path)) as connection:
        connection.execute("BEGIN")
        for name, table in tables.items():
            connection.register("incoming", table)
            connection.execute(f'CREATE TABLE "{name}" AS FROM incoming')
            connection.unregister("incoming")
        connection.execute("COMMIT")


def _ingest(driver: str, address: str, tables: Mapping[str, pa.Table]) -> None:
    module = importlib.import_module(driver)
    with closing(module.connect(address, autocommit=False)) as connection:
        with closing(connection.cursor()) as cursor:
            for name, table in tables.items():
                cursor.adbc_ingest(name, table, mode="create")
        connection.commit()


def _refuse(where: str, what: str, remedy: str) -> NoReturn:
    raise DataError(what, where=where, remedy=remedy) from None
