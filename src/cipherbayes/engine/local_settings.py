"""What a site keeps to itself, and the ledger that goes with its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NotRequired, TypedDict

from cipherbayes.data.snapshots import Query, origin_of
from cipherbayes.engine.table_identity import (
    ledger_beside,
    open_query_ledger,
    open_table_ledger,
)
from cipherbayes.errors import PrivacyError, RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.protocol import (
    protocol_of,
)
from cipherbayes.study.schema import Study
from cipherbayes.study.sections import SiteSection


class LocalSettings(TypedDict):
    """What a site keeps to itself: its table, its ledger, its budget.

    ``query`` is there where the table is a query that ``data`` is to hold.
    """

    data: str | None
    ledger: str
    budget: float | None
    query: NotRequired[Query]


def local_settings(site: SiteSection, ledger: Path) -> LocalSettings:
    """What a site of a study on one machine keeps to itself."""
    return {
        "data": None if site.data is None else str(Path(site.data).absolute()),
        "ledger": str(ledger.absolute()),
        "budget": site.budget,
    }


def read_settings(path: Path) -> LocalSettings:
    """The content of a site's ``site.json``."""
    try:
        local: LocalSettings = json.loads(path.read_text(encoding="utf-8"))
        data, budget = local["data"], local["budget"]
        strings = isinstance(data, str | None) and isinstance(local["ledger"], str)
        # A budget that is no number would be none.
        if not strings or type(budget) not in (int, float, type(None)):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise RunError(
            "cannot be read",
            where=str(path),
            remedy="restore it, or start a new run",
        ) from None
    return local


def open_ledger(
    study: Study, name: str, local: LocalSettings, run: bytes | None = None
) -> Ledger:
    """A table's ledger; the budget belongs to the table.

    ``run`` is given where ``local`` was written when the run began: a run that goes on
    does not bring back a budget that the owner has changed since.
    """
    private = study.with_privacy()
    path, data = Path(local["ledger"]), local["data"]
    budget = local["budget"] or protocol_of(study).first_budget(private)
    delta = private.privacy.delta
    if data is None:
        # A frame's ledger goes with its run.
        ledger = Ledger.open(
            path, dataset=name, epsilon=budget, delta=delta, lasting=False
        )
    elif origin := origin_of(data):
        ledger = open_query_ledger(origin, path, epsilon=budget, delta=delta)
    else:
        ledger = open_table_ledger(Path(data), path, epsilon=budget, delta=delta)
    if local["budget"] is not None and not (
        run is not None and ledger.has_charged(run, name)
    ):
        ledger.set_budget(ledger.budget_with(local["budget"]))
    if delta > ledger.delta:
        raise PrivacyError(
            f"the ledger counts at δ = {ledger.delta:g}, below the study's",
            where=str(ledger.path),
            remedy=f"set privacy.delta = {ledger.delta:g} or lower",
        )
    return ledger


def ledger_path(local: LocalSettings) -> Path:
    """Where a site's ledger is: beside the table itself, where nobody says else."""
    given = Path(local["ledger"])
    if local["data"] is not None and given == Path(f"{local['data']}.ledger"):
        return ledger_beside(local["data"])
    return given
