"""What the server remembers of each round, and the CSP of its answers."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cipherbayes.errors import RunError
from cipherbayes.inference.released import ServerState
from cipherbayes.protocols.stores import AnswerStore, Checkpoint


def ends(path: Path) -> dict[int, float]:
    database = sqlite3.connect(path)
    try:
        return dict(database.execute("SELECT round, at FROM finished"))
    finally:
        database.close()


def test_every_round_is_stamped_when_it_is_kept(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint.sqlite")
    before = time.time()
    for number in (2, 3):
        checkpoint.keep_state(number, ServerState(np.ones(2), np.zeros(2), 1))
    found = ends(tmp_path / "checkpoint.sqlite")
    checkpoint.close()
    assert sorted(found) == [2, 3]
    # SQLite's clock has milliseconds.
    assert before - 0.01 <= found[2] <= found[3] <= time.time() + 0.01


def test_an_older_checkpoint_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.sqlite"
    checkpoint = Checkpoint(path)
    checkpoint.keep_state(0, ServerState(np.ones(2), np.zeros(2), 1))
    checkpoint.close()
    database = sqlite3.connect(path)
    database.executescript("DROP TRIGGER stamp; DROP TABLE finished;")
    database.close()
    checkpoint = Checkpoint(path)
    checkpoint.keep_state(1, ServerState(np.ones(2), np.zeros(2), 2))
    last = checkpoint.last_state()
    checkpoint.close()
    assert last is not None
    assert last[0] == 1
    assert list(ends(path)) == [1]


def test_a_round_and_its_total_become_durable_together_or_not_at_all(
    tmp_path: Path,
) -> None:
    path = tmp_path / "checkpoint.sqlite"
    checkpoint = Checkpoint(path)

    def keep(number: int) -> None:
        with checkpoint.one_commit():
            checkpoint.keep_fact(f"total/{number}", b"signed")
            if number:
                raise MemoryError
            checkpoint.keep_state(number, ServerState(np.ones(2), np.zeros(2), 1))

    keep(0)
    with pytest.raises(MemoryError):
        keep(1)
    checkpoint.close()
    checkpoint = Checkpoint(path)
    assert checkpoint.fact("total/0") == b"signed"
    assert checkpoint.fact("total/1") is None
    assert len(checkpoint.trajectory()) == 1
    checkpoint.close()


def test_an_old_copy_of_the_csps_answers_is_refused(tmp_path: Path) -> None:
    """Else a round could be answered again, over other sites."""
    path, run = tmp_path / "answers.sqlite", b"r" * 16
    store = AnswerStore(path, run)
    store.keep(0, b"first")
    store.close()
    copy = path.read_bytes()
    store = AnswerStore(path, run)
    store.keep(1, b"second")
    store.close()
    path.write_bytes(copy)
    with pytest.raises(RunError, match="old copy"):
        AnswerStore(path, run)
    path.unlink()
    with pytest.raises(RunError, match="old copy"):
        AnswerStore(path, run)
    AnswerStore(path, b"s" * 16).close()  # another run's


def test_an_answer_lost_while_the_csp_works_is_not_given_anew(tmp_path: Path) -> None:
    path, run = tmp_path / "answers.sqlite", b"t" * 16
    store = AnswerStore(path, run)
    store.keep(0, b"first")
    store.keep(1, b"second")
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("DELETE FROM answers WHERE round = 1")
    with pytest.raises(RunError, match="old copy"):
        store.keep(1, b"another")
    store.close()
