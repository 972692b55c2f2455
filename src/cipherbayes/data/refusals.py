"""How the readers of tables refuse: in their own words, without what a driver said."""

from __future__ import annotations

import re
from typing import NoReturn

from cipherbayes.errors import DataError


def refuse(where: str, what: str, remedy: str) -> NoReturn:
    """DataError, and nothing of what led to it."""
    raise DataError(what, where=where, remedy=remedy) from None


def refuse_address(path: str) -> None:
    """DataError where the path of a file is an address, which may hold a secret."""
    if re.search(r"://|^\w\w+:/", path):  # a Path has one slash of two
        refuse(
            "data",
            "is the address of a database, not the path of a file",
            "give database, query and ledger in its place, the address without a "
            "password",
        )
