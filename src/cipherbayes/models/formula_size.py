"""How many terms a formula asks for, before they are made."""

from __future__ import annotations

from typing import Any

MOST_TERMS = 20_000
"""Terms that a formula may ask for: all products of three of 26 columns."""
MOST_FACTORS = 3
"""Factors of a product."""


def require_few_terms(tree: Any) -> None:
    """Refuse a formula whose terms would take long to make; ValueError.

    ``tree`` is formulaic's, of operators with their arguments. Bounds are those of
    making the terms, of which many may be the same: a + b makes as many as both
    together, a * b these and all products, and (a)**n all products of n.

    Edge cases
    ----------
    Making a tree takes as long as its text has characters, which are few.
    """
    waiting, done = [tree], []
    while waiting:  # a tree may be deeper than Python's own stack
        node = waiting.pop()
        done.append(node)
        waiting += getattr(node, "args", ())
    counts: dict[int, int] = {}
    for node in reversed(done):
        found = _terms_of(node, counts)
        if found > MOST_TERMS:
            raise ValueError(
                f"asks for more than {MOST_TERMS:,} terms: name the products that are "
                "meant, e.g. age:sex"
            )
        counts[id(node)] = found


def _terms_of(node: Any, counts: dict[int, int]) -> int:
    if not hasattr(node, "args"):
        return 1
    symbol, parts = node.operator.symbol, [counts[id(each)] for each in node.args]
    if symbol in ("**", "^"):
        power = str(node.args[1].token) if hasattr(node.args[1], "token") else ""
        if power not in map(str, range(1, MOST_FACTORS + 1)):
            raise ValueError(
                f"(...)**n has products of n columns, n from 1 to {MOST_FACTORS}"
            )
        return int(parts[0] ** int(power))
    if symbol in ("*", "/", "in", "%in%", ":") and len(parts) == 2:
        product = parts[0] * parts[1]
        return product if symbol == ":" else sum(parts) + product
    return sum(parts)
