"""What lies on the disk, in messages and in logs: modes, paths, keys, values."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import small_study, write_tables

from cipherbayes.crypto.key_folder import KeyFolder
from cipherbayes.engine.in_process import LocalCsp, LocalSite
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import CryptoError, ProtocolError
from cipherbayes.privacy.noise import InsecureRepeatableNoise
from cipherbayes.results.run import run
from conftest import logistic_frame


@pytest.fixture
def ordinary_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_ledgers_and_memories_are_their_owners_alone(
    tmp_path: Path, ordinary_umask: None
) -> None:
    study = write_tables(tmp_path, small_study(("a", "b")))
    out = tmp_path / "run"
    seen: dict[Path, int] = {}

    def look(done: int, total: int) -> None:
        """While the run is on: the journals of the databases are there too."""
        for path in (*out.rglob("*"), *tmp_path.glob("*.ledger*")):
            seen[path] = mode(path)

    run(study, out=out, progress=look)
    private = {
        path: bits
        for path, bits in seen.items()
        if {"csp", "a", "b"} & set(path.relative_to(tmp_path).parts)
        or ".ledger" in path.name
        or path.parent.name == "server"
    }
    names = {path.name for path in private}
    assert {"identity.key", "answers.sqlite", "site.json", "a.csv.ledger"} <= names
    assert {"checkpoint.sqlite", "answers.sqlite-wal"} <= names
    for path, bits in private.items():
        assert bits == (0o700 if path.is_dir() else 0o600), path
    assert seen[out / "run.json"] == 0o600


def test_a_frames_ledger_is_private_too(tmp_path: Path, ordinary_umask: None) -> None:
    study = small_study(("a",))
    run(study, {"a": logistic_frame(60)}, out=tmp_path / "run")
    assert mode(tmp_path / "run" / "sites" / "a" / "ledger.sqlite") == 0o600


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every byte string that passes between the parties."""
    passed: list[bytes] = []

    def record(owner: type, name: str) -> None:
        honest = getattr(owner, name)

        def spy(self: Any, *data: bytes) -> Any:
            answer = honest(self, *data)
            passed.extend(each for each in (*data, answer) if isinstance(each, bytes))
            return answer

        monkeypatch.setattr(owner, name, spy)

    for name in ("enrol", "join", "ask", "answer"):
        record(LocalSite, name)
    for name in ("offer", "join", "decrypt"):
        record(LocalCsp, name)
    return passed


def test_where_a_table_lies_stays_at_its_site(
    tmp_path: Path, messages: list[bytes]
) -> None:
    home = tmp_path / "private-corner"
    study = write_tables(home, small_study(("a", "b")))
    out = tmp_path / "run"
    run(study, out=out)
    assert len(messages) > 20
    assert not [each for each in messages if b"private-corner" in each]
    for file in out.rglob("*"):
        if file.is_file() and b"private-corner" in file.read_bytes():
            assert file.name == "site.json"
    assert "private-corner" in (out / "sites" / "a" / "site.json").read_text()


def test_no_key_and_no_noise_is_in_a_message_a_log_or_a_public_file(
    tmp_path: Path,
    messages: list[bytes],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    shares: list[np.ndarray] = []
    honest = InsecureRepeatableNoise.share

    def spy(self: Any, *args: Any) -> Any:
        shares.append(honest(self, *args))
        return shares[-1]

    monkeypatch.setattr(InsecureRepeatableNoise, "share", spy)
    study = write_tables(tmp_path, small_study(("a", "b")))
    out = tmp_path / "run"
    secrets: list[bytes] = []

    def look(done: int, total: int) -> None:
        """While the run is on: afterwards its keys are gone."""
        secrets[:] = [file.read_bytes()[-32:] for file in out.rglob("*.key")]

    with caplog.at_level(logging.DEBUG):
        run(study, out=out, progress=look)
    assert len(secrets) == 6
    secrets += [share.astype("<i8").tobytes() for share in shares]
    public = [file.read_bytes() for file in out.iterdir() if file.is_file()]
    public += [file.read_bytes() for file in (out / "server").iterdir()]
    for secret in secrets:
        assert not [each for each in (*messages, *public) if secret in each]
        assert secret.hex() not in caplog.text
    for share in shares:
        assert not any(str(value) in caplog.text for value in share if value > 999)


def test_each_party_is_pinned_from_the_start(tmp_path: Path) -> None:
    """A site whose identity was exchanged afterwards is refused, not believed."""
    study = write_tables(tmp_path, small_study(("a", "b")))
    folder = RunFolder.create(tmp_path / "run", study, {"a": None, "b": None})
    pinned = folder.pinned()
    for file in folder.keys("a").path.glob("*.key"):
        file.unlink()
    assert folder.keys("a").identity().identity != pinned["a"]
    server, _ = folder.server()
    enrolments = [folder.site(name).enrol() for name in ("a", "b")]
    with pytest.raises(ProtocolError, match="pins"):
        server.convene(enrolments, folder.csp().offer())


def test_a_party_opens_no_other_partys_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    study = write_tables(tmp_path, small_study(("a", "b")))
    folder = RunFolder.create(tmp_path / "run", study, {"a": None, "b": None})
    opened: list[Path] = []
    honest = KeyFolder._read

    def spy(self: Any, name: str) -> Any:
        opened.append(self.path)
        return honest(self, name)

    monkeypatch.setattr(KeyFolder, "_read", spy)
    for party, make in (
        ("a", lambda: folder.site("a")),
        ("csp", folder.csp),
        ("server", folder.server),
    ):
        opened.clear()
        make()
        assert {path.parent.name for path in opened} == {party} - {"server"}


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    study = write_tables(tmp_path, small_study(("a", "b")))
    folder = RunFolder.create(tmp_path / "run", study, {"a": None, "b": None})
    (folder.keys("a").path / "identity.key").chmod(0o644)
    with pytest.raises(CryptoError, match="other users") as refused:
        folder.site("a")
    assert "identity.key" in str(refused.value)
