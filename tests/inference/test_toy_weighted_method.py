"""A method of weighted sums and information matrices that only this file knows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from cipherbayes.typing import Floats, Progress
from toys import command, write_study


@dataclass(frozen=True)
class Shares:
    gradient_share: float
    information_share: float


class NewtonSteps(Recursion):
    """Newton's method; ``memory`` is the newest information matrix."""

    def start(self) -> ServerState:
        width = self.prior.mean.size
        return ServerState(self.prior.mean.copy(), np.zeros(width * width), 0)

    def advance(self, state: ServerState, release: Release) -> ServerState:
        width = state.theta.size
        matrix = state.memory.reshape(width, width)
        if release.information is not None:
            upper = np.zeros((width, width))
            upper[np.triu_indices(width)] = release.information
            matrix = upper + np.triu(upper, 1).T
        values, vectors = np.linalg.eigh(matrix + np.diag(1 / self.prior.scale**2))
        drift = release.gradient_sum + self.prior.gradient(state.theta)
        step = vectors @ ((vectors.T @ drift) / np.maximum(values, 1.0))
        theta = np.clip(state.theta + step, -5.0, 5.0)
        return ServerState(theta, matrix.ravel(), state.rounds + 1)

    def draws(self, trajectory: Sequence[Floats], last: ServerState) -> Draws:
        point = last.theta[None, None, :]
        sizes = np.full((1, 1), np.nan)
        return Draws(point, sizes, is_point=True, rounds=len(trajectory))


class Newton(Method):
    """Three rounds with matrices, and one without."""

    name = "newton"
    needs_privacy = True
    is_point = True

    def round_shares(self) -> Sequence[Shares]:
        return [Shares(0.15, 0.1)] * 3 + [Shares(0.25, 0.0)]

    def recursion(self, facts: PublicFacts) -> Recursion:
        return NewtonSteps(facts.settings, facts.prior)

    def sample(self, target: Target, settings: Inference, progress: Progress) -> Draws:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(Newton())
    yield
    unregister("newton")


def study_file(folder: Path, settings: str = "") -> Path:
    return write_study(folder, f'[inference]\nmethod = "newton"\n{settings}')


@pytest.mark.slow
def test_it_is_planned_run_reported_and_verified(tmp_path: Path) -> None:
    path, out = study_file(tmp_path), tmp_path / "out"
    planned = json.loads(command("plan", path, "--json"))
    assert planned["rounds"] >= 4
    assert planned["epsilon"] <= 3.0 * (1 + 1e-9)
    command("plan", path)
    record = json.loads(command("run", path, "--out", out, "--json"))
    assert record["method"] == "newton"
    assert record["privacy"]["certified"] is True
    assert (out / "report.html").is_file()
    command("verify", out)


def test_a_run_that_was_cut_goes_on(tmp_path: Path) -> None:
    def cut(done: int, rounds: int) -> None:
        if done == rounds - 2:
            raise KeyboardInterrupt

    study = cb.Study.load(study_file(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        cb.run(study, out=tmp_path / "out", progress=cut)
    assert cb.resume(tmp_path / "out").record["method"] == "newton"


def test_settings_of_a_chain_are_refused_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="rounds of its own"):
        cb.Study.load(study_file(tmp_path, "rounds = 7\n"))


def test_shares_of_nothing_are_refused_before_anything_runs() -> None:
    class Idle(Newton):
        name = "idle"

        def round_shares(self) -> Sequence[Shares]:
            return [Shares(0.0, 0.0)]

    with pytest.raises(ValueError, match="none is more than 0"):
        register(Idle())
