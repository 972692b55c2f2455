"""An inference method that only this file knows runs through every command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.errors import StudyError
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.method import (
    Method,
    PublicFacts,
    register,
    unregister,
)
from cipherbayes.inference.released import Recursion, Release, ServerState
from cipherbayes.inference.settings import Inference
from cipherbayes.inference.target import Target
from cipherbayes.models import Model
from cipherbayes.report.live.snapshot import Watcher
from cipherbayes.typing import Floats, Progress
from conftest import logistic_frame
from toys import command, write_study

CAUTION = "signs of gradients know no size"
UNRELIABLE = "A sign walk has no posterior."


class SignWalk(Recursion):
    """Steps of one size along the signs of the gradient; it can be cut."""

    stops_after: int | None = None

    def advance(self, state: ServerState, release: Release) -> ServerState:
        if self.stops_after is not None and state.rounds >= self.stops_after:
            raise KeyboardInterrupt
        drift = release.gradient_sum + self.prior.gradient(state.theta)
        theta = state.theta + 0.05 * np.sign(drift)
        return ServerState(theta, state.memory, state.rounds + 1)

    def draws(self, trajectory: Sequence[Floats], last: ServerState) -> Draws:
        kept = np.array(trajectory)[None, len(trajectory) // 2 :]
        sizes = np.full(kept.shape[:2], 0.05)
        return Draws(kept, sizes, is_point=False, rounds=len(trajectory))


class SignMethod(Method):
    """Follows signs."""

    name = "signs"
    default_rounds = 12
    interval_caution = UNRELIABLE

    def cautions(self, model: Model) -> list[str]:
        return [CAUTION]

    def check(self, settings: Inference) -> None:
        if settings.batch is not None:
            raise ValueError("inference.batch: signs are of all rows")

    def recursion(self, facts: PublicFacts) -> Recursion:
        return SignWalk(facts.settings, facts.prior)

    def sample(self, target: Target, settings: Inference, progress: Progress) -> Draws:
        theta = np.zeros((1, 10, target.start.size))
        progress(10, 10)
        return Draws(theta, np.ones((1, 10)), is_point=False, rounds=10)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(SignMethod())
    yield
    unregister("signs")


def study_file(folder: Path, protocol: str = "secure-sum") -> Path:
    sections = (
        '[preparation]\nmethod = "public-bounds"\n[inference]\nmethod = "signs"\n'
    )
    return write_study(folder, sections, protocol)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["secure-sum", "pooled"])
def test_it_is_planned_run_watched_reported_and_verified(
    tmp_path: Path, protocol: str
) -> None:
    path, out = study_file(tmp_path, protocol), tmp_path / "out"
    assert "12 rounds of signs" in command("plan", path)
    assert CAUTION in json.loads(command("plan", path, "--json"))["warnings"]
    record = json.loads(command("run", path, "--out", out, "--json", "--no-report"))
    assert record["method"] == "signs"
    assert record["rounds"] == 12
    assert CAUTION in record["warnings"]
    (flag,) = record["flags"]
    assert flag["code"] == "not-calibrated"
    assert UNRELIABLE in flag["message"]
    assert all(row["lower"] is None for row in record["posterior"])
    assert Watcher.open(out).look().finished
    command("report", out)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "12, signs" in page
    assert UNRELIABLE in page
    command("verify", out)


@pytest.mark.slow
def test_a_run_that_was_cut_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = study_file(tmp_path), tmp_path / "out"
    monkeypatch.setattr(SignWalk, "stops_after", 4)
    with pytest.raises(KeyboardInterrupt):
        cb.run(cb.Study.load(path), out=out)
    assert Watcher.open(out).look().done == 4
    monkeypatch.setattr(SignWalk, "stops_after", None)
    command("resume", out, "--json")
    assert Watcher.open(out).look().finished


def test_it_samples_without_privacy_too() -> None:
    study = cb.Study(
        model={"kind": "logistic", "outcome": "death"},
        features={"age": {"low": 18, "high": 100}},
        inference={"method": "signs"},
    )
    result = cb.run(study, {"all": logistic_frame(100)})
    assert result.record["method"] == "signs"
    assert len(result.draws()) == 10
    assert result.has_intervals
    assert result.record["flags"] == []


def test_its_own_rules_are_kept(tmp_path: Path) -> None:
    path = study_file(tmp_path)
    text = path.read_text().replace('method = "signs"', 'method = "signs"\nbatch = 10')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StudyError, match="signs are of all rows"):
        cb.Study.load(path)


def test_a_method_that_nobody_registered_is_refused(tmp_path: Path) -> None:
    path = study_file(tmp_path)
    path.write_text(path.read_text().replace('"signs"', '"omens"'), encoding="utf-8")
    with pytest.raises(StudyError, match="no method is called 'omens'"):
        cb.Study.load(path)


def test_what_a_method_does_not_say_is_missed_before_anything_runs() -> None:
    class Nameless(Method):
        default_rounds = 12
        recursion = SignMethod.recursion
        sample = SignMethod.sample

    class Endless(Method):
        name = "endless"
        recursion = SignMethod.recursion
        sample = SignMethod.sample

    with pytest.raises(ValueError, match="Nameless does not say its name"):
        register(Nameless())
    with pytest.raises(ValueError, match="Endless does not say its default_rounds"):
        register(Endless())
