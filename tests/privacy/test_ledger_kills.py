"""Killed processes and many at once: one charge before one answer, never more."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import (
    DELTA,
    SIGMA,
    ask,
    never,
    opened,
    path,
)

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.accountant import calibrate_noise
from cipherbayes.privacy.ledger import Ledger

__all__ = ["path"]


CHILDREN = '''
import os, signal, sys
from pathlib import Path
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Deadly:
    """A connection during which the process is killed."""

    def __init__(self, database, moment):
        self._database = database
        self._moment = moment
        self._passed = {}

    def __getattr__(self, name):
        return getattr(self._database, name)

    def execute(self, statement, *values):
        first = statement.split()[0]
        number = self._passed[first] = self._passed.get(first, 0) + 1
        if f"before {first} {number}" == self._moment:
            die()
        result = self._database.execute(statement, *values)
        if f"after {first} {number}" == self._moment:
            die()
        return result

def release(path, moment, sigma):
    ledger = Ledger.open(path, dataset="north.csv", epsilon=1.0, delta=1e-5)
    ledger._records.database = Deadly(ledger._records.database, moment)

    def compute():
        answer = os.urandom(16)
        path.with_suffix(".computed").write_bytes(answer)
        if moment == "in compute":
            die()
        return answer

    answer = ledger.release(run=b"run", site="north", round=0, purpose="gradient",
                            study=b"study", question=b"theta",
                            event=GaussianSum(sigma), compute=compute)
    path.with_suffix(".answered").write_bytes(answer)
    die()

for line in sys.stdin:
    path, moment, sigma = line.rstrip().split("\\t")
    process = os.fork()
    if not process:
        try:
            release(Path(path), moment, float(sigma))
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
'''

CROWD = """
import os, sys
from pathlib import Path
from cipherbayes.errors import BudgetError
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger

path, own, sigma = Path(sys.argv[1]), sys.argv[2].encode(), float(sys.argv[3])
ledger = Ledger.open(path, dataset="north.csv", epsilon=1.0, delta=1e-5)

def ask(run, number):
    return ledger.release(run=run, site="north", round=number, purpose="gradient",
                          study=b"study", question=b"theta", event=GaussianSum(sigma),
                          compute=lambda: os.urandom(8))

shared = [ask(b"shared", number).hex() for number in range(10)]
fresh = 0
try:
    for number in range(1000):
        ask(own, number)
        fresh += 1
except BudgetError:
    pass
print(fresh, *shared)
"""


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def exit_code() -> Iterator[Callable[..., int]]:
    """Runs CHILDREN, which has imported all and forks a process for every line."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILDREN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines, answers = process.stdin, process.stdout

        def of_child(*arguments: object) -> int:
            print(*arguments, sep="\t", file=lines, flush=True)
            return int(answers.readline())

        yield of_child


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "charged", "kept"),
    [
        ("before BEGIN 1", False, False),
        ("after BEGIN 1", False, False),
        ("before INSERT 1", False, False),  # the entry
        ("after INSERT 2", False, False),  # the seal
        ("before COMMIT 1", False, False),
        ("after COMMIT 1", True, False),
        ("in compute", True, False),
        ("after BEGIN 2", True, False),
        ("after INSERT 3", True, False),  # the vector
        ("after INSERT 4", True, False),  # the answer's record
        ("before COMMIT 2", True, False),
        ("after COMMIT 2", True, True),
        ("after the answer", True, True),
    ],
)
def test_a_kill_at_any_moment_leaves_no_answer_without_an_entry(
    path: Path,
    exit_code: Callable[..., int],
    moment: str,
    charged: bool,
    kept: bool,
) -> None:
    assert exit_code(path, moment, SIGMA) == -signal.SIGKILL
    answered = path.with_suffix(".answered")
    ledger = Ledger.read(path)
    entries = list(ledger.entries())
    assert len(entries) == int(charged)
    assert answered.exists() == (moment == "after the answer")
    assert [entry.kept for entry in entries] == [kept] * charged
    if kept:
        # The answer that was computed is the only one there will ever be.
        computed = path.with_suffix(".computed").read_bytes()
        assert ask(ledger, compute=never) == computed
    if charged:
        assert ledger.spent() == entries[0].epsilon > 0.0
        with pytest.raises(PrivacyError, match="another question"):
            ask(ledger, question=b"changed", compute=never)
    else:
        assert ledger.spent() == 0.0
    answer = ask(ledger)
    assert ask(ledger, compute=never) == answer
    assert len(list(ledger.entries())) == 1
    ledger.close()


