"""What leaves a site when its table, its ledger or its rows are at fault: one text."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import small_study, write_tables

from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import DataError, PrivacyError, RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.messages import Reason, Refusal, decode
from cipherbayes.protocols.refusals import CANNOT
from conftest import logistic_frame

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.fuel.utils import fobs

from cipherbayes.engine.flare import executor as executing
from cipherbayes.engine.flare.executor import PartyExecutor, _open
from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.party_thread import PartyThread
from cipherbayes.engine.flare.provisioning import Deployment, deploy
from cipherbayes.engine.flare.questions import PartyFailedError, PartyQuestion, Sealed

# As every FLARE program does first. What is encoded before it goes by other rules,
# which then stay for the whole process.
flare_decomposers.register()

SITES = ("a", "b")
RUN = "00" * 16
KEY = bytes(32)
STUDY = small_study(SITES, privacy={"records": 60})


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits that are enrolled, pinned and approved."""
    folder = tmp_path_factory.mktemp("refusals")
    made = deploy(Deployment(STUDY, "localhost"), folder / "kits")
    parties = {name: Kit.open(made[name]) for name in ("csp", *SITES)}
    for kit in parties.values():
        kit.enrol()
        kit.approve(STUDY, insecure=True)
    files = [kit.path / "identity.json" for kit in parties.values()]
    for kit in parties.values():
        kit.pin(files)
    return folder / "kits"


@pytest.fixture
def site(kits: Path, tmp_path: Path) -> Path:
    """The kit of site a, with a table that is as the study says."""
    kit = Path(shutil.copytree(kits / "a", tmp_path / "a"))
    frame().to_csv(kit / "t.csv", index=False)
    (kit / "site.toml").write_text('data = "t.csv"')
    return kit


def frame(rows: int = 40) -> Any:
    return logistic_frame(rows, seed=7)


class Workspace:
    """Where FLARE says that a job and its kit are."""

    def __init__(self, kit: Path) -> None:
        self._kit = kit

    def get_root_dir(self) -> str:
        return str(self._kit)

    def get_app_config_dir(self, job: str) -> str:
        folder = self._kit / "job"
        folder.mkdir(exist_ok=True)
        (folder / "study.toml").write_text(STUDY.to_toml())
        return str(folder)


def party(kit: Path, name: str = "a") -> PartyExecutor:
    """A party as FLARE runs it, greeted by its server."""
    executor = PartyExecutor(RUN)
    executor._name = name
    executor._party = PartyThread(partial(_open, Workspace(kit), "job", RUN))
    greeting = Shareable()
    greeting["key"] = KEY
    executor._greet("", greeting, None)
    return executor


def asked(verb: bytes, body: bytes = b"") -> PartyQuestion:
    """A question that is the same in every test, down to its nonce."""
    return PartyQuestion(bytes(16), verb, body)


def sent(executor: PartyExecutor, question: PartyQuestion) -> bytes:
    """All bytes with which a party answers."""
    reply = executor._answer("", Sealed(KEY).question(question), None)
    return bytes(fobs.dumps(reply))


def opened(reply: bytes, question: PartyQuestion) -> bytes | None:
    return Sealed(KEY).answer_in(question, fobs.loads(reply))


# -- opening ---------------------------------------------------------------


