"""A number for each record that its own values decide.

It is used instead of a random number where a record must be treated alike whatever else
the table holds, and whenever it is asked about. It hides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cipherbayes.models.base import PLACE, Rows
from cipherbayes.models.design import Design
from cipherbayes.typing import Floats


def place_of(rows: Rows, seed: int, beside: Design | None = None) -> Floats:
    """A number in [0, 1) for each record, from its bits.

    Those of its person's name where there is one; else of its columns, as an earlier
    fit prepares them where ``beside`` is that one's design.
    """
    if PLACE in rows.outcome:
        return _hashed([rows.outcome[PLACE]], seed)
    if beside is not None:
        columns = [*rows.beside(beside).x, *rows.own_outcome.values()]
        return _hashed(columns, seed)
    return _hashed([*rows.x, *rows.outcome.values()], seed)


def place_of_row(rows: Rows, seed: int) -> Floats:
    """A number in [0, 1) for each row, from the bits of its own values alone.

    How many rows a person has does not enter.
    """
    return _hashed([*rows.x, *rows.own_outcome.values()], seed)


def _hashed(columns: Sequence[Floats], seed: int) -> Floats:
    """The splitmix64 finaliser, one column after the other."""
    state = np.full(columns[0].size, seed, dtype=np.uint64)
    for column in columns:
        state ^= np.ascontiguousarray(column).view(np.uint64)
        state += np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return np.asarray(state / 2.0**64)
