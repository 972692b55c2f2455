"""Which ledger a table has: one for each table, by whatever name it is reached.

A ledger lies beside the file itself, not beside a link to it. The owner's register
(:class:`~cipherbayes.storage.custody.Custody`) knows tables by their content and by
their place on the disk, so a copy or a hard link finds the ledger that is there. A
query's ledger lies where its owner says, and the register knows the query by its rows,
by its text in its database, by its file, and by the files that it reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cipherbayes.data.snapshots import Origin, origin_of
from cipherbayes.data.table_files import TableFile
from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.storage.custody import Custody, RegisteredTable, file_digest
from cipherbayes.study.sections import SiteSection
from cipherbayes.study.tables import equal_tables

Key = tuple[str, bytes]
"""Something that the register knows a table by: of what kind, and what."""


def ledger_beside(data: Path | str) -> Path:
    """Where a table's ledger lies: beside the file itself, links followed."""
    return Path(f"{Path(data).resolve()}.ledger")


def ledger_of(site: SiteSection, data: Path | str | None) -> Path:
    """Where the ledger of a site's table is: as named for a query, else beside it.

    Parameters
    ----------
    data
        The file that is read, perhaps one given in the place of the study's query;
        None before a query has been read.
    """
    if site.ledger is not None and (data is None or origin_of(data) is not None):
        return Path(site.ledger)
    return ledger_beside(data or "frame")


def open_table_ledger(
    data: Path, given: Path, *, epsilon: float, delta: float
) -> Ledger:
    """The one ledger of a table, begun now if it has none.

    Parameters
    ----------
    data
        The table, by the name that the owner gave.
    given
        Where the owner says that its ledger is; beside ``data`` means beside the file.

    Formal guarantees
    -----------------
    A symbolic link, a hard link and an unchanged copy of a table that has a ledger on
    this machine get no other one, nor does a copy that brings a copy of the ledger
    along; table and ledger may be moved together. A table that changed or grew under
    its own name keeps its ledger. A file that a query has read has that query's ledger
    and no other.

    Edge cases
    ----------
    A copy that was changed by a byte, or one that another user or another machine
    holds, is not recognised: that the same people are in it no program can know.
    """
    table, custody = TableFile.open(data), Custody.of_user()
    by_name = Path(f"{data}.ledger")
    beside = given in (by_name, table.ledger)
    path = table.ledger if beside else given.resolve()
    if beside:
        _refuse_ledger_of_link(by_name, path)
    listed = _registration(custody, table)
    if listed is not None and (not path.exists() or _elsewhere(listed, path)):
        raise _another_ledger_error(data, listed)
    queries = registered_by(custody, as_read(table.sure_keys))
    for query in queries:
        if not path.exists() or _elsewhere(query, path):
            raise _is_read(data, query)
    name = table.path.name if beside else data.name
    if listed is None and not queries:
        ledger = Ledger.open(path, dataset=name, epsilon=epsilon, delta=delta)
    else:
        # Known by its content: both may have been renamed.
        ledger = Ledger.read(path)
        if listed is not None and ledger.id != listed.ledger:
            ledger.close()
            raise _another_ledger_error(data, listed, exchanged=path)
        if other := _of_another_ledger(queries, ledger):
            ledger.close()
            raise _is_read(data, other)
    for key in table.keys:
        custody.register(*key, ledger.id, path)
    return ledger


