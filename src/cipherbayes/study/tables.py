"""A study's tables: opened, checked, split into training and held-out rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cipherbayes.data.imputing import Imputing
from cipherbayes.data.preparation import Preparation
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.record_places import places_of
from cipherbayes.data.row_digest import RowDigest, row_words
from cipherbayes.data.snapshots import origin_of
from cipherbayes.data.tables import open_table
from cipherbayes.errors import DataError, PrivacyError, StudyError
from cipherbayes.inference.between_sites import Group, SitePrior
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models import Design
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.study.protocol_rules import CURATED_DEFAULT
from cipherbayes.study.schema import Study


def preparation_of(study: Study) -> Preparation:
    """The study's preparation of raw columns."""
    return Preparation(
        study.features,
        intercept=study.intercept,
        row_norm=study.preparation.row_norm,
        formula=study.model.terms,
        baseline=not study.model.needs_intercept,
    )


def imputing_of(study: Study) -> Imputing | None:
    """How the study draws missing values; None where it draws none."""
    return Imputing.of(
        preparation_of(study),
        tuple(study.model.outcome_columns()),
        scaled=study.releases_scales,
    )


def as_sites(study: Study, tables: Any) -> tuple[Study, Mapping[str, Any] | None]:
    """A study and its tables by site, where one table may have come by itself.

    One table is in one place: a study that names neither sites nor a protocol is then
    ``pooled``.
    """
    if tables is None or isinstance(tables, Mapping):
        return study, tables
    if len(study.sites) > 1:
        raise StudyError(
            f"has {len(study.sites)} sites, and one table was given",
            where=f"study '{study.name}'",
            remedy="give a dictionary, site name -> table",
        )
    if not study.sites and study.study.protocol is None:
        header = study.study.model_copy(update={"protocol": CURATED_DEFAULT})
        study = study.model_copy(update={"study": header})
    return study, {next(iter(study.sites), "table"): tables}


def slots_of(study: Study) -> SiteSlots | None:
    """Which places of θ are each site's own; None where sites are taken to be alike."""
    hierarchy = study.hierarchy
    if hierarchy is None:
        return None
    if not study.sites:
        raise StudyError(
            "lets sites differ and names none",
            where=f"study '{study.name}', [hierarchy]",
            remedy="name them under [sites]",
        )
    prepared = preparation_of(study)
    design = prepared.design
    parameters = study.model.parameters(design)
    places = study.model.constants(design) if hierarchy.intercept else ()
    for name in hierarchy.slopes:
        if study.model.formula is not None:
            places += tuple(prepared.owners[name])
            continue
        places += tuple(
            j for j, column in enumerate(design.names) if _is_of(column, name)
        )
    owners = {site: hierarchy.owner(site) for site in study.sites}
    return SiteSlots(
        tuple(sorted(set(owners.values()))),
        len(parameters),
        places,
        tuple(sorted((s, name) for s, name in owners.items() if s != name)),
    )


def _is_of(column: str, feature: str) -> bool:
    """Whether a design column is a feature's."""
    return column == feature or column.startswith(f"{feature}[")


def site_prior(study: Study, slots: SiteSlots, common: ResolvedPrior) -> SitePrior:
    """The prior of the parameters of all sites together."""
    hierarchy = study.stated_hierarchy
    if hierarchy.effects == "fixed":
        return SitePrior.of(common, slots, (), hierarchy.scale)
    design = preparation_of(study).design
    names = study.model.parameters(design)
    constants = study.model.constants(design)
    varying = [p for p in slots.places if p not in constants]
    level = [p for p in slots.places if p in constants]
    own = np.eye(slots.dimension)
    groups = []
    if level:
        name = names[level[0]].partition("[")[0]
        together = sum(own[:, slots.copies(place)] for place in level)
        follows = hierarchy.context is not False
        groups.append(Group(name, np.asarray(together), follows))
    if len(level) > 1 and hierarchy.baseline == "stratified":
        each = np.concatenate([slots.copies(place) for place in level])
        groups.append(Group("baseline", own[:, each]))
    groups += [Group(names[place], own[:, slots.copies(place)]) for place in varying]
    intervals = near_each_other(study) if level else ()
    return SitePrior.of(common, slots, tuple(groups), hierarchy.scale, intervals)


