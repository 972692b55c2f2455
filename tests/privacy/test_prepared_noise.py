"""Noise drawn ahead of its release is used once, for that release, in this process."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import Consortium, small_study

from cipherbayes.privacy.noise import (
    InsecureRepeatableNoise,
    PreparedNoise,
    SecureNoise,
)
from cipherbayes.typing import Integers

WANTED = [(5, 1000.0, "round 1"), (3, 50.0, "round 1, information")]


class Counting(SecureNoise):
    """A source that remembers what was asked of it."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, float, str]] = []

    def share(self, dimension: int, scale: float, label: str = "") -> Integers:
        self.drawn.append((dimension, scale, label))
        return super().share(dimension, scale, label)


def test_a_prepared_share_is_handed_out_once() -> None:
    source = Counting()
    noise = PreparedNoise(source)
    noise.prepare(WANTED)
    assert source.drawn == WANTED
    first = noise.share(*WANTED[0])
    assert source.drawn == WANTED
    second = noise.share(*WANTED[0])
    assert source.drawn == [*WANTED, WANTED[0]]
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    "other", [(5, 1000.0, "round 2"), (5, 1001.0, "round 1"), (4, 1000.0, "round 1")]
)
def test_a_share_serves_only_the_release_that_it_was_drawn_for(other: Any) -> None:
    source = Counting()
    noise = PreparedNoise(source)
    noise.prepare(WANTED)
    assert noise.share(*other).size == other[0]
    assert source.drawn == [*WANTED, other]


def test_one_release_is_held_and_preparing_it_again_draws_nothing() -> None:
    source = Counting()
    noise = PreparedNoise(source)
    noise.prepare(WANTED)
    noise.prepare(WANTED)
    assert source.drawn == WANTED
    following = [(5, 1000.0, "round 2")]
    noise.prepare(following)
    noise.share(*WANTED[0])
    assert source.drawn == [*WANTED, *following, WANTED[0]]


def test_repeatable_noise_is_the_same_prepared_or_not() -> None:
    plain = InsecureRepeatableNoise("1/north")
    noise = PreparedNoise(InsecureRepeatableNoise("1/north"))
    noise.prepare(WANTED)
    for wanted in (*WANTED, (5, 1000.0, "round 2")):
        assert np.array_equal(noise.share(*wanted), plain.share(*wanted))
    assert noise.insecure
    assert not PreparedNoise(SecureNoise()).insecure


def test_threads_never_get_the_same_share() -> None:
    noise = PreparedNoise(SecureNoise())
    wanted = (20, 1e6, "round 1")

    def work(number: int) -> bytes:
        if number % 4 == 0:
            noise.prepare([wanted])
        return noise.share(*wanted).tobytes()

    with ThreadPoolExecutor(8) as pool:
        shares = list(pool.map(work, range(200)))
    assert len(set(shares)) == len(shares)


def test_a_forked_process_does_not_inherit_shares() -> None:
    noise = PreparedNoise(SecureNoise())
    noise.prepare([(20, 1e6, "round 1")])
    real, parent = os.getpid, os.getpid()
    try:
        # As after a fork, whose child has a copy of everything but the process id.
        os.getpid = lambda: parent + 1
        child = noise.share(20, 1e6, "round 1")
        assert noise._ready == {}
    finally:
        os.getpid = real
    assert np.abs(child).max() > 0


def test_prepared_shares_are_neither_shown_nor_pickled() -> None:
    noise = PreparedNoise(SecureNoise())
    noise.prepare([(1, 1e9, "round 1")])
    (held,) = noise._ready.values()
    assert str(abs(int(held[0]))) not in repr(noise)
    with pytest.raises(TypeError):
        pickle.dumps(noise)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_site_that_prepares_answers_with_the_same_vector(
    tmp_path: Path, prepared: bool
) -> None:
    consortium = Consortium(tmp_path, small_study(inference={"rounds": 3}))
    expected = Consortium(tmp_path / "other", small_study(inference={"rounds": 3}))
    source = PreparedNoise(InsecureRepeatableNoise("a"))
    consortium.sites["a"] = consortium.site("a", noise=source)
    consortium.sites["a"].join(consortium.manifest, consortium.offer)
    for _ in range(3):
        if prepared:
            consortium.sites["a"].prepare()
            assert source._ready
        consortium.play()
        expected.play()
        assert not source._ready
    consortium.sites["a"].prepare()
    assert not source._ready, "nothing is asked after the last round"
    here, there = (c.checkpoint.trajectory() for c in (consortium, expected))
    assert [theta.tobytes() for theta in here] == [t.tobytes() for t in there]
