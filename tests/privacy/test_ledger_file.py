"""The ledger's file is private, and survives tampering, kills and crowds."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ledgers import DELTA, SIGMA, ask, ledger, never, opened, path

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.accountant import calibrate_noise
from cipherbayes.privacy.ledger import Ledger

__all__ = ["ledger", "path"]


# -- the file ----------------------------------------------------------------


def test_only_the_owner_can_read_the_file(ledger: Ledger, path: Path) -> None:
    ask(ledger)
    files = list(path.parent.iterdir())
    assert path in files
    assert not [file for file in files if file.name.endswith(".partial")]
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_a_leftover_of_a_killed_beginning_blocks_nobody(path: Path) -> None:
    leftover = path.with_name(f".{path.name}.{os.getpid()}.partial")
    leftover.write_bytes(b"half a ledger")
    ledger = opened(path)
    assert len(ask(ledger)) == 16
    ledger.close()


def test_the_ledger_of_another_table_is_refused(ledger: Ledger, path: Path) -> None:
    with pytest.raises(PrivacyError, match=r"another table \('north.csv'\)"):
        Ledger.open(path, dataset="south.csv", epsilon=1.0, delta=DELTA)


def test_a_missing_ledger_is_not_begun_by_reading_it(path: Path) -> None:
    with pytest.raises(PrivacyError, match="no such ledger"):
        Ledger.read(path)
    with pytest.raises(PrivacyError, match="no such ledger"):
        Ledger.read(path.parent)
    assert not path.exists()


TAMPERINGS = {
    "a cheaper event": "UPDATE entries SET event = replace(event, '.', '9.')",
    "a smaller epsilon": "UPDATE entries SET epsilon = epsilon / 2 WHERE number = 2",
    "another answer": "UPDATE vectors SET answer = x'00' WHERE number = 1",
    "an answer taken back": "DELETE FROM answers WHERE number = 3",
    "an answer gone": "DELETE FROM vectors WHERE number = 3",
    "another digest": "UPDATE answers SET digest = x'00' WHERE number = 2",
    "a run that is over": "INSERT INTO ended VALUES (7, '', x'', '', x'')",
    "another question": "UPDATE entries SET question = x'00' WHERE number = 3",
    "the first entry lost": "DELETE FROM entries WHERE number = 1",
    "the last entry lost": "DELETE FROM entries WHERE number = 3",
    "all entries lost": "DELETE FROM entries",
    "entries renumbered": "UPDATE entries SET number = number + 10",
    "a larger budget": "UPDATE about SET value = '100.0' WHERE name = 'epsilon'",
    "a larger delta": "UPDATE about SET value = '0.5' WHERE name = 'delta'",
    "no budget": "DELETE FROM about WHERE name = 'epsilon'",
    "no seal": "DELETE FROM about WHERE name = 'seal'",
    "another version": "UPDATE about SET value = '9' WHERE name = 'version'",
    "no table of entries": "DROP TABLE entries",
    "no facts": "DROP TABLE about",
}


@pytest.mark.parametrize("tampering", sorted(TAMPERINGS))
def test_a_tampered_ledger_is_refused(path: Path, tampering: str) -> None:
    ledger = opened(path)
    for number in range(3):
        ask(ledger, number)
    ledger.close()
    database = sqlite3.connect(path)
    database.execute(TAMPERINGS[tampering])
    database.commit()
    database.close()
    assert_refused(path)


def test_tampering_under_an_open_ledger_is_refused_too(
    ledger: Ledger, path: Path
) -> None:
    ask(ledger, 0)
    database = sqlite3.connect(path)
    database.execute("UPDATE about SET value = '100.0' WHERE name = 'epsilon'")
    database.commit()
    database.close()
    with pytest.raises(PrivacyError, match="damaged"):
        ask(ledger, 1, compute=never)
    with pytest.raises(PrivacyError, match="damaged"):
        ledger.spent()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9])
def test_a_truncated_ledger_is_refused(path: Path, share: float) -> None:
    ledger = opened(path)
    for number in range(10):
        ask(ledger, number, compute=lambda: os.urandom(4000))
    ledger.close()
    os.truncate(path, int(path.stat().st_size * share))
    assert_refused(path)


def test_what_is_no_database_is_refused(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_text("time,event\n1,0\n" * 1000, encoding="utf-8")
    assert_refused(path)
    path.write_bytes(os.urandom(8192))
    assert_refused(path)


def test_somebody_elses_database_is_refused_and_left_as_it_is(path: Path) -> None:
    database = sqlite3.connect(path)
    path.chmod(0o600)
    database.execute("CREATE TABLE patients (name TEXT)")
    database.commit()
    database.close()
    before = path.read_bytes()
    assert_refused(path)
    assert path.read_bytes() == before


def assert_refused(path: Path) -> None:
    for attempt in (lambda: Ledger.read(path), lambda: opened(path)):
        with pytest.raises(PrivacyError, match="damaged, was changed, or is no") as no:
            attempt()  # type: ignore[no-untyped-call]
        assert "\n" not in str(no.value)
        assert str(path) in str(no.value)
        assert no.value.remedy


def test_a_ledger_that_cannot_be_written_releases_nothing(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger._database.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(PrivacyError, match="cannot be written, so nothing"):
        ask(ledger, compute=never)
    other.execute("ROLLBACK")
    other.close()
    assert len(ask(ledger)) == 16


# -- kills and crowds --------------------------------------------------------

CHILD = '''
import os, signal, sys
from pathlib import Path
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger

path, moment, sigma = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Deadly:
    """A connection during which the process is killed."""

    def __init__(self, database):
        self._database = database
        self._passed = {}

    def __getattr__(self, name):
        return getattr(self._database, name)

    def execute(self, statement, *values):
        first = statement.split()[0]
        number = self._passed[first] = self._passed.get(first, 0) + 1
        if f"before {first} {number}" == moment:
            die()
        result = self._database.execute(statement, *values)
        if f"after {first} {number}" == moment:
            die()
        return result

ledger = Ledger.open(path, dataset="north.csv", epsilon=1.0, delta=1e-5)
ledger._database = Deadly(ledger._database)

def compute():
    answer = os.urandom(16)
    path.with_suffix(".computed").write_bytes(answer)
    if moment == "in compute":
        die()
    return answer

answer = ledger.release(run=b"run", site="north", round=0, purpose="gradient",
                        study=b"study", question=b"theta", event=GaussianSum(sigma),
                        compute=compute)
path.with_suffix(".answered").write_bytes(answer)
die()
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
    path: Path, moment: str, charged: bool, kept: bool
) -> None:
    process = child(CHILD, path, moment, SIGMA)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
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
