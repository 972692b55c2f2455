"""Every place where bytes from outside become objects, each with honest bytes.

A decoder may accept or refuse. It may refuse with an error of this package only,
within a second and within the memory that its input pays for.
"""

from __future__ import annotations

import gzip
import io
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from encrypted_parties import EncryptedConsortium, encrypted_study
from parties import Consortium, small_study, write_tables

from cipherbayes.crypto.bfv.ciphertext import Ciphertext
from cipherbayes.crypto.bfv.keys import KeyPair, PublicKey
from cipherbayes.crypto.ckks.keys import CkksPublicKey
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey
from cipherbayes.crypto.wire.framing import HEADER_BYTES, Kind, encode_frame, frame_kind
from cipherbayes.data.tables import open_table
from cipherbayes.engine import pipes
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import CryptoError
from cipherbayes.privacy.events import from_json
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.encrypted_update.messages import ReplayRequest
from cipherbayes.protocols.messages import Reason, Refusal, decode, encode
from cipherbayes.protocols.plan import plan_study
from cipherbayes.protocols.rounds import PhasedRounds
from cipherbayes.protocols.stores import AnswerStore, Checkpoint
from cipherbayes.protocols.transcripts import Transcript
from cipherbayes.results.result import Result
from cipherbayes.results.run import run
from cipherbayes.study.schema import Study
from cipherbayes.validation.verify import verify


@dataclass(frozen=True)
class Decoder:
    """One way in.

    Attributes
    ----------
    read
        Takes bytes; returns or raises.
    seeds
        Honest bytes to begin from.
    framed
        Whether the bytes are frames, whose checksum a forger makes anew.
    """

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    framed: bool = False