@pytest.mark.slow
def test_concurrent_processes_cannot_overspend(path: Path) -> None:
    rounds = 200
    sigma = calibrate_noise(1.0, DELTA, rounds)
    crowd = [child(CROWD, path, f"run {number}", sigma) for number in range(3)]
    lines = [process.communicate(timeout=120)[0].split() for process in crowd]
    assert [process.returncode for process in crowd] == [0, 0, 0]
    # All saw the same ten answers of the shared run, and the rest was shared out.
    assert len({tuple(line[1:]) for line in lines}) == 1
    assert sum(int(line[0]) for line in lines) + 10 == rounds
    ledger = Ledger.read(path)
    assert len(list(ledger.entries())) == rounds
    assert ledger.spent() <= 1.0 * (1.0 + 1e-9)
    ledger.close()


def test_two_threads_that_begin_one_ledger_share_it(path: Path) -> None:
    barrier = threading.Barrier(4)
    answers: list[bytes] = []

    def begin() -> None:
        barrier.wait()
        ledger = opened(path)
        answers.append(ask(ledger))
        ledger.close()

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert len(set(answers)) == 1


class Killed(BaseException):
    """The process ends here: nothing behind this point happens."""


class Mortal:
    """A connection of a process that is killed before its n-th statement."""

    def __init__(self, database: sqlite3.Connection, left: int) -> None:
        self._database = database
        self._left = left

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    @property
    def in_transaction(self) -> bool:
        # A dead process rolls nothing back by itself; closing the file does.
        return self._left >= 0 and self._database.in_transaction

    def execute(self, statement: str, *values: object) -> object:
        self._left -= 1
        if self._left < 0:
            raise Killed
        return self._database.execute(statement, *values)  # type: ignore[arg-type]


STEPS = st.tuples(
    st.integers(0, 3),  # round
    st.sampled_from(["north", "south"]),
    st.sampled_from([b"theta", b"other"]),
    st.integers(1, 60),  # statements until the kill; most releases need fewer
    st.sampled_from(["answers", "fails"]),
)


@pytest.mark.slow
@given(steps=st.lists(STEPS, min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_whatever_dies_every_answer_is_charged_first_and_stays_the_only_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    path = tmp_path_factory.mktemp("kills") / "north.ledger"
    opened(path, epsilon=0.5).close()
    given: dict[tuple[str, int], tuple[bytes, bytes]] = {}
    computed: set[tuple[str, int]] = set()
    charged = 0
    for round, site, question, left, way in steps:
        ledger = Ledger.read(path)
        database = ledger._records.database

        def compute(key: Any = (site, round), way: Any = way) -> bytes:
            # (2): an entry is on disk before anything is computed.
            assert key in {(e.site, e.round) for e in Ledger.read(path).entries()}
            computed.add(key)
            if way == "fails":
                raise ArithmeticError
            return os.urandom(8)

        ledger._records.database = Mortal(database, left)  # type: ignore[assignment]
        try:
            answer = ask(ledger, round, site=site, question=question, compute=compute)
        except (Killed, ArithmeticError, PrivacyError):
            answer = None
        database.close()
        if answer is not None:
            # (3): one answer for ever, to one question.
            known = given.setdefault((site, round), (question, answer))
            assert known == (question, answer)
        again = Ledger.read(path)
        entries = list(again.entries())
        keys = [(entry.site, entry.round) for entry in entries]
        assert len(keys) == len(set(keys)) >= charged
        charged = len(keys)
        assert computed <= set(keys)
        assert set(given) <= {(e.site, e.round) for e in entries if e.kept}
        # (1): whatever happened, within the budget.
        assert again.spent() <= 0.5 * (1 + 1e-9)
        again.close()
