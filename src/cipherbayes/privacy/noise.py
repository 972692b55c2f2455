"""Noise that protects someone: exact, and from the operating system's randomness."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from threading import Lock
from typing import Any, Protocol

import numpy as np

from cipherbayes.data.blocks import ordered_map
from cipherbayes.errors import PrivacyError
from cipherbayes.processes import this_process
from cipherbayes.typing import Integers

PIECE = 1024
"""Coordinates that are drawn in one call: 15 ms, so that calls cost next to nothing."""


class NoiseSource(Protocol):
    """Where a party's share of the noise comes from."""

    insecure: bool

    def share(self, dimension: int, scale: float, label: str) -> Integers:
        """``dimension`` independent discrete Gaussians of parameter ``scale``.

        ``label`` names the release; only a repeatable source looks at it.
        """


class SecureNoise:
    """OpenDP's discrete Gaussian.

    Formal guarantees
    -----------------
    Each coordinate has probability proportional to exp(-x² / 2 scale²) on the
    integers, sampled in exact arithmetic (Canonne, Kamath and Steinke 2020) from
    the operating system's generator. No seed, no floating point.

    Edge cases
    ----------
    The scale must be positive and finite. A scale so large that a sample could
    leave 64 bits is refused. Long vectors are drawn in pieces, on all processors:
    their coordinates are independent in any case.
    """

    insecure = False

    def share(self, dimension: int, scale: float, label: str = "") -> Integers:
        _check(dimension, scale)
        sampler = _sampler(scale)

        def piece(index: int) -> Integers:
            length = min(PIECE, dimension - index * PIECE)
            return np.array(sampler(np.zeros(length, dtype=np.int64)), dtype=np.int64)

        return np.concatenate(list(ordered_map(piece, -(-dimension // PIECE))))


class InsecureRepeatableNoise:
    """The same numbers for the same seed and label: for tests, protects nobody.

    A rounded Gaussian from a seeded generator. Every output of a run that uses it
    says so, nothing it makes is certified, and an engine that talks to other
    machines refuses it.
    """

    insecure = True

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def share(self, dimension: int, scale: float, label: str = "") -> Integers:
        _check(dimension, scale)
        digest = hashlib.sha256(f"{self._seed}/{label}".encode()).digest()
        rng = np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
        return np.rint(scale * rng.standard_normal(dimension)).astype(np.int64)


class PreparedNoise:
    """A source whose shares can be drawn before the release that they are for.

    Noise depends neither on data nor on θ, so a party that waits for its next
    question may draw then, and answer sooner.

    Parameters
    ----------
    source
        What draws.

    Formal guarantees
    -----------------
    A share drawn ahead has the law of one drawn on demand. It is handed out once,
    for the label, length and scale that it was drawn for, to one thread, and
    forgotten with that. Until then it is in this process's memory and nowhere else:
    not on disk, not in a log, not in a process forked off from this one.

    Edge cases
    ----------
    What was not prepared is drawn on demand. Shares of one release are held at most:
    preparing another drops them, unused. A killed process takes them with it.
    """

    def __init__(self, source: NoiseSource) -> None:
        self.insecure = source.insecure
        self._source = source
        self._lock = Lock()
        self._ready: dict[tuple[int, float, str], Integers] = {}
        self._process = this_process()

    def prepare(self, shares: Iterable[tuple[int, float, str]]) -> None:
        """Draw the shares of one release: length, scale and label of each."""
        wanted = dict.fromkeys(shares)
        with self._lock:
            held = self._held()
            if held.keys() != wanted.keys():
                held.clear()
                held.update((each, self._source.share(*each)) for each in wanted)

    def share(self, dimension: int, scale: float, label: str = "") -> Integers:
        wanted = dimension, scale, label
        with self._lock:
            ready = self._held().pop(wanted, None)
        return self._source.share(*wanted) if ready is None else ready

    def _held(self) -> dict[tuple[int, float, str], Integers]:
        """The shares that are held, without those that a fork copied."""
        if self._process != this_process():
            # The parent has these too, and may release them.
            self._ready, self._process = {}, this_process()
        return self._ready


def _check(dimension: int, scale: float) -> None:
    if dimension < 1 or not 0.0 < scale < 2.0**55:
        raise PrivacyError(
            "the noise has an impossible scale or length",
            remedy="a study's plan gives scales that 64 bits hold",
        )


@lru_cache(maxsize=16)
def _sampler(scale: float) -> Any:
    # Not the prelude, which loads scikit-learn where that is installed.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    return make_gaussian(*space, scale=scale)


def poisson_sample(count: int, rate: float) -> Integers:
    """Positions of the records that take part, each with probability ``rate``.

    Formal guarantees
    -----------------
    Independent 64-bit words of the operating system decide: a record takes part
    with probability floor(2⁶⁴ rate) / 2⁶⁴, never above ``rate``, so the
    amplification that the accountant counts is really there.

    Edge cases
    ----------
    No records, or none taken, give an empty array. A rate outside [0, 1] is
    refused.
    """
    if not 0.0 <= rate <= 1.0:
        raise PrivacyError(
            "the sampling rate is outside [0, 1]",
            remedy="give the probability with which a record takes part",
        )
    if rate == 1.0:
        return np.arange(count, dtype=np.int64)
    words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return np.flatnonzero(words < np.uint64(min(int(rate * 2.0**64), 2**64 - 1)))
