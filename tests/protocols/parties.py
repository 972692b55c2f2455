"""A small consortium as plain objects, and the messages an adversary would send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.crypto.bfv.keys import KeyPair, generate_keys
from cipherbayes.crypto.bfv.parameters import ParameterSet
from cipherbayes.crypto.identity.roster import Roster
from cipherbayes.crypto.identity.signatures import Identity, SigningKey
from cipherbayes.crypto.masks import ExchangeKey, PairwiseMasks
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import InsecureRepeatableNoise
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.messages import (
    DecryptRequest,
    Refusal,
    RoundRequest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.rounds import PhasedRounds
from cipherbayes.protocols.secure_sum.csp import SecureSumCsp
from cipherbayes.protocols.secure_sum.protocol import SecureSum
from cipherbayes.protocols.secure_sum.server import SecureSumServer
from cipherbayes.protocols.secure_sum.site import SecureSumSite
from cipherbayes.protocols.stores import AnswerStore, Checkpoint
from cipherbayes.study.tables import open_site
from conftest import another_owner, logistic_frame

RUN = bytes(range(16))
ROWS = 60
FEATURES = {"age": {"low": 18, "high": 100}, "sex": {"levels": ["F", "M"]}}


def small_study(
    sites: Sequence[str] = ("a", "b", "c"),
    *,
    privacy: Mapping[str, Any] | None = None,
    header: Mapping[str, Any] | None = None,
    **sections: Any,
) -> cb.Study:
    """A logistic study of three parameters with repeatable noise.

    A chain of four rounds over public ranges, unless its sections say otherwise.
    """
    inference = {"method": "psgld", **sections.pop("inference", {"rounds": 4})}
    given = {
        "epsilon": 3.0,
        "records": 1000,
        "randomness": "insecure-repeatable",
        **(privacy or {}),
    }
    return cb.Study(
        study={"protocol": "secure-sum", **(header or {})},
        model=cb.models.Logistic(outcome="death"),
        privacy=given,
        sites={name: {} for name in sites},
        **{
            "features": FEATURES,
            "inference": inference,
            "preparation": {"method": "public-bounds"},
            **sections,
        },
    )


@lru_cache(maxsize=8)
def key_pair(parameters: ParameterSet) -> KeyPair:
    """One pair for all tests that do not care which."""
    return generate_keys(parameters)


class RememberingSite(SecureSumSite):
    """A site that lets a test know the hash of the question it answered."""

    asked: ClassVar[dict[tuple[str, bytes], bytes]] = {}

    def seal(
        self, exchange: RoundId, roster: Roster, vector: Any, question: bytes
    ) -> bytes:
        self.asked[self._name, exchange.digest] = question
        return super().seal(exchange, roster, vector, question)


@dataclass
class Consortium:
    """All parties' keys and memories; parties themselves can be made again."""

    folder: Path
    study: cb.Study
    budgets: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = SecureSum().plan(self.study.with_privacy())
        assert self.plan.parameters is not None
        self.pair = key_pair(self.plan.parameters)
        self.names = tuple(sorted(self.study.sites))
        self.keys = {name: SigningKey.generate() for name in (*self.names, "csp")}
        self.exchanges = {name: ExchangeKey.generate() for name in self.names}
        self.pinned: dict[str, Identity] = {
            name: key.identity for name, key in self.keys.items()
        }
        self.answers = AnswerStore()
        self.checkpoint = Checkpoint()
        self.sites = {name: self.site(name) for name in self.names}
        self.csp = self.make_csp()
        self.server = self.make_server()
        self.convene()

    # -- parties -----------------------------------------------------------

    def ledger(self, name: str) -> Ledger:
        assert self.study.privacy is not None
        return Ledger.open(
            self.folder / f"{name}.ledger",
            dataset=name,
            epsilon=self.budgets.get(name, self.study.privacy.epsilon),
            delta=self.study.privacy.delta,
        )

    def contributions(self, name: str) -> Contributions:
        frame = logistic_frame(self.rows.get(name, ROWS), seed=ord(name[-1]))
        return Contributions.of_site(
            self.study, name, open_site(self.study, name, frame)
        )

    def site(self, name: str, **changes: Any) -> SecureSumSite:
        """A site over its ledger and keys: as it is after a restart."""
        given = {
            "name": name,
            "run": RUN,
            "plan": self.plan,
            "contributions": self.contributions(name),
            "ledger": self.ledger(name),
            "key": self.keys[name],
            "exchange": self.exchanges[name],
            "noise": InsecureRepeatableNoise(name),
            "pinned": self.pinned,
        }
        return RememberingSite(**{**given, **changes})

    def make_csp(self) -> SecureSumCsp:
        """The CSP over its keys and the answers it has given."""
        return SecureSumCsp(
            run=RUN,
            plan=self.plan,
            pair=self.pair,
            key=self.keys["csp"],
            store=self.answers,
            pinned=self.pinned,
        )

    def make_server(self) -> SecureSumServer:
        """The server over its checkpoint."""
        return SecureSumServer(
            run=RUN,
            plan=self.plan,
            rounds=PhasedRounds(self.plan, self.checkpoint),
            checkpoint=self.checkpoint,
            pinned=self.pinned,
        )

    def convene(self) -> None:
        """Hand every party the run's manifest."""
        self.offer = self.csp.offer()
        enrolments = [self.sites[name].enrol() for name in self.names]
        self.manifest = self.server.convene(enrolments, self.offer)
        self.csp.join(self.manifest)
        for site in self.sites.values():
            site.join(self.manifest, self.offer)

    def restart(self, name: str) -> SecureSumSite:
        """End a site's process and start it again."""
        self.sites[name] = self.site(name)
        self.sites[name].join(self.manifest, self.offer)
        return self.sites[name]

    # -- messages ----------------------------------------------------------

    def round_id(self, sites: Sequence[str] | None = None, **changes: Any) -> RoundId:
        """The exchange of a round over a roster, honest unless changed."""
        number = changes.get("round", self.server.rounds_done)
        phase = self.plan.phase_of(number)
        given = {
            "run": RUN,
            "study": self.plan.study_hash,
            "round": number,
            "attempt": 0,
            "purpose": "gradient" if phase is None else phase.purpose,
            "roster": self.server.roster().restrict(sites or self.names).digest,
        }
        return RoundId(**{**given, **changes})

    def request(
        self,
        sites: Sequence[str] | None = None,
        theta: Any = (0.0, 0.0, 0.0),
        **changes: Any,
    ) -> bytes:
        """A request for a round, honest unless changed."""
        return encode(
            RoundRequest(
                self.round_id(sites, **changes),
                tuple(sites or self.names),
                np.array(theta, dtype=np.float64),
            )
        )

    def replies(self, request: bytes) -> dict[str, SiteReply]:
        """What the asked sites answer."""
        asked = decode(request, RoundRequest).sites
        return {
            name: decode(self.sites[name].handle(request), SiteReply) for name in asked
        }

    def play(self, rounds: int = 1) -> None:
        """Play honest rounds."""
        for _ in range(rounds):
            names, request = self.server.request()
            answers = {name: self.sites[name].handle(request) for name in names}
            question = self.server.collect(answers)
            assert question is not None
            self.server.accept(self.csp.handle(question))

    def question(self, request: bytes | None = None) -> DecryptRequest:
        """All replies of a round, as the server asks the CSP."""
        request = request or self.server.request()[1]
        replies = self.replies(request)
        exchange = decode(request, RoundRequest).round_id
        return DecryptRequest(
            exchange, tuple(replies[name] for name in sorted(replies))
        )

    # -- what only a test may do -------------------------------------------

    def opened(self, reply: SiteReply) -> np.ndarray:
        """One site's masked vector, decrypted alone: no party could ask for it."""
        public = self.pair.public
        ciphertext = Ciphertext.from_bytes(
            reply.ciphertext,
            parameters=public.parameters,
            key_id=public.key_id,
            dimension=self.plan.last_phase.dimension,
        )
        return self.pair.secret.decrypt(ciphertext)

    def mask(self, reply: SiteReply, sites: Sequence[str]) -> Any:
        """The mask of a site in an exchange, modulo 2^64."""
        roster = self.server.roster()
        masks = PairwiseMasks(
            reply.site,
            self.exchanges[reply.site],
            roster,
            run=RUN,
            study=self.plan.study_hash,
            colluders=self.plan.study.colluders,
        )
        asked = RememberingSite.asked[reply.site, reply.round_id.digest]
        dimension = self.plan.last_phase.dimension
        return masks.total(reply.round_id, roster.restrict(sites), asked, dimension)

    def unmasked(self, reply: SiteReply, sites: Sequence[str] | None = None) -> Any:
        """The noised vector in a reply."""
        sites = sites or self.names
        bits = self.pair.public.parameters.word_bits
        words = self.opened(reply) - self.mask(reply, sites)
        return (words + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def write_tables(folder: Path, study: cb.Study, rows: int = ROWS) -> cb.Study:
    """The study with a file for each site, of hospitals that nobody here knows."""
    another_owner()
    folder.mkdir(parents=True, exist_ok=True)
    sites = {}
    for index, name in enumerate(sorted(study.sites)):
        path = folder / f"{name}.csv"
        logistic_frame(rows, seed=index).to_csv(path, index=False)
        sites[name] = study.sites[name].model_copy(update={"data": str(path)})
    return study.model_copy(update={"sites": sites})


def trajectory(out: Path) -> list[bytes]:
    """θ after each round of a run's folder, bit for bit."""
    checkpoint = Checkpoint(out / "server" / "checkpoint.sqlite")
    try:
        return [theta.tobytes() for theta in checkpoint.trajectory()]
    finally:
        checkpoint.close()


def changed(reply: SiteReply, **fields: Any) -> SiteReply:
    """A reply with other fields and its old signature."""
    return replace(reply, **fields)


def refusal(data: bytes) -> Refusal:
    """The refusal in an answer; anything else fails the test."""
    return decode(data, Refusal)


def answers_of(consortium: Consortium) -> dict[str, bytes | None]:
    """What the sites answer to the server's next request."""
    names, request = consortium.server.request()
    return {name: consortium.sites[name].handle(request) for name in names}


@pytest.fixture
def three(tmp_path: Path) -> Consortium:
    return Consortium(tmp_path, small_study())


FOUR_SITES = ("a", "b", "c", "d")


@pytest.fixture
def four(tmp_path: Path) -> Consortium:
    """One of four sites may be lost."""
    return Consortium(tmp_path, small_study(FOUR_SITES, privacy={"dropouts": 1}))
