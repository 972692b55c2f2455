"""A protocol that only this file knows runs through every command.

It counts votes: a clerk holds all tables, adds noise to each total and posts it.
Nothing in the package was changed for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import cipherbayes as cb
from cipherbayes.errors import StudyError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.pooled.curator import Curator
from cipherbayes.protocols.protocol import (
    CuratedProtocol,
    PartyFolder,
    register,
    unregister,
)
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.releases import phases_of
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.report.live.snapshot import Watcher
from cipherbayes.study.schema import PrivateStudy, Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Integers
from toys import command, write_study

CAUTION = "the clerk sees every row"


class Clerk:
    """Posts each noised total; a power cut may stop it after a round."""

    power_cut_after: int | None = None

    def __init__(self, curator: Curator) -> None:
        self._curator = curator

    def release(self, number: int, phase: Phase, question: Question) -> Integers:
        if self.power_cut_after is not None and number > self.power_cut_after:
            raise KeyboardInterrupt
        return self._curator.release(number, phase, question)


class PostedTotals(CuratedProtocol[StudyPlan]):
    """Totals that a clerk posts."""

    name = "posted-totals"
    certifies = True
    headline = "A clerk posted every total"

    def check(self, study: Study) -> None:
        if len(study.sites) > 4:
            raise ValueError("a clerk has four drawers: name at most 4 sites")

    def plan(self, study: PrivateStudy) -> StudyPlan:
        return StudyPlan(study, phases_of(study, preparation_of(study).design))

    def curator(
        self, folder: PartyFolder, tables: Mapping[str, tuple[Contributions, Ledger]]
    ) -> Clerk:
        return Clerk(
            Curator(
                run=folder.run,
                plan=folder.plan,
                tables=tables,
                noise=folder.noise("clerk"),
            )
        )

    def holds_against(self, study: PrivateStudy) -> list[str]:
        return ["everyone but the clerk"]

    def cautions(self, plan: Any) -> list[str]:
        return [CAUTION]

    def method_words(self, study: Study) -> str:
        return f"posted {study.method}"


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    protocol = PostedTotals()
    register(protocol)
    yield
    unregister(protocol)


@pytest.fixture
def study_path(tmp_path: Path) -> Path:
    sections = '[inference]\nmethod = "psgld"\nrounds = 12\n'
    return write_study(tmp_path, sections, "posted-totals")


@pytest.mark.slow
def test_it_is_planned_run_watched_reported_and_verified(study_path: Path) -> None:
    out = study_path.parent / "out"
    said = command("plan", study_path)
    assert "posted-totals, one place" in said
    assert CAUTION in " ".join(said.split())
    planned = json.loads(command("plan", study_path, "--json"))
    assert planned["certified"] is True
    assert CAUTION in planned["warnings"]

    record = json.loads(
        command("run", study_path, "--out", out, "--json", "--no-report")
    )
    assert record["protocol"] == "posted-totals"
    assert record["privacy"]["certified"] is True
    assert record["privacy"]["holds_against"] == ["everyone but the clerk"]
    assert CAUTION in record["warnings"]

    seen = Watcher.open(out).look()
    assert seen.finished
    assert seen.spent == pytest.approx(3.0, rel=1e-3)

    command("report", out)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "A clerk posted every total" in page
    assert "posted psgld" in page
    command("verify", out)


def test_a_run_that_was_cut_goes_on(
    study_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = study_path.parent / "out"
    monkeypatch.setattr(Clerk, "power_cut_after", 5)
    with pytest.raises(KeyboardInterrupt):
        cb.run(cb.Study.load(study_path), out=out)
    seen = Watcher.open(out).look()
    assert (seen.done, seen.finished) == (6, False)
    monkeypatch.setattr(Clerk, "power_cut_after", None)
    command("resume", out, "--json")
    assert Watcher.open(out).look().finished


def test_its_own_rules_are_kept(study_path: Path) -> None:
    more = "".join(f"s{k} = {{}}\n" for k in range(5))
    study_path.write_text(study_path.read_text() + more, encoding="utf-8")
    with pytest.raises(StudyError, match="four drawers"):
        cb.Study.load(study_path)


def test_a_protocol_that_nobody_registered_is_refused(study_path: Path) -> None:
    text = study_path.read_text().replace("posted-totals", "whispered-totals")
    study_path.write_text(text, encoding="utf-8")
    with pytest.raises(StudyError, match="no protocol is called 'whispered-totals'"):
        cb.Study.load(study_path)


def test_what_a_protocol_does_not_say_is_missed_before_anything_runs() -> None:
    class Silent(CuratedProtocol[StudyPlan]):
        name = "silent"
        plan = PostedTotals.plan
        curator = PostedTotals.curator
        holds_against = PostedTotals.holds_against

    with pytest.raises(ValueError, match="Silent does not say its headline"):
        register(Silent())


class WhisperedTotals(PostedTotals):
    """Posts totals with a noise that has a name of its own, and no sums with noise."""

    name = "whispered-totals"
    noise = "in-whispers"
    noise_aware = False
    why_not_noise_aware = "whispers cannot be counted"
    why_not_multilevel = "whispers do not say where they come from"


@pytest.fixture
def whispering() -> Iterator[None]:
    protocol = WhisperedTotals()
    register(protocol)
    yield
    unregister(protocol)


def sections_of(**changes: Any) -> dict[str, Any]:
    """A private study of the protocol that whispers."""
    return {
        "study": {"protocol": "whispered-totals", "noise": "in-whispers"},
        "model": {"kind": "logistic", "outcome": "death"},
        "features": {"age": {"low": 18, "high": 100}},
        "privacy": {"epsilon": 3.0, "records": 600},
        "sites": {"north": {}, "south": {}},
        **changes,
    }


@pytest.mark.usefixtures("whispering")
def test_a_noise_of_its_own_is_named_by_the_study() -> None:
    study = Study(**sections_of())
    assert isinstance(study.rules, WhisperedTotals)
    with pytest.raises(StudyError, match=r"needs a noise of its own.*in-whispers"):
        Study(**sections_of(study={"protocol": "whispered-totals"}))
    other = {"protocol": "secure-sum", "noise": "in-whispers"}
    with pytest.raises(StudyError, match='belongs to protocol = "whispered-totals"'):
        Study(**sections_of(study=other))
    nobodys = {"protocol": "whispered-totals", "noise": "in-shouts"}
    with pytest.raises(StudyError, match="no protocol has the noise 'in-shouts'"):
        Study(**sections_of(study=nobodys))


@pytest.mark.usefixtures("whispering")
@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"hierarchy": {}}, WhisperedTotals.why_not_multilevel),
        ({"describe": {}}, WhisperedTotals.why_not_noise_aware),
        ({"evaluation": {"holdout": 0.2}}, WhisperedTotals.why_not_noise_aware),
    ],
)
def test_its_own_words_say_what_it_cannot_do(section: dict[str, Any], why: str) -> None:
    with pytest.raises(StudyError) as refused:
        Study(**sections_of(**section))
    assert why in str(refused.value)
    # It is no remedy for itself, and what can do more is found in the registry.
    remedy = str(refused.value).partition(why)[2]
    assert '"secure-sum" or "pooled"' in remedy
    assert "whispered" not in remedy
    assert ("posted-totals" in remedy) == ("hierarchy" not in section)


def test_refusals_list_the_models_whose_sites_may_differ() -> None:
    model = {"kind": "weibull", "time": "days", "event": "died", "horizon": 40.0}
    with pytest.raises(StudyError, match="use exponential, logistic, piecewise"):
        Study(**sections_of(study={}, model=model, hierarchy={}))