FOLDER = Path(tempfile.mkdtemp(prefix="cipherbayes-fuzz-"))


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of files, fed with bytes."""
    path = FOLDER / name

    def from_bytes(data: bytes) -> object:
        path.write_bytes(data)
        path.chmod(0o600)
        return read(path)

    return from_bytes


# -- the wire --------------------------------------------------------------


@cache
def consortium() -> Consortium:
    return Consortium(FOLDER, small_study())


def messages() -> tuple[bytes, ...]:
    """One of each kind, as they really were sent."""
    three = consortium()
    question = three.question()
    return (
        three.sites["a"].enrol(),
        three.offer,
        three.manifest,
        three.request(),
        encode(question.replies[0]),
        encode(question),
        three.csp.handle(encode(question)),
        encode(Refusal("csp", Reason.RANGE, "out of range")),
    )


def _ciphertext(data: bytes) -> object:
    public = consortium().pair.public
    return Ciphertext.from_bytes(
        data, parameters=public.parameters, key_id=public.key_id, dimension=3
    )


@cache
def encrypted() -> EncryptedConsortium:
    return EncryptedConsortium(FOLDER / "encrypted", encrypted_study())


@cache
def encrypted_messages() -> tuple[bytes, ...]:
    """What an encrypted update sends besides: offers, replays, outputs."""
    (FOLDER / "encrypted").mkdir(exist_ok=True)
    three = encrypted()
    replay = three.replay_request()
    attestation = three.exchange()["a"]
    asked = three.server.collect(three.exchange())
    assert asked is not None
    return encode(replay), attestation, asked


def _encrypted_message(data: bytes) -> object:
    return encrypted().plan.circuit.read_message(data, encrypted().trio.public.key_id)


def _parties(data: bytes) -> object:
    """All parties read what was meant for one of them."""
    three = consortium()
    three.sites["a"].handle(data)
    three.csp.handle(data)
    return three.server.read_reply("a", data, three.round_id())


def _pipe(data: bytes) -> object:
    found = pipes.read(io.BytesIO(data))
    return None if found is None else decode(found[1])


@cache
def wire() -> dict[str, Decoder]:
    """What another party sends."""
    three, sent = consortium(), messages()
    reply = three.question().replies[0]
    public = three.pair.public.to_bytes()
    ckks = decode(encrypted_messages()[0], ReplayRequest).replies[0].ciphertext
    piped = io.BytesIO()
    pipes.write(piped, b"H", sent[3])
    return {
        "messages": Decoder(decode, sent, framed=True),
        "parties": Decoder(_parties, sent, framed=True),
        "ciphertexts": Decoder(_ciphertext, (reply.ciphertext,), framed=True),
        "encrypted update": Decoder(decode, encrypted_messages(), framed=True),
        "CKKS ciphertexts": Decoder(_encrypted_message, (ckks,), framed=True),
        "CKKS public keys": Decoder(
            CkksPublicKey.from_bytes,
            (encrypted().trio.public.to_bytes(),),
            framed=True,
        ),
        "transcripts": Decoder(
            Transcript.from_bytes, (three.server.transcript(),), framed=True
        ),
        "public keys": Decoder(PublicKey.from_bytes, (public,), framed=True),
        "pipes": Decoder(_pipe, (piped.getvalue(),)),
    }


# -- files -----------------------------------------------------------------


def _table(path: Path) -> int:
    table = open_table(path)
    kinds = dict.fromkeys(table.names[:3], "number")
    return sum(
        len(chunk.column(name))  # type: ignore[misc]
        for chunk in table.chunks(kinds)  # type: ignore[arg-type]
        for name in kinds
    )


def _csv() -> bytes:
    rows = [f"{k / 7:.3f},{k % 3},{k}" for k in range(40)]
    return "\n".join(["age,sex,death", *rows]).encode()


def _parquet() -> bytes:
    columns = {name: np.arange(200.0) for name in ("age", "sex", "death")}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, row_group_size=100)
    return sink.getvalue()


def _study(path: Path) -> object:
    study = Study.load(path)
    return plan_study(study) if study.private else None


@cache
def finished() -> Path:
    """The folder of a run, and the ledgers beside it."""
    study = write_tables(FOLDER / "run", small_study(("a", "b")))
    run(study, out=FOLDER / "run" / "out")
    return FOLDER / "run"


def _in_run(relative: str, read: Callable[[Path], object]) -> Decoder:
    """A file of a finished run, replaced by other bytes."""
    path = finished() / "out" / relative
    honest = path.read_bytes()

    def from_bytes(data: bytes) -> object:
        path.write_bytes(data)
        try:
            return read(finished() / "out")
        finally:
            path.write_bytes(honest)

    return Decoder(from_bytes, (honest,))


def _database(path: Path, read: Callable[[Path], object]) -> Decoder:
    copy = FOLDER / f"fuzzed-{path.name}"

    def from_bytes(data: bytes) -> object:
        for old in FOLDER.glob(f"{copy.name}*"):
            old.unlink()
        copy.touch(mode=0o600)
        copy.write_bytes(data)
        return read(copy)

    return Decoder(from_bytes, (path.read_bytes(),))


def _ledger(path: Path) -> object:
    ledger = Ledger.read(path)
    try:
        return ledger.spent(), list(ledger.entries())
    finally:
        ledger.close()


def _checkpoint(path: Path) -> object:
    checkpoint = Checkpoint(path)
    try:
        PhasedRounds(consortium().plan, checkpoint)
        return checkpoint.lost(), checkpoint.trajectory()
    finally:
        checkpoint.close()


def _answers(path: Path) -> object:
    store = AnswerStore(path)
    try:
        return [store.answer(number) for number in range(min(store.rounds(), 9))]
    finally:
        store.close()


def _run_file(out: Path) -> object:
    return RunFolder.open(out).pinned()


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


@cache
def files() -> dict[str, Decoder]:
    """What lies on a disk that somebody else may have written to."""
    three, folder = consortium(), finished()
    out = folder / "out"
    event = '{"event":{"kind":"gaussian-sum","noise_multiplier":1.5},"relation":"x"}'
    event = event.replace('"x"', '"add-or-remove-one-record"')
    return {
        "csv": Decoder(_file("t.csv", _table), (_csv(),)),
        "gzipped csv": Decoder(
            _file("t.csv.gz", _table), (gzip.compress(_csv(), mtime=0),)
        ),
        "parquet": Decoder(_file("t.parquet", _table), (_parquet(),)),
        "studies": Decoder(
            _file("s.toml", _study), ((out / "study.toml").read_bytes(),)
        ),
        "ledgers": _database(folder / "a.csv.ledger", _ledger),
        "checkpoints": _database(out / "server" / "checkpoint.sqlite", _checkpoint),
        "answers": _database(out / "csp" / "answers.sqlite", _answers),
        "result.json": _in_run("result.json", Result.load),
        "posterior.nc": _in_run("posterior.nc", Result.load),
        "run.json": _in_run("run.json", _run_file),
        "transcript.bin": _in_run("transcript.bin", verify),
        "results that are verified": _in_run("result.json", verify),
        "site.json": _in_run("sites/a/site.json", _site_file),
        "events": Decoder(_text(from_json), (event.encode(),)),
        "key pairs": Decoder(
            KeyPair.from_secret_bytes, (three.pair.to_secret_bytes(),), framed=True
        ),
        "signing keys": Decoder(
            SigningKey.from_secret_bytes,
            (SigningKey.generate().to_secret_bytes(),),
            framed=True,
        ),
        "exchange keys": Decoder(
            ExchangeKey.from_secret_bytes,
            (ExchangeKey.generate().to_secret_bytes(),),
            framed=True,
        ),
    }


def _site_file(out: Path) -> object:
    return RunFolder.open(out).local("a")


# -- bytes -----------------------------------------------------------------

_LIES = (b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\0" * 8, (2**40).to_bytes(8, "little"))
_WORDS = (b"nan", b"-inf", b"1e999", b"9" * 40, b"\0", b"\xff\xfe", b"[[[[", b'"' * 3)


def mutated(data: bytes, rng: random.Random, other: bytes = b"") -> bytes:
    """One or several of the things that can happen to bytes on their way."""
    body = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(9):
            case 0 if at < len(body):
                body[at] ^= 1 << rng.randrange(8)
            case 1:
                body[at : at + 1] = rng.randbytes(1)
            case 2:
                del body[at : at + rng.choice((1, 2, 8, 64, 4096))]
            case 3:
                body[at:at] = rng.randbytes(rng.choice((1, 2, 8, 64)))
            case 4:
                lie = rng.choice(_LIES)[: rng.choice((2, 4, 8))]
                body[at : at + len(lie)] = lie
            case 5:
                body[at:at] = rng.choice(_WORDS)
            case 6:
                start = rng.randrange(len(body) + 1)
                body[at:at] = body[start : start + rng.choice((4, 64, 1024))]
            case 7:
                body = body[:at]
            case _:
                start = rng.randrange(len(other) + 1)
                body[at:] = other[start:]
    return bytes(body)


def reframed(data: bytes) -> bytes:
    """The same body under a checksum that fits: what a forger sends."""
    try:
        kind = frame_kind(data)
    except CryptoError:
        kind = Kind.SITE_REPLY
    return encode_frame(kind, bytes(data[HEADER_BYTES:]))


def case(decoder: Decoder, rng: random.Random) -> bytes:
    """One input made of a decoder's seeds."""
    seed, other = rng.choice(decoder.seeds), rng.choice(decoder.seeds)
    if decoder.framed and rng.random() < 0.85:
        body = mutated(seed[HEADER_BYTES:], rng, other[HEADER_BYTES:])
        return reframed(seed[:HEADER_BYTES] + body)
    return mutated(seed, rng, other)
