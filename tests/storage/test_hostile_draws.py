"""A file of draws says one thing to all who read it, and no more than it holds."""

from __future__ import annotations

import hashlib
import json
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import pytest

from cipherbayes.errors import RunError
from cipherbayes.report.page import write_report
from cipherbayes.results.result import Result
from cipherbayes.storage.posterior_file import read_posterior
from cipherbayes.storage.posterior_form import ForeignFileError
from cipherbayes.study.rival import read_rival
from cipherbayes.validation.verify import verify
from finished_runs import FinishedRuns, runs
from hostile_draws import HOSTILE
from terminal import cipherbayes

__all__ = ["runs"]


@pytest.fixture
def folder(runs: FinishedRuns, tmp_path: Path) -> Path:
    shutil.copytree(runs["point"], tmp_path / "out")
    return tmp_path / "out"


def tamper(folder: Path, change: Callable[[h5py.File], None]) -> Path:
    """Change the draws, and the hash of them in result.json."""
    path = folder / "posterior.nc"
    with h5py.File(path, "r+") as file:
        change(file)
    name(folder, path.read_bytes())
    return path


def name(folder: Path, content: bytes) -> None:
    record = json.loads((folder / "result.json").read_text())
    record["posterior_sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "result.json").write_text(json.dumps(record))


@pytest.mark.parametrize("place", ["posterior/theta", "posterior", "posterior.theta"])
def test_two_things_of_one_name_are_refused(folder: Path, place: str) -> None:
    """Readers differ in which of them they take."""

    def beside(file: h5py.File) -> None:
        if "." in place:
            held = file[place.replace(".", "/")].attrs
            held["LABEL_"] = b"x"
            held["LABELS"] = b"x"
        else:
            file.copy(place, f"{place[:-1]}_")

    path = tamper(folder, beside)
    first, other = (b"LABEL_", b"LABELS") if "." in place else (
        place.split("/")[-1][:-1].encode() + b"_", place.split("/")[-1].encode()
    )  # fmt: skip
    content = path.read_bytes()
    assert content.count(first + b"\0") == 1
    path.write_bytes(content.replace(first + b"\0", other + b"\0"))
    name(folder, path.read_bytes())
    with pytest.raises(ForeignFileError, match="two things of one name"):
        read_posterior(path)


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_run_writes_is_refused_before_it_is_read(
    folder: Path, kind: str
) -> None:
    path = tamper(folder, HOSTILE[kind])
    tracemalloc.start()
    with pytest.raises(ForeignFileError, match=r"^posterior\.nc [^\n]*$"):
        read_posterior(path)
    assert tracemalloc.get_traced_memory()[1] < 30e6
    tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["federated", "open", "psgld", "pooled", "encrypted", "hospitals"]
)
def test_all_that_a_run_writes_is_read(runs: FinishedRuns, name: str) -> None:
    assert "theta" in Result.load(runs[name]).posterior["posterior"]


@pytest.mark.parametrize("kind", ["scale_factor", "external storage", "compressed"])
def test_every_reader_refuses_it(folder: Path, kind: str) -> None:
    tamper(folder, HOSTILE[kind])
    with pytest.raises(RunError, match="what no run writes: "):
        Result.load(folder)
    with pytest.raises(RunError, match="what no run writes: "):
        write_report(folder)
    with pytest.raises(ValueError, match="what no run writes: "):
        read_rival(folder)
    failed = [f for f in verify(folder).failed if f.check == "posterior"]
    assert "what no run writes: " in failed[0].said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["five thousand billion", "compressed zeros"])
def test_commands_say_it_in_one_line(folder: Path, kind: str) -> None:
    tamper(folder, HOSTILE[kind])
    table = folder.parent / "north.csv"
    table.write_text("age,sex\n50,F\n")
    for command in (
        ("predict", folder, table),
        ("report", folder),
        ("export", folder, "--to", "csv"),
        ("verify", folder),
    ):
        done = cipherbayes(*command)
        assert done.returncode != 0, command
        assert "Traceback" not in done.stderr
        said = " ".join((done.stdout + done.stderr).split())
        assert "sample_stats/draw" in said, command
        assert len(done.stderr.splitlines()) <= 1


def test_bytes_before_and_after_are_refused(folder: Path) -> None:
    path = folder / "posterior.nc"
    honest = path.read_bytes()
    for content in (b"\0" * 512 + honest, honest + b"PK", honest[:-1], b""):
        path.write_bytes(content)
        with pytest.raises(ForeignFileError):
            read_posterior(path)


def test_an_earlier_run_is_compared_with_by_its_hash(folder: Path) -> None:
    """`evaluation.against` takes the draws that result.json names, as all do."""
    with h5py.File(folder / "posterior.nc", "r+") as file:
        file["prepared/theta"][...] *= -1.0
    with pytest.raises(ValueError, match="not the file whose hash"):
        read_rival(folder)


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    yield
    tracemalloc.stop()
