"""Where a run may begin: a folder in which nothing was released is used again."""

from __future__ import annotations

from pathlib import Path

import pytest
from parties import small_study, write_tables

from cipherbayes.engine.new_run import clear_folder, has_released, require_free_folder
from cipherbayes.engine.run_folder import BEGUN, RunFolder
from cipherbayes.engine.table_identity import ledger_beside
from cipherbayes.errors import DataError, RunError
from cipherbayes.results.run import resume, run
from cipherbayes.storage.folders import held_folder
from cipherbayes.study.schema import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return write_tables(tmp_path, small_study(("a", "b")))


class StopError(Exception):
    pass


def stop(done: int, total: int) -> None:
    raise StopError


def laid_out(path: Path, study: Study) -> RunFolder:
    files = {n: ledger_beside(str(site.data)) for n, site in study.sites.items()}
    return RunFolder.create(path, study, files)


def test_a_run_that_released_nothing_leaves_its_folder_free(
    tmp_path: Path, study: Study
) -> None:
    out = tmp_path / "run"
    (tmp_path / "b.csv").rename(tmp_path / "away.csv")
    with pytest.raises(DataError, match="no such file"):
        run(study, out=out)
    (tmp_path / "away.csv").rename(tmp_path / "b.csv")
    laid_out(out, study)  # as a kill before the first round leaves it
    (out / "run.log").write_text("what happened", encoding="utf-8")
    assert not has_released(out)
    assert run(study, out=out).record["rounds"] == 4
    assert (out / "run.log").read_text(encoding="utf-8") == "what happened"


def test_a_folder_that_was_half_laid_out_or_half_cleared_is_free(
    tmp_path: Path, study: Study
) -> None:
    out = tmp_path / "run"
    laid_out(out, study)
    (out / "run.json").rename(out / BEGUN)
    clear_folder(out)
    assert list(out.iterdir()) == []


def test_a_run_that_was_cut_after_a_release_says_resume(
    tmp_path: Path, study: Study
) -> None:
    out = tmp_path / "run"
    with pytest.raises(StopError):
        run(study, out=out, progress=stop)
    before = sorted(out.rglob("*"))
    with pytest.raises(RunError, match=f"cipherbayes resume {out}"):
        run(study, out=out)
    assert sorted(out.rglob("*")) == before
    assert resume(out).record["rounds"] == 4
    with pytest.raises(RunError, match="holds a finished run"):
        run(study, out=out)


def test_a_folder_of_somebody_elses_is_never_cleared(
    tmp_path: Path, study: Study
) -> None:
    out = tmp_path / "mine"
    for name in ("study.toml", "sites/north.csv", "csp/key"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine", encoding="utf-8")
    with pytest.raises(RunError, match="not empty"):
        clear_folder(out)
    laid_out(tmp_path / "run", study)
    (tmp_path / "run" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RunError, match="not empty"):
        clear_folder(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").exists()


def test_a_run_whose_ledger_cannot_be_read_is_not_thrown_away(
    tmp_path: Path, study: Study
) -> None:
    out = tmp_path / "run"
    with pytest.raises(StopError):
        run(study, out=out, progress=stop)
    (tmp_path / "a.csv.ledger").write_bytes(b"damaged")
    with pytest.raises(RunError, match="resume"):
        require_free_folder(out)


def test_two_runs_never_share_a_folder(tmp_path: Path, study: Study) -> None:
    out = tmp_path / "run"
    with held_folder(out), pytest.raises(RunError, match="another run is at work"):
        run(study, out=out)
    run(study, out=out)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, study: Study) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunError, match="cannot be made"):
        run(study, out=tmp_path / "file" / "run")
