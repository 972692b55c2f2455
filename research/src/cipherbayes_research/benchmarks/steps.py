"""Where the time of a round goes: CPU by party and step, each call counted once.

Methods of the parties are wrapped while a measurement runs. A step that calls another
one does not count the other's time again, so the steps of a party add up to its work,
each measured in the round itself and none as the difference of two passes. Steps are
averaged over the middle half of the rounds, by a party's whole time: so they add up
there too, and a round that something disturbed counts for nothing.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.crypto.bfv.keys import PublicKey, SecretKey
from cipherbayes.crypto.identity.signatures import Identity, SigningKey
from cipherbayes.crypto.masks import PairwiseMasks
from cipherbayes.inference.released import PrivatePsgld
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import SecureNoise
from cipherbayes.protocols import contributions, csp, server, site
from cipherbayes.protocols.rounds import StudyRounds
from cipherbayes.protocols.secure_sum import csp as sum_csp
from cipherbayes.protocols.secure_sum import server as sum_server
from cipherbayes.protocols.secure_sum import site as sum_site
from cipherbayes.protocols.stores import AnswerStore

WAITING, SITE, SERVER, CSP = "site, while it waits", "site", "server", "CSP"
PARTIES = (WAITING, SITE, SERVER, CSP)
Parts = tuple[tuple[str, Any, tuple[str, ...]], ...]
DOORS: Parts = (
    (WAITING, sum_site.SecureSumSite, ("prepare",)),
    (SITE, site.Site, ("handle",)),
    (SERVER, server.Server, ("request", "accept")),
    (SERVER, sum_server.SecureSumServer, ("collect",)),
    (CSP, csp.Csp, ("handle",)),
)
"""The functions by which each party is asked to work."""
OTHER = "everything else"
GRADIENT, NOISE, MOVE = "gradient", "noise", "move of θ"
SHARED: Parts = (
    (GRADIENT, contributions, ("gradient_sum",)),
    (NOISE, SecureNoise, ("share",)),
    (MOVE, PrivatePsgld, ("advance",)),
)
"""The functions that the same private round in plaintext calls as well."""
STEPS: Parts = (
    *SHARED,
    ("masks", PairwiseMasks, ("total",)),
    ("encryption", PublicKey, ("prepare", "encrypt")),
    ("decryption", SecretKey, ("decrypt",)),
    ("ciphertexts to bytes and back", Ciphertext, ("to_bytes", "from_bytes")),
    ("signing", SigningKey, ("sign",)),
    ("verifying signatures", Identity, ("verify",)),
    ("messages to bytes and back", site, ("encode",)),
    ("messages to bytes and back", server, ("encode", "decode")),
    ("messages to bytes and back", csp, ("encode", "decode")),
    ("messages to bytes and back", sum_site, ("decode",)),
    ("messages to bytes and back", sum_server, ("encode", "decode")),
    ("messages to bytes and back", sum_csp, ("decode",)),
    ("ledger", Ledger, ("expect", "release", "rounds")),
    ("memory of answers", AnswerStore, ("rounds", "answer", "keep")),
    ("checkpoint", StudyRounds, ("accept",)),
)
"""Name of each step, and the functions whose time is counted as its own."""


class Steps:
    """CPU milliseconds by party and step, one number for each round.

    Parameters
    ----------
    parts
        The steps that are told apart; what a party does besides is :data:`OTHER`.
    """

    def __init__(self, parts: Parts = SHARED) -> None:
        self._parts = parts
        self._rounds: list[dict[tuple[str, str], float]] = []
        self._now: dict[tuple[str, str], float] = defaultdict(float)
        self._inner: list[float] = []
        self._party: str | None = None

    @contextmanager
    def next_round(self) -> Iterator[None]:
        """Count every step of a round, which the block runs."""
        with self._measured():
            yield
        self._rounds.append(dict(self._now))
        self._now.clear()

    def of(self, party: str, *names: str) -> list[float]:
        """What some steps of a party took together, round by round."""
        return [sum(each.get((party, n), 0.0) for n in names) for each in self._rounds]

    def protocol(self, party: str) -> list[float]:
        """All that a party did but what a round in plaintext has as well."""
        shared = {name for name, *_ in SHARED}
        names = {name for name, *_ in self._parts} - shared
        return self.of(party, *names, OTHER)

    def middle(self, after: int, sites: int) -> dict[str, dict[str, float]]:
        """Each step after the first rounds, in the middle half; of one site each."""
        found: dict[str, dict[str, float]] = {}
        names = dict.fromkeys([*(name for name, *_ in self._parts), OTHER])
        for party in PARTIES:
            shares = sites if party in (WAITING, SITE) else 1
            whole = self.of(party, *names)[after:]
            order = sorted(range(len(whole)), key=whole.__getitem__)
            cut = len(order) // 4
            middle = order[cut : len(order) - cut]
            taken = {name: self.of(party, name)[after:] for name in names}
            found[party] = {
                name: statistics.fmean(each[at] for at in middle) / shares
                for name, each in taken.items()
                if any(each)
            }
        return found

    def _timed(
        self, name: str, function: Callable[..., Any], door: str | None
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **named: Any) -> Any:
            outside = self._party
            self._party = outside or door
            self._inner.append(0.0)
            started = time.process_time()
            try:
                return function(*args, **named)
            finally:
                spent = 1000.0 * (time.process_time() - started)
                if self._party is not None:
                    self._now[self._party, name] += spent - self._inner[-1]
                self._inner.pop()
                if self._inner:
                    self._inner[-1] += spent
                self._party = outside

        return wrapper

    @contextmanager
    def _measured(self) -> Iterator[None]:
        wrapped = [(OTHER, *part, door) for door, *part in DOORS]
        wrapped += [(*part, None) for part in self._parts]
        with ExitStack() as patches:
            for name, owner, functions, door in wrapped:
                for function in functions:
                    found = vars(owner)[function]
                    inner = found.__func__ if isinstance(found, classmethod) else found
                    timed: Any = self._timed(name, inner, door)
                    if isinstance(found, classmethod):
                        timed = classmethod(timed)
                    patches.enter_context(patch.object(owner, function, timed))
            yield
