"""Files in memory, for a library that reads and writes files only."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cipherbayes.processes import this_process


@contextmanager
def memory_file(content: bytes = b"") -> Iterator[tuple[str, int]]:
    """A file in memory that no other user can open: its path and descriptor.

    Where the system has no ``memfd`` it is a 0600 file in a new 0700 folder.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("cipherbayes")
        try:
            _write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}", descriptor
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write(descriptor, content)
            yield str(path), descriptor
        finally:
            os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


class KeptFile:
    """A file in memory that one thread of one process writes over again and again.

    A new file for each object would cost as much as loading it does: every page of it
    is made and given back. What was written last stays here, as in the rest of the
    process's memory, so no secret key goes this way.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("cipherbayes")
        self.process = this_process()

    def written(self, *parts: bytes | memoryview) -> str:
        """The path of these parts, one behind the other.

        Behind them may lie the rest of something longer: SEAL reads no further than
        the length in its header.
        """
        if os.pwritev(self._descriptor, parts, 0) != sum(map(len, parts)):
            raise OSError("memory is full")
        return f"/proc/self/fd/{self._descriptor}"

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._descriptor)


_KEPT = threading.local()


def kept_file() -> KeptFile:
    """This thread's file; what was forked has another than it was forked from."""
    file: KeptFile | None = getattr(_KEPT, "file", None)
    if file is None or file.process != this_process():
        file = _KEPT.file = KeptFile()
    return file
