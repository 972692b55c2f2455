"""Keys on disk: 0600 files in a 0700 folder, ids for everyone to see.

A folder belongs to one party. It holds the party's identity, and for each run the
key that was made for that run only: a site's exchange key, or the CSP's BFV pair.
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cipherbayes.crypto.bfv import KeyPair, generate_keys
from cipherbayes.crypto.masks import ExchangeKey
from cipherbayes.crypto.parameters import ParameterSet
from cipherbayes.crypto.signatures import SigningKey
from cipherbayes.crypto.transcript import RUN_BYTES, check_bytes
from cipherbayes.errors import CryptoError

if TYPE_CHECKING:
    from cipherbayes.crypto.ckks.circuit import Circuit
    from cipherbayes.crypto.ckks.keys import CkksKeys

_MAX_FILE_BYTES = 2**21
_MAX_TRIO_BYTES = 2**29
_IDENTITY = "identity.key"


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
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                self.path.mkdir(mode=0o700, exist_ok=True)
                self.path.chmod(0o700)
            status = self.path.lstat()
        except OSError as problem:
            raise _failed("the key folder cannot be made", self.path, problem) from None
        _check_private(status, self.path, folder=True)

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
        name = f"{_hex(run)}.exchange.key"
        try:
            return ExchangeKey.from_secret_bytes(self._read(name))
        except FileNotFoundError:
            self._write(name, ExchangeKey.generate().to_secret_bytes())
            return ExchangeKey.from_secret_bytes(self._read(name))

    def create_pair(self, run: bytes, parameters: ParameterSet) -> KeyPair:
        """The CSP's BFV pair for a run; refused if the run has one."""
        name = f"{_hex(run)}.pair.key"
        pair = generate_keys(parameters)
        if not self._write(name, pair.to_secret_bytes()):
            raise CryptoError(
                "the run already has a key pair",
                where=str(self.path / name),
                remedy="load it, or start a new run: a pair serves one run",
            )
        return pair

    def load_pair(self, run: bytes) -> KeyPair:
        """The BFV pair of a run."""
        name = f"{_hex(run)}.pair.key"
        try:
            return KeyPair.from_secret_bytes(self._read(name))
        except FileNotFoundError:
            raise CryptoError(
                "the run has no key pair here",
                where=str(self.path / name),
                remedy="use the key folder of the CSP that started the run",
            ) from None

    def create_ckks(self, run: bytes, circuit: Circuit) -> CkksKeys:
        """The CSP's CKKS trio for a run and circuit; refused if the run has one."""
        name = f"{_hex(run)}.trio.key"
        trio = circuit.generate_keys()
        if not self._write(name, trio.to_secret_bytes()):
            raise CryptoError(
                "the run already has keys",
                where=str(self.path / name),
                remedy="load them, or start a new run: a trio serves one run",
            )
        return trio

    def load_ckks(self, run: bytes) -> CkksKeys:
        """The CKKS trio of a run."""
        from cipherbayes.crypto.ckks.keys import CkksKeys

        name = f"{_hex(run)}.trio.key"
        try:
            return CkksKeys.from_secret_bytes(self._read(name, _MAX_TRIO_BYTES))
        except FileNotFoundError:
            raise CryptoError(
                "the run has no keys here",
                where=str(self.path / name),
                remedy="use the key folder of the CSP that started the run",
            ) from None

    def has_ckks(self, run: bytes) -> bool:
        """Whether a run's CKKS trio is here."""
        return (self.path / f"{_hex(run)}.trio.key").exists()

    def forget(self, run: bytes) -> int:
        """Delete the keys of a finished run; returns how many files there were."""
        found = list(self.path.glob(f"{_hex(run)}.*.key"))
        for file in found:
            file.unlink()
        return len(found)

    def records(self) -> list[KeyRecord]:
        """All keys by id, never by content."""
        found = []
        for file in sorted(self.path.glob("*.key")):
            run, _, rest = file.name.partition(".")
            if file.name == _IDENTITY:
                signing = SigningKey.from_secret_bytes(self._read(file.name))
                found.append(KeyRecord(file.name, "identity", signing.identity.id))
            elif rest == "exchange.key":
                exchange = ExchangeKey.from_secret_bytes(self._read(file.name))
                public_id = exchange.public.hex()
                found.append(KeyRecord(file.name, "exchange", public_id, run))
            elif rest == "pair.key":
                public = KeyPair.from_secret_bytes(self._read(file.name)).public
                public_id, parameters = public.key_id.hex(), public.parameters.id
                record = KeyRecord(file.name, "encryption", public_id, run, parameters)
                found.append(record)
            elif rest == "trio.key":
                from cipherbayes.crypto.ckks.keys import CkksKeys

                secret = self._read(file.name, _MAX_TRIO_BYTES)
                trio = CkksKeys.from_secret_bytes(secret).public
                public_id, parameters = trio.key_id.hex(), trio.parameters.id
                record = KeyRecord(file.name, "encryption", public_id, run, parameters)
                found.append(record)
        return found

    def _write(self, name: str, data: bytes) -> bool:
        """Put a whole file in place; False if there is one already, which stays."""
        temporary = self.path / f".{name}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, self.path / name)
        except FileExistsError:
            return False
        except OSError as problem:
            raise _failed("the key cannot be stored", self.path, problem) from None
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return True

    def _read(self, name: str, most: int = _MAX_FILE_BYTES) -> bytes:
        """The content of a file that only this user could have written."""
        path = self.path / name
        _check_private(self.path.lstat(), self.path, folder=True)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise
        except OSError as problem:
            raise _failed("the key file cannot be opened", path, problem) from None
        try:
            status = os.fstat(descriptor)
            _check_private(status, path, folder=False)
            if status.st_size > most:
                raise CryptoError(
                    "the file is too large for a key", where=str(path), remedy=_RESTORE
                )
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(most)
        finally:
            os.close(descriptor)


_RESTORE = "use a folder of your own on a local disk; restore lost keys from a copy"


def _failed(what: str, path: Path, problem: OSError) -> CryptoError:
    reason = f"{what}: {problem.strerror}"
    return CryptoError(reason, where=str(path), remedy=_RESTORE)


def _hex(run: bytes) -> str:
    return check_bytes(run, RUN_BYTES, "the run id").hex()


def _check_private(status: os.stat_result, path: Path, *, folder: bool) -> None:
    """Raise CryptoError unless only this user can read it."""
    right_kind = stat.S_ISDIR if folder else stat.S_ISREG
    if not right_kind(status.st_mode):
        raise CryptoError(
            f"not a {'folder' if folder else 'file'}", where=str(path), remedy=_RESTORE
        )
    if status.st_uid != os.geteuid():
        raise CryptoError(
            "another user owns it",
            where=str(path),
            remedy="use a key folder of your own",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = "700" if folder else "600"
        raise CryptoError(
            "other users can open it",
            where=str(path),
            remedy=f"chmod {mode} it, and make new keys if others may have read it",
        )