def open_query_ledger(
    origin: Origin, given: Path, *, epsilon: float, delta: float
) -> Ledger:
    """The one ledger of a query's table, begun now if it has none.

    Parameters
    ----------
    origin
        Where the rows came from.
    given
        Where the owner says that the ledger is.

    Formal guarantees
    -----------------
    Rows that have a ledger on this machine get no other one, in whatever order and from
    whatever database they come; nor does the same text in the same database, nor the
    same file of a query in it, after rows or text have changed: those are charged to
    the ledger that is there. A database that is a file, or a folder of files, is the
    same by another link or in an unchanged copy. Nor does a query that reads a file
    with a ledger: it is charged to the file's. The same file and text in another
    database goes on with its ledger where that is named. A ledger of another table is
    refused.

    Edge cases
    ----------
    A query in another file and with another text, whose rows differ, is another table,
    although the same people may be in it: no program can know. Give cohorts that share
    people one ledger by keeping one query.
    """
    custody, path = Custody.of_user(), given.resolve()
    known = registered_by(custody, _query_keys(origin, sure=True))
    files = {file.path: registered_by(custody, file.sure_keys) for file in origin.files}
    for listed in known:
        if not path.exists() or _elsewhere(listed, path):
            raise _query_has_another(origin, listed)
    for file, entries in files.items():
        for listed in entries:
            if not path.exists() or _elsewhere(listed, path):
                raise _reads_table(origin, file, listed)
    if known or any(files.values()):
        ledger = Ledger.read(path)
        if other := _of_another_ledger(known, ledger):
            ledger.close()
            raise _query_has_another(origin, other)
        for file, entries in files.items():
            if other := _of_another_ledger(entries, ledger):
                ledger.close()
                raise _reads_table(origin, file, other)
    else:
        ledger = _ledger_before_move(custody, origin, path) or Ledger.open(
            path, dataset=origin.name, epsilon=epsilon, delta=delta
        )
    for key in (*_query_keys(origin), _in_any_database(origin, ledger)):
        custody.register(*key, ledger.id, path)
    for read in origin.files:
        for key in as_read(read.keys):
            custody.register(*key, ledger.id, path)
    return ledger


def _ledger_before_move(custody: Custody, origin: Origin, path: Path) -> Ledger | None:
    """The ledger that is named, if it is this query's in another database.

    A database that moved or was migrated, and then got a row, is known by nothing of
    its own. Whoever names the ledger of the same file and text goes on with it: that
    counts at least what was spent.
    """
    if not path.exists():
        return None
    ledger = Ledger.read(path)
    if custody.registered(*_in_any_database(origin, ledger)) is None:
        ledger.close()
        return None
    return ledger


def _in_any_database(origin: Origin, ledger: Ledger) -> Key:
    """The key of a query's file, text and ledger, whichever database it reads."""
    text = " ".join(origin.query.split())
    return "query of ledger", f"{ledger.id.hex()}\n{origin.file}\n{text}".encode()


def registered_by(custody: Custody, keys: Iterable[Key]) -> list[RegisteredTable]:
    """What the register says of some keys."""
    return [entry for key in keys if (entry := custody.registered(*key))]


def _of_another_ledger(
    known: Iterable[RegisteredTable], ledger: Ledger
) -> RegisteredTable | None:
    """The first entry that names another ledger; None where there is none."""
    return next((entry for entry in known if entry.ledger != ledger.id), None)


def as_read(keys: Iterable[Key]) -> tuple[Key, ...]:
    """A file's keys as those of what a query reads.

    They are kept apart: two queries of one file, each of other rows, are two tables.
    """
    return tuple((f"read {kind}", content) for kind, content in keys)


def _query_keys(origin: Origin, *, sure: bool = False) -> tuple[Key, ...]:
    """What the register knows a query's table by; those by which it is found."""
    text = " ".join(origin.query.split())
    names = origin.names(sure=sure)
    return (
        ("rows", bytes.fromhex(origin.digest)),
        *(("query", f"{name}\n{text}".encode()) for name in names),
        *(("query file", f"{name}\n{origin.file}".encode()) for name in names),
    )


def _registration(custody: Custody, table: TableFile) -> RegisteredTable | None:
    """The register's entry of a table, by its content or else by its place."""
    listed = custody.registered("content", table.content)
    if listed is not None:
        return listed
    # It may have changed since, under its own name or under another one.
    if table.names > 1:
        listed = custody.registered("inode", table.inode)
    return listed or custody.registered("place", table.place)


def _elsewhere(listed: RegisteredTable, path: Path) -> bool:
    """Whether the table's own ledger lies at another place, so that this is a copy."""
    return listed.path.exists() and listed.path.resolve() != path.resolve()


def _refuse_ledger_of_link(given: Path, path: Path) -> None:
    """Refuse a link with a ledger beside it: what was spent there must not be lost."""
    if given.exists() and given.resolve() != path.resolve():
        raise PrivacyError(
            "is the ledger of a link, and a table's ledger lies beside the file itself",
            where=str(given),
            remedy=f"move it to {path}; if there is one already, the table has spent "
            "what both say: use the file's own name, with what is left",
        )


