"""A number for each record that its own values decide.

It is used instead of a random number where a record must be treated alike whatever else
the table holds, and whenever it is asked about. It hides nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.models.rows import PLACE, Rows
from cipherbayes.typing import Floats, Integers

Words = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)


def places_of(table: PreparedTable, seed: int, site: str = "") -> Floats:
    """A number in [0, 1) for each record of a table, from its bits.

    Those of its person's name where there is one; else of its columns. Records that
    are equal to the last bit are told apart by counting them: the first, the second
    and so on have numbers of their own. Another record in the table, equal to them or
    not, changes none of these numbers.

    Parameters
    ----------
    site
        Whose table it is. Equal records of two sites have numbers of their own: where
        few different records are possible, as of whole years and yes or no, all sites
        would else treat the same ones alike, and what they have in common would be as
        uncertain as of one site. A person's name has one number at all sites.
    """
    words = np.concatenate(
        [
            np.empty(0, dtype=np.uint64),
            *table.map(lambda rows: _words(rows, seed, site)),
        ]
    )
    numbers = _copy_numbers(table, words)
    again = np.flatnonzero(numbers)
    words[again] = _mixed(words[again], numbers[again].astype(np.uint64))
    return _fractions(words)


def place_of_row(rows: Rows, seed: int) -> Floats:
    """A number in [0, 1) for each row, from the bits of its own values alone.

    How many rows a person has does not enter.
    """
    return _fractions(_hashed([*rows.x, *rows.own_outcome.values()], seed))


def _words(rows: Rows, seed: int, site: str) -> Words:
    if PLACE in rows.outcome:
        return _hashed([rows.outcome[PLACE]], seed)
    digest = hashlib.blake2b(f"{seed} {site}".encode(), digest_size=8).digest()
    return _hashed(_columns(rows), int.from_bytes(digest, "little"))


def _columns(rows: Rows) -> list[Floats]:
    return [*rows.x, *rows.outcome.values()]


def _copy_numbers(table: PreparedTable, words: Words) -> Integers:
    """How many equal records stand before each one; 0 for all rows of persons.

    Records whose words are equal are compared bit by bit: two that differ are never
    taken for one another, also where somebody has chosen them so.
    """
    numbers = np.zeros(words.size, dtype=np.int64)
    _, which, many = np.unique(words, return_inverse=True, return_counts=True)
    alike = np.flatnonzero(many[which] > 1)
    seen: dict[bytes, int] = {}
    done = 0
    for block in table.blocks(alike):
        if PLACE in block.outcome:
            break
        bits = np.ascontiguousarray(np.array(_columns(block)).T)
        records = bits.view(np.dtype((np.void, bits.shape[1] * 8)))[:, 0]
        kinds, kind, counts = np.unique(
            records, return_inverse=True, return_counts=True
        )
        before = np.array([seen.get(each.tobytes(), 0) for each in kinds])
        in_turn = np.argsort(kind, kind="stable")
        first = np.repeat(np.cumsum(counts) - counts, counts)
        rank = np.empty_like(in_turn)
        rank[in_turn] = np.arange(kind.size) - first
        numbers[alike[done : done + kind.size]] = before[kind] + rank
        for each, known, more in zip(kinds, before, counts, strict=True):
            seen[each.tobytes()] = int(known + more)
        done += kind.size
    return numbers


def _hashed(columns: Sequence[Floats], seed: int) -> Words:
    """A word of 64 bits for each record, one column after the other."""
    state = np.full(columns[0].size, seed, dtype=np.uint64)
    for column in columns:
        state = _mixed(state, np.ascontiguousarray(column).view(np.uint64))
    return state


def _mixed(state: Words, more: Words) -> Words:
    """The splitmix64 finaliser of a state and one more word."""
    state = (state ^ more) + _STEP
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _fractions(words: Words) -> Floats:
    return np.asarray(words / 2.0**64)
