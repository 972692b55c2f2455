"""A file that holds a table: what it is known by, whatever name it is reached by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from cipherbayes.errors import DataError
from cipherbayes.storage.custody import file_digest


class TableFileRecord(TypedDict):
    """A :class:`TableFile` as JSON, its bytes in hexadecimal."""

    path: str
    content: str
    inode: str
    names: int


@dataclass(frozen=True)
class TableFile:
    """A table on the disk.

    Attributes
    ----------
    path
        The file itself, links followed.
    content
        SHA-256 of its bytes. It stays with the site: outside it would tell whoever
        knows all records but one which it is.
    inode
        Where it lies on the disk.
    names
        How many names (hard links) it has.
    """

    path: Path
    content: bytes
    inode: bytes
    names: int

    @classmethod
    def open(cls, path: Path) -> TableFile:
        """Look at a table."""
        try:
            path = path.resolve(strict=True)
            status, content = path.stat(), file_digest(path)
        except OSError as problem:
            raise DataError(
                f"cannot be read: {problem.strerror}",
                where=str(path),
                remedy="check the path and its permissions",
            ) from None
        inode = f"{status.st_dev}/{status.st_ino}".encode()
        return cls(path, content, inode, status.st_nlink)

    @classmethod
    def of_json(cls, facts: TableFileRecord) -> TableFile:
        """A file as :meth:`to_json` described it."""
        content, inode = bytes.fromhex(facts["content"]), facts["inode"].encode()
        return cls(Path(facts["path"]), content, inode, facts["names"])

    def to_json(self) -> TableFileRecord:
        """What it was when somebody looked."""
        return {
            "path": str(self.path),
            "content": self.content.hex(),
            "inode": self.inode.decode(),
            "names": self.names,
        }

    @property
    def place(self) -> bytes:
        """Its own name, links followed."""
        return str(self.path).encode()

    @property
    def keys(self) -> tuple[tuple[str, bytes], ...]:
        """What the register knows it by."""
        return (
            ("content", self.content),
            ("inode", self.inode),
            ("place", self.place),
        )

    @property
    def sure_keys(self) -> tuple[tuple[str, bytes], ...]:
        """The keys by which a file is found again.

        An inode with one name is none of them: it may have been another file's.

        A file system gives the place of a file that was removed to the next one.
        """
        return tuple(key for key in self.keys if self.names > 1 or key[0] != "inode")

    @property
    def ledger(self) -> Path:
        """Where its ledger lies, unless the owner names another place."""
        return Path(f"{self.path}.ledger")
