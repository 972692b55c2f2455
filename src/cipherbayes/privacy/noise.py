"""Noise that protects someone: exact, and from the operating system's randomness."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from cipherbayes.errors import PrivacyError
from cipherbayes.typing import Integers


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
    leave 64 bits is refused.
    """

    insecure = False

    def share(self, dimension: int, scale: float, label: str = "") -> Integers:
        _check(dimension, scale)
        return np.array(_sampler(scale)([0] * dimension), dtype=np.int64)


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


def _check(dimension: int, scale: float) -> None:
    if dimension < 1 or not 0.0 < scale < 2.0**55:
        raise PrivacyError(
            "the noise has an impossible scale or length",
            remedy="a study's plan gives scales that 64 bits hold",
        )


@lru_cache(maxsize=16)
def _sampler(scale: float) -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=scale)


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
