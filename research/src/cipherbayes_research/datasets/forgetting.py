"""Tables that hold nobody's records may be made again, without their ledgers."""

from __future__ import annotations

from pathlib import Path

from cipherbayes.data.table_files import TableFile
from cipherbayes.engine.table_identity import as_read, registered_by
from cipherbayes.storage.custody import Custody


def forget_public_table(path: Path) -> None:
    """Forget that a table had a ledger, for one that holds nobody's records.

    Example data are made again and again, and their ledgers thrown away with them.
    """
    custody, table = Custody.of_user(), TableFile.open(path)
    for listed in registered_by(custody, (*table.keys, *as_read(table.keys))):
        listed.file.unlink()
