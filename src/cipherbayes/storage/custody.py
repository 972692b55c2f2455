"""What an owner of tables keeps apart from them: a sealing key, marks, a register.

    STATE/seal.key          seals ledgers, and what parties remember of a run
    STATE/marks/ID.mark     how far the ledger ID has come
    STATE/tables/HASH       which ledger a table's content belongs to

STATE is ``$CIPHERBAYES_STATE``, else ``$XDG_STATE_HOME/cipherbayes``, else
``~/.local/state/cipherbayes``: 0700, files 0600. It must not be restored together with
a ledger: that a ledger was put back from an old copy shows only here.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from cipherbayes.errors import CryptoError, PrivacyError
from cipherbayes.storage.private_files import (
    check_private,
    make_private_folder,
    read_private,
    write_private,
)

VARIABLE = "CIPHERBAYES_STATE"
KEY_BYTES = 32
ID_BYTES = 16
LINK_BYTES = 32

_SLOT = struct.Struct("<Q32s32s")
_MAX_FILE_BYTES = 2**16


class Head(NamedTuple):
    """How far a ledger has come: the number of its records and their last link."""

    records: int
    link: bytes


BEGINNING = Head(0, b"")


class RegisteredTable(NamedTuple):
    """A table that is registered: its ledger's id and where that ledger was."""

    ledger: bytes
    path: Path
    file: Path
    """The entry itself, in the state folder."""


