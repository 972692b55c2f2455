"""The synthetic OMOP database and its cohort query."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cipherbayes.data.omop import TRUTH, build, cohort_query, synthetic_omop
from cipherbayes.data.snapshots import Query, origin_of, take_snapshot
from cipherbayes.errors import DataError
from terminal import cipherbayes

pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
pytest.importorskip("duckdb", reason="needs cipherbayes[database]")

KINDS = ("sqlite", "duckdb")


def cohort(folder: Path, kind: str, people: int = 300, seed: int = 1) -> Path:
    address = f"{kind}:{folder / kind}.db"
    build(address, synthetic_omop(people, seed))
    (folder / f"{kind}.sql").write_text(cohort_query(address))
    return take_snapshot(Query(address, folder / f"{kind}.sql"), folder / kind)


def test_every_database_gives_the_same_cohort(tmp_path: Path) -> None:
    digests = set()
    for kind in KINDS:
        origin = origin_of(cohort(tmp_path, kind))
        assert origin is not None
        digests.add(origin.digest)
    assert len(digests) == 1


def test_the_cohort_is_the_people_that_were_drawn(tmp_path: Path) -> None:
    tables = {n: t.to_pandas() for n, t in synthetic_omop(4000, 2).items()}
    rows = pd.read_parquet(cohort(tmp_path, "duckdb", 4000, 2))
    assert len(rows) == 4000
    assert rows["death_30_days"].sum() == len(tables["death"])
    again = tables["visit_occurrence"]["person_id"].duplicated().sum()
    assert (rows["days_in_hospital_before"] > 0).sum() == again > 1000
    conditions = tables["condition_occurrence"]
    assert rows["diabetes"].sum() + rows["heart_failure"].sum() == len(conditions)
    assert 0.9 < rows["creatinine"].notna().mean() < 1.0
    assert rows["age"].between(18, 101).all()
    # Mortality rises as the truth says, in whoever has every value.
    whole = rows.dropna()
    eta = (
        TRUTH["intercept"]
        + TRUTH["age"] * (whole["age"] - 65)
        + TRUTH["male"] * (whole["sex"] == "M")
        + TRUTH["lactate"] * (whole["lactate"] - 1.8)
        + TRUTH["creatinine"] * (whole["creatinine"] - 1.1)
        + TRUTH["days_in_hospital_before"] * whole["days_in_hospital_before"]
        + TRUTH["diabetes"] * whole["diabetes"]
        + TRUTH["heart_failure"] * whole["heart_failure"]
    )
    expected = 1.0 / (1.0 + np.exp(-eta))
    # 3400 outcomes: four standard errors of their mean are 0.03.
    assert abs(whole["death_30_days"].mean() - expected.mean()) < 0.03
    assert np.corrcoef(whole["death_30_days"], expected)[0, 1] > 0.3


def test_another_seed_is_another_hospital(tmp_path: Path) -> None:
    first = synthetic_omop(50, 1)
    assert synthetic_omop(50, 1) == first
    assert synthetic_omop(50, 2)["person"] != first["person"]


def test_a_database_that_holds_records_is_not_changed(tmp_path: Path) -> None:
    for kind in KINDS:
        cohort(tmp_path, kind)
        address = f"{kind}:{tmp_path / kind}.db"
        with pytest.raises(DataError, match="cannot be filled"):
            build(address, synthetic_omop(10, 9))
        asked = Query(address, tmp_path / f"{kind}.sql")
        assert len(pd.read_parquet(take_snapshot(asked, tmp_path / f"{kind}2"))) == 300


def test_the_command_builds_a_database_and_writes_its_query(tmp_path: Path) -> None:
    done = cipherbayes("omop", "sqlite:h.db", "--people", "20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "SQLite" in (tmp_path / "cohort.sql").read_text()
    (tmp_path / "cohort.sql").write_text("SELECT 1")
    done = cipherbayes("omop", "sqlite:g.db", cwd=tmp_path)
    assert done.returncode == 1
    assert "is another query" in done.stderr
    assert not (tmp_path / "g.db").exists()
    secret = "postgresql://me:s3cret@h/x"
    assert "s3cret" not in cipherbayes("omop", secret, cwd=tmp_path).stderr
