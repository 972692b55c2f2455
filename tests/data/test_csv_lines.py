"""A line of a CSV file is one record, whatever the other lines are."""

from __future__ import annotations

import gzip
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest

from cipherbayes.data.tables import csv, open_table
from cipherbayes.errors import DataError


def cells(path: Path, lines: list[bytes]) -> list[dict[str, str]] | None:
    """What is read of some lines; None where they are refused."""
    path.write_bytes(b"a,b\n" + b"".join(lines))
    try:
        table = open_table(path)
        pieces = [
            pa.table({name: chunk.column(name) for name in ("a", "b")})
            for chunk in table.chunks({"a": "text", "b": "text"})
        ]
    except DataError:
        return None
    return [row for piece in pieces for row in piece.to_pylist()]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_are_read_alike_alone_and_together(tmp_path: Path, end: bytes) -> None:
    """All beginnings of a line by themselves, before, after and between others."""
    path, plain = tmp_path / "t.csv", b"x,x" + end
    for signs in product(b'",x', repeat=5):
        odd = bytes(signs) + end
        alone = cells(path, [odd, plain])
        for lines in ([plain, odd, plain], [odd, odd, plain], [odd, plain, odd, plain]):
            others = {"a": "x", "b": "x"}
            read = cells(path, lines)
            if alone is None:
                assert read is None
                continue
            assert len(alone) == 2, odd
            by_line = [others if line == plain else alone[0] for line in lines]
            assert read == by_line, lines


def test_quotes_may_hold_commas_and_quotes_and_no_line_break(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    good = b'"a, ""b""",5 feet\n'
    assert cells(path, [good]) == [{"a": 'a, "b"', "b": "5 feet"}]
    assert cells(path, [b"x,5'11\"\n"]) == [{"a": "x", "b": "5'11\""}]
    assert cells(path, [b'"a\nb",5\n']) is None


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 22])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_line_is_named_wherever_blocks_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, end: bytes
) -> None:
    monkeypatch.setattr(csv, "_SCANNED", block)
    path = tmp_path / "t.csv.gz"
    lines = [b"a,b", b'"1,5",2', b"3,4", b'3,"', b"5,6", b'7,"x"']
    for last in (end, b""):
        path.write_bytes(gzip.compress(end.join(lines) + last))
        with pytest.raises(DataError, match="line 4 has a cell in quotes"):
            csv.refuse_open_quotes(path, "t")
        path.write_bytes(gzip.compress(end.join(lines[:3] + lines[4:]) + last))
        csv.refuse_open_quotes(path, "t")
