"""The files of a PhysioNet 2012 set, whatever they are packed in.

Nothing is unpacked to disk, so that a member's path, link or permissions cannot
do harm; sizes and counts are capped, so that a forged archive cannot fill memory.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from cipherbayes.errors import DataError

OUTCOMES_FILE = "Outcomes-a.txt"
_SET_NAMES = ("set-a", "set-a.tar.gz", "set-a.zip")
_STAY_FILE = re.compile(r"(\d{1,9})\.txt", re.ASCII)
_LARGEST_FILE = 1_000_000  # bytes; the largest of the set has 23,508
_MOST_FILES = 20_000
_MOST_MEMBERS = 100_000
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,  # an encrypted or exotically compressed zip
)


def read_set(source: Path) -> tuple[dict[int, bytes], bytes]:
    """Content of each stay's file by ``RecordID``, and of the outcomes.

    Parameters
    ----------
    source
        A tar or zip archive, or a folder; or the folder that one of these lies
        in. The outcomes may be inside or beside.
    """
    inner = [source / name for name in _SET_NAMES if (source / name).exists()]
    source = inner[0] if inner else source
    stays: dict[int, bytes] = {}
    outcomes = []
    try:
        for name, content in _members(source):
            match = _STAY_FILE.fullmatch(name)
            if match is None:
                outcomes.append(content)
            elif int(match[1]) in stays or len(stays) == _MOST_FILES:
                raise _not_the_set(source)
            else:
                stays[int(match[1])] = content
        if not outcomes and (source.parent / OUTCOMES_FILE).is_file():
            with (source.parent / OUTCOMES_FILE).open("rb") as stream:
                outcomes.append(_content(stream, source.parent))
    except _DAMAGED:
        raise _not_the_set(source) from None
    except OSError as error:
        raise DataError(
            f"cannot read the set ({error.strerror or 'damaged archive'})",
            where=str(source),
            remedy="give set-a.tar.gz, set-a.zip or the folder set-a",
        ) from None
    if not stays:
        raise _not_the_set(source)
    if len(outcomes) != 1:
        raise DataError(
            f"{len(outcomes) or 'no'} files {OUTCOMES_FILE}",
            where=str(source),
            remedy=f"put the {OUTCOMES_FILE} of the challenge beside it",
        )
    return stays, outcomes[0]


def _members(source: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file of the set; anything else is passed over."""
    if source.is_dir():
        for path in sorted(source.iterdir()):
            if _wanted(path.name) and path.is_file():
                with path.open("rb") as stream:
                    yield path.name, _content(stream, path)
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            if len(archive.infolist()) > _MOST_MEMBERS:
                raise _not_the_set(source)
            for info in archive.infolist():
                name = PurePosixPath(info.filename).name
                if _wanted(name) and not info.is_dir():
                    with archive.open(info) as member:
                        yield name, _content(member, source)
    else:
        with tarfile.open(source) as tar:
            for count, entry in enumerate(tar):
                name = PurePosixPath(entry.name).name
                if count == _MOST_MEMBERS:
                    raise _not_the_set(source)
                if _wanted(name):
                    # Links and devices have no content of their own.
                    content = tar.extractfile(entry) if entry.isreg() else None
                    if content is None:
                        raise _not_the_set(source)
                    yield name, _content(content, source)


def _wanted(name: str) -> bool:
    return name == OUTCOMES_FILE or _STAY_FILE.fullmatch(name) is not None


def _content(stream: IO[bytes], source: Path) -> bytes:
    content = stream.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise _not_the_set(source)
    return content


def _not_the_set(source: Path) -> DataError:
    return DataError(
        "not set A of the PhysioNet challenge 2012",
        where=str(source),
        remedy="give set-a.tar.gz, set-a.zip or the folder set-a, as downloaded",
    )
