"""Keys on disk: 0600 files in a 0700 folder, ids for everyone to see.

A folder belongs to one party. It holds the party's identity, and for each run the
key that was made for that run only: a site's exchange key, or the CSP's BFV pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cipherbayes.crypto.bfv.keys import KeyPair, PublicKey, generate_keys
from cipherbayes.crypto.bfv.parameters import ParameterSet
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey
from cipherbayes.crypto.wire.transcript import RUN_BYTES, check_bytes
from cipherbayes.errors import CryptoError
from cipherbayes.storage.private_files import (
    erase,
    make_private_folder,
    read_private,
    sync_folder,
    system_refused,
    write_private,
)

if TYPE_CHECKING:
    from cipherbayes.crypto.ckks.circuit import Circuit
    from cipherbayes.crypto.ckks.keys import CkksKeys, CkksPublicKey

_MAX_FILE_BYTES = 2**21
_MAX_TRIO_BYTES = 2**29
_IDENTITY = "identity.key"
# What follows a run's id in the names of its files.
_EXCHANGE, _PAIR, _TRIO = "exchange.key", "pair.key", "trio.key"
# A run whose keys were erased: it gets no others.
_OVER = ".over"


@dataclass(frozen=True)
class KeyRecord:
    """What may be said about a key: its file, kind and public id.

    Attributes
    ----------
    name
        File name in the folder.
    kind
        ``"identity"``, ``"exchange"`` or ``"encryption"``.
    id
        Public key (identity, exchange) or hash of the public key (encryption),
        in hexadecimal.
    run
        The run the key belongs to, in hexadecimal; empty for an identity.
    parameters
        Parameter set of an encryption key; empty otherwise.
    """

    name: str
    kind: str
    id: str
    run: str = ""
    parameters: str = ""


class KeyFolder:
    """A party's keys.

    Parameters
    ----------
    path
        The folder; made with mode 0700 if it does not exist.

    Formal guarantees
    -----------------
    A file has mode 0600 from the moment it exists, appears under its name only
    when it is whole and on disk, and is never written over. A file or folder that
    others can read, or that another user owns, is refused, and so is a link.

    Edge cases
    ----------
    Whoever has this user's account, or root's, has the keys.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        make_private_folder(self.path)

    def identity(self) -> SigningKey:
        """The party's signing key, made at the first call."""
        try:
            return SigningKey.from_secret_bytes(self._read(_IDENTITY))
        except FileNotFoundError:
            self._write(_IDENTITY, SigningKey.generate().to_secret_bytes())
            # Read back: where two processes raced, both must use the first key.
            return SigningKey.from_secret_bytes(self._read(_IDENTITY))

    def exchange_key(self, run: bytes) -> ExchangeKey:
        """A site's exchange key for a run, made at the first call."""
        self._refuse_over(run)
        name = f"{_hex(run)}.{_EXCHANGE}"
        try:
            return ExchangeKey.from_secret_bytes(self._read(name))
        except FileNotFoundError:
            self._write(name, ExchangeKey.generate().to_secret_bytes())
            return ExchangeKey.from_secret_bytes(self._read(name))

    def create_pair(self, run: bytes, parameters: ParameterSet) -> KeyPair:
        """The CSP's BFV pair for a run; refused if the run has one."""
        self._refuse_over(run)
        pair = generate_keys(parameters)
        self._write_new(
            _pair_file(run),
            pair.to_secret_bytes(),
            taken="the run already has a key pair",
            remedy="load it, or start a new run: a pair serves one run",
        )
        return pair

    def load_pair(self, run: bytes) -> KeyPair:
        """The BFV pair of a run."""
        self._refuse_over(run)
        data = self._read_made(
            _pair_file(run), _MAX_FILE_BYTES, missing="the run has no key pair here"
        )
        return KeyPair.from_secret_bytes(data)

    def create_ckks(self, run: bytes, circuit: Circuit) -> CkksKeys:
        """The CSP's CKKS trio for a run and circuit; refused if the run has one."""
        self._refuse_over(run)
        trio = circuit.generate_keys()
        self._write_new(
            _trio_file(run),
            trio.to_secret_bytes(),
            taken="the run already has keys",
            remedy="load them, or start a new run: a trio serves one run",
        )
        return trio

    def load_ckks(self, run: bytes) -> CkksKeys:
        """The CKKS trio of a run."""
        from cipherbayes.crypto.ckks.keys import CkksKeys

        data = self._read_made(
            _trio_file(run), _MAX_TRIO_BYTES, missing="the run has no keys here"
        )
        return CkksKeys.from_secret_bytes(data)

    def has_ckks(self, run: bytes) -> bool:
        """Whether a run's CKKS trio is here."""
        return (self.path / _trio_file(run)).exists()

    def forget(self, run: bytes) -> int:
        """Erase the keys of a run that is over; returns how many files there were.

        Formal guarantees
        -----------------
        That the run is over is on disk before its first key is erased, so a kill in
        between cannot make the run begin again with other keys.

        Edge cases
        ----------
        Copies that a file system, a disk or a backup has made are not reached.
        """
        self._write(f"{_hex(run)}{_OVER}", b"")
        found = list(self.path.glob(f"{_hex(run)}.*.key"))
        try:
            for file in found:
                erase(file)
            sync_folder(self.path)
        except OSError as problem:
            raise system_refused("a key cannot be erased", self.path, problem) from None
        return len(found)

    def is_over(self, run: bytes) -> bool:
        """Whether a run's keys were erased, for good."""
        return (self.path / f"{_hex(run)}{_OVER}").exists()

    def records(self) -> list[KeyRecord]:
        """All keys by id, never by content."""
        found = (self._record(file.name) for file in sorted(self.path.glob("*.key")))
        return [record for record in found if record is not None]

    def _record(self, name: str) -> KeyRecord | None:
        """What may be said about the key in a file; None if it is no key of ours."""
        if name == _IDENTITY:
            signing = SigningKey.from_secret_bytes(self._read(name))
            return KeyRecord(name, "identity", signing.identity.id)
        run, _, kind = name.partition(".")
        if kind == _EXCHANGE:
            exchange = ExchangeKey.from_secret_bytes(self._read(name))
            return KeyRecord(name, "exchange", exchange.public.hex(), run)
        public: PublicKey | CkksPublicKey
        if kind == _PAIR:
            public = KeyPair.from_secret_bytes(self._read(name)).public
        elif kind == _TRIO:
            from cipherbayes.crypto.ckks.keys import CkksKeys

            secret = self._read(name, _MAX_TRIO_BYTES)
            public = CkksKeys.from_secret_bytes(secret).public
        else:
            return None
        key_id, parameters = public.key_id.hex(), public.parameters.id
        return KeyRecord(name, "encryption", key_id, run, parameters)

    def _refuse_over(self, run: bytes) -> None:
        if self.is_over(run):
            raise CryptoError(
                "the run is over: its keys were erased",
                where=str(self.path),
                remedy="start a new run",
            )

    def _write(self, name: str, data: bytes) -> bool:
        """Put a whole file in place; False if there is one already, which stays."""
        return write_private(self.path / name, data)

    def _write_new(self, name: str, data: bytes, *, taken: str, remedy: str) -> None:
        """Put a file in place, or raise CryptoError if there is one already."""
        if not self._write(name, data):
            raise CryptoError(taken, where=str(self.path / name), remedy=remedy)

    def _read_made(self, name: str, most: int, *, missing: str) -> bytes:
        """A file that the CSP made when the run began."""
        try:
            return self._read(name, most)
        except FileNotFoundError:
            raise CryptoError(
                missing,
                where=str(self.path / name),
                remedy="use the key folder of the CSP that started the run",
            ) from None

    def _read(self, name: str, most: int = _MAX_FILE_BYTES) -> bytes:
        """The content of a file that only this user could have written."""
        return read_private(self.path / name, most)


def _hex(run: bytes) -> str:
    return check_bytes(run, RUN_BYTES, "the run id").hex()


def _pair_file(run: bytes) -> str:
    return f"{_hex(run)}.{_PAIR}"


def _trio_file(run: bytes) -> str:
    return f"{_hex(run)}.{_TRIO}"
