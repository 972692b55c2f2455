"""Every command and snippet of README and docs, executed as a reader would.

What cannot run here is in ``NOT_RUN`` with its reason, and is still parsed by the
program (``test_docs.py``). Whatever else a page says to type is typed, in order, and
what the page shows as its output must be in its output.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from conftest import logistic_frame
from terminal import cipherbayes

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README": ROOT / "README.md"} | {
    path.stem: path for path in sorted((ROOT / "docs").glob("*.md"))
}

MINUTES = "takes minutes"
PHYSIONET = "needs the PhysioNet archive, which is not part of the project"
MACHINES = "needs parties that keep running; tests/flare starts them"
NOT_RUN = {
    "make demo": "installs from the network; CI runs it on its own",
    "make test": "is what runs this",
    "make torture": MINUTES,
    "python research/benchmarks/intervals.py": PHYSIONET,
    "python research/benchmarks/public_tables.py": MINUTES,
    "python research/benchmarks/spread_coverage.py": MINUTES,
    "python research/benchmarks/known_information.py": MINUTES,
    "python research/benchmarks/width_luck.py": MINUTES,
    "python research/benchmarks/private_regressions.py": MINUTES,
    "cipherbayes reproduce": f"{MINUTES}; tests/research runs it on less",
    "cipherbayes calibrate": MINUTES,
    "cipherbayes bench": MINUTES,
    "cipherbayes audit": f"{MINUTES}; tests/validation/test_audit.py runs each",
    "cipherbayes compare": "needs two checked runs; tests/results makes them",
    "cipherbayes deploy": "makes certificates; tests/flare/test_flare_kits.py runs it",
    "cipherbayes site": MACHINES,
    "cipherbayes csp": MACHINES,
    "cipherbayes server": MACHINES,
    "cipherbayes submit": MACHINES,
    "cipherbayes ledger north.ledger": "is of a query; tests/privacy runs it",
}
"""Beginnings of command lines that are not typed here, and why."""

NOT_TYPED = {
    "checking": "compares two runs; tests/results/test_compared_fits.py makes such",
    "databases": "needs PostgreSQL; tests/engine/test_postgresql.py runs it",
    "three-hospitals": MACHINES,
    "where-the-paper-is-wrong": "its Python is run by tests/test_docs.py",
}
"""Pages of which only commands that need nothing but the examples are typed."""

READER = (
    "start", "notebook", "index", "choose-epsilon", "privacy", "budgets", "result",
    "resuming", "survival-study", "hospitals-differ", "api", "choose-bounds",
    "concepts", "cli",
    "sharp-edges",
)  # fmt: skip
"""In the order in which a reader meets them; later ones use what earlier ones made."""

BLOCK = re.compile(
    r"^( *)```(console|bash|python|toml title=\"[^\"]+\")\n(.*?)^\1```$",
    re.MULTILINE | re.DOTALL,
)


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Language and content of each block, in order."""
    text = PAGES[page].read_text(encoding="utf-8")
    for indent, language, block in BLOCK.findall(text):
        yield language, re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def typed(block: str) -> Iterator[tuple[str, str]]:
    """Each command line of a console block, and what is shown below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        yield " ".join(shlex.split(line, comments=True)), shown


def reason(line: str) -> str | None:
    """Why a line is not typed here; None if it is."""
    return next((why for start, why in NOT_RUN.items() if line.startswith(start)), None)


def type_in(line: str, shown: str, folder: Path) -> None:
    """Run one line; what the page shows must be what the program says."""
    program, *words = shlex.split(line)
    assert program == "cipherbayes", line
    outcome = cipherbayes(*words, cwd=folder)
    wrong = shown.startswith("error: ")
    assert outcome.returncode == int(wrong), line + outcome.stderr
    said = " ".join((outcome.stderr if wrong else outcome.stdout).split())
    for piece in re.split(r",? ?\.\.\.,? ?", " ".join(shown.split())):
        assert piece.strip() in said, (line, piece)


def follow(page: str, folder: Path, done: set[str] | None = None) -> int:
    """Do what a page says; the number of steps."""
    count, done = 0, set() if done is None else done
    for language, block in steps(page):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()), _inside(folder):
                exec(compile(block, f"{page}.md", "exec"), {})
            count += 1
        elif language == "console":
            for line, shown in typed(block):
                if reason(line) is None and line not in done:
                    type_in(line, shown, folder)
                    done.add(line)
                    count += 1
        elif language == "bash":
            raise AssertionError(f"{page}.md: a script that nothing here runs")
        else:
            name = re.search(r'"([^"]+)"', language)
            assert name is not None
            (folder / name[1]).write_text(block, encoding="utf-8")
    return count


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


# -- nothing is left out ---------------------------------------------------


def test_every_page_is_typed_or_says_why_not() -> None:
    silent = {page for page in PAGES if not any(True for _ in steps(page))}
    only_listed = {
        page
        for page in PAGES
        if all(
            language == "console" and all(reason(line) for line, _ in typed(block))
            for language, block in steps(page)
        )
    }
    walked = {*READER, "README", *NOT_TYPED}
    assert set(PAGES) == walked | silent | only_listed


def test_every_reason_is_for_a_line_that_is_there() -> None:
    lines = [
        line
        for page in PAGES
        for language, block in steps(page)
        for line in (
            [line for line, _ in typed(block)]
            if language == "console"
            else block.splitlines()
        )
    ]
    for start in NOT_RUN:
        if start not in ("cipherbayes calibrate", "cipherbayes bench"):
            assert any(start in line for line in lines), start


@pytest.mark.slow
@pytest.mark.parametrize("page", NOT_TYPED)
def test_plans_of_the_examples_say_what_the_page_shows(page: str) -> None:
    for language, block in steps(page):
        if language == "console":
            for line, shown in typed(block):
                if re.match(r"cipherbayes plan examples/", line):
                    type_in(line, shown, ROOT)


@cache
def help_of(script: str) -> str:
    """What a script says of its options, asked in this process."""
    with (
        mock.patch.object(sys, "argv", [script, "--help"]),
        contextlib.redirect_stdout(io.StringIO()) as told,
        pytest.raises(SystemExit) as end,
    ):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert not end.value.code
    return told.getvalue()


@pytest.mark.slow
def test_scripts_that_are_not_run_take_the_options_shown() -> None:
    for page in PAGES:
        for language, block in steps(page):
            for line, _ in typed(block) if language == "console" else ():
                program, *words = shlex.split(line)
                if program == "python":
                    told = help_of(words[0])
                    for word in words:
                        assert not word.startswith("--") or word in told, line


# -- walks -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_draws")
@pytest.mark.filterwarnings("ignore")  # ArviZ remarks on a single chain
def test_a_reader_who_types_everything_gets_there(tmp_path: Path) -> None:
    pytest.importorskip("sksurv", reason="scikit-survival carries the example data")
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "flchain.toml", tmp_path / "examples")
    done: set[str] = set()
    for page in READER:
        if page == "result":
            rows = pd.read_csv(tmp_path / "examples" / "data" / "flchain-1.csv").head()
            rows.to_csv(tmp_path / "new.csv", index=False)
        if page == "resuming":
            # An interrupted run: everything but its end is on disk.
            (tmp_path / "result" / "result.json").unlink()
        follow(page, tmp_path, done)
    assert "cipherbayes resume result" in done
    assert (tmp_path / "result" / "report.html").is_file()
    assert (tmp_path / "survival" / "report.html").is_file()
    assert (tmp_path / "curves.csv").read_text().startswith("row,time,mean")


def clinic(rows: int, seed: int) -> pd.DataFrame:
    """A made-up table with the columns of README's study."""
    rng = np.random.default_rng(seed)
    frame = logistic_frame(rows, seed=seed)
    creatinine = rng.lognormal(0.1, 0.4, rows)
    frame["creatinine"] = np.where(rng.random(rows) < 0.1, np.nan, creatinine)
    return frame


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_draws")
def test_readmes_first_study_is_as_it_says(tmp_path: Path) -> None:
    for seed, name in enumerate(("north", "south", "east", "west", "centre")):
        clinic(2400, seed).to_csv(tmp_path / f"{name}.csv", index=False)
    clinic(20, 9).drop(columns="death").to_csv(tmp_path / "new.csv", index=False)
    assert follow("README", tmp_path) >= 6
    assert (tmp_path / "result" / "report.html").is_file()
