"""Two consortia that differ in one record react alike to any message of a server.

Rounds out of order, other rosters, purposes, attempts, lengths, θ at the ends of what
is allowed and beyond, totals that nobody signed: each consortium answers, or refuses
with the same bytes, and its ledger is charged for the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cipherbayes as cb
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import CipherbayesError
from cipherbayes.protocols.messages import (
    DecryptReply,
    Refusal,
    RoundRequest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.pooled.protocol import Pooled as PooledProtocol
from cipherbayes.protocols.protocol import Protocol
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.study.protocol_rules import ProtocolRules, protocols
from cipherbayes.validation.neighbours import neighbours

ROWS = 65
SURVIVAL = cb.models.Weibull(time="days", event="died", horizon=40.0)
METHODS = {"encrypted-update": {"rounds": 6}}


def study_of(protocol: str, preparation: str, differ: str = "") -> cb.Study:
    exponential = cb.models.Exponential(time="days", event="died", horizon=40.0)
    return cb.Study(
        study={"protocol": protocol},
        model=exponential if differ else SURVIVAL,
        hierarchy={"slopes": ["age"]} if differ else None,
        features={"age": {"low": 18, "high": 100}, "sex": {"levels": ["F", "M"]}},
        preparation={"method": preparation},
        privacy={"epsilon": 3.0, "records": 1000},
        inference=METHODS.get(protocol, {}),
        sites={"a": {}, "b": {}, "c": {}},
    )


class World:
    """Parties over a folder of their own; site a has one of two tables."""

    def __init__(self, path: Path, study: cb.Study, present: bool) -> None:
        self.folder = RunFolder.create(path, study, dict.fromkeys(study.sites))
        self.plan = plan_releases(study)
        self.tables = {
            name: neighbours(study, ROWS, canary=0, seed=number).present
            for number, name in enumerate(study.sites)
        }
        near = neighbours(study, ROWS, canary=3)
        self.tables["a"] = near.present if present else near.absent
        self.parameters = self.plan.farthest_theta.size


class Federated(World):
    """Sites, server and CSP."""

    def __init__(self, path: Path, study: cb.Study, present: bool) -> None:
        super().__init__(path, study, present)
        self.sites = {n: self.folder.site(n, t) for n, t in self.tables.items()}
        self.server, _ = self.folder.server()
        csp = self.folder.csp()
        offer = csp.offer()
        manifest = self.server.convene([s.enrol() for s in self.sites.values()], offer)
        csp.join(manifest)
        for site in self.sites.values():
            site.join(manifest, offer)

    def react(self, asked: dict[str, Any]) -> tuple[bytes, int]:
        """What leaves site a, random numbers aside, and the rounds charged so far."""
        roster = self.server.roster()
        sites = asked["sites"] or roster.sites
        try:
            digest = roster.restrict(sites).digest
        except CipherbayesError:
            digest = bytes(32)
        exchange = RoundId(
            run=asked["run"] or self.folder.run,
            study=self.folder.plan.study_hash,
            round=asked["round"],
            attempt=asked["attempt"],
            purpose=asked["purpose"],
            roster=digest,
        )
        releases = tuple(
            DecryptReply.signed(
                asked["signer"],
                round_id=replace(exchange, round=number, purpose=purpose),
                values=np.full(size, value, dtype=np.int64),
            )
            for number, purpose, size, value in asked["releases"]
        )
        request = RoundRequest(exchange, sites, asked["theta"], releases)
        answer = self.sites["a"].handle(encode(request))
        message = decode(answer, SiteReply, Refusal)
        said = answer if isinstance(message, Refusal) else b"an answer"
        return said, self.sites["a"].rounds_charged


class Pooled(World):
    """One curator."""

    def __init__(self, path: Path, study: cb.Study, present: bool) -> None:
        super().__init__(path, study, present)
        held = self.folder.held_tables(self.tables)
        self.curator = PooledProtocol().curator(self.folder, held)

    def react(self, asked: dict[str, Any]) -> tuple[str, list[int]]:
        phase = self.plan.phase_of(asked["round"])
        said = "no such round"
        if phase is not None:
            theta = np.zeros(1) if phase.preparatory else asked["theta"]
            totals = [
                np.full(size, np.sign(value) * before.bound)
                for before, (_, _, size, value) in zip(
                    self.plan.preparatory, asked["totals"], strict=True
                )
            ]
            scales = self.plan.scales(phase, self.plan.facts(totals))
            try:
                values = self.curator.release(
                    asked["round"], phase, Question(theta, scales)
                )
                said = f"{values.size} numbers"
            except CipherbayesError as error:
                # What a curator is told names its own files, which differ here.
                said = error.what
        ledgers = self.curator._ledgers
        return said, [book.rounds(self.folder.run, n) for n, book in ledgers.items()]


SHAPES = [
    ("pooled", "private-moments"),
    ("pooled", "private-scales"),
    ("secure-sum", "private-moments"),
    ("secure-sum", "private-scales"),
    ("secure-sum", "private-scales", "sites differ"),
    ("encrypted-update", "public-bounds"),
]


ATTACKS = {
    ("secure-sum", "site"): (
        "test_malicious_sites.py",
        "test_colluding_sites_with_server_and_csp_meet_the_certified_noise",
    ),
    ("secure-sum", "server"): (
        "test_malicious_server.py",
        "test_a_single_message_is_not_decrypted_and_is_masked_if_it_were",
    ),
    ("secure-sum", "csp"): (
        "test_malicious_csp.py",
        "test_the_csp_learns_nothing_from_messages_short_of_the_roster",
    ),
    ("encrypted-update", "site"): (
        "test_encrypted_collusion.py",
        "test_a_site_cannot_cancel_all_but_one_other_site",
    ),
    ("encrypted-update", "server"): (
        "test_encrypted_oracle.py",
        "test_the_update_of_a_single_site_is_not_decrypted",
    ),
    ("encrypted-update", "csp"): (
        "test_encrypted_collusion.py",
        "test_a_masked_message_is_uniform_to_whoever_has_the_key",
    ),
    ("pooled", "curator"): (
        "test_total_answers.py",
        "test_whatever_nobody_foresaw_leaves_a_curator_as_one_text",
    ),
}
"""An attack by or on each party of a protocol that certifies, in tests/adversary."""
ADVERSARY = Path(__file__).resolve().parents[1] / "adversary"


def unattacked(protocols: Iterable[ProtocolRules]) -> list[str]:
    """What is still to be added before these protocols may certify anything."""
    missing = []
    for protocol in protocols:
        if not (isinstance(protocol, Protocol) and protocol.certifies):
            continue
        if protocol.name not in {name for name, *_ in SHAPES}:
            missing.append(
                f"{protocol.name} certifies its results: add it to SHAPES in "
                "tests/privacy/test_every_protocol.py, whose two consortia differ in "
                "one record"
            )
        parties = ("site", "server", "csp") if protocol.federated else ("curator",)
        missing += [
            f"{protocol.name} certifies its results: write an attack on its {party} in "
            "tests/adversary and name it in ATTACKS"
            for party in parties
            if (protocol.name, party) not in ATTACKS
        ]
    return missing


def test_every_protocol_that_certifies_is_attacked() -> None:
    assert unattacked(protocols()) == []
    for file, test in ATTACKS.values():
        assert f"def {test}(" in (ADVERSARY / file).read_text(encoding="utf-8")


def test_a_protocol_that_certifies_unattacked_would_be_found() -> None:
    class Unproven(PooledProtocol):
        name = "unproven"

    class Uncertified(Unproven):
        certifies = False

    shapes, attacks = unattacked([Unproven()])
    assert "unproven certifies its results: add it to SHAPES" in shapes
    assert "write an attack on its curator" in attacks
    assert unattacked([Uncertified()]) == []


@pytest.fixture(scope="module", params=SHAPES, ids=", ".join)
def worlds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any]:
    study = study_of(*request.param)
    made = Federated if study.rules.federated else Pooled
    folder = tmp_path_factory.mktemp("worlds")
    return made(folder / "present", study, True), made(folder / "absent", study, False)


@st.composite
def messages(draw: st.DrawFn, world: World) -> dict[str, Any]:
    """Anything that can be put into a request."""
    plan = world.plan
    farthest = plan.farthest_theta
    size = draw(st.sampled_from([world.parameters] * 6 + [1, world.parameters + 1]))
    kinds = st.sampled_from([0.0, 1.0, -1.0, 1e-310, 0.999, 1e6, 1e300])
    share = np.array(draw(st.lists(kinds, min_size=size, max_size=size)))
    scale = farthest if size == farthest.size else np.ones(size)
    with np.errstate(over="ignore"):
        theta = np.clip(share * scale, -1e308, 1e308)
    purposes = [phase.purpose for phase in plan.phases]
    number = draw(st.integers(0, plan.rounds))
    right = plan.phase_of(number)
    purpose = draw(st.sampled_from([*purposes, "records", "x"]))
    if right is not None and draw(st.integers(0, 3)):
        purpose = right.purpose
    released = [
        (phase.first, phase.purpose, phase.dimension, value)
        for phase in plan.preparatory
        for value in [draw(st.sampled_from([-(2**40), -1, 0, 1, 2**40]))]
    ]
    before = 0 if right is None else len(plan.before(right))
    return {
        "round": number,
        "attempt": draw(st.sampled_from([0, 0, 0, 1])),
        "purpose": purpose,
        "run": draw(st.sampled_from([None, None, None, bytes(16)])),
        "sites": draw(st.sampled_from([None, None, None, ("a", "b"), ("a",)])),
        "theta": theta,
        "releases": draw(st.sampled_from([released[:before], [], released * 2])),
        "totals": released,
        "signer": SigningKey.generate(),
    }


@pytest.mark.slow
def test_a_server_meets_the_same_reaction_with_and_without_a_record(
    worlds: tuple[Any, Any],
) -> None:
    @given(data=st.data())
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    def alike(data: st.DataObject) -> None:
        asked = data.draw(messages(worlds[0]))
        assert worlds[0].react(asked) == worlds[1].react(asked)

    alike()


def test_the_first_round_is_answered_and_charged(
    worlds: tuple[Any, Any],
) -> None:
    """So the reactions above are not refusals throughout."""
    world = worlds[0]
    plan = world.plan
    asked = {
        "round": 0, "attempt": 0, "purpose": plan.phases[0].purpose, "run": None,
        "sites": None, "releases": [], "signer": SigningKey.generate(),
        "totals": [(p.first, p.purpose, p.dimension, 0) for p in plan.preparatory],
        "theta": np.zeros(world.parameters),
    }  # fmt: skip
    if plan.phases[0].preparatory:
        asked["theta"] = np.zeros(1)
    world.react(asked)
    charged = world.react(asked)[1]
    assert np.min(charged) >= 1