@dataclass(frozen=True)
class Custody:
    """The state folder of this user.

    Formal guarantees
    -----------------
    A mark never goes back, nor from one ledger to a copy of it that has other records:
    :meth:`raise_mark` keeps the higher of two, for any number of processes, and a write
    that is cut leaves the one before. Marks and register
    carry a MAC under the sealing key.

    Edge cases
    ----------
    Whoever has this user's account has the key and can forge all of it. A folder that
    was restored together with the ledgers, as with a snapshot of the whole machine,
    shows nothing: what other parties remember does.
    """

    path: Path

    @classmethod
    def of_user(cls) -> Custody:
        """The folder that the environment names, or the usual one."""
        given = os.environ.get(VARIABLE)
        if given:
            return cls(Path(given).absolute())
        try:
            base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        except RuntimeError:
            raise CryptoError(
                "this user has no home folder",
                where="state folder",
                remedy=f"set {VARIABLE} to a folder of this user alone",
            ) from None
        return cls(Path(base).absolute() / "cipherbayes")

    @cached_property
    def key(self) -> bytes:
        """The sealing key, made at the first call."""
        make_private_folder(self.path)
        file = self.path / "seal.key"
        try:
            key = read_private(file, _MAX_FILE_BYTES)
        except FileNotFoundError:
            write_private(file, secrets.token_bytes(KEY_BYTES))
            # Read back: where two processes raced, both must use the first key.
            key = read_private(file, _MAX_FILE_BYTES)
        if len(key) != KEY_BYTES:
            raise CryptoError(
                "is not a sealing key",
                where=str(file),
                remedy="put the right file back from the newest copy of the folder",
            )
        return key

    @cached_property
    def key_id(self) -> str:
        """Names the key without revealing anything of it."""
        return self.mac("key id").hex()[:32]

    def mac(self, purpose: str, data: bytes = b"") -> bytes:
        """32 bytes that only the holder of the key can make."""
        text = f"cipherbayes/{purpose}/".encode()
        return hmac.digest(self.key, text + data, "sha256")

    # -- marks -------------------------------------------------------------

    def mark(self, ledger: bytes) -> Head:
        """How far a ledger is known to have come."""
        file = self._folder("marks") / f"{ledger.hex()}.mark"
        try:
            return self._highest(ledger, file, read_private(file, _MAX_FILE_BYTES))[0]
        except FileNotFoundError:
            return BEGINNING

    def raise_mark(
        self, ledger: bytes, head: Head, check: Callable[[Head], None]
    ) -> Head:
        """Remember, durably, that a ledger has come this far; the mark afterwards.

        The file has two slots, and the older one is written over.

        Parameters
        ----------
        check
            Raises where the ledger does not have the record of the mark before: it is
            called before that is written over, while no other process can write.
        """
        file = self.path / "marks" / f"{ledger.hex()}.mark"
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(file, flags)
            except FileNotFoundError:
                self._folder("marks")
                descriptor = os.open(file, flags | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                check_private(os.fstat(descriptor), file, folder=False)
                slots = os.pread(descriptor, _MAX_FILE_BYTES, 0)
                known, place = self._highest(ledger, file, slots)
                if known.records >= head.records:
                    return known
                check(known)
                os.pwrite(descriptor, self._sealed(ledger, head), place)
                os.fdatasync(descriptor)
                return head
            finally:
                os.close(descriptor)
        except OSError:
            raise PrivacyError(
                "cannot be written, so nothing is released",
                where=str(file),
                remedy="check the disk and the permissions of the state folder",
            ) from None

    def _highest(self, ledger: bytes, file: Path, slots: bytes) -> tuple[Head, int]:
        """The mark in a file, and the place of the slot that may be written over."""
        first, second = (self._slot(ledger, slots, at) for at in (0, _SLOT.size))
        if first is None and second is None and len(slots) >= 2 * _SLOT.size:
            raise PrivacyError(
                "is damaged or was changed",
                where=str(file),
                remedy="put it back from the newest copy of the state folder",
            )
        known = max(first or BEGINNING, second or BEGINNING)
        return known, 0 if first != known else _SLOT.size

    def _slot(self, ledger: bytes, slots: bytes, place: int) -> Head | None:
        if len(slots) < place + _SLOT.size:
            return None
        count, link, _ = _SLOT.unpack_from(slots, place)
        head = Head(count, link)
        whole = slots[place : place + _SLOT.size]
        same = hmac.compare_digest(whole, self._sealed(ledger, head))
        return head if same else None

    def _sealed(self, ledger: bytes, head: Head) -> bytes:
        body = struct.pack("<Q32s", head.records, head.link)
        return body + self.mac("mark", ledger + body)

    # -- the register of tables --------------------------------------------

    def registered(self, kind: str, content: bytes) -> RegisteredTable | None:
        """The ledger that a table is registered with, if it is.

        Parameters
        ----------
        kind, content
            What the table is known by: ``"content"`` and its digest, ``"inode"`` and
            its place on the disk, ``"place"`` and its name. Only a MAC of it is kept.
        """
        name = self.mac(f"table/{kind}", content)
        file = self._folder("tables") / name.hex()
        try:
            entry = json.loads(read_private(file, _MAX_FILE_BYTES))
            ledger, path = bytes.fromhex(entry["ledger"]), entry["path"]
            if len(ledger) != ID_BYTES:  # the path begins behind it in the MAC
                raise ValueError
            right = self.mac("table", name + ledger + path.encode()).hex()
            if not hmac.compare_digest(entry["mac"], right):
                raise ValueError
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PrivacyError(
                "is damaged or was changed",
                where=str(file),
                remedy="put it back from the newest copy of the state folder",
            ) from None
        return RegisteredTable(ledger, Path(path), file)

    def register(self, kind: str, content: bytes, ledger: bytes, path: Path) -> None:
        """Register a table with its ledger, and where that lies now."""
        name = self.mac(f"table/{kind}", content)
        mac = self.mac("table", name + ledger + str(path).encode())
        entry = {"ledger": ledger.hex(), "path": str(path), "mac": mac.hex()}
        file, text = self._folder("tables") / name.hex(), json.dumps(entry).encode()
        if (
            not write_private(file, text)
            and read_private(file, _MAX_FILE_BYTES) != text
        ):
            file.unlink(missing_ok=True)
            write_private(file, text)

    def _folder(self, name: str) -> Path:
        make_private_folder(self.path)
        folder = self.path / name
        make_private_folder(folder)
        return folder


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
