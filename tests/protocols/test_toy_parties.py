"""A federated protocol with parties of its own, which only this file knows.

Sites send their vectors backwards, and the CSP turns the sum round again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.crypto.identity.roster import Roster
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.engine.flare.approving import study_in_words
from cipherbayes.protocols.protocol import (
    CspParts,
    PartyFolder,
    Protocol,
    ServerParts,
    SiteParts,
    register,
    unregister,
)
from cipherbayes.protocols.releases import phases_of
from cipherbayes.protocols.secure_sum.csp import SecureSumCsp
from cipherbayes.protocols.secure_sum.plan import SecureSumPlan
from cipherbayes.protocols.secure_sum.server import SecureSumServer
from cipherbayes.protocols.secure_sum.site import SecureSumSite
from cipherbayes.report.live.snapshot import Watcher
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Integers
from conftest import logistic_frame
from toys import command, write_study


@dataclass(frozen=True)
class BackwardsPlan(SecureSumPlan):
    """The plan of a secure sum."""


class BackwardsSite(SecureSumSite):
    """Seals its vector from the last number to the first."""

    def seal(
        self, exchange: RoundId, roster: Roster, vector: Integers, question: bytes
    ) -> bytes:
        backwards = np.ascontiguousarray(vector[::-1])
        return super().seal(exchange, roster, backwards, question)


class BackwardsCsp(SecureSumCsp):
    """Turns the sum round again."""

    def opened(self, values: Integers) -> Integers:
        return np.ascontiguousarray(values[::-1])


class Backwards(Protocol[SecureSumPlan]):
    """Sums that travel backwards."""

    name = "backwards"
    headline = "Sums travelled backwards"
    leaves = "backwards"

    def plan(self, study: PrivateStudy) -> BackwardsPlan:
        return BackwardsPlan(study, phases_of(study, preparation_of(study).design))

    def site(
        self, folder: PartyFolder, table: PreparedTable, parts: SiteParts[SecureSumPlan]
    ) -> BackwardsSite:
        return BackwardsSite(**parts)

    def server(
        self, folder: PartyFolder, parts: ServerParts[SecureSumPlan]
    ) -> SecureSumServer:
        return SecureSumServer(**parts)

    def csp(self, folder: PartyFolder, parts: CspParts[SecureSumPlan]) -> BackwardsCsp:
        keys = folder.keys("csp")
        if any(record.run == folder.run.hex() for record in keys.records()):
            pair = keys.load_pair(folder.run)
        else:
            pair = keys.create_pair(folder.run, parts["plan"].parameters)
        return BackwardsCsp(**parts, pair=pair)

    def holds_against(self, study: PrivateStudy) -> list[str]:
        return ["whoever reads forwards only"]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    protocol = Backwards()
    register(protocol)
    yield
    unregister(protocol)


def study_of(**changes: Any) -> cb.Study:
    return cb.Study(
        **{
            "study": {"name": "toy", "protocol": "backwards"},
            "model": {"kind": "logistic", "outcome": "death"},
            "features": {
                "age": {"low": 18, "high": 100},
                "sex": {"levels": ["F", "M"]},
            },
            "privacy": {
                "epsilon": 3.0,
                "records": 600,
                "randomness": "insecure-repeatable",
            },
            "inference": {"method": "psgld", "rounds": 6},
            **changes,
        }
    )


FRAMES = {"north": 1, "south": 2}


def test_it_gives_what_a_secure_sum_gives() -> None:
    frames = {name: logistic_frame(300, seed) for name, seed in FRAMES.items()}
    backwards = cb.run(study_of(), frames)
    forwards = cb.run(study_of(study={"name": "toy"}), frames)
    assert np.array_equal(backwards.draws(), forwards.draws())


@pytest.mark.slow
def test_nothing_is_certified_that_it_does_not_answer_for(tmp_path: Path) -> None:
    sections = '[inference]\nmethod = "psgld"\nrounds = 6\n'
    path, out = write_study(tmp_path, sections, "backwards"), tmp_path / "out"
    assert "not certified" in command("plan", path)
    record = json.loads(command("run", path, "--out", out, "--json"))
    assert record["privacy"]["certified"] is False
    assert record["privacy"]["holds_against"] == []
    assert [party["name"] for party in record["parties"]] == [
        "csp", "server", "north", "south",
    ]  # fmt: skip
    assert Watcher.open(out).look().certified is False
    assert "Sums travelled backwards" in (out / "report.html").read_text()
    assert any("backwards" in line for line in study_in_words(cb.Study.load(path)))
    command("verify", out)


def test_a_run_that_was_cut_goes_on(tmp_path: Path) -> None:
    for name, seed in FRAMES.items():
        logistic_frame(300, seed).to_csv(tmp_path / f"{name}.csv", index=False)
    files = {name: tmp_path / f"{name}.csv" for name in FRAMES}

    def cut(done: int, rounds: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cb.run(study_of(), files, out=tmp_path / "out", progress=cut)
    assert cb.resume(tmp_path / "out").record["rounds"] == 6
