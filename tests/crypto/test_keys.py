from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS
from cipherbayes.crypto.key_folder import KeyFolder
from cipherbayes.errors import CryptoError, ProtocolError

RUN, OTHER = b"r" * 16, b"o" * 16
PARAMETERS = PARAMETER_SETS["bfv-2048-22x3"]


@pytest.fixture
def folder(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "party" / "keys")


def fill(folder: KeyFolder) -> None:
    folder.identity()
    folder.exchange_key(RUN)
    folder.create_pair(RUN, PARAMETERS)


def test_key_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = KeyFolder(tmp_path / "keys")
        fill(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    files = list(folder.path.iterdir())
    assert len(files) == 3
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_keys_are_the_same_after_a_restart(folder: KeyFolder) -> None:
    fill(folder)
    again = KeyFolder(folder.path)
    assert again.identity().identity == folder.identity().identity
    assert again.exchange_key(RUN).public == folder.exchange_key(RUN).public
    pair, loaded = folder.load_pair(RUN), again.load_pair(RUN)
    vector = np.arange(4, dtype=np.int64)
    assert (loaded.secret.decrypt(pair.public.encrypt(vector)) == vector).all()


def test_every_run_has_keys_of_its_own(folder: KeyFolder) -> None:
    assert folder.exchange_key(RUN).public != folder.exchange_key(OTHER).public
    one = folder.create_pair(RUN, PARAMETERS)
    other = folder.create_pair(OTHER, PARAMETERS)
    assert one.public.key_id != other.public.key_id


def test_a_second_pair_for_a_run_is_refused_and_the_first_stays(
    folder: KeyFolder,
) -> None:
    first = folder.create_pair(RUN, PARAMETERS)
    with pytest.raises(CryptoError, match="already has a key pair"):
        folder.create_pair(RUN, PARAMETERS)
    assert folder.load_pair(RUN).public.key_id == first.public.key_id
    with pytest.raises(CryptoError, match="no key pair here"):
        folder.load_pair(OTHER)


def test_processes_that_race_for_a_key_agree_on_one(folder: KeyFolder) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: folder.identity().identity.id, range(16)))
    assert len(set(found)) == 1
    assert [file.name for file in folder.path.iterdir()] == ["identity.key"]


def test_listing_shows_ids_and_never_contents(folder: KeyFolder) -> None:
    fill(folder)
    records = folder.records()
    assert [record.kind for record in records] == ["exchange", "encryption", "identity"]
    shown = "".join(map(repr, records))
    assert folder.identity().identity.id in shown
    assert folder.load_pair(RUN).public.key_id.hex() in shown
    assert PARAMETERS.id in shown
    for name in ("identity.key", f"{RUN.hex()}.exchange.key"):
        secret = (folder.path / name).read_bytes()[-32:]
        assert secret.hex() not in shown
    assert len(shown) < 1200


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_loose_file_is_refused_with_a_remedy(folder: KeyFolder, mode: int) -> None:
    folder.identity()
    (folder.path / "identity.key").chmod(mode)
    with pytest.raises(CryptoError, match="chmod 600"):
        folder.identity()


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_loose_folder_is_refused_with_a_remedy(folder: KeyFolder, mode: int) -> None:
    folder.identity()
    folder.path.chmod(mode)
    with pytest.raises(CryptoError, match="chmod 700"):
        folder.identity()
    with pytest.raises(CryptoError, match="chmod 700"):
        KeyFolder(folder.path)


def test_a_link_is_not_followed(folder: KeyFolder, tmp_path: Path) -> None:
    folder.identity()
    file = folder.path / "identity.key"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CryptoError, match="cannot be opened"):
        folder.identity()


def test_things_that_are_no_key_files_are_refused(folder: KeyFolder) -> None:
    (folder.path / "identity.key").mkdir(mode=0o700)
    with pytest.raises(CryptoError, match="not a file"):
        folder.identity()
    file = folder.path.parent / "file"
    file.touch(mode=0o600)
    with pytest.raises(CryptoError, match="not a folder"):
        KeyFolder(file)
    with pytest.raises(CryptoError, match="cannot be made"):
        KeyFolder(file / "keys")


def test_a_damaged_key_file_is_refused(folder: KeyFolder) -> None:
    fill(folder)
    for file, load in (
        ("identity.key", folder.identity),
        (f"{RUN.hex()}.exchange.key", lambda: folder.exchange_key(RUN)),
        (f"{RUN.hex()}.pair.key", lambda: folder.load_pair(RUN)),
    ):
        path = folder.path / file
        whole = path.read_bytes()
        for damaged in (b"", whole[:-1], whole + b"\0", whole[:60] + whole[59:-1]):
            path.write_bytes(damaged)
            with pytest.raises(CryptoError):
                load()
        path.write_bytes(whole)
        load()
    huge = folder.path / "identity.key"
    os.truncate(huge, 2**22)
    with pytest.raises(CryptoError, match="too large"):
        folder.identity()


def test_a_run_can_be_forgotten(folder: KeyFolder) -> None:
    fill(folder)
    folder.exchange_key(OTHER)
    assert folder.forget(RUN) == 2
    left = [record.run for record in folder.records()]
    assert left == [OTHER.hex(), ""]


def test_a_run_id_cannot_name_another_file(folder: KeyFolder) -> None:
    for run in (b"../../../../etc/", b"", b"x" * 17):
        if len(run) == 16:
            folder.exchange_key(run)
            assert (folder.path / f"{run.hex()}.exchange.key").is_file()
        else:
            with pytest.raises(ProtocolError, match="run id"):
                folder.exchange_key(run)
