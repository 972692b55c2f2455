"""What a run's folder holds that a report may show: nothing secret, no row."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cipherbayes.errors import CipherbayesError, RunError
from cipherbayes.models.survival import cause_of
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.protocol import Protocol, protocol_of
from cipherbayes.protocols.stores import CheckpointReader, checkpoint_file
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.results.hierarchy import prior_of
from cipherbayes.results.record import ResultRecord
from cipherbayes.results.result import Result
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of, resolve_prior
from cipherbayes.typing import JsonObject


@dataclass(frozen=True)
class Spent:
    """What a table has spent over all studies."""

    site: str
    spent: float
    budget: float
    delta: float


@dataclass(frozen=True)
class Contents:
    """A finished run, as its folder tells it.

    Attributes
    ----------
    plan
        The releases that the study implies; None without a budget.
    run, scheme, key, identities
        Id of the run, of its encryption parameters and of its encryption key, and
        each party's public key; empty where there were no parties.
    lost
        Sites that dropped out, with the round.
    ledgers
        What each table has spent, where its ledger is on this machine.
    sd_without_privacy
        Posterior sd to expect without privacy, on the prepared scale.
    causes
        Results of the other causes' studies, by name, where causes compete.
    """

    result: Result
    plan: StudyPlan | None = None
    run: str = ""
    scheme: str | None = None
    key: str | None = None
    identities: dict[str, str] = field(default_factory=dict)
    lost: tuple[tuple[str, int], ...] = ()
    ledgers: tuple[Spent, ...] = ()
    sd_without_privacy: tuple[float, ...] | None = None
    causes: Mapping[str, Result] = field(default_factory=dict)

    @property
    def cause_name(self) -> str:
        """What the run's own cause is called beside others."""
        return _cause_name(self.result)

    @property
    def study(self) -> Study:
        return self.result.study

    @property
    def protocol(self) -> Protocol[Any]:
        """The study's protocol."""
        return protocol_of(self.study)

    @property
    def record(self) -> ResultRecord:
        """The content of result.json."""
        return self.result.record

    @property
    def rounds(self) -> int:
        """Rounds of the fit, which the draws rest on."""
        return int(self.record["rounds"])

    @property
    def all_rounds(self) -> int:
        """Rounds of all releases, those before and after the fit among them."""
        return self.rounds if self.plan is None else self.plan.rounds

    @classmethod
    def load(cls, folder: Path, causes: Sequence[Path] = ()) -> Contents:
        """Read a folder; what a run without parties does not keep stays empty.

        ``causes`` are the folders of the runs of competing causes.
        """
        result = Result.load(folder)
        study = result.study
        about = _json(folder / "run.json")
        encryption = result.record.get("encryption")
        parties = {
            party["name"]: party["identity"]
            for party in result.record.get("parties", [])
            if party["identity"] is not None
        }
        plan = _plan(study)
        scheme = None if plan is None else plan.scheme
        checkpoint = checkpoint_file(folder)
        return cls(
            result=result,
            plan=plan,
            run=result.record.get("run") or about.get("run", ""),
            scheme=encryption["parameters"] if encryption else scheme,
            key=encryption and encryption["key"],
            identities=parties or about.get("pinned", {}),
            lost=_lost(checkpoint),
            sd_without_privacy=_sd_without_privacy(study, plan, checkpoint),
            ledgers=tuple(_ledgers(folder, sorted(study.sites))),
            causes=_causes(result, causes),
        )


def _cause_name(result: Result) -> str:
    cause = cause_of(result.study.model)
    return result.study.name if cause is None else f"{result.study.name}, cause {cause}"


def _causes(own: Result, folders: Sequence[Path]) -> dict[str, Result]:
    found: dict[str, Result] = {}
    for folder in folders:
        other = Result.load(folder)
        name = _cause_name(other)
        if name in (_cause_name(own), *found):
            raise RunError(
                f"two of the runs are both of '{name}'",
                where=str(folder),
                remedy="give each cause once, with a study of its own (model.cause)",
            )
        found[name] = other
    return found


def _plan(study: Study) -> StudyPlan | None:
    if not study.private:
        return None
    try:
        return plan_releases(study)
    except CipherbayesError:
        return None  # a release that another cipherbayes laid out


def _json(path: Path) -> JsonObject:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lost(path: Path) -> tuple[tuple[str, int], ...]:
    if not path.is_file():
        return ()
    try:
        with CheckpointReader(path) as checkpoint:
            return checkpoint.lost()
    except (sqlite3.DatabaseError, ValueError, TypeError):
        return ()


def _sd_without_privacy(
    study: Study, plan: StudyPlan | None, checkpoint: Path
) -> tuple[float, ...] | None:
    if plan is None or not plan.sampling or not checkpoint.is_file():
        return None
    try:
        with CheckpointReader(checkpoint) as reader:
            memory = reader.last_memory()
    except (sqlite3.DatabaseError, ValueError, TypeError):
        return None
    if memory is None or not np.isfinite(memory).all():
        return None
    design = preparation_of(study).design
    prior = prior_of(study) or resolve_prior(study, design)
    persons = study.privacy is not None and study.privacy.person is not None
    try:
        return study.inference_method.sd_without_privacy(
            memory,
            prior,
            study.model,
            design,
            plan.last_phase.weighting,
            None if persons else study.training_records,
        )
    except (ValueError, np.linalg.LinAlgError):
        return None  # a memory of another length, or of no method


def _ledgers(folder: Path, sites: list[str]) -> list[Spent]:
    found = []
    for site in sites:
        place = _json(folder / "sites" / site / "site.json").get("ledger")
        if not place or not Path(place).is_file():
            continue
        try:
            book = Ledger.read(Path(place))
            found.append(Spent(site, book.spent(), book.epsilon, book.delta))
        except CipherbayesError:
            continue  # the owner sees why with `cipherbayes ledger`
    return found
