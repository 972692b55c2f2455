"""Site tables, read in chunks: CSV, Parquet, and pandas, polars or Arrow frames.

A table is asked for columns *of a kind*, numbers or text, and answers with chunks of
rows whose columns are Arrow arrays of float64 or string, whatever the source held.
The kinds come from the study, so the types of a CSV cannot change from chunk to
chunk. No message contains a value: what Arrow says of a failure is never passed on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cipherbayes.data.refusals import refuse, refuse_address
from cipherbayes.data.tables.csv import CsvTable
from cipherbayes.data.tables.frames import FrameTable
from cipherbayes.data.tables.parquet import PART_ROWS, ParquetTable
from cipherbayes.data.tables.table import (
    CHUNK_ROWS,
    MISSING,
    MOST_WHOLE,
    Chunk,
    FileTable,
    Kind,
    Table,
    decimal_numbers,
    text_numbers,
)

__all__ = [
    "CHUNK_ROWS",
    "MISSING",
    "MOST_WHOLE",
    "PART_ROWS",
    "Chunk",
    "CsvTable",
    "FileTable",
    "FrameTable",
    "Kind",
    "ParquetTable",
    "Table",
    "decimal_numbers",
    "open_table",
    "text_numbers",
]


def open_table(source: Any, where: str = "") -> Table:
    """Open a table: a path to CSV or Parquet, or a pandas, polars or Arrow frame.

    Parameters
    ----------
    source
        A path ending in .csv, .csv.gz, .parquet or .pq, or any frame that narwhals
        understands.
    where
        How errors name the table; the path where left out.
    """
    if not isinstance(source, str | Path):
        return FrameTable(source, where or "table")
    refuse_address(str(source))
    path = Path(source)
    where = where or str(source)
    if path.is_dir():
        refuse(where, "is a folder", "name one file in it")
    if not path.exists():
        refuse(where, "no such file", "check the path")
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        return CsvTable(path, where)
    if name.endswith((".parquet", ".pq")):
        return ParquetTable(path, where)
    refuse(
        where,
        "has an ending that is not known",
        "give a .csv, .csv.gz or .parquet file",
    )
