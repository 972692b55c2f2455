"""A query as the table of a site with a kit: when it is read, where its rows are."""

from __future__ import annotations

import os
import shutil

import pytest
from parties import small_study
from query_sites import QUERY, fill

from cipherbayes.errors import CipherbayesError, PrivacyError, RunError
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger
from conftest import logistic_frame

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from small_kits import RUN, SITES, fresh, kits, pinned

from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.starting import check_ready

__all__ = ["fresh", "kits"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('data = { database = "sqlite:a.db", query = "a.sql" }', "needs a ledger"),
        ('data = { query = "a.sql" }\nledger = "l"', "no usable query"),
        ('data = { database = 3, query = "a.sql" }\nledger = "l"', "valid string"),
        ('data = { database = "d", query = "q", x = 1 }\nledger = "l"', "no usable"),
        (
            'data = { database = "postgresql://u:s3cret@h/d", query = "q" }\n'
            'ledger = "l"',
            "holds a password",
        ),
    ],
)
def test_a_sites_query_must_be_usable(
    fresh: dict[str, Kit], text: str, words: str
) -> None:
    (fresh["a"].path / "site.toml").write_text(text)
    with pytest.raises(RunError, match=words) as refused:
        fresh["a"].settings()
    assert "s3cret" not in str(refused.value)


def test_a_sites_query_is_read_once_a_run_and_its_rows_go_with_the_run(
    fresh: dict[str, Kit],
) -> None:
    pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
    kit = pinned(fresh)["a"]
    fill(kit.path / "a.sqlite", logistic_frame(60, seed=1))
    (kit.path / "cohort.sql").write_text(QUERY)
    (kit.path / "site.toml").write_text(
        'data = { database = "sqlite:a.sqlite", query = "cohort.sql" }\n'
        'ledger = "cohort.ledger"\n'
    )
    check_ready(kit)
    folder = kit.run(RUN, small_study(SITES))
    site = folder.site("a")
    rows = kit.path / "runs" / RUN / "snapshot" / "query.parquet"
    assert rows.stat().st_mode & 0o777 == 0o600
    assert rows.parent.stat().st_mode & 0o777 == 0o700
    assert (kit.path / "cohort.ledger").exists()
    book = Ledger.read(kit.path / "cohort.ledger")
    book.release(
        run=bytes.fromhex(RUN), site="a", round=0, purpose="gradient", study=bytes(32),
        question=bytes(32), event=GaussianSum(4.0), compute=lambda: b"",
    )  # fmt: skip
    book.close()
    # The process is started again, and the database has changed.
    fill(kit.path / "a.sqlite", logistic_frame(40, seed=2))
    again = kit.run(RUN, small_study(SITES))
    assert again.table("a").count == 60
    # Another run reads the query anew, and is charged to the same ledger.
    other = kit.run("11" * 16, small_study(SITES))
    assert other.table("a").count == 40
    assert rows.exists()
    other.site("a").end()
    assert not (kit.path / "runs" / ("11" * 16) / "snapshot").exists()
    site.end()
    assert not rows.parent.exists()


def test_a_query_is_read_anew_while_a_run_was_charged_for_nothing(
    fresh: dict[str, Kit],
) -> None:
    pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
    kit = pinned(fresh)["a"]
    fill(kit.path / "a.sqlite", logistic_frame(60, seed=1))
    query, rows = kit.path / "cohort.sql", kit.path / "runs" / RUN / "snapshot"
    query.write_text("SELECT age, sex, 'no' AS death FROM admissions")
    (kit.path / "site.toml").write_text(
        'data = { database = "sqlite:a.sqlite", query = "cohort.sql" }\n'
        'ledger = "cohort.ledger"\n'
    )
    with pytest.raises(CipherbayesError, match="death"):
        kit.run(RUN, small_study(SITES)).site("a")
    assert not rows.exists()
    query.write_text(QUERY)
    assert kit.run(RUN, small_study(SITES)).site("a") is not None
    assert rows.exists()
    query.write_text("SELECT age, sex, death FROM admissions LIMIT 50")
    assert kit.run(RUN, small_study(SITES)).table("a").count == 50


def test_a_run_goes_on_over_its_own_rows_or_not_at_all(fresh: dict[str, Kit]) -> None:
    pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
    kit = pinned(fresh)["a"]

    def name(cohort: str) -> None:
        (kit.path / f"{cohort}.sql").write_text(QUERY + f" -- {cohort}")
        (kit.path / "site.toml").write_text(
            f'data = {{ database = "sqlite:{cohort}.sqlite", query = "{cohort}.sql" }}'
            f'\nledger = "{cohort}.ledger"\n'
        )

    for seed, cohort in enumerate(("one", "two")):
        fill(kit.path / f"{cohort}.sqlite", logistic_frame(60, seed=seed))
    name("one")
    kit.run(RUN, small_study(SITES)).site("a")
    book = Ledger.read(kit.path / "one.ledger")
    book.release(
        run=bytes.fromhex(RUN), site="a", round=0, purpose="gradient", study=bytes(32),
        question=bytes(32), event=GaussianSum(4.0), compute=lambda: b"",
    )  # fmt: skip
    book.close()
    rows = kit.path / "runs" / RUN / "snapshot"
    # Two days later a run of another query, with a ledger of its own.
    os.utime(rows, (0, 0))
    name("two")
    kit.run("11" * 16, small_study(SITES)).table("a")
    assert rows.exists()
    with pytest.raises(RunError, match="charged to another ledger"):
        kit.run(RUN, small_study(SITES)).site("a")
    # The rows are lost, and the database went on.
    name("one")
    shutil.rmtree(rows)
    fill(kit.path / "one.sqlite", logistic_frame(50, seed=3))
    with pytest.raises(PrivacyError, match="changed since the run began"):
        kit.run(RUN, small_study(SITES)).site("a")
    # With the same rows it goes on.
    fill(kit.path / "one.sqlite", logistic_frame(60, seed=0))
    assert kit.run(RUN, small_study(SITES)).site("a") is not None


def test_rows_of_a_run_that_was_given_up_are_removed_by_the_next(
    fresh: dict[str, Kit],
) -> None:
    pytest.importorskip("adbc_driver_sqlite", reason="needs cipherbayes[database]")
    kit = pinned(fresh)["a"]
    fill(kit.path / "a.sqlite", logistic_frame(60, seed=1))
    (kit.path / "cohort.sql").write_text(QUERY)
    (kit.path / "site.toml").write_text(
        'data = { database = "sqlite:a.sqlite", query = "cohort.sql" }\n'
        'ledger = "cohort.ledger"\n'
    )
    kit.run(RUN, small_study(SITES)).table("a")
    old = kit.path / "runs" / RUN / "snapshot"
    kit.run("11" * 16, small_study(SITES)).table("a")
    assert old.exists()
    os.utime(old, (0, 0))
    kit.run("22" * 16, small_study(SITES)).table("a")
    assert not old.exists()
