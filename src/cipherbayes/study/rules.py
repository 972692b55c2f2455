"""Which fields of a study contradict each other.

Every refusal says what to change; pydantic adds the file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cipherbayes.study.schema import Study

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""Names that are safe in paths, certificates and messages."""


def require_agreement(study: Study) -> None:
    """Refuse a study whose fields contradict each other."""
    for name in study.sites:
        if not re.match(NAME, name):
            raise ValueError(
                f"site name '{name}' is not usable: letters, digits, . _ - only"
            )
        if name in ("csp", "server"):
            raise ValueError(f"site name '{name}' is another party's: choose another")
    _outcomes_are_not_features(study)
    _privacy_is_usable(study)
    _protocol_has_what_it_needs(study)


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


def _privacy_is_usable(study: Study) -> None:
    privacy = study.privacy
    if privacy is None:
        if study.preparation.method == "private-moments":
            raise ValueError(
                'preparation.method = "private-moments" needs a [privacy] table'
            )
        if study.protocol != "pooled":
            raise ValueError(
                f'protocol = "{study.protocol}" needs a [privacy] table '
                "with epsilon and delta"
            )
        return
    sites = max(len(study.sites), 1)
    if study.sites and study.protocol != "pooled":
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
    if study.evaluation is not None and not study.evaluation.holdout_is_public:
        raise ValueError(
            "[evaluation] scores on private rows are releases outside the budget: "
            "set holdout_is_public = true if those rows are public, or remove it"
        )


def _protocol_has_what_it_needs(study: Study) -> None:
    if study.study.noise == "as-printed" and not study.as_printed:
        raise ValueError(
            'study.noise = "as-printed" belongs to protocol = "encrypted-update"'
        )
    if study.as_printed and study.paper is None:
        raise ValueError(
            'study.noise = "as-printed" needs a [paper] table with scale, '
            "lipschitz, gamma, batch and epochs"
        )
    if study.paper is not None and not study.as_printed:
        raise ValueError(
            'a [paper] table belongs to protocol = "encrypted-update" with '
            'noise = "as-printed": remove it'
        )
    if study.preparation.method == "as-printed" and not study.as_printed:
        raise ValueError(
            'preparation.method = "as-printed" releases exact moments: it belongs '
            'to noise = "as-printed"'
        )
    if study.protocol == "encrypted-update":
        _encrypted_update_is_possible(study)
    elif study.study.circuit is not None:
        raise ValueError(
            'study.circuit belongs to protocol = "encrypted-update": remove it'
        )


def _encrypted_update_is_possible(study: Study) -> None:
    assert study.privacy is not None
    if study.privacy.dropouts:
        raise ValueError(
            "privacy.dropouts: an encrypted update needs every site in every "
            "round, because all of them check it: set dropouts = 0"
        )
    if study.preparation.method == "private-moments":
        raise ValueError(
            'preparation.method = "private-moments" belongs to secure-sum: an '
            'encrypted update uses "public-bounds"'
        )
    if study.inference.method == "noise-aware":
        raise ValueError(
            "inference.method: an encrypted update has no noise-aware posterior, "
            "only a point: remove it, or use secure-sum"
        )
    if study.inference.step.schedule != "constant":
        raise ValueError(
            "inference.step.schedule: the steps of an encrypted update are "
            "constant (the paper's own come with [paper]): remove it"
        )
    if study.inference.preconditioner not in (None, "rmsprop"):
        raise ValueError(
            "inference.preconditioner: an encrypted update computes rmsprop"
        )
    if len(study.sites) > 64:
        raise ValueError("an encrypted update has at most 64 sites")
    if study.as_printed:
        _printed_is_possible(study)


def _printed_is_possible(study: Study) -> None:
    assert study.paper is not None
    if study.study.circuit not in (None, "literal"):
        raise ValueError(
            'study.circuit: the paper\'s own mode is the circuit "literal"'
        )
    if study.inference.chain_settings:
        raise ValueError(
            f"inference.{study.inference.chain_settings[0]}: batches, rounds and "
            "steps of the paper's own mode come from [paper]: remove it"
        )
    if (
        study.preparation.method == "as-printed"
        and len(study.sites) == 2
        and not study.paper.accept_two_sites
    ):
        raise ValueError(
            "with two sites Algorithm 4 tells each the other's exact number of "
            "rows, means and variances: set paper.accept_two_sites = true to "
            'accept that, or preparation.method = "public-bounds"'
        )
