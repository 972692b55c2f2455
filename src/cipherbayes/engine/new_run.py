"""What must hold before a run begins: a folder of its own, and budgets that pay for it.

A folder in which a run began and released nothing is used again: whoever corrects a
mistake types the same command once more. One in which something was released says
``resume``, since a new run would spend the budget a second time.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cipherbayes.engine.local_settings import LocalSettings, ledger_path
from cipherbayes.engine.run_folder import BEGUN, SNAPSHOTS, about_run
from cipherbayes.errors import BudgetError, CipherbayesError, PrivacyError, RunError
from cipherbayes.privacy.events import Event
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_balance import Budget, ChargedEvent, epsilon_with
from cipherbayes.protocols.plan import Plan
from cipherbayes.protocols.protocol import protocol_of
from cipherbayes.storage.folders import LOG, PARTIAL_POSTERIOR, not_empty

_FILES = frozenset({LOG, BEGUN, "run.json", "study.toml", "transcript.bin"})
_FOLDERS = frozenset({"csp", "server", "sites", SNAPSHOTS})
_NEW = "choose another --out, or remove it first"


def require_free_folder(path: Path) -> None:
    """Raise RunError unless a run may begin here; nothing is changed.

    Free is what does not exist, is empty, or holds nothing but what a run left that
    released nothing.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise RunError("exists and is no folder", where=str(path), remedy=_NEW)
    found = {entry.name for entry in path.iterdir()}
    if found <= {LOG, PARTIAL_POSTERIOR, SNAPSHOTS}:
        return
    if "result.json" in found:
        raise not_empty(path, "it holds a finished run", remedy=_NEW)
    begun = bool(found & {BEGUN, "run.json"}) and found <= _FILES | _FOLDERS
    if not begun:
        raise not_empty(path, remedy=_NEW)
    if "run.json" in found and has_released(path):
        if holds_frames(path):
            raise not_empty(
                path,
                "a run over frames was cut here after it had released answers, and "
                "cannot go on without them",
                remedy="give another folder, and count what both released; runs over "
                "files can be resumed, and their ledgers count for you",
            )
        raise not_empty(
            path,
            "a run was cut here after it had released answers",
            remedy=f"go on with it, at no further cost: cipherbayes resume {path} "
            "(a new run, with another --out, spends the budget again)",
        )


def clear_folder(path: Path) -> None:
    """Remove what a run left that released nothing; its log stays."""
    require_free_folder(path)
    # While one of these is left, a folder that is half cleared is still free.
    for name in (*_FOLDERS, *_FILES - {LOG, BEGUN, "run.json"}, "run.json", BEGUN):
        if name in _FOLDERS:
            shutil.rmtree(path / name, ignore_errors=True)
        else:
            (path / name).unlink(missing_ok=True)


def has_released(path: Path) -> bool:
    """Whether a table was charged for anything in the run of a folder.

    True also where it cannot be found out, so that nothing is deleted by mistake.
    """
    try:
        run = bytes.fromhex(about_run(path)["run"])
        for settings in _local_settings(path):
            ledger = ledger_path(settings)
            if ledger.exists() and _charged(ledger, run):
                return True
    except (CipherbayesError, OSError, ValueError, KeyError, TypeError):
        return True
    return False


def holds_frames(path: Path) -> bool:
    """Whether the run of a folder had a table that was no file."""
    try:
        return any(settings["data"] is None for settings in _local_settings(path))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _local_settings(path: Path) -> Iterator[LocalSettings]:
    for file in (path / "sites").glob("*/site.json"):
        yield json.loads(file.read_text(encoding="utf-8"))


def _charged(path: Path, run: bytes) -> bool:
    ledger = Ledger.read(path)
    try:
        return bool(ledger.questions(run))
    finally:
        ledger.close()


# -- budgets -----------------------------------------------------------------


@dataclass(frozen=True)
class Shortfall:
    """A table whose budget does not pay for the whole study.

    Attributes
    ----------
    budget, spent
        The table's ε, and how much of it is spent.
    needed
        The smallest budget, to two decimals, that pays for the study too.
    put_back
        Whether the ledger came from a copy that nothing showed to be the newest.
    """

    site: str
    ledger: Path
    budget: float
    spent: float
    needed: float
    put_back: bool

    @property
    def what(self) -> str:
        """The figures."""
        return (
            f"the table of site '{self.site}' cannot pay for this study: it has spent "
            f"ε = {self.spent:.3g} of its budget of {self.budget:g}, and with this "
            f"study it would be {self.needed:.4g}"
        )

    @property
    def remedy(self) -> str:
        """Where the budget is set, and what would be enough."""
        if self.put_back:
            return (
                "its ledger was put back from a copy that nothing shows to be the "
                "newest: find out what was released since, then, if you own the data, "
                f"`cipherbayes ledger {self.ledger} --budget EPSILON`"
            )
        return (
            f"if you own the data, set sites.{self.site}.budget = {self.needed:.4g} in "
            "the study file, else lower privacy.epsilon or ask the owner; `cipherbayes "
            f"ledger {self.ledger}` shows what was spent"
        )


def shortfalls(plan: Plan, local: Mapping[str, LocalSettings]) -> Iterator[Shortfall]:
    """The tables that cannot pay for every round of a new run.

    Ledgers are read and not changed, and none is begun.
    """
    events = plan.charges()
    if not events:
        return
    for site, settings in local.items():
        path = ledger_path(settings)
        own = settings["budget"]
        if path.exists():
            ledger = Ledger.read(path)
            charges, put_back = ledger.charges(), ledger.put_back
            budget = Budget(ledger.budget_with(own), ledger.delta)
            ledger.close()
        else:
            charges, put_back = Counter[ChargedEvent](), False
            first = protocol_of(plan.study).first_budget(plan.study)
            budget = Budget(own or first, plan.study.privacy.delta)
        if not budget.allows(epsilon_with(charges, events, budget)):
            spent = epsilon_with(charges, {}, budget)
            needed = _enough(charges, events, budget)
            yield Shortfall(site, path, budget.epsilon, spent, needed, put_back)


def _enough(
    charges: Counter[ChargedEvent], events: Counter[Event], budget: Budget
) -> float:
    """The smallest budget that pays, to two decimals.

    With sampled releases the figure depends a little on the budget itself.
    """
    for _ in range(20):
        epsilon = epsilon_with(charges, events, budget)
        if budget.allows(epsilon):
            break
        budget = budget._replace(epsilon=math.ceil(100.0 * epsilon) / 100.0)
    return budget.epsilon


def require_budgets(plan: Plan, local: Mapping[str, LocalSettings]) -> None:
    """Raise BudgetError where a table cannot pay for the whole study.

    A run that ends in the middle has spent what it spent for a posterior that nobody
    planned, so on one machine, where all ledgers can be read, it does not begin. A
    ledger still refuses every round beyond its budget, whoever else spends meanwhile.
    """
    short = next(shortfalls(plan, local), None)
    if short is not None:
        raise BudgetError(
            f"{short.what}; nothing was spent now",
            where=str(short.ledger),
            remedy=short.remedy,
        )


def budget_warnings(plan: Plan, local: Mapping[str, LocalSettings]) -> list[str]:
    """What ``cipherbayes plan`` says of tables that cannot pay."""
    try:
        return [f"{s.what}; {s.remedy}" for s in shortfalls(plan, local)]
    except PrivacyError as error:
        return [str(error)]