def _another_ledger_error(
    data: Path, listed: RegisteredTable, *, exchanged: Path | None = None
) -> PrivacyError:
    """That a table has another ledger than the one that was found, or none."""
    if exchanged is not None and exchanged.resolve() == listed.path.resolve():
        return PrivacyError(
            "is a table whose ledger was exchanged for another one",
            where=str(data),
            remedy=f"put back its own as {listed.path} with its -wal file, the newest "
            "copy; only if another table took this place and brought its ledger along, "
            f"delete {listed.file}",
        )
    if listed.path.exists():
        return PrivacyError(
            "is a table that has a ledger already, under another name",
            where=str(data),
            remedy=f"use the table beside {listed.path}; if you moved or renamed the "
            "table, move its ledger and -wal file in the same way",
        )
    return PrivacyError(
        "is a table that had a ledger, and the ledger is gone",
        where=str(data),
        remedy=f"put back {listed.path} with its -wal file, the newest copy; only if "
        f"these are other people's records, or nobody's, delete {listed.file} and "
        "begin again",
    )


def _query_has_another(origin: Origin, listed: RegisteredTable) -> PrivacyError:
    if listed.path.exists():
        return PrivacyError(
            "has another ledger already: these rows, this query or its file",
            where=origin.name,
            remedy=f'set ledger = "{listed.path}"',
        )
    return PrivacyError(
        "had a ledger, and the ledger is gone",
        where=origin.name,
        remedy=f"put back {listed.path} with its -wal file, the newest copy; only if "
        f"these are other people's records, or nobody's, delete {listed.file} and "
        "begin again",
    )


def _is_read(data: Path, listed: RegisteredTable) -> PrivacyError:
    if not listed.path.exists():
        return _another_ledger_error(data, listed)
    return PrivacyError(
        "is a table that a query has read, and the query has a ledger already",
        where=str(data),
        remedy=f"use the query whose ledger is {listed.path}",
    )


def _reads_table(origin: Origin, file: Path, listed: RegisteredTable) -> PrivacyError:
    if not listed.path.exists():
        return _another_ledger_error(file, listed)
    return PrivacyError(
        f"reads {file}, which has a ledger already",
        where=origin.name,
        remedy=f'set ledger = "{listed.path}"; a query that reads files with different '
        "ledgers cannot be paid for: read one of them",
    )


def refuse_equal_files(files: Mapping[str, Path]) -> None:
    """Raise PrivacyError where two sites have one file, or equal ones.

    Content is read only where two files have the same length. Queries are equal where
    their rows are, or their texts in one database. A query that reads another site's
    file has that site's table.
    """
    places: dict[tuple[object, ...], str] = {}
    for site, key in _keys(files):
        first = places.setdefault(key, site)
        if first != site:
            raise equal_tables(first, site)
    _refuse_read_files(files)


def refuse_shared_ledgers(ledgers: Mapping[str, Path | None]) -> None:
    """Raise PrivacyError where two sites name one ledger."""
    first: dict[Path, str] = {}
    for site, path in ledgers.items():
        if path is not None and first.setdefault(path.resolve(), site) != site:
            raise PrivacyError(
                f"is named as the ledger of two sites, '{first[path.resolve()]}' and "
                f"'{site}'",
                where=str(path),
                remedy="name the ledger of each site's own table",
            )


def _refuse_read_files(files: Mapping[str, Path]) -> None:
    """Raise PrivacyError where one site's query reads another's file, or a copy."""
    origins = {site: origin_of(path) for site, path in files.items() if path.exists()}
    read = {
        key: site
        for site, origin in origins.items()
        for file in (origin.files if origin else ())
        for key in file.keys
    }
    own = [site for site, origin in origins.items() if origin is None]
    for site in own if read else ():
        for key in TableFile.open(files[site]).keys:
            if key in read:
                raise equal_tables(site, read[key])


def _keys(files: Mapping[str, Path]) -> Iterator[tuple[str, tuple[object, ...]]]:
    """What two sites may not have in common."""
    sizes = {}
    for site, path in files.items():
        try:
            status = os.stat(path)
        except OSError:
            continue  # whoever opens it says what is wrong
        yield site, (status.st_dev, status.st_ino)
        if origin := origin_of(path):
            keys = _query_keys(origin, sure=True)
            yield from ((site, key) for key in keys if key[0] != "query file")
        sizes[site] = status.st_size
    for site, size in sizes.items():
        if list(sizes.values()).count(size) > 1:
            yield site, ("content", file_digest(Path(files[site])))
