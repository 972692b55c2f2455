"""A number for each record that its own values decide.

It is used instead of a random number where a record must be treated alike whatever else
the table holds, and whenever it is asked about. It hides nothing.
"""

from __future__ import annotations

import numpy as np

from cipherbayes.models.base import PLACE, Rows
from cipherbayes.models.design import Design
from cipherbayes.typing import Floats


def place_of(rows: Rows, seed: int, beside: Design | None = None) -> Floats:
    """A number in [0, 1) for each record, from its bits (the splitmix64 finaliser).

    Those of its person's name where there is one; else of its columns, as an earlier
    fit prepares them where ``beside`` is that one's design.
    """
    if PLACE in rows.outcome:
        columns = [rows.outcome[PLACE]]
    elif beside is not None:
        columns = [*rows.beside(beside).x, *rows.own_outcome.values()]
    else:
        columns = [*rows.x, *rows.outcome.values()]
    state = np.full(rows.count, seed, dtype=np.uint64)
    for column in columns:
        state ^= np.ascontiguousarray(column).view(np.uint64)
        state += np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return np.asarray(state / 2.0**64)
