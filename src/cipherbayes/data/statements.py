"""Whether a text is one statement, by a database's own rules of strings and comments.

A query is run as a part of a SELECT, between parentheses. A text that closes them, or
ends the statement, could follow with one that writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """How a database takes a text apart.

    Attributes
    ----------
    piece
        What is one piece: strings, names, comments of one line.
    nested
        Whether comments hold comments.
    refused
        Signs that are refused outside of pieces: one that opens a string which does
        not end, and SQLite's parameters, whose brackets hold anything.
    """

    piece: re.Pattern[str]
    nested: bool
    refused: str


SQLITE = Dialect(
    re.compile(
        r"""(?P<remark>--[^\n]*)|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`"""
        r"""|\[[^]]*\]|\w[\w$]*"""
    ),
    nested=False,
    refused="'\"`[$@#:\0",
)
POSTGRESQL = Dialect(
    re.compile(
        r"""(?P<remark>--[^\n\r]*)|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'"""
        r"""|"(?:[^"]|"")*"|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$|\w[\w$]*""",
        re.DOTALL,
    ),
    nested=True,
    refused="'\"\0",
)
"""Also DuckDB's, which counts statements itself in addition."""


def single_statement(text: str, dialect: Dialect) -> str | None:
    """The only statement, without the ``;`` and remarks after it; None if not one.

    Formal guarantees
    -----------------
    What is returned closes no parenthesis that it did not open and leaves none open,
    no string and no comment either, and has no ``;`` outside of them.
    """
    place = end = depth = 0
    ended = False
    while place < len(text):
        if text.startswith("/*", place):
            after = _after_comment(text, place, nested=dialect.nested)
            if after is None:
                return None
            place = after
            continue
        sign, piece = text[place], dialect.piece.match(text, place)
        place = piece.end() if piece else place + 1
        if sign in " \t\r\n\f\v" or (piece and piece["remark"] is not None):
            continue
        if sign == ";" and end:
            ended = True
            continue
        depth += (sign == "(") - (sign == ")")
        misread = piece is None and sign in dialect.refused
        if ended or misread or sign == ";" or depth < 0:
            return None
        end = place
    return text[:end] if end and depth == 0 else None


BEYOND = {
    "limit": "LIMIT",
    "fetch": "FETCH",
    "tablesample": "TABLESAMPLE",
    "sample": "SAMPLE",
    "random": "random()",
    "rand": "rand()",
    "randomblob": "randomblob()",
    "gen_random_uuid": "gen_random_uuid()",
    "uuid": "uuid()",
}
"""Words by which a row may depend on others, or on chance, and how they are shown."""

CALLS = frozenset({"random", "rand", "randomblob", "gen_random_uuid", "uuid"})
"""Those that count only as functions."""


ADDED = {
    *("avg", "mean", "sum", "stddev", "stddev_samp", "stddev_pop"),
    *("variance", "var_samp", "var_pop", "corr", "covar_samp", "covar_pop"),
    *("regr_slope", "regr_intercept", "total"),
}
"""Functions whose last bits depend on the order in which numbers are added."""

FIRST = {
    *("row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"),
    *("first", "last", "any_value", "arbitrary"),
    *("arg_max", "arg_min", "argmax", "argmin", "max_by", "min_by"),
    *("array_agg", "string_agg", "group_concat", "list"),
}
"""Functions that take one row before another, and may find two alike."""

EXACT = {"numeric", "decimal", "integer", "int", "bigint", "hugeint"}
"""Types whose sums are exact."""


def order_left_open(text: str, dialect: Dialect) -> list[str]:
    """What in a query may depend on an order of rows that it does not state.

    By words, like :func:`beyond_a_person`. Not named are sums that state an order or
    have an exact type among their arguments, and ORDER BY of two columns or more, the
    last of which is taken to be unique.
    """
    pieces = [*_pieces(text, dialect)]
    found = set()
    for place, word in enumerate(pieces):
        opens = pieces[place + 1 : place + 2] == ["("]
        if word == "distinct" and pieces[place + 1 : place + 2] == ["on"]:
            if _ordered_by(pieces[_closing(pieces, place + 2) + 1 :]) < 2:
                found.add("DISTINCT ON")
        elif opens and word in ADDED | FIRST:
            end = _closing(pieces, place + 1)
            inside, after = pieces[place + 2 : end], _window(pieces, end + 1)
            if word in FIRST:
                if max(_ordered_by(inside), _ordered_by(after)) < 2:
                    found.add(f"{word}()")
            elif not EXACT & {*inside} and "order" not in inside:
                found.add(f"{word}()")
    return sorted(found)


def _closing(pieces: list[str], start: int) -> int:
    """Where the parenthesis that opens at ``start`` closes."""
    depth = 0
    for place in range(start, len(pieces)):
        depth += (pieces[place] == "(") - (pieces[place] == ")")
        if depth == 0:
            return place
    return len(pieces)


def _window(pieces: list[str], start: int) -> list[str]:
    """What is inside of the OVER (…) that begins here; nothing where none does."""
    if pieces[start : start + 2] != ["over", "("]:
        return []
    return pieces[start + 2 : _closing(pieces, start + 1)]


def _ordered_by(pieces: list[str]) -> int:
    """Of how many columns the first ORDER BY in a piece of text is, at its depth."""
    depth, columns = 0, 0
    for place, piece in enumerate(pieces):
        depth += (piece == "(") - (piece == ")")
        if depth < 0:
            break
        if depth == 0 and not columns and pieces[place : place + 2] == ["order", "by"]:
            columns = 1
        columns += columns > 0 and depth == 0 and piece == ","
    return columns


def beyond_a_person(text: str, dialect: Dialect) -> list[str]:
    """Words in a query by which a row may depend on other people's rows.

    A help for its author and no proof: aggregates and subqueries over a whole table do
    the same and are not found, and some of what is found is harmless.
    """
    pieces = [*_pieces(text, dialect), "", ""]
    found = set()
    for word, after, inside in zip(pieces, pieces[1:], pieces[2:], strict=False):
        if word in BEYOND and (word not in CALLS or after == "("):
            found.add(BEYOND[word])
        if word == "over" and (after, inside) != ("(", "partition"):
            found.add("OVER without PARTITION BY")
    return sorted(found)


def _pieces(text: str, dialect: Dialect) -> Iterator[str]:
    place = 0
    while place < len(text):
        if text.startswith("/*", place):
            place = _after_comment(text, place, nested=dialect.nested) or len(text)
            continue
        piece = dialect.piece.match(text, place)
        whole = text[place] if piece is None else piece[0]
        place += len(whole)
        if not whole.isspace() and (piece is None or piece["remark"] is None):
            yield whole.lower()


def _after_comment(text: str, place: int, *, nested: bool) -> int | None:
    """Where the comment that begins here is over; None if it never is."""
    if not nested:
        found = text.find("*/", place + 2)
        return None if found < 0 else found + 2
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, place):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return None
