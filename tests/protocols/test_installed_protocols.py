"""A protocol of an installed distribution is known wherever a study names it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cipherbayes as cb
from cipherbayes.engine.flare.approving import study_in_words
from cipherbayes.errors import StudyError
from cipherbayes.protocols.plan_description import PlanDescription
from cipherbayes.study import protocol_rules
from cipherbayes.study.protocol_rules import GROUP
from installed import install, let_all_processes_find
from toys import command, write_study

RELAYED = """
from cipherbayes.protocols.secure_sum.protocol import SecureSum

class RelayedSum(SecureSum):
    '''A secure sum under another name, which nobody has vetted.'''

    name = "relayed-sum"
    certifies = False

PROTOCOL = RelayedSum()
"""
INFERENCE = '[inference]\nmethod = "psgld"\nrounds = 2\n'


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Distributions for this process and for those that it starts."""
    monkeypatch.setattr(protocol_rules, "_PROTOCOLS", dict(protocol_rules._PROTOCOLS))
    for name, code in (
        ("relayed-sum", RELAYED),
        ("another-name", RELAYED),
        ("pooled", "raise RuntimeError('it is in the place of a protocol')"),
        ("broken", "raise RuntimeError('a secret of its own')"),
    ):
        install(tmp_path, GROUP, name, code, ":PROTOCOL")
    let_all_processes_find(tmp_path, monkeypatch)
    yield
    for name in [name for name in sys.modules if name.endswith("_of_others")]:
        del sys.modules[name]


@pytest.mark.slow
def test_it_runs_in_processes_of_their_own_and_is_certified_by_nobody(
    tmp_path: Path,
) -> None:
    path = write_study(tmp_path, INFERENCE, "relayed-sum", engine="local-processes")
    out = tmp_path / "out"
    record = json.loads(command("run", path, "--out", out, "--json", "--no-report"))
    assert record["protocol"] == "relayed-sum"
    assert record["privacy"]["certified"] is False
    assert record["privacy"]["holds_against"] == []
    assert any("'relayed-sum-of-others'" in said for said in record["warnings"])
    command("report", out)
    command("verify", out)


def test_it_is_imported_when_a_study_names_it_and_not_before(tmp_path: Path) -> None:
    cb.Study.load(write_study(tmp_path, INFERENCE, "pooled"))
    assert not any(name.endswith("_of_others") for name in sys.modules)
    study = cb.Study.load(write_study(tmp_path, INFERENCE, "relayed-sum"))
    assert study.rules.distribution == "'relayed-sum-of-others'"
    assert [name for name in sys.modules if name.endswith("_of_others")] == [
        "relayed_sum_of_others"
    ]


def test_plans_and_whoever_approves_are_told_whose_it_is(tmp_path: Path) -> None:
    study = cb.Study.load(write_study(tmp_path, INFERENCE, "relayed-sum"))
    planned = cb.plan(study)
    assert planned.certified is False
    for said in (planned.warnings, study_in_words(study)):
        assert any("'relayed-sum-of-others', which answers" in line for line in said)
    ours = cb.Study.load(write_study(tmp_path, INFERENCE, "secure-sum"))
    for said in (cb.plan(ours).warnings, study_in_words(ours)):
        assert not any("distribution" in line for line in said)


def test_no_words_of_its_own_leave_out_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = cb.Study.load(write_study(tmp_path, INFERENCE, "relayed-sum"))
    monkeypatch.setattr(
        type(study.rules), "describe", lambda self, plan: PlanDescription(["fine"])
    )
    (said,) = cb.plan(study).warnings
    assert "'relayed-sum-of-others', which answers" in said


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "'broken-of-others' cannot be loaded: RuntimeError"),
        ("another-name", "has no protocol called 'another-name' where it says so"),
        ("absent", "no protocol is called 'absent'"),
    ],
)
def test_one_that_is_not_what_it_says_is_refused(
    name: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=why) as refused:
        cb.Study.load(write_study(tmp_path, INFERENCE, name))
    assert "secret" not in str(refused.value)