def table(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def spoil(kit: Path) -> None:
        change(frame()).to_csv(kit / "t.csv", index=False)

    return spoil


def with_value(column: str, value: Any) -> Callable[[Path], None]:
    def change(given: Any) -> Any:
        given = given.astype({column: object})
        given.loc[17, column] = value
        return given

    return table(change)


def raw(text: bytes) -> Callable[[Path], None]:
    return lambda kit: kit.joinpath("t.csv").write_bytes(text) and None  # type: ignore[return-value]


def other_ledger(kit: Path) -> None:
    Ledger.open(kit / "t.csv.ledger", dataset="x", epsilon=1.0, delta=1e-6).close()


def stricter_ledger(kit: Path) -> None:
    Ledger.open(kit / "t.csv.ledger", dataset="t.csv", epsilon=1, delta=1e-9).close()


VIOLATIONS: dict[str, Callable[[Path], Any]] = {
    "no file": lambda kit: (kit / "t.csv").unlink(),
    "a folder": lambda kit: (kit / "site.toml").write_text('data = "studies"'),
    "an unknown ending": lambda kit: (kit / "site.toml").write_text('data = "t.xls"'),
    "no settings": lambda kit: (kit / "site.toml").unlink(),
    "a missing column": table(lambda given: given.drop(columns="age")),
    "no outcome": table(lambda given: given.drop(columns="death")),
    "an unknown level": with_value("sex", "HIV"),
    "a missing value": with_value("age", None),
    "a missing level": with_value("sex", None),
    "an infinite value": with_value("age", "inf"),
    "text": with_value("age", "sixty-seven"),
    "an outcome that is none": with_value("death", 2),
    "a missing outcome": with_value("death", None),
    "more rows than the study": table(lambda given: frame(61)),
    "no rows": table(lambda given: given.iloc[:0]),
    "a line that is too long": raw(b"age,sex,death\n40,F,1\n40,F,1,1\n"),
    "a name twice": raw(b"age,age,sex,death\n40,40,F,1\n"),
    "not text": raw(b"age,sex,death\n\xff\xfe,F,1\n"),
    "nothing": raw(b""),
    "a ledger of another table": other_ledger,
    "a stricter ledger": stricter_ledger,
    "a damaged ledger": lambda kit: (kit / "t.csv.ledger").write_bytes(b"x" * 9000),
    "no roster": lambda kit: (kit / "roster.json").unlink(),
    "a key that others can read": lambda kit: os.chmod(kit / "keys", 0o755),
}


def refusals(site: Path, tmp_path: Path, caplog: Any) -> tuple[set[bytes], set[str]]:
    """What left the site, and what its log says, for every violation."""
    left, logged = set(), set()
    for number, spoil in enumerate(VIOLATIONS.values()):
        kit = Path(shutil.copytree(site, tmp_path / "spoilt" / str(number) / "a"))
        spoil(kit)
        caplog.clear()
        left.add(sent(party(kit), asked(b"E")))
        logged.add(caplog.messages[-1].replace(f"/spoilt/{number}/", "/"))
    return left, logged


@pytest.mark.slow
def test_the_same_bytes_leave_a_site_whatever_is_wrong_with_its_table(
    site: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left, logged = refusals(site, tmp_path, caplog)
    assert len(left) == 1
    with pytest.raises(PartyFailedError, match=CANNOT):
        opened(left.pop(), asked(b"E"))
    # The site itself is told what it is.
    assert len(logged) >= len(VIOLATIONS) - 2
    for words in ("none of its levels", "more rows", "missing values", "no such file"):
        assert any(words in line for line in logged)
    # Whoever sent errors as they are would tell the server.
    monkeypatch.setattr(executing, "said_outside", lambda name, error: error.what)
    shutil.rmtree(tmp_path / "spoilt")
    left, _ = refusals(site, tmp_path, caplog)
    assert len(left) > 12
    assert any(b"none of its levels" in data for data in left)


def test_a_table_that_fits_is_not_refused(site: Path) -> None:
    question = asked(b"E")
    assert opened(sent(party(site), question), question)


def test_the_first_question_does_not_matter(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (site / "t.csv").unlink()
    question = asked(b"H", b"anything")
    answer = opened(sent(party(site), question), question)
    assert answer is not None
    assert decode(answer, Refusal) == Refusal("a", Reason.UNAVAILABLE, CANNOT)


# -- rounds ----------------------------------------------------------------


class Joined:
    """A desk whose rounds fail, each time in another way."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def respond(self, verb: bytes, body: bytes) -> bytes:
        raise self._error

    def rest(self) -> None:
        """Nothing to prepare."""


def test_the_same_bytes_leave_a_site_whatever_fails_in_a_round() -> None:
    errors = [
        DataError("column 'hiv' has a value that is none of its levels"),
        DataError("changed while it was in use", where="/secret/t.csv"),
        PrivacyError("the sum of 62 rows is not finite"),
        RunError("cannot be read"),
        MemoryError("3 GB for 62 rows"),
        ValueError("could not convert string to float: 'sixty-seven'"),
        OSError(28, "no space left", "/secret/t.csv"),
        np.linalg.LinAlgError("singular"),
    ]
    question = asked(b"H", b"a round")
    left = set()
    for error in errors:
        executor = PartyExecutor(RUN)
        executor._name = "a"
        executor._seal = Sealed(KEY)
        executor._party = PartyThread(lambda error=error: Joined(error))  # type: ignore[misc]
        left.add(sent(executor, question))
    assert len(left) == 1
    answer = opened(left.pop(), question)
    assert answer is not None
    assert decode(answer, Refusal) == Refusal("a", Reason.UNAVAILABLE, CANNOT)


def test_a_site_says_the_same_itself_whatever_its_rows_do_to_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from parties import Consortium

    three = Consortium(tmp_path, small_study())
    request = three.request()
    left = set()
    for error in (DataError("in line 62"), PrivacyError("not finite")):

        def fail(self: Any, *args: Any, error: Exception = error) -> Any:
            raise error

        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(Contributions, "total", fail)
            left.add(three.sites["a"].handle(request))
    assert len(left) == 1
    assert decode(left.pop(), Refusal) == Refusal("a", Reason.UNAVAILABLE, CANNOT)
    assert "in line 62" in caplog.text


# -- what a party may still say --------------------------------------------


def test_a_study_that_is_not_approved_is_said_so_and_the_log_says_how(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(site / "studies")
    question = asked(b"E")
    with pytest.raises(PartyFailedError, match=r"^the study is not approved here$"):
        opened(sent(party(site), question), question)
    assert f"`cipherbayes site approve {site} STUDY`" in caplog.text


def test_a_site_does_not_say_how_long_it_took(site: Path) -> None:
    executor = party(site)
    sent(executor, asked(b"E"))
    assert opened(sent(executor, asked(b"T")), asked(b"T")) == b"0.0"


# -- processes on one machine ----------------------------------------------


@pytest.mark.slow
def test_a_process_says_what_is_wrong_to_its_own_terminal_only(tmp_path: Path) -> None:
    study = write_tables(tmp_path, small_study(SITES))
    ledgers = {name: tmp_path / f"{name}.ledger" for name in SITES}
    folder = RunFolder.create(tmp_path / "run", study, ledgers)
    said = set()
    for column in ("age", "sex"):
        logistic_frame(40).drop(columns=column).to_csv(tmp_path / "a.csv", index=False)
        done = subprocess.run(
            [sys.executable, "-m", "cipherbayes.engine.party", str(folder.path), "a"],
            input=b"",
            capture_output=True,
        )
        assert f"has no column '{column}'".encode() in done.stderr
        said.add((done.returncode, hashlib.sha256(done.stdout).hexdigest()))
    assert said == {(1, hashlib.sha256(b"").hexdigest())}
