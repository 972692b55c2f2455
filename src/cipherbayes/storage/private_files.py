"""Files that only their owner may open: 0600 in a 0700 folder, whole or not there."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from cipherbayes.errors import CryptoError

_RESTORE = "use a folder of your own on a local disk; restore lost keys from a copy"


def make_private_folder(path: Path) -> None:
    """Make a folder with mode 0700, or check that an old one is its owner's alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(0o700)
        status = path.lstat()
    except OSError as problem:
        raise system_refused("the key folder cannot be made", path, problem) from None
    check_private(status, path, folder=True)


def write_private(path: Path, data: bytes) -> bool:
    """Put a whole file in place; False if there is one already, which stays."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as problem:
        raise system_refused("the key cannot be stored", path.parent, problem) from None
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def replace_private(path: Path, data: bytes) -> None:
    """Put a whole file in place, over one that is there already."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_private(path: Path, most: int) -> bytes:
    """The content of a file that only this user could have written.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    check_private(path.parent.lstat(), path.parent, folder=True)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise system_refused("the key file cannot be opened", path, problem) from None
    try:
        status = os.fstat(descriptor)
        check_private(status, path, folder=False)
        if status.st_size > most:
            raise CryptoError(
                "the file is too large for a key", where=str(path), remedy=_RESTORE
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def erase(path: Path) -> None:
    """Write zeros over a file and remove its name.

    Edge cases
    ----------
    What a file system, a disk or a backup has copied elsewhere stays there.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "r+b") as file:
        file.write(bytes(os.fstat(descriptor).st_size))
        file.flush()
        os.fsync(descriptor)
    path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a new file's name as durable as its content."""
    _sync(folder, os.O_DIRECTORY, os.fsync)


def sync_file(path: Path) -> None:
    """Wait until a file's content and its length are on disk, whoever wrote it."""
    # Its times may be written later; macOS has fsync only.
    _sync(path, os.O_NOFOLLOW, getattr(os, "fdatasync", os.fsync))


def _sync(path: Path, flags: int, wait: Callable[[int], None]) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        wait(descriptor)
    finally:
        os.close(descriptor)


def system_refused(what: str, path: Path, problem: OSError) -> CryptoError:
    """The error for something that the operating system did not do."""
    reason = f"{what}: {problem.strerror}"
    return CryptoError(reason, where=str(path), remedy=_RESTORE)


def check_private(status: os.stat_result, path: Path, *, folder: bool) -> None:
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


def why_not_trusted(path: Path) -> tuple[str, str] | None:
    """Why a database is not to be trusted, and what to do; None if it is.

    It, and the journals beside it, must be files of this user that no other user can
    open. A file that does not exist is no problem.
    """
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        if status.st_uid != os.geteuid():
            return (
                "belongs to another user, who could have changed it",
                f"run as its owner, or `chown` {file.name} after comparing it",
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            return (
                "can be opened by other users",
                f"`chmod 600` {file.name}, if nobody else has changed it",
            )
    return None
