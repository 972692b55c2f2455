"""A method of an installed distribution is known wherever a study names it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cipherbayes as cb
from cipherbayes.engine.flare.approving import study_in_words
from cipherbayes.errors import StudyError
from cipherbayes.inference import method
from installed import install, let_all_processes_find
from toys import command, write_study

SECOND_HALF = """
from cipherbayes.inference.methods import AveragedMethod
from cipherbayes.inference.method import register

class SecondHalf(AveragedMethod):
    '''The mean of iterates under another name.'''

    name = "second-half"

register(SecondHalf())
"""
STUDY = '[inference]\nmethod = "second-half"\nrounds = 4\n'


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Distributions for this process and for those that it starts."""
    monkeypatch.setattr(method, "_METHODS", dict(method._METHODS))
    install(tmp_path, method.GROUP, "second-half", SECOND_HALF)
    install(tmp_path, method.GROUP, "broken", "raise RuntimeError('its own secret')")
    let_all_processes_find(tmp_path, monkeypatch)
    yield
    for name in [name for name in sys.modules if name.endswith("_of_others")]:
        del sys.modules[name]


@pytest.mark.slow
def test_it_runs_in_processes_of_their_own_and_is_reported(tmp_path: Path) -> None:
    path = write_study(tmp_path, STUDY, "secure-sum", engine="local-processes")
    out = tmp_path / "out"
    record = json.loads(command("run", path, "--out", out, "--json", "--no-report"))
    assert record["rounds"] == 4
    assert any("package 'second_half_of_others'" in w for w in record["warnings"])
    command("report", out)
    command("verify", out)


def test_plans_and_whoever_approves_are_told_whose_it_is(tmp_path: Path) -> None:
    study = cb.Study.load(write_study(tmp_path, STUDY, "secure-sum"))
    for said in (cb.plan(study).warnings, study_in_words(study)):
        (line,) = (each for each in said if "second_half_of_others" in each)
        assert "which answers for its promises" in line


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "'broken-of-others' cannot be loaded: RuntimeError"),
        ("absent", "no method is called 'absent'"),
    ],
)
def test_one_that_is_not_there_is_refused(name: str, why: str, tmp_path: Path) -> None:
    named = STUDY.replace("second-half", name)
    with pytest.raises(StudyError, match=why) as refused:
        cb.Study.load(write_study(tmp_path, named, "secure-sum"))
    assert "secret" not in str(refused.value)
