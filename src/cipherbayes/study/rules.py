"""Which fields of a study contradict each other.

Every refusal says what to change; pydantic adds the file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cipherbayes.data.databases import open_database
from cipherbayes.data.preparation import Preparation
from cipherbayes.data.refusals import refuse_address
from cipherbayes.errors import DataError
from cipherbayes.inference.method import method_choices
from cipherbayes.models.registry import kinds_with_sites_that_differ
from cipherbayes.study.checking_rules import (
    require_checkable_rows,
    require_comparable_rival,
    require_held_out_rows,
    require_known_groups,
    require_rows_as_they_are,
)
from cipherbayes.study.protocol_rules import choices, refuse_fields_of_others

if TYPE_CHECKING:
    from cipherbayes.study.schema import Study
    from cipherbayes.study.sections import Hierarchy, SiteSection

MOST_NAME = 64
NAME = rf"^[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MOST_NAME - 1}}}$"
"""Names that are safe in paths, certificates and messages."""
MOST_SITES = 64
"""Of a study whose sites may differ: each has numbers of its own in every message."""


def require_agreement(study: Study) -> None:
    """Refuse a study whose fields contradict each other."""
    for name in study.sites:
        if not re.match(NAME, name):
            raise ValueError(
                f"site name '{name[:MOST_NAME]}' is not usable: give up to {MOST_NAME} "
                "of a to z, A to Z, 0 to 9 and . _ -, the first a letter or digit"
            )
        if name in ("csp", "server"):
            raise ValueError(f"site name '{name}' is another party's: choose another")
    _outcomes_are_not_features(study)
    require_held_out_rows(study)
    if study.describe is not None and not study.private:
        raise ValueError(
            "[describe] releases counts with noise: add a [privacy] table, or remove it"
        )
    _formula_fits(study)
    _reference_is_possible(study)
    _privacy_is_usable(study)
    _persons_are_usable(study)
    refuse_fields_of_others(study)
    study.rules.check(study)
    if study.hierarchy is not None:  # first: it chooses the default method
        _sites_may_differ(study, study.hierarchy)
    _method_serves(study)
    study.inference_method.check(study.inference)
    study.inference_method.require(study.model)
    _gaps_can_be_drawn(study)


def require_one_table(site: SiteSection) -> None:
    """Refuse a site that names half a query, a query and a file, or a secret."""
    named = {"database": site.database, "query": site.query, "ledger": site.ledger}
    missing = [key for key, value in named.items() if value is None]
    try:
        refuse_address(site.data or "")
    except DataError as error:
        raise ValueError(f"data: {error.what}; {error.remedy}") from None
    if len(missing) == len(named):
        return
    if site.data is not None:
        raise ValueError(
            "a table is a file (data) or a query (database, query, ledger), not both; "
            "a file's ledger lies beside it"
        )
    if site.database is None or missing:
        raise ValueError(f"a query needs database, query and ledger: add {missing[0]}")
    try:
        open_database(site.database)
    except DataError as error:
        raise ValueError(f"database: {error.what}; {error.remedy}") from None


def _outcomes_are_not_features(study: Study) -> None:
    columns = study.model.outcome_columns()
    clash = sorted(set(columns.values()) & set(study.features))
    if clash:
        raise ValueError(
            f"column '{clash[0]}' is an outcome and a feature: "
            "remove it from [features]"
        )
    if len(set(columns.values())) < len(columns):
        raise ValueError("two outcome roles name the same column in [model]")


def _formula_fits(study: Study) -> None:
    """Refuse a formula that its features or its preparation do not fit."""
    terms = study.model.terms
    if terms is None:
        return
    if study.preparation.intercept == 0.0:
        raise ValueError("preparation.intercept = 0: write - 1 in the formula instead")
    if not terms.intercept and study.preparation.method in (
        "private-scales",
        "private-moments",
    ):
        raise ValueError(
            f'preparation.method = "{study.preparation.method}" moves columns, which '
            "needs a constant: remove - 1 from the formula"
        )
    try:
        Preparation(
            study.features,
            intercept=study.intercept,
            formula=terms,
            baseline=not study.model.needs_intercept,
        )
    except ValueError as error:
        raise ValueError(f"model.formula: {error}") from None


def _reference_is_possible(study: Study) -> None:
    for name, value in (study.reference or {}).items():
        if name not in study.features:
            raise ValueError(f"reference.{name} is no feature: remove it")
        try:
            study.features[name].require(value)
        except ValueError as error:
            raise ValueError(f"reference.{name}: {error}") from None


def _events_are_possible(study: Study, events: float | None) -> None:
    """Refuse a share of events that is none, and one of a model without events."""
    family = study.model.family
    if events is None or family == "count":
        return
    if family not in ("binary", "survival"):
        raise ValueError(
            f"privacy.events: a {study.model.kind} model has no events: remove it"
        )
    if events >= 1.0:
        raise ValueError(
            "privacy.events is the share of records with the event: give a number "
            "between 0 and 1"
        )


def _privacy_is_usable(study: Study) -> None:
    privacy = study.privacy
    if privacy is None:
        if study.releases_scales:
            raise ValueError(
                f'preparation.method = "{study.preparation_method}" needs a [privacy] '
                "table"
            )
        if study.rules.federated:
            raise ValueError(
                f'protocol = "{study.protocol}" needs a [privacy] table '
                "with epsilon and delta"
            )
        return
    _events_are_possible(study, privacy.events)
    sites = max(len(study.sites), 1)
    if study.sites and study.rules.federated:
        if study.colluders >= sites:
            raise ValueError(
                f"privacy.colluders = {study.colluders} with {sites} sites leaves "
                "nobody to protect: colluders must be below the number of sites"
            )
        if study.colluders + privacy.dropouts >= sites:
            raise ValueError(
                "privacy.colluders + privacy.dropouts must be below the number "
                f"of sites ({sites}): lower one of them"
            )
    if study.inference.chains not in (None, 1):
        raise ValueError(
            "inference.chains: every chain would spend a budget of its own, so a "
            "private study has one: remove it"
        )
    if study.inference.gamma_term:
        raise ValueError(
            "inference.gamma_term needs exact curvature, which a private study "
            "does not release: remove it or the [privacy] table"
        )
    if study.inference.preconditioner == "fisher":
        raise ValueError(
            'inference.preconditioner = "fisher" reads the exact information '
            'matrix: a private study uses "rmsprop" or "none"'
        )
    require_rows_as_they_are(study)
    if study.checks_privately:
        require_checkable_rows(study)
        require_comparable_rival(study)
    if study.describe is not None:
        require_known_groups(study, study.describe.by)


def _persons_are_usable(study: Study) -> None:
    person = None if study.privacy is None else study.privacy.person
    if person is None:
        return
    if person in study.features or person in study.model.outcome_columns().values():
        raise ValueError(
            f"privacy.unit names column '{person}', which is a feature or an outcome: "
            "name the column that says whose row it is"
        )
    if study.inference_method.round_shares() is None:
        raise ValueError(
            f'privacy.unit: inference.method = "{study.method}" does not count the '
            "rows of a person together: set it to "
            f"{method_choices(lambda method: method.round_shares() is not None)}, or "
            "give one row a person"
        )
    if study.evaluation is not None and not study.checks_privately:
        raise ValueError(
            "privacy.unit: holdout_is_public scores rows one by one, of which a person "
            "may have several: remove one of the two"
        )


def _method_serves(study: Study) -> None:
    method = study.inference_method
    named = f'inference.method = "{method.name}"'
    if method.needs_privacy and not study.private:
        raise ValueError(
            f"{named} needs the noise of a private study: remove it, or add a "
            "[privacy] table"
        )
    if method.needs_tables and study.private:
        raise ValueError(
            f"{named} reads the rows, and a private study releases noised sums of "
            "them: remove it, or [privacy]"
        )
    if method.needs_hierarchy and study.hierarchy is None:
        raise ValueError(
            f"{named} is for sites that may differ: remove it, or add a [hierarchy] "
            "table"
        )


def _sites_may_differ(study: Study, hierarchy: Hierarchy) -> None:
    model, method = study.model, study.inference_method
    bounded = model.bounded_influence
    if bounded is None or not bounded.multilevel:
        raise ValueError(
            f"[hierarchy] is not offered for models of kind '{model.kind}': use "
            f"{', '.join(kinds_with_sites_that_differ())}, or remove it"
        )
    if study.private and not study.rules.multilevel:
        raise ValueError(
            f'[hierarchy] with protocol = "{study.protocol}": '
            f"{study.rules.why_not_multilevel}; use protocol = "
            f"{choices(lambda protocol: protocol.multilevel)}, or remove it"
        )
    if not method.multilevel:
        raise ValueError(
            f'[hierarchy] with inference.method = "{method.name}": it has no posterior '
            "of what differs between sites; remove inference.method"
        )
    _groups_are_of_sites(study, hierarchy)
    own = len({hierarchy.owner(site) for site in study.sites})
    if study.sites and not 2 <= own <= MOST_SITES:
        raise ValueError(
            f"[hierarchy] needs 2 to {MOST_SITES} sites, and there are {own}: remove "
            "it, or change hierarchy.groups, whose sites count as one"
        )
    lost = 0 if study.privacy is None else study.privacy.dropouts
    if study.private and lost and hierarchy.groups:
        raise ValueError(
            "hierarchy.groups with privacy.dropouts: sums over a group without one of "
            "its sites are of another group; set dropouts = 0 or remove the groups"
        )
    if study.private and study.sites and len(study.sites) - lost < 2:
        raise ValueError(
            "[hierarchy] with privacy.dropouts: two sites must be left to differ; "
            f"set dropouts to {len(study.sites) - 2} at most"
        )
    if study.checks_privately and hierarchy.baseline == "stratified":
        raise ValueError(
            'hierarchy.baseline = "stratified" with private held-out rows: their '
            "scores rest on one baseline; remove [evaluation], or set baseline = "
            '"common"'
        )
    if study.prior.kind != "normal":
        raise ValueError(
            f'[hierarchy] with prior.kind = "{study.prior.kind}": sites vary around a '
            'normal common effect; set kind = "normal"'
        )
    if hierarchy.effects == "fixed" and hierarchy.scale != type(hierarchy)().scale:
        raise ValueError(
            'hierarchy.scale with effects = "fixed": it is of the prior of how much '
            "sites differ, which fixed sites do not have; remove it"
        )
    if hierarchy.context and (hierarchy.effects == "fixed" or not hierarchy.intercept):
        raise ValueError(
            "hierarchy.context is of intercepts that vary around a common one, and "
            "there are none here: remove it"
        )
    unknown = [name for name in hierarchy.slopes if name not in study.features]
    if unknown:
        raise ValueError(
            f"hierarchy.slopes names '{unknown[0]}', which is no feature: name features"
        )
    if len(set(hierarchy.slopes)) < len(hierarchy.slopes):
        raise ValueError("hierarchy.slopes names a feature twice: name each once")
    if not hierarchy.intercept and not hierarchy.slopes:
        raise ValueError(
            "[hierarchy] lets nothing differ: set intercept = true, name slopes, or "
            "remove it"
        )
    if hierarchy.baseline is not None and model.needs_intercept:
        raise ValueError(
            "hierarchy.baseline is for a model with a baseline hazard on intervals "
            "(piecewise): remove it"
        )
    if hierarchy.baseline == "common" and hierarchy.effects == "fixed":
        raise ValueError(
            'hierarchy.baseline = "common" with effects = "fixed": fixed sites share '
            "nothing of their baselines, so each has a shape of its own; remove "
            "baseline"
        )
    if hierarchy.baseline is not None and not hierarchy.intercept:
        raise ValueError(
            "hierarchy.baseline with intercept = false: all sites have one baseline "
            "then; remove one of the two"
        )
    if model.needs_intercept and study.intercept is None:
        raise ValueError(
            "[hierarchy] needs a constant column for sites to differ in: leave "
            "preparation.intercept out, and - 1 in a formula"
        )


def _gaps_can_be_drawn(study: Study) -> None:
    """Refuse to draw missing values where a study could not count what that means."""
    drawn = [name for name, known in study.features.items() if known.imputed]
    if not drawn:
        return
    others = {
        "preparation.row_norm": study.preparation.row_norm is not None,
        "evaluation.against": study.evaluation is not None
        and study.evaluation.against is not None,
        f"a model of kind '{study.model.kind}'": not study.model.roles
        or study.model.bounded_influence is None,
        f'inference.method = "{study.method}"': study.private
        and study.inference_method.round_shares() is None,
    }
    for what, there in others.items():
        if there:
            raise ValueError(
                f"features.{drawn[0]}.missing: missing values are not drawn with "
                f"{what}; give a value that stands in for them, perhaps with "
                "indicator = true"
            )


def _groups_are_of_sites(study: Study, hierarchy: Hierarchy) -> None:
    seen: set[str] = set()
    for name, sites in hierarchy.groups.items():
        where = f"hierarchy.groups.{name}"
        if len(set(sites)) < 2:
            raise ValueError(f"{where} needs two sites or more: name them or remove it")
        unknown = [site for site in sites if site not in study.sites]
        if unknown and study.sites:
            raise ValueError(f"{where} names '{unknown[0]}', which is no site")
        if name in study.sites:
            raise ValueError(f"{where} is called as a site is: choose another name")
        if len(set(sites)) < len(sites) or seen & set(sites):
            raise ValueError(f"{where} names a site that is in a group: name each once")
        seen |= set(sites)
