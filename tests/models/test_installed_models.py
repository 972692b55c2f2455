"""A model of an installed distribution is known to every process that reads a study."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cipherbayes as cb
from cipherbayes.errors import StudyError
from cipherbayes.models import registry
from conftest import LOGISTIC, logistic_frame
from installed import install, let_all_processes_find
from terminal import cipherbayes

GUIDE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
PROBIT = LOGISTIC.replace('kind = "logistic"', 'kind = "probit"')


def probit() -> str:
    """The model of the guide."""
    guide = GUIDE.read_text(encoding="utf-8").split("## How to add a model")[1]
    found = re.search(r"```python\n(.*?)```", guide, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two distributions, for this process and for those that it starts."""
    monkeypatch.setattr(registry, "registered", dict(registry.registered))
    install(tmp_path, registry.GROUP, "probit", probit())
    broken = "raise RuntimeError('a secret of its own')"
    install(tmp_path, registry.GROUP, "broken", broken)
    let_all_processes_find(tmp_path, monkeypatch)
    yield
    sys.modules.pop("probit_of_others", None)


@pytest.mark.slow
def test_it_runs_in_processes_of_their_own_and_is_reported(tmp_path: Path) -> None:
    for seed, name in enumerate(("north", "south")):
        logistic_frame(300, seed).to_csv(tmp_path / f"{name}.csv", index=False)
    study = tmp_path / "study.toml"
    study.write_text(
        PROBIT.replace("[model]", 'engine = "local-processes"\n[model]')
        + "[privacy]\nepsilon = 3.0\nrecords = 600\n"
        + '[inference]\nmethod = "psgld"\nrounds = 3\n'
        + '[sites]\nnorth = { data = "north.csv" }\nsouth = { data = "south.csv" }\n',
        encoding="utf-8",
    )
    for words in (
        ("run", study, "--out", tmp_path / "out", "--no-report"),
        ("report", tmp_path / "out"),
    ):
        done = cipherbayes(*words)
        assert done.returncode == 0, done.stderr
    assert "probit" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_it_is_imported_when_a_study_names_it_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(LOGISTIC, encoding="utf-8")
    cb.Study.load(path)
    assert "probit" not in registry.registered
    path.write_text(PROBIT, encoding="utf-8")
    assert cb.Study.load(path).model.kind == "probit"
    path.write_text(PROBIT.replace("probit", "broken"), encoding="utf-8")
    with pytest.raises(
        StudyError, match="'broken-of-others' cannot be loaded"
    ) as refused:
        cb.Study.load(path)
    assert "secret" not in str(refused.value)


def test_an_unknown_kind_says_what_one_of_your_own_needs(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(PROBIT.replace("probit", "tobit"), encoding="utf-8")
    with pytest.raises(StudyError, match=r"import it in every process.*entry point"):
        cb.Study.load(path)
