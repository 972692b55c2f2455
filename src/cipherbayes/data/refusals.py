"""How the readers of tables refuse: in their own words, without what a driver said."""

from __future__ import annotations

from typing import NoReturn

from cipherbayes.errors import DataError


def refuse(where: str, what: str, remedy: str) -> NoReturn:
    """DataError, and nothing of what led to it."""
    raise DataError(what, where=where, remedy=remedy) from None
