"""Rows of one person, counted together as one record."""

from __future__ import annotations

import hashlib
import unicodedata
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cipherbayes.data.tables import MISSING, Chunk, Table
from cipherbayes.errors import DataError
from cipherbayes.typing import Floats, Integers

_PLAIN = "^(0|[1-9][0-9]*|[A-Za-z][!-~]*)$"
"""Names that are written in the one way there is for what they mean."""
_MOST_DIGITS = 1000

GRAIN = 2.0**20
"""Shares are multiples of one over this: sums of them are exact."""


class Persons:
    """Who the rows of a table belong to.

    A person with n rows has a share of 1 / n in each of them, rounded down to a
    multiple of 2⁻²⁰. What a row adds to a sum is multiplied by its share.

    Parameters
    ----------
    table
        The raw table; its column is read once, here.
    column
        The column that names a person. Blanks around a name do not count, capital
        letters do.

    Formal guarantees
    -----------------
    Let every row's contribution have norm at most Δ. All rows of a person together
    then add at most Δ, because their shares add up to one or less. So a sum changes
    by at most Δ when a person comes or goes. It does, too, when one of a person's
    n ≥ 2 rows goes: with s_n the share, that moves it by at most
    s_n + (n - 1)(s_(n-1) - s_n) = (n - 1) s_(n-1) - (n - 2) s_n ≤ 1 times Δ. What
    holds for persons therefore holds for rows.

    Raises
    ------
    DataError
        Where a row names nobody, or a name is written in several ways, a number (1, 01,
        +1, 1.0, 1e0) or a text of signs that look alike: whether they are one person or
        several cannot be known, and either would break the guarantee if it were the
        other.
    """

    def __init__(self, table: Table, column: str) -> None:
        self.column = column
        self._where = table.where
        names = pa.chunked_array(
            [self._names(chunk) for chunk in table.chunks({column: "text"})],
            type=pa.string(),
        )
        counted = pc.value_counts(names)
        self._known = counted.field("values")
        if any_written_twice(self._known):
            raise DataError(
                f"column '{column}' writes a name in several ways, as 1, 01 and 1.0 do",
                where=self._where,
                remedy="write a person's name alike in every row; where they are "
                "different persons, put a letter before each",
            )
        rows = counted.field("counts").to_numpy(zero_copy_only=False)
        self._shares: Floats = np.floor(GRAIN / rows) / GRAIN
        self._places: Floats | None = None

    @property
    def count(self) -> int:
        """Number of persons."""
        return len(self._known)

    def shares(self, chunk: Chunk) -> Floats:
        """The share of every row of a chunk."""
        shares: Floats = self._shares[self._who(chunk)]
        return shares

    def places(self, chunk: Chunk) -> Floats:
        """A whole number below 2⁵³ for every row of a chunk, from its person's name."""
        if self._places is None:
            digests = (
                hashlib.blake2b(str(name).encode(), digest_size=8).digest()
                for name in self._known.to_pylist()
            )
            whole = [int.from_bytes(digest, "big") >> 11 for digest in digests]
            self._places = np.array(whole, dtype=np.float64)
        places: Floats = self._places[self._who(chunk)]
        return places

    def _who(self, chunk: Chunk) -> Integers:
        who = pc.index_in(self._names(chunk), value_set=self._known)
        found: Integers = who.to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    def _names(self, chunk: Chunk) -> pa.Array:
        names = pc.utf8_trim_whitespace(chunk.column(self.column))
        gaps = pc.is_in(names, value_set=pa.array(sorted(MISSING), type=pa.string()))
        if names.null_count or pc.any(gaps).as_py():
            raise DataError(
                f"column '{self.column}' is missing in some rows",
                where=self._where,
                remedy="give every row the name of a person, or remove the row",
            )
        return names


def any_written_twice(names: pa.Array) -> bool:
    """Whether two names that are written differently may mean one person."""
    plain = pc.match_substring_regex(names, _PLAIN)
    # A longer one is compared as a number: another may have it with an exponent.
    plain = pc.and_(plain, pc.less_equal(pc.utf8_length(names), _MOST_DIGITS))
    keys = [_normalised(name) for name in names.filter(pc.invert(plain)).to_pylist()]
    if len(set(keys)) < len(keys):
        return True
    texts = pa.array([_written_plainly(key) for key in keys], type=pa.string())
    return bool(pc.any(pc.is_in(names.filter(plain), value_set=texts)).as_py())


def _normalised(name: str) -> Decimal | str:
    """A name as an exact number, else as text whose look-alike signs are one sign."""
    text = unicodedata.normalize("NFKC", name).replace("\N{MINUS SIGN}", "-")
    kinds = [(sign, unicodedata.category(sign)) for sign in text]
    text = "".join("-" if kind == "Pd" else s for s, kind in kinds if kind != "Cf")
    text = " ".join(text.split())
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


def _written_plainly(key: Decimal | str) -> str:
    """The one way in which a name is compared with others."""
    if isinstance(key, str):
        return key
    if not key:  # however large its exponent
        return "0"
    if key.adjusted() > _MOST_DIGITS or key != int(key):
        return str(key)
    return str(int(key))
