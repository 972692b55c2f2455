"""Every command and snippet of the how-to pages, executed as a reader would."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from terminal import cipherbayes

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("start", "choose-epsilon", "budgets", "resuming", "survival-study", "api")
"""In the order in which a reader meets them; later ones use what earlier ones made."""

BLOCK = re.compile(
    r"^( *)```(console|python|toml title=\"[^\"]+\")\n(.*?)^\1```$",
    re.MULTILINE | re.DOTALL,
)


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Language and content of each block, in order."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for indent, language, block in BLOCK.findall(text):
        yield language, re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)


def follow(page: str, folder: Path) -> int:
    """Do what a page says; the number of steps."""
    done = 0
    for language, block in steps(page):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()), _inside(folder):
                exec(compile(block, f"{page}.md", "exec"), {})
            done += 1
        elif language == "console":
            for line in block.splitlines():
                if line.startswith("$ "):
                    program, *words = shlex.split(line[2:], comments=True)
                    assert program == "cipherbayes"
                    outcome = cipherbayes(*words, cwd=folder)
                    assert outcome.returncode == 0, line + outcome.stderr
                    done += 1
        else:
            name = re.search(r'"([^"]+)"', language)
            assert name is not None
            (folder / name[1]).write_text(block, encoding="utf-8")
    return done


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.mark.slow
def test_a_reader_who_types_everything_gets_there(tmp_path: Path) -> None:
    pytest.importorskip("sksurv", reason="scikit-survival carries the example data")
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "flchain.toml", tmp_path / "examples")
    for page in PAGES:
        if page == "resuming":
            # An interrupted run: everything but its end is on disk.
            (tmp_path / "result" / "result.json").unlink()
        assert follow(page, tmp_path) > 0, page
    assert (tmp_path / "result" / "report.html").is_file()
    assert (tmp_path / "survival" / "report.html").is_file()
    assert (tmp_path / "curves.csv").read_text().startswith("row,time,mean")
