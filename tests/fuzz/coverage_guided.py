"""Coverage-guided fuzzing of the wire with libFuzzer (atheris).

The first byte chooses what is sent, the rest is the body; the frame around it gets a
checksum that fits, since a forger can compute one. Whatever is accepted must be the
one encoding of itself, and nothing but an error of this package may be raised.

    python tests/fuzz/coverage_guided.py --runs 1000000 [--seconds 600]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

TESTS = Path(__file__).resolve().parents[1]
ROOMS = ("", "protocol", "protocol/encrypted", "fuzz")
sys.path[:0] = [str(TESTS / room) for room in ROOMS]

with atheris.instrument_imports(
    include=["cipherbayes.crypto", "cipherbayes.protocols"],
    exclude=["cipherbayes.crypto.seal"],
):
    from decoders import wire

    from cipherbayes.crypto.wire.framing import (
        HEADER_BYTES,
        Kind,
        encode_frame,
        frame_kind,
    )
    from cipherbayes.errors import CipherbayesError
    from cipherbayes.protocols.messages import decode, encode

DECODERS = wire()
CIPHERTEXTS, KEYS = DECODERS["ciphertexts"], DECODERS["public keys"]
KINDS = tuple(Kind)


def one(data: bytes) -> None:
    """One input; an exception that escapes is a finding."""
    if not data:
        return
    kind = KINDS[data[0] % len(KINDS)]
    frame = encode_frame(kind, data[1:])
    decoder = {Kind.CIPHERTEXT: CIPHERTEXTS, Kind.PUBLIC_KEY: KEYS}.get(kind)
    try:
        if decoder is not None:
            decoder.read(frame)
            return
        message = decode(frame)
    except CipherbayesError:
        return
    if encode(message) != frame:
        raise AssertionError("a message with two encodings")


def corpus(folder: Path) -> None:
    """Honest messages to begin from."""
    seeds = [seed for decoder in DECODERS.values() for seed in decoder.seeds]
    framed = [seed for seed in seeds if seed.startswith(b"cbay")]
    for number, seed in enumerate(framed):
        kind = KINDS.index(frame_kind(seed))
        body = bytes((kind,)) + seed[HEADER_BYTES:]
        (folder / f"seed-{number}").write_bytes(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=0, help="0: no limit")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus(Path(folder))
        options = [
            sys.argv[0],
            f"-runs={given.runs}",
            f"-max_total_time={given.seconds}",
            "-max_len=4096",
            "-rss_limit_mb=2048",
            "-timeout=10",
            "-print_final_stats=1",
            folder,
        ]
        atheris.Setup(options, one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
