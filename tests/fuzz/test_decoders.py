"""No bytes crash a decoder, keep it busy, or make it allocate beyond its input."""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import resource
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoders import FOLDER, Decoder, case, files, messages, reframed, wire
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.crypto.wire.framing import HEADER_BYTES, Kind, encode_frame
from cipherbayes.data.tables import open_table
from cipherbayes.errors import CipherbayesError, DataError, ProtocolError
from cipherbayes.protocols.messages import decode, encode

# By name, because what they read is made by whole runs.
WIRE = (
    "messages",
    "parties",
    "ciphertexts",
    "encrypted update",
    "CKKS ciphertexts",
    "CKKS public keys",
    "transcripts",
    "public keys",
    "pipes",
)
FILES = (
    "csv",
    "gzipped csv",
    "parquet",
    "studies",
    "ledgers",
    "checkpoints",
    "answers",
    "result.json",
    "posterior.nc",
    "run.json",
    "transcript.bin",
    "results that are verified",
    "site.json",
    "events",
    "key pairs",
    "signing keys",
    "exchange keys",
)
SECONDS = 5.0
"""CPU time that one input may take; the slowest honest one takes a tenth of it."""


def survive(decoder: Decoder, data: bytes) -> bool:
    """Whether the decoder accepts; anything but a refusal of ours fails the test."""
    started = time.process_time()
    refusal = ""
    try:
        decoder.read(data)
    except CipherbayesError as error:
        refusal = str(error)
    assert time.process_time() - started < SECONDS
    assert "\n" not in refusal  # a line for people
    return not refusal


def storm(decoder: Decoder, cases: int, seed: int) -> int:
    """So many inputs; how many were refused."""
    rng = random.Random(seed)
    return sum(not survive(decoder, case(decoder, rng)) for _ in range(cases))


def test_every_decoder_is_tested() -> None:
    assert (tuple(wire()), tuple(files())) == (WIRE, FILES)


@pytest.mark.parametrize("name", [*WIRE, *FILES])
def test_honest_bytes_are_accepted(name: str) -> None:
    decoder = {**wire(), **files()}[name]
    for seed in decoder.seeds:
        decoder.read(seed)


CASES = {"messages": 6000, "ciphertexts": 2000, "pipes": 2000, "parties": 300}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRE)
def test_no_bytes_of_another_party_crash_a_decoder(name: str) -> None:
    cases = CASES.get(name, 100)
    refused = storm(wire()[name], cases, seed=1)
    assert name == "parties" or refused > cases // 2


# Arrow says on standard error that it could not show a line that is no UTF-8.
NOT_UTF8 = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.slow
@NOT_UTF8
@pytest.mark.parametrize("name", FILES)
def test_no_file_crashes_its_reader(name: str) -> None:
    storm(files()[name], 40, seed=2)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(Kind))
def test_no_random_body_crashes_the_wire(body: bytes, kind: Kind) -> None:
    frame = encode_frame(kind, body)
    for name in ("messages", "ciphertexts", "pipes"):
        survive(wire()[name], frame)
        survive(wire()[name], body)


def test_whatever_is_accepted_has_one_encoding() -> None:
    rng = random.Random(3)
    accepted = 0
    for _ in range(3000):
        data = case(wire()["messages"], rng)
        try:
            message = decode(data)
        except ProtocolError:
            continue
        accepted += 1
        assert encode(message) == data
    assert accepted > 0


# -- memory and time ---------------------------------------------------------


def lies() -> list[bytes]:
    """Records that announce far more than they hold, in every msgpack type."""
    bodies = []
    for head in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF, 0xDC, 0xDE):
        record = bytes((head,)) + b"\xff" * 4
        bodies.append(len(record).to_bytes(4, "little") + record)
    nested = b"\x91" * 100_000
    bodies.append(len(nested).to_bytes(4, "little") + nested)
    bodies.append(b"\xff\xff\xff\xff")
    return [encode_frame(kind, body) for body in bodies for kind in Kind]


def peak_of(read: Callable[[bytes], object], data: bytes) -> int:
    tracemalloc.start()
    with contextlib.suppress(CipherbayesError):
        read(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_length_that_lies_costs_no_memory() -> None:
    for data in lies():
        assert peak_of(decode, data) < 2**20 + 8 * len(data)


def test_a_header_that_lies_costs_no_memory() -> None:
    for sent in messages():
        for length in (2**63, 2**40, 2**31, len(sent) + 1):
            data = sent[:8] + length.to_bytes(8, "little") + sent[16:]
            assert peak_of(decode, data) < 2**18 + 2 * len(sent)


def grown(work: Callable[[], object]) -> int:
    """Bytes by which the most memory a child process used grew."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with contextlib.suppress(DataError):
            work()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        os.write(write, str(1024 * (after - before)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as result:
        text = result.read()
    assert os.waitpid(child, 0)[1] == 0
    return int(text)


def read_whole(path: Path) -> int:
    table = open_table(path)
    return sum(chunk.num_rows for chunk in table.chunks({table.names[0]: "number"}))


def gzip_bomb(megabytes: int) -> Path:
    path = FOLDER / f"bomb-{megabytes}.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"age\n")
        for _ in range(megabytes):
            file.write(b"1.00000000\n" * 100_000)
    assert path.stat().st_size < megabytes * 2**13
    return path


def measured(path: Path) -> int:
    return grown(lambda: read_whole(path))


@pytest.mark.slow
def test_a_gzip_bomb_is_read_in_pieces() -> None:
    """Rows are streamed: 264 MB of them, or ten times 66 MB, take 60 to 100 MB."""
    small, large = (measured(gzip_bomb(size)) for size in (60, 240))
    assert large < 2 * small
    assert large < 128 * 2**20


def test_a_gzip_bomb_of_one_endless_line_is_refused() -> None:
    path = FOLDER / "line.csv.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b"age\n")
        for _ in range(60):
            file.write(b"1" * 1_000_000)
    with pytest.raises(DataError):
        read_whole(path)
    assert measured(path) < 200 * 2**20


@pytest.mark.slow
def test_a_parquet_bomb_is_read_in_pieces() -> None:
    """50 million equal values in a few kB."""
    path = FOLDER / "bomb.parquet"
    schema = pa.schema([("age", pa.float64())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        column = pa.array(np.ones(5_000_000))
        for _ in range(10):
            writer.write_table(pa.table([column], schema=schema))
    assert path.stat().st_size < 2**20
    assert measured(path) < 200 * 2**20


# -- the long versions --------------------------------------------------------


@pytest.mark.torture
@pytest.mark.parametrize("name", WIRE)
def test_a_million_inputs_crash_nothing_on_the_wire(name: str) -> None:
    cases = {"messages": 600_000, "ciphertexts": 300_000, "pipes": 200_000}
    storm(wire()[name], cases.get(name, 5_000), seed=4)


@NOT_UTF8
@pytest.mark.torture
@pytest.mark.parametrize("name", FILES)
def test_thousands_of_files_crash_no_reader(name: str) -> None:
    storm(files()[name], 2_000, seed=5)


def test_reframing_keeps_the_kind() -> None:
    for sent in messages():
        assert reframed(sent) == sent
        assert reframed(sent[:HEADER_BYTES] + b"x")[5] == sent[5]
