"""One ledger for each table, by whatever name it is reached."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from parties import small_study, write_tables

from cipherbayes.data.snapshots import Query, origin_of, take_snapshot
from cipherbayes.engine.table_identity import open_query_ledger, open_table_ledger
from cipherbayes.errors import BudgetError, PrivacyError
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.results.run import resume, run
from cipherbayes.storage.custody import Custody
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site, refuse_equal_rows
from conftest import logistic_frame


def opened(table: Path, ledger: Path | None = None) -> Ledger:
    given = ledger or Path(f"{table}.ledger")
    return open_table_ledger(table, given, epsilon=3.0, delta=1e-5)


def spend(ledger: Ledger, run: bytes = b"r" * 16) -> None:
    ledger.release(
        run=run, site="a", round=0, purpose="gradient", study=bytes(32),
        question=bytes(32), event=GaussianSum(2.0), compute=lambda: b"answer",
    )  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table that has spent something."""
    path = tmp_path / "north.csv"
    logistic_frame(60).to_csv(path, index=False)
    ledger = opened(path)
    spend(ledger)
    ledger.close()
    return path


# -- names -----------------------------------------------------------------------


def test_a_link_leads_to_the_ledger_of_the_file(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = folder / "alias.csv"
    link.symlink_to(table)
    through_folder = tmp_path / "way"
    through_folder.symlink_to(tmp_path)
    for name in (link, through_folder / "north.csv"):
        ledger = opened(name)
        assert ledger.path == Path(f"{table}.ledger")
        assert ledger.spent() > 0.0
        ledger.close()
    assert not list(folder.glob("*.ledger"))


def test_a_hard_link_and_a_copy_get_no_fresh_ledger(table: Path) -> None:
    for name, make in (("hard.csv", os.link), ("copy.csv", shutil.copy)):
        other = table.with_name(name)
        make(table, other)
        with pytest.raises(PrivacyError, match="has a ledger already") as refused:
            opened(other)
        assert str(table) in refused.value.remedy
        assert not Path(f"{other}.ledger").exists()


def test_a_hard_link_to_a_table_that_grew_is_known_by_its_place(table: Path) -> None:
    other = table.with_name("hard.csv")
    os.link(table, other)
    with table.open("a") as file:
        file.write("50,F,1\n")
    with pytest.raises(PrivacyError, match="has a ledger already"):
        opened(other)


def test_a_copy_over_a_table_with_a_ledger_of_its_own_is_refused(table: Path) -> None:
    other = table.with_name("south.csv")
    logistic_frame(60, seed=9).to_csv(other, index=False)
    opened(other).close()
    shutil.copy(table, other)
    with pytest.raises(PrivacyError, match="has a ledger already"):
        opened(other)


def test_a_table_that_grows_or_changes_keeps_its_ledger(table: Path) -> None:
    spent = Ledger.read(Path(f"{table}.ledger")).spent()
    for change in ("50,F,1\n", "61,M,0\n"):
        with table.open("a") as file:
            file.write(change)
        ledger = opened(table)
        assert ledger.spent() == spent
        ledger.close()
    # Back to an earlier state: still the same.
    logistic_frame(60).to_csv(table, index=False)
    assert opened(table).spent() == spent


def test_a_table_that_is_moved_with_its_ledger_keeps_it(table: Path) -> None:
    folder = table.parent / "archive"
    folder.mkdir()
    for file in table.parent.glob("north.csv*"):
        file.rename(folder / file.name)
    assert opened(folder / "north.csv").spent() > 0.0


def test_a_table_that_grew_is_not_charged_to_another_tables_ledger(
    table: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "north.csv"
    other.parent.mkdir()
    logistic_frame(60, seed=9).to_csv(other, index=False)
    opened(other).close()
    with table.open("a") as file:
        file.write("50,F,1\n")
    with pytest.raises(PrivacyError, match="has a ledger already"):
        opened(table, Path(f"{other}.ledger"))
    assert opened(table).spent() > 0.0


@pytest.mark.parametrize("grown", [False, True])
def test_another_tables_ledger_in_the_place_of_a_tables_own_needs_its_owners_word(
    table: Path, tmp_path: Path, grown: bool
) -> None:
    other = tmp_path / "other" / "north.csv"
    other.parent.mkdir()
    logistic_frame(60, seed=9).to_csv(other, index=False)
    opened(other).close()
    for file in tmp_path.glob("north.csv.ledger*"):
        file.unlink()
    shutil.copy(f"{other}.ledger", f"{table}.ledger")
    if grown:
        with table.open("a") as rows:
            rows.write("50,F,1\n")
    with pytest.raises(PrivacyError, match="exchanged for another one") as refused:
        opened(table)
    entry = re.search(r"delete (\S+)$", refused.value.remedy)
    assert entry is not None
    Path(entry[1]).unlink()
    if grown:  # else its content is known too
        for file in other.parent.glob("north.csv*"):
            file.unlink()
        assert opened(table).spent() == 0.0


def test_a_ledger_that_is_gone_is_not_begun_again(table: Path) -> None:
    for file in table.parent.glob("*.ledger*"):
        file.unlink()
    with pytest.raises(PrivacyError, match="the ledger is gone") as refused:
        opened(table)
    assert "newest copy" in refused.value.remedy
    assert not Path(f"{table}.ledger").exists()


def test_a_changed_table_whose_ledger_is_gone_needs_its_owners_word(
    table: Path,
) -> None:
    """It may have grown: then its people have spent what the ledger said."""
    for file in table.parent.glob("*.ledger*"):
        file.unlink()
    logistic_frame(60, seed=5).to_csv(table, index=False)
    with pytest.raises(PrivacyError, match="the ledger is gone") as refused:
        opened(table)
    entry = re.search(r"delete (\S+) and", refused.value.remedy)
    assert entry is not None
    Path(entry[1]).unlink()
    assert opened(table).spent() == 0.0


def test_a_table_may_be_renamed_together_with_its_ledger(table: Path) -> None:
    for file in table.parent.glob(f"{table.name}*"):
        file.rename(file.with_name(file.name.replace("north", "mortality")))
    assert opened(table.with_name("mortality.csv")).spent() > 0.0


def test_a_ledger_from_beside_a_link_is_not_forgotten(tmp_path: Path) -> None:
    """Where one was kept before, what it says was spent."""
    table, link = tmp_path / "north.csv", tmp_path / "alias.csv"
    logistic_frame(60).to_csv(table, index=False)
    link.symlink_to(table)
    Ledger.open(
        tmp_path / "alias.csv.ledger", dataset="alias.csv", epsilon=1.0, delta=1e-5
    ).close()
    with pytest.raises(PrivacyError, match="ledger of a link") as refused:
        opened(link)
    assert str(tmp_path / "north.csv.ledger") in refused.value.remedy


def test_the_owner_may_keep_a_ledger_elsewhere(table: Path, tmp_path: Path) -> None:
    other = tmp_path / "south.csv"
    logistic_frame(60, seed=5).to_csv(other, index=False)
    place = tmp_path / "ledgers" / "south"
    opened(other, place).close()
    assert Ledger.read(place).dataset == "south.csv"
    assert opened(other, place).path == place


def test_the_register_holds_no_digest_of_a_table(table: Path) -> None:
    """Only MACs of it, under the owner's key: a digest would tell who is in it."""
    import hashlib

    digest = hashlib.sha256(table.read_bytes())
    for file in (Custody.of_user().path / "tables").iterdir():
        content = file.name.encode() + file.read_bytes()
        assert digest.digest() not in content
        assert digest.hexdigest().encode() not in content


def test_a_forged_entry_of_the_register_is_refused(table: Path) -> None:
    for file in (Custody.of_user().path / "tables").iterdir():
        file.write_bytes(file.read_bytes().replace(b"north", b"south"))
    with pytest.raises(PrivacyError, match="damaged or was changed"):
        opened(table)


def test_a_second_study_through_a_link_finds_the_budget_spent(tmp_path: Path) -> None:
    study = write_tables(tmp_path, small_study(("a", "b")))
    run(study, out=tmp_path / "first")
    sites = {}
    for name, site in study.sites.items():
        link = tmp_path / f"alias-{name}.csv"
        link.symlink_to(tmp_path / f"{name}.csv")
        sites[name] = site.model_copy(update={"data": str(link)})
    with pytest.raises(BudgetError, match="budget"):
        run(study.model_copy(update={"sites": sites}), out=tmp_path / "second")


# -- equal tables ------------------------------------------------------------------

SAME: dict[str, Callable[[Path, Path], object]] = {
    "the same path": lambda a, b: None,
    "a link": lambda a, b: b.symlink_to(a),
    "a hard link": lambda a, b: os.link(a, b),
    "a copy": lambda a, b: shutil.copy(a, b),
}


def twice(folder: Path, how: str, **header: str) -> Study:
    """A study in which a table is that of two sites."""
    study = write_tables(folder, small_study(("a", "b", "c"), header=header))
    a, b = folder / "a.csv", folder / "b.csv"
    b.unlink()
    SAME[how](a, b)
    data = str(a if how == "the same path" else b)
    sites = {**study.sites, "b": study.sites["b"].model_copy(update={"data": data})}
    return study.model_copy(update={"sites": sites})


@pytest.mark.parametrize("protocol", ["secure-sum", "pooled"])
@pytest.mark.parametrize("how", SAME)
def test_one_table_at_two_sites_is_refused_before_anything_is_spent(
    tmp_path: Path, how: str, protocol: str
) -> None:
    with pytest.raises(PrivacyError, match="'a' and 'b' have the same table"):
        run(twice(tmp_path, how, protocol=protocol), out=tmp_path / "run")
    assert not list(tmp_path.glob("*.ledger"))
    assert not (tmp_path / "run" / "run.json").exists()


def test_equal_frames_are_refused_too(tmp_path: Path) -> None:
    frames = {name: logistic_frame(60, seed=name != "c") for name in "abc"}
    with pytest.raises(PrivacyError, match="have the same table"):
        run(small_study(("a", "b", "c")), frames)


def test_equal_rows_in_files_of_two_kinds_are_refused(tmp_path: Path) -> None:
    study = write_tables(tmp_path, small_study(("a", "b")))
    frame = logistic_frame(60, seed=0)
    frame.to_parquet(tmp_path / "b.parquet")
    data = str(tmp_path / "b.parquet")
    sites = {**study.sites, "b": study.sites["b"].model_copy(update={"data": data})}
    with pytest.raises(PrivacyError, match="have the same table"):
        run(study.model_copy(update={"sites": sites}))


def test_equal_rows_in_another_order_are_refused(tmp_path: Path) -> None:
    frame = logistic_frame(60)
    frames = {"a": frame, "b": frame.sort_values("age"), "c": logistic_frame(60, 9)}
    with pytest.raises(PrivacyError, match="'a' and 'b' have the same table"):
        run(small_study(("a", "b", "c")), frames)


def test_few_kinds_of_rows_may_be_as_frequent_at_two_sites() -> None:
    frame = logistic_frame(60).assign(age=50.0)
    tables = {
        name: open_site(small_study(("a", "b")), name, rows)
        for name, rows in (("a", frame), ("b", frame.iloc[::-1]))
    }
    refuse_equal_rows(tables)


def test_a_table_exchanged_for_anothers_is_noticed_when_the_run_goes_on(
    tmp_path: Path,
) -> None:
    study = write_tables(tmp_path, small_study(("a", "b")))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study, out=tmp_path / "run", progress=stop)
    shutil.copy(tmp_path / "a.csv", tmp_path / "b.csv")
    with pytest.raises(PrivacyError, match="have the same table"):
        resume(tmp_path / "run")


def test_a_copy_that_brings_a_copy_of_the_ledger_is_refused(table: Path) -> None:
    """Else two runs at once would spend one budget twice."""
    shutil.copytree(table.parent, table.parent / "two")
    with pytest.raises(PrivacyError, match="has a ledger already"):
        opened(table.parent / "two" / table.name)


def test_a_table_may_move_together_with_its_ledger(table: Path) -> None:
    new = table.parent / "moved"
    new.mkdir()
    for file in table.parent.glob(f"{table.name}*"):
        shutil.move(file, new / file.name)
    ledger = opened(new / table.name)
    assert ledger.spent() > 0.0
    ledger.close()


def test_two_copies_of_a_ledger_that_are_open_at_once_cannot_both_release(
    table: Path,
) -> None:
    path = Path(f"{table}.ledger")
    copy = table.parent / "copy.ledger"
    shutil.copy(path, copy)
    one, other = Ledger.read(path), Ledger.read(copy)
    spend(one, b"1" * 16)
    for _ in range(2):  # asked again
        with pytest.raises(PrivacyError, match=r"other records|old copy"):
            spend(other, b"2" * 16)
    with pytest.raises(PrivacyError, match=r"other records|old copy"):
        other.set_budget(9.0)  # more records than the first one has
    with pytest.raises(PrivacyError, match=r"other records|old copy"):
        spend(other, b"3" * 16)
    one.set_budget(9.0)
    spend(one, b"4" * 16)
    one.close()
    other.close()


@pytest.mark.parametrize("kind", ["sqlite", "duckdb folder"])
@pytest.mark.parametrize("copy", [os.link, shutil.copy])
def test_a_database_is_the_same_by_another_link_and_in_a_copy(
    copy: Callable[[Path, Path], object], kind: str, tmp_path: Path
) -> None:
    """A column that is never the same hides the rows, but not the files."""
    pytest.importorskip("duckdb", reason="needs cipherbayes[database]")
    file = tmp_path / "q.sql"
    file.write_text("SELECT x, random() AS r FROM t")
    addresses: list[str] = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        if kind == "sqlite":
            table, address = folder / "t.sqlite", f"sqlite:{folder / 't.sqlite'}"
        else:
            table, address = folder / "t.csv", f"duckdb:{folder}"
        if addresses:
            copy(tmp_path / "a" / table.name, table)
        elif kind == "sqlite":
            with closing(sqlite3.connect(table)) as database:
                database.execute("CREATE TABLE t AS SELECT 1 AS x UNION SELECT 2")
        else:
            table.write_text("x\n1\n2\n")
        addresses.append(address)

    def query_ledger(index: int, ledger: str) -> Ledger:
        folder = tmp_path / f"snapshot {ledger}"
        origin = origin_of(take_snapshot(Query(addresses[index], file), folder))
        assert origin is not None
        return open_query_ledger(origin, tmp_path / ledger, epsilon=3.0, delta=1e-5)

    query_ledger(0, "one.ledger").close()
    with pytest.raises(PrivacyError, match="has another ledger already"):
        query_ledger(1, "two.ledger")
