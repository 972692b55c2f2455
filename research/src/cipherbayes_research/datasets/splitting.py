"""One table divided over several sites, and written where they can read it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from cipherbayes.errors import DataError


def split_sites(
    table: pa.Table, sites: int, seed: int, ratios: Sequence[float] | None = None
) -> list[pa.Table]:
    """Divide the rows at random over ``sites`` tables.

    Parameters
    ----------
    ratios
        Relative sizes, e.g. ``(4, 1)``; equal where None. Sizes differ from the
        exact shares by less than one row, and every site gets at least one.
    """
    shares = np.asarray([1.0] * sites if ratios is None else ratios, dtype=float)
    if sites < 1 or shares.shape != (sites,):
        raise DataError(
            "the number of sites must be positive and match the ratios",
            where="split",
            remedy="give one ratio for each site",
        )
    if not (np.isfinite(shares).all() and (shares > 0.0).all()):
        raise DataError(
            "every ratio must be a positive number",
            where="split",
            remedy="write for example 4:1",
        )
    ends = np.round(np.cumsum(shares) / shares.sum() * table.num_rows).astype(int)
    sizes = np.diff(ends, prepend=0)
    if sizes.min() < 1:
        raise DataError(
            f"{table.num_rows} rows are too few for {sites} sites of these sizes",
            where="split",
            remedy="use fewer sites or more even ratios",
        )
    order = np.random.default_rng(seed).permutation(table.num_rows)
    return [table.take(np.sort(part)) for part in np.split(order, ends[:-1])]


def write_table(table: pa.Table, path: Path) -> None:
    """Write ``table`` as CSV or Parquet, whichever the name says.

    The file appears whole or not at all: it is written beside its place and then
    moved there. Missing values are empty fields of a CSV.
    """
    writers = {
        ".csv": pyarrow.csv.write_csv,
        ".parquet": pyarrow.parquet.write_table,
    }
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise DataError(
            "a table is written as .csv or .parquet",
            where=str(path),
            remedy="change the file's ending",
        )
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        writer(table, unfinished)
        unfinished.replace(path)
    except OSError as error:
        raise DataError(
            f"cannot write the table ({error.strerror or 'input/output error'})",
            where=str(path),
            remedy="check that the folder exists, is writable and has room",
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)
