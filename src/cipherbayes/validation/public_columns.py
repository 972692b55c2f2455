"""The columns of a public table, on which outcomes are simulated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from cipherbayes.errors import DataError
from cipherbayes.typing import Floats, JsonObject

MOST_LEVELS = 12
SKEWED = 1.5
"""Skewness from which on a positive column is entered as its logarithm."""


@dataclass(frozen=True)
class Columns:
    """The usable columns of a public table.

    Attributes
    ----------
    name
        Of the table.
    numbers
        Columns of numbers; 0 and 1 only are levels.
    levels
        Columns of texts.
    left_out
        Columns that are constant, or texts of too many levels.
    """

    name: str
    numbers: Mapping[str, Floats]
    levels: Mapping[str, tuple[str, ...]]
    left_out: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        if self.numbers:
            return next(iter(self.numbers.values())).size
        return len(next(iter(self.levels.values())))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a CSV or Parquet file; the table is named after it."""
        if not path.is_file():
            raise DataError("no such file", where=str(path), remedy="check the path")
        try:
            if path.suffix == ".csv":
                table = pyarrow.csv.read_csv(path)
            else:
                table = pyarrow.parquet.read_table(path)
        except (OSError, pa.ArrowException):
            # What Arrow says may hold a value.
            raise DataError(
                "cannot be read as a table",
                where=str(path),
                remedy="give a CSV with a header and commas, or a Parquet file",
            ) from None
        return cls.of(path.stem, table)

    @classmethod
    def of(cls, name: str, table: pa.Table) -> Self:
        """The columns of an Arrow table, of the rows that miss nothing."""
        table = table.drop_null()
        numbers: dict[str, Floats] = {}
        levels: dict[str, tuple[str, ...]] = {}
        left_out = []
        for column in table.column_names:
            values = table[column]
            if pa.types.is_boolean(values.type):
                values = values.cast(pa.int8())
            distinct = len(values.unique())
            is_number = pa.types.is_integer(values.type) or pa.types.is_floating(
                values.type
            )
            if distinct < 2 or (not is_number and distinct > MOST_LEVELS):
                left_out.append(column)
            elif is_number and distinct > 2:
                numbers[column] = values.to_numpy().astype(np.float64)
            else:
                levels[column] = tuple(map(str, values.to_pylist()))
        if not numbers and not levels:
            raise DataError(
                "has no column that varies in rows without missing values",
                where=name,
                remedy="give a table of numbers, or of texts with few levels",
            )
        return cls(name, numbers, levels, tuple(left_out))

    def drawn(self, rows: int, rng: np.random.Generator) -> pa.Table:
        """As many rows, with replacement where there are fewer."""
        places = rng.choice(self.count, rows, replace=self.count < rows)
        found: dict[str, object] = {n: v[places] for n, v in self.numbers.items()}
        found |= {n: [v[i] for i in places] for n, v in self.levels.items()}
        return pa.table(found)

    def features(self, wider: float) -> dict[str, JsonObject]:
        """Ranges of all values, so many times too wide; levels."""
        features: dict[str, JsonObject] = {}
        for name, values in self.numbers.items():
            logged = values.min() > 0.0 and _skewness(values) > SKEWED
            seen = np.log(values) if logged else values
            middle = 0.5 * (seen.min() + seen.max())
            half = 0.5 * wider * (seen.max() - seen.min())
            ends = (middle - half, middle + half)
            if logged:
                ends = (math.exp(max(ends[0], -300.0)), math.exp(min(ends[1], 300.0)))
            features[name] = {"low": ends[0], "high": ends[1]}
            if logged:
                features[name]["transform"] = "log"
        for name, texts in self.levels.items():
            features[name] = {"levels": sorted(set(texts))}
        return features


def _skewness(values: Floats) -> float:
    z = (values - values.mean()) / values.std()
    return float((z**3).mean())
