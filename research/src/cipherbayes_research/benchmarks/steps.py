"""Where the time of a round goes: CPU by step, each call counted once.

Methods of the parties are wrapped while a measurement runs. A step that calls another
one does not count the other's time again, so the steps of a round add up to the round.
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
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import PreparedNoise
from cipherbayes.protocols import csp, server, site
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.rounds import StudyRounds
from cipherbayes.protocols.secure_sum import csp as sum_csp
from cipherbayes.protocols.secure_sum import server as sum_server
from cipherbayes.protocols.secure_sum import site as sum_site
from cipherbayes.protocols.stores import AnswerStore

OTHER = "everything else"
STEPS: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("gradient", Contributions, ("total",)),
    ("noise", PreparedNoise, ("prepare", "share")),
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
    ("sites' ledgers", Ledger, ("expect", "release", "rounds")),
    ("the CSP's memory of answers", AnswerStore, ("rounds", "answer", "keep")),
    ("the server's move of θ, and its checkpoint", StudyRounds, ("accept",)),
    (OTHER, site.Site, ("handle",)),
    (OTHER, csp.Csp, ("handle",)),
    (OTHER, server.Server, ("request", "accept")),
    (OTHER, sum_server.SecureSumServer, ("collect",)),
)
"""What each step is called, and the functions that are it."""


class Steps:
    """CPU milliseconds by step, one number for each round."""

    def __init__(self) -> None:
        self._rounds: list[dict[str, float]] = []
        self._now: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []

    @contextmanager
    def next_round(self) -> Iterator[None]:
        """Count every step of a round, which the block runs."""
        with self._measured():
            yield
        self._rounds.append(dict(self._now))
        self._now.clear()

    def medians(self, after: int) -> dict[str, float]:
        """The median of each step over the rounds after the first ones."""
        rounds = self._rounds[after:]
        names = dict.fromkeys(name for each in rounds for name in each)
        return {
            name: statistics.median(each.get(name, 0.0) for each in rounds)
            for name in names
        }

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            started = time.process_time()
            try:
                return function(*args, **named)
            finally:
                spent = 1000.0 * (time.process_time() - started)
                self._now[name] += spent - self._inner.pop()
                if self._inner:
                    self._inner[-1] += spent

        return wrapper

    @contextmanager
    def _measured(self) -> Iterator[None]:
        with ExitStack() as patches:
            for name, owner, functions in STEPS:
                for function in functions:
                    found = vars(owner)[function]
                    inner = found.__func__ if isinstance(found, classmethod) else found
                    timed: Any = self._timed(name, inner)
                    if isinstance(found, classmethod):
                        timed = classmethod(timed)
                    patches.enter_context(patch.object(owner, function, timed))
            yield