def near_each_other(study: Study) -> tuple[int, ...]:
    """Parameters that are log hazards of intervals, each expected near the one before.

    Of studies in which sites may differ, where no prior is stated of one of them.
    """
    hierarchy = study.hierarchy
    if hierarchy is None or hierarchy.effects == "fixed" or not hierarchy.intercept:
        return ()
    design = preparation_of(study).design
    names, constants = study.model.parameters(design), study.model.constants(design)
    stated = study.full_prior.parameters.keys() & {names[j] for j in constants}
    return constants if len(constants) > 1 and not stated else ()


def resolve_prior(study: Study, design: Design) -> ResolvedPrior:
    """The prior of every parameter of one site's model, in the order of θ."""
    try:
        return study.model.prior_of(study.full_prior, design)
    except ValueError as error:
        raise StudyError(str(error), where=f"study '{study.name}', [prior]") from None


def with_sites(study: Study, tables: Mapping[str, Any] | None) -> Study:
    """The study with the sites that tables were given for."""
    if tables is None:
        if not study.sites:
            raise StudyError(
                "names no sites, so there is no table to read",
                where=f"study '{study.name}'",
                remedy='add [sites], e.g. north = { data = "north.csv" }',
            )
        return study
    if study.sites and set(study.sites) != set(tables):
        raise StudyError(
            "the tables given are not those of the study's sites "
            f"({', '.join(sorted(study.sites))})",
            where=f"study '{study.name}'",
            remedy="give one table for each site of [sites]",
        )
    if study.sites:
        return study
    document = study.model_dump(mode="json", exclude_none=True)
    return Study.model_validate({**document, "sites": {name: {} for name in tables}})


def open_sites(
    study: Study, tables: Mapping[str, Any] | None
) -> dict[str, PreparedTable]:
    """Open, check and prepare every site's table."""
    return {
        name: open_site(study, name, site.table if tables is None else tables[name])
        for name, site in study.sites.items()
    }


def open_site(study: Study, name: str, source: Any) -> PreparedTable:
    """Open, check and prepare one site's table: a path or a frame.

    A query is read into a file first: see :mod:`cipherbayes.data.snapshots`.
    """
    if source is None:
        raise StudyError(
            f"site '{name}' has no table",
            where=f"study '{study.name}'",
            remedy=f'set sites.{name}.data = "FILE"',
        )
    rival = rival_study(study)
    return PreparedTable(
        open_table(source, table_name(source) or f"table '{name}'"),
        preparation_of(study),
        study.model,
        strict=study.privacy is None,
        person=None if study.privacy is None else study.privacy.person,
        parted=study.checks_privately,
        beside=None if rival is None else preparation_of(rival),
    )


def rival_study(study: Study) -> Study | None:
    """The earlier study that a study is compared with, as far as it predicts."""
    if study.evaluation is None or study.evaluation.against is None:
        return None
    return Study.model_validate(study.evaluation.against.study)


def table_name(source: Any) -> str:
    """How errors name a table: by its path, or by its query; empty for a frame."""
    if not isinstance(source, str | Path):
        return ""
    origin = origin_of(source)
    return str(source) if origin is None else origin.name


def refuse_equal_rows(prepared: Mapping[str, PreparedTable]) -> None:
    """Raise PrivacyError where two sites have the same prepared rows.

    In one order; or in any, where most rows are one of a kind: few kinds of rows may be
    as frequent at two hospitals by chance. Rows are read only where two tables have as
    many.
    """
    counts = [table.count for table in prepared.values()]
    seen: dict[str, str] = {}
    for name, table in prepared.items():
        if counts.count(table.count) > 1:
            for digest in _digests(table):
                first = seen.setdefault(digest, name)
                if first != name:
                    raise equal_tables(first, name)


