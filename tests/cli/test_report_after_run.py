"""A run ends with its page, can be watched while it lasts, and keeps a log."""

from __future__ import annotations

import json
import logging
import re
import urllib.request
from pathlib import Path

import pytest

from cipherbayes.cli.console import logging_to
from terminal import cipherbayes

QUICK = "[inference]\nrounds = 50\nchains = 1\n"


@pytest.fixture
def quick(study_folder: Path) -> Path:
    path = study_folder / "study.toml"
    path.write_text(path.read_text() + QUICK)
    return study_folder


def test_a_run_says_where_its_page_is(quick: Path) -> None:
    done = cipherbayes("run", "study.toml", "--out", "out", cwd=quick)
    assert done.returncode == 0, done.stderr
    assert "report: out/report.html" in done.stdout
    assert "small" in (quick / "out" / "report.html").read_text(encoding="utf-8")


def test_no_page_where_none_is_wanted(quick: Path) -> None:
    done = cipherbayes("run", "study.toml", "--out", "out", "--no-report", cwd=quick)
    assert done.returncode == 0, done.stderr
    assert not (quick / "out" / "report.html").exists()


def test_json_output_is_json_alone(quick: Path) -> None:
    done = cipherbayes("run", "study.toml", "--out", "out", "--json", cwd=quick)
    assert json.loads(done.stdout)["study"] == "small"


@pytest.mark.slow
def test_a_run_can_be_watched_from_its_first_moment(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cipherbayes.results import run as running

    path = quick / "study.toml"
    text = path.read_text().replace(QUICK, "")
    path.write_text(text + "[privacy]\nepsilon = 1.0\ndelta = 1e-6\nrecords = 800\n")
    inner, pages = running.run, []

    def run(study: object, **options: object) -> object:
        from cipherbayes.cli import run as command

        address = re.search(r"http://\S+", command.console.file.getvalue())  # type: ignore[attr-defined]
        assert address is not None
        with urllib.request.urlopen(address[0] + "state.json", timeout=10) as answer:
            pages.append(json.load(answer))
        result = inner(study, **options)  # type: ignore[arg-type]
        with urllib.request.urlopen(address[0] + "state.json", timeout=10) as answer:
            pages.append(json.load(answer))
        return result

    monkeypatch.setattr(running, "run", run)
    done = cipherbayes("run", "study.toml", "--out", "out", "--watch", cwd=quick)
    assert done.returncode == 0, done.stderr
    assert pages[0] is None
    assert pages[1]["round"] == pages[1]["rounds"]


def test_the_log_is_one_json_object_a_line(tmp_path: Path) -> None:
    with logging_to(tmp_path):
        logging.getLogger("cipherbayes.server").warning("round %d: no answer", 3)
    (line,) = (tmp_path / "run.log").read_text().splitlines()
    entry = json.loads(line)
    assert entry["party"] == "server"
    assert entry["message"] == "round 3: no answer"
    assert entry["level"] == "warning"


def test_progress_is_quiet_off_a_terminal(quick: Path) -> None:
    done = cipherbayes("run", "study.toml", "--out", "out", cwd=quick)
    assert "ms/round" not in done.stdout + done.stderr
