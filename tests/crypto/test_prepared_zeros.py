"""Encryptions of zero made ahead: each is handed out once, in one process."""

from __future__ import annotations

import itertools
import os
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.crypto.prepared_zeros import PreparedZeros


@given(st.lists(st.integers(-2, 3), max_size=20))
def test_nothing_is_handed_out_twice(counts: Any) -> None:
    numbers = itertools.count()
    zeros = PreparedZeros(lambda: next(numbers))
    taken = []
    for count in counts:
        before = len(zeros)
        zeros.prepare(count)
        assert len(zeros) == before + max(count, 0)
        taken.append(zeros.take())
    taken += [zeros.take() for _ in range(len(zeros) + 1)]
    assert len(taken) == len(set(taken))


def test_a_fork_holds_none_and_its_parent_still_does() -> None:
    zeros = PreparedZeros(object)
    zeros.prepare(3)
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os._exit(len(zeros))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(zeros) == 3