def equal_tables(one: str, other: str) -> PrivacyError:
    """Two sites with the same records."""
    return PrivacyError(
        f"sites '{one}' and '{other}' have the same table",
        where="[sites]",
        remedy="give each site rows of its own: a record that is counted twice is "
        "protected less than the certificate says",
    )


def _digests(table: PreparedTable) -> list[str]:
    """Digests of the rows in their order and, where they all differ, in any order."""
    ordered, unordered = hashlib.sha256(), RowDigest()
    differ = True
    for block in table.blocks():
        columns = [np.ascontiguousarray(c) for c in (*block.x, *block.outcome.values())]
        for column in columns:
            ordered.update(column.tobytes())
        rows = pa.table(columns, names=[str(k) for k in range(len(columns))])
        unordered.add(rows)
        words, _ = row_words(rows)
        differ = differ and 2 * np.unique(words).size > words.size
    return [ordered.hexdigest(), *([unordered.hex()] if differ else [])]


def check_pooled(study: Study, prepared: Mapping[str, PreparedTable]) -> None:
    """Refuse what makes a model unidentifiable over all tables together."""
    where = f"study '{study.name}'"
    tables = list(prepared.values())
    constant = set(tables[0].constant_columns())
    for table in tables[1:]:
        constant &= set(table.constant_columns())
    if constant:
        first = next(n for n in tables[0].design.names if n in constant)
        if _constant_throughout(tables, first):
            raise DataError(
                f"column '{first}' has the same value in every row of every table",
                where=where,
                remedy="remove it from [features] (or widen its low and high)"
                if study.model.formula is None
                else "remove it from the formula",
            )
    outcomes = [table.outcome() for table in tables]
    pooled = {
        role: np.concatenate([outcome[role] for outcome in outcomes])
        for role in outcomes[0]
    }
    try:
        study.model.check_outcomes(pooled)
    except ValueError as error:
        raise DataError(str(error), where=where) from None


def _constant_throughout(tables: list[PreparedTable], name: str) -> bool:
    """Whether a column constant in each table has the same value in all of them."""
    index = tables[0].design.names.index(name)
    return len({float(next(iter(t.blocks())).x[index, 0]) for t in tables}) == 1


def split_tables(
    study: Study, prepared: Mapping[str, PreparedTable]
) -> tuple[dict[str, PreparedTable], dict[str, PreparedTable]]:
    """Training rows and held-out rows of every table.

    Held-out rows that the study protects stay with the others: whoever answers about a
    table parts it (:func:`split_site`).
    """
    if study.evaluation is None or study.checks_privately:
        return dict(prepared), {}
    parts = {name: split_site(study, name, table) for name, table in prepared.items()}
    train = {name: part[0] for name, part in parts.items()}
    return train, {name: part[1] for name, part in parts.items()}


def split_site(
    study: Study, name: str, table: PreparedTable
) -> tuple[PreparedTable, PreparedTable]:
    """Training rows and held-out rows of one table, the same whoever splits it.

    A record's side depends on the seed, the site and the record alone, so that adding
    or removing a record moves no other one between the two; equal records of a site are
    told apart by counting them. Where a record is a person, its name decides, and all
    its rows are on one side, in every study with that seed and share.

    Edge cases
    ----------
    Where the study protects held-out rows, one side may be empty: a refusal would tell.
    """
    stated = study.stated_evaluation
    seed, share = stated.seed, stated.holdout
    held = places_of(table, seed, name) < share
    if study.checks_privately:
        return table.subset(np.flatnonzero(~held)), table.subset(np.flatnonzero(held))
    if held.all() or not held.any():
        raise DataError(
            "has too few rows for the held-out share",
            where=f"site '{name}'",
            remedy="change evaluation.holdout or remove [evaluation]",
        )
    return table.subset(np.flatnonzero(~held)), table.subset(np.flatnonzero(held))
