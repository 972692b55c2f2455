from __future__ import annotations

import os
import stat
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tenseal.sealapi as sealapi

from cipherbayes.crypto import memory_files, seal
from cipherbayes.crypto.bfv import scheme
from cipherbayes.crypto.bfv.keys import generate_keys
from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS
from cipherbayes.errors import CryptoError

PARAMETERS = PARAMETER_SETS["bfv-2048-22x1"]


def test_a_memory_file_leaves_nothing_behind() -> None:
    before = os.listdir("/proc/self/fd")
    with memory_files.memory_file(b"content") as (path, descriptor):
        assert Path(path).read_bytes() == b"content"
        assert os.fstat(descriptor).st_nlink == 0
    assert os.listdir("/proc/self/fd") == before


def test_a_memory_file_is_closed_after_an_error() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ValueError), memory_files.memory_file():
        raise ValueError
    assert os.listdir("/proc/self/fd") == before


def test_without_memfd_the_file_is_private_and_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with memory_files.memory_file(b"content") as (path, _):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    assert not Path(path).parent.exists()
    pair = generate_keys(PARAMETERS)
    vector = np.arange(5, dtype=np.int64)
    assert (pair.secret.decrypt(pair.public.encrypt(vector)) == vector).all()


def _fresh(parameters: str) -> tuple[sealapi.Ciphertext, int]:
    """An encryption of zero, and the bytes of its coefficients and metadata."""
    pair = generate_keys(PARAMETER_SETS[parameters])
    parts = scheme.bfv_scheme(pair.public.parameters)
    return pair.public._zeros.take(), parts.ciphertext.size


@pytest.mark.skipif(seal._SET_PIPE_SIZE is None, reason="pipes of any size: Linux")
@pytest.mark.parametrize("parameters", ["bfv-2048-22x1", "bfv-4096-32x2"])
def test_a_pipe_gives_the_bytes_that_a_file_gives_and_leaves_nothing_open(
    parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing, size = _fresh(parameters)
    before = os.listdir("/proc/self/fd")
    in_a_file = seal.saved(thing)
    with monkeypatch.context() as patch:
        patch.delattr(seal, "memory_file")
        assert seal.saved(thing, size) == in_a_file
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("why", ["no such pipes", "too large", "too many pipes"])
def test_where_no_pipe_is_large_enough_there_is_a_file(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing, size = _fresh("bfv-2048-22x1")
    in_a_file = seal.saved(thing)
    before = os.listdir("/proc/self/fd")
    if why == "no such pipes":
        monkeypatch.setattr(seal, "_SET_PIPE_SIZE", None)
    elif why == "too large":
        size = seal._LARGEST_PIPE
    else:

        def refused(*_: object) -> int:
            raise PermissionError

        monkeypatch.setattr("cipherbayes.crypto.seal.fcntl.fcntl", refused)
    assert seal._piped(thing, size) is None
    assert seal.saved(thing, size) == in_a_file
    assert os.listdir("/proc/self/fd") == before


def test_every_compression_that_a_build_of_seal_may_use_is_understood() -> None:
    ciphertext = generate_keys(PARAMETERS).public.encrypt(np.arange(5, dtype=np.int64))
    parts = scheme.bfv_scheme(PARAMETERS)
    thing = sealapi.Ciphertext()
    parts.ciphertext.write(thing, ciphertext.polynomials[0], parts.context)
    saved = seal.saved(thing)
    members = seal.inflate(saved)
    for mode, body in ((0, members), (1, zlib.compress(members))):
        size = struct.pack("<Q", 16 + len(body))
        data = saved[:5] + bytes([mode, 0, 0]) + size + body
        assert seal.inflate(data, len(members)) == members
    with pytest.raises(CryptoError, match="not understood"):
        seal.inflate(saved[:5] + b"\x07" + saved[6:])


def test_what_is_loaded_is_the_last_thing_written_also_where_it_is_shorter() -> None:
    for name in ("bfv-4096-32x2", "bfv-2048-22x1", "bfv-4096-32x2"):
        pair = generate_keys(PARAMETER_SETS[name])
        parts = scheme.bfv_scheme(pair.public.parameters)
        vector = np.arange(5, dtype=np.int64)
        (words,) = pair.public.encrypt(vector).polynomials
        thing = sealapi.Ciphertext()
        parts.ciphertext.rewrite(thing, words, parts.context)
        np.testing.assert_array_equal(parts.ciphertext.read(thing), words)


def _written_by_a_thread() -> str:
    return memory_files.kept_file().written(b"other")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files: Linux")
def test_every_thread_and_every_process_writes_into_a_file_of_its_own() -> None:
    mine = memory_files.kept_file()
    assert memory_files.kept_file() is mine
    with ThreadPoolExecutor(1) as threads:
        path = threads.submit(_written_by_a_thread).result()
        assert path != mine.written(b"mine")
        assert Path(path).read_bytes() == b"other"
    assert not Path(path).exists()
    child = os.fork()
    if child == 0:
        os._exit(memory_files.kept_file().written(b"child") == mine.written(b""))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Path(mine.written(b"")).read_bytes().startswith(b"mine")


def test_parameters_below_128_bits_are_refused_by_seal() -> None:
    primes = PARAMETER_SETS["bfv-4096-32x1"].primes
    with pytest.raises(CryptoError, match="SEAL refuses"):
        scheme._scheme(2048, primes, PARAMETERS.plain_modulus)


def test_a_context_is_built_once() -> None:
    assert scheme.bfv_scheme(PARAMETERS) is scheme.bfv_scheme(
        PARAMETER_SETS["bfv-2048-22x3"]
    )


@pytest.mark.slow
def test_memory_stays_flat_over_many_encryptions() -> None:
    pair = generate_keys(PARAMETERS)
    vector = np.arange(184, dtype=np.int64)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    def rounds(count: int) -> None:
        for _ in range(count):
            pair.secret.decrypt(pair.public.encrypt(vector))

    rounds(100)
    before = resident()
    rounds(700)  # of 60,000 bytes each
    assert resident() - before < 500
