"""``site.toml``: a site's own table, ledger and budget, which never leave it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cipherbayes.data.refusals import refuse_address
from cipherbayes.data.snapshots import Query
from cipherbayes.engine.local_settings import LocalSettings
from cipherbayes.errors import DataError, RunError
from cipherbayes.study.sections import SiteSection


def site_settings(kit: Path) -> LocalSettings:
    """A site's own table, ledger and budget, from ``site.toml`` in its kit."""
    path = kit / "site.toml"
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise RunError(
            "is missing or not TOML",
            where=str(path),
            remedy='write one line: data = "TABLE.csv"',
        ) from None
    unknown = sorted(set(given) - {"data", "ledger", "budget"})
    budget, table = given.get("budget"), given.get("data")
    usable = (
        isinstance(table, str | dict)
        and isinstance(given.get("ledger", ""), str)
        and (budget is None or (type(budget) in (int, float) and budget > 0))
    )
    if unknown or not usable:
        raise RunError(
            f"unknown key '{unknown[0]}'" if unknown else "names no usable table",
            where=str(path),
            remedy="keys are data, budget (a positive number) and ledger",
        )
    budget = None if budget is None else float(budget)
    if isinstance(table, dict):
        return _query_settings(path, table, given.get("ledger"), budget)
    try:
        refuse_address(given["data"])
    except DataError as error:
        raise RunError(
            f"data: {error.what}", where=str(path), remedy=error.remedy
        ) from None
    data = kit / given["data"]
    ledger = str(kit / given.get("ledger", f"{data}.ledger"))
    return {"data": str(data), "ledger": ledger, "budget": budget}


def _query_settings(
    path: Path, table: Mapping[str, Any], ledger: str | None, budget: float | None
) -> LocalSettings:
    """The settings of a site whose table is a query; ``path`` is its site.toml."""
    if set(table) != {"database", "query"} or ledger is None:
        raise RunError(
            "a query needs a ledger"
            if ledger is None
            else "data names no usable query",
            where=str(path),
            remedy='write data = { database = "postgresql:///NAME", query = '
            '"cohort.sql" } and ledger = "cohort.ledger"',
        )
    try:
        section = SiteSection(**table, ledger=ledger).located(path.parent)
    except ValidationError as error:
        what = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise RunError(what.removeprefix("Value error, "), where=str(path)) from None
    query, named = section.table, section.ledger
    assert isinstance(query, Query)
    assert named is not None
    return {"data": None, "ledger": named, "budget": budget, "query": query}
