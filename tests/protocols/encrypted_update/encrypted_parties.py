"""A small consortium of an encrypted update, and what an adversary would send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from parties import RUN, small_study

import cipherbayes as cb
from cipherbayes.crypto.ckks.keys import CkksKeys
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import InsecureRepeatableNoise
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.encrypted_update.csp import EncryptedCsp
from cipherbayes.protocols.encrypted_update.messages import OutputRequest, ReplayRequest
from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan
from cipherbayes.protocols.encrypted_update.server import (
    EncryptedRounds,
    EncryptedServer,
)
from cipherbayes.protocols.encrypted_update.site import EncryptedSite
from cipherbayes.protocols.messages import decode
from cipherbayes.protocols.plan import plan_study
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.stores import AnswerStore, Checkpoint
from cipherbayes.study.tables import open_site
from conftest import logistic_frame

ROWS = 200


def encrypted_study(
    sites: Sequence[str] = ("a", "b", "c"),
    *,
    circuit: str = "fast",
    privacy: Mapping[str, Any] | None = None,
    header: Mapping[str, Any] | None = None,
    **sections: Any,
) -> cb.Study:
    """A logistic study of three parameters, updated under encryption."""
    return small_study(
        sites,
        header={
            "protocol": "encrypted-update",
            "circuit": circuit,
            **(header or {}),
        },
        privacy=privacy,
        **sections,
    )


_TRIOS: dict[str, CkksKeys] = {}


def trio(plan: EncryptedPlan) -> CkksKeys:
    """One trio a scheme, for all tests that do not care which."""
    if plan.scheme not in _TRIOS:
        _TRIOS[plan.scheme] = plan.circuit.generate_keys()
    return _TRIOS[plan.scheme]


@dataclass
class EncryptedConsortium:
    """All parties' keys and memories; parties themselves can be made again."""

    folder: Path
    study: cb.Study

    def __post_init__(self) -> None:
        plan = plan_study(self.study)
        assert isinstance(plan, EncryptedPlan)
        self.plan = plan
        self.trio = trio(plan)
        self.names = tuple(sorted(self.study.sites))
        self.keys = {name: SigningKey.generate() for name in (*self.names, "csp")}
        self.exchanges = {name: ExchangeKey.generate() for name in self.names}
        self.pinned = {name: key.identity for name, key in self.keys.items()}
        self.answers = AnswerStore()
        self.checkpoint = Checkpoint()
        self.memories = {name: Checkpoint() for name in (*self.names, "server")}
        self.sites = {name: self.site(name) for name in self.names}
        self.csp = self.make_csp()
        self.server = self.make_server()
        self.convene()

    def contributions(self, name: str) -> Contributions:
        frame = logistic_frame(ROWS, seed=ord(name[-1]))
        return Contributions(self.study.model, open_site(self.study, name, frame))

    def site(self, name: str) -> EncryptedSite:
        """A site over its ledger, keys and memory: as it is after a restart."""
        assert self.study.privacy is not None
        return EncryptedSite(
            name=name,
            run=RUN,
            plan=self.plan,
            contributions=self.contributions(name),
            ledger=Ledger.open(
                self.folder / f"{name}.ledger",
                dataset=name,
                epsilon=self.study.privacy.epsilon,
                delta=self.study.privacy.delta,
            ),
            key=self.keys[name],
            exchange=self.exchanges[name],
            noise=InsecureRepeatableNoise(name),
            pinned=self.pinned,
            memory=self.memories[name],
        )

    def make_csp(self) -> EncryptedCsp:
        return EncryptedCsp(
            run=RUN,
            plan=self.plan,
            keys=self.trio,
            key=self.keys["csp"],
            store=self.answers,
            pinned=self.pinned,
            noise=InsecureRepeatableNoise("csp"),
        )

    def make_server(self) -> EncryptedServer:
        return EncryptedServer(
            run=RUN,
            plan=self.plan,
            rounds=EncryptedRounds(self.plan, self.checkpoint),
            checkpoint=self.checkpoint,
            pinned=self.pinned,
            memory=self.memories["server"],
        )

    def convene(self) -> None:
        """Hand every party the run's manifest and keys."""
        self.offer = self.csp.offer()
        enrolments = [self.sites[name].enrol() for name in self.names]
        self.manifest = self.server.convene(enrolments, self.offer)
        self.csp.join(self.manifest)
        for site in self.sites.values():
            site.join(self.manifest, self.offer)

    def restart(self, name: str) -> None:
        """End a site's process and start it again."""
        self.sites[name] = self.site(name)
        self.sites[name].join(self.manifest, self.offer)

    def exchange(self) -> dict[str, bytes]:
        """One exchange between the server and all sites."""
        names, request = self.server.request()
        return {name: self.sites[name].handle(request) for name in names}

    def replay_request(self) -> ReplayRequest:
        """Play the first half of a round; what the sites are asked to check."""
        assert self.server.collect(self.exchange()) is None
        return decode(self.server.request()[1], ReplayRequest)

    def question(self) -> OutputRequest:
        """Play a round up to what the CSP is asked."""
        self.replay_request()
        asked = self.server.collect(self.exchange())
        assert asked is not None
        return decode(asked, OutputRequest)

    def play(self, rounds: int = 1) -> None:
        """Play honest rounds."""
        for _ in range(rounds):
            assert self.server.collect(self.exchange()) is None
            asked = self.server.collect(self.exchange())
            assert asked is not None
            self.server.accept(self.csp.handle(asked))

    def vector(self, name: str, number: int, theta: np.ndarray) -> np.ndarray:
        """The integers that an honest site encrypts in a round."""
        phase, box = self.plan.last_phase, self.plan.box
        total = self.contributions(name).total(phase, Question(theta))
        noise = InsecureRepeatableNoise(name)
        return phase.noised(np.clip(total, -box, box), noise, f"round {number}")
