"""The fields of result.json, and in which check each of them is compared."""

from __future__ import annotations

from collections.abc import Iterable

from cipherbayes.typing import JsonObject
from cipherbayes.validation.verify.comparing import difference

FIELDS: dict[str, tuple[str, ...]] = {
    "certificate": ("privacy",),
    "parties": ("run", "encryption", "parties"),
    "headings": (
        *("version", "study", "study_hash", "protocol", "model", "method", "sites"),
        *("rounds", "interval"),
    ),
    "scales": ("reference", "moments", "spread", "column_models"),
    "characteristics": ("describe",),
    "posterior": ("posterior_sha256",),
    "numbers": ("posterior", "effects", "baseline", "formula", "hierarchy"),
    "scores": ("metrics",),
    "flags": ("flags", "cautions"),
    "warnings": ("warnings",),
    "cost": ("timing", "bytes"),
    "release": ("cipherbayes",),
}
"""The fields of result.json that each check compares, each of them in one; what
``cost`` and ``release`` say is told, and never computed again."""


def fields_differ(
    names: Iterable[str], said: JsonObject, implied: JsonObject, within: float
) -> str | None:
    """The first of these fields that differs, is missing or should not be there."""
    for name in names:
        if (name in said) != (name in implied):
            has = "is missing" if name in implied else "does not belong there"
            return f"{name} {has}"
        found = difference(said.get(name), implied.get(name), name, within=within)
        if found is not None:
            return found
    return None


def listed(names: Iterable[str]) -> str:
    """Names in one line; each may be a stranger's."""
    return ", ".join(name[:240] for name in names) or "none"
