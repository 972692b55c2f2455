"""Which held-out rows, comparisons and descriptions a study may ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cipherbayes.data.windows import LEAST_SD
from cipherbayes.models import Model, kernels
from cipherbayes.models.design import Design
from cipherbayes.models.held_out import HeldOutCheck
from cipherbayes.models.rows import Rows
from cipherbayes.models.score_difference import log_scores
from cipherbayes.study.protocol_rules import choices

if TYPE_CHECKING:
    from cipherbayes.study.schema import Study


def require_held_out_rows(study: Study) -> None:
    """Refuse an [evaluation] table that contradicts itself or the privacy."""
    held = study.evaluation
    if held is None:
        return
    if held.against is not None and not study.checks_privately:
        raise ValueError(
            "evaluation.against compares fits with noise on protected rows: add a "
            "[privacy] table without holdout_is_public, or remove it"
        )
    if held.private and held.holdout_is_public:
        raise ValueError(
            "evaluation.private and evaluation.holdout_is_public contradict each "
            "other: keep one of them"
        )
    if held.private and not study.private:
        raise ValueError(
            "evaluation.private needs a [privacy] table: add one, or remove it"
        )
    if study.checks_privately and held.private is False:
        raise ValueError(
            "evaluation.private = false in a private study: set holdout_is_public = "
            "true if the held-out rows are public, or remove it"
        )


def require_rows_as_they_are(study: Study) -> None:
    """Refuse to count records by columns that ``row_norm`` has shortened."""
    if study.preparation.row_norm is None:
        return
    counted = {
        "[describe]": study.describe is not None,
        "[evaluation] with protected rows": study.checks_privately,
    }
    for name, asked in counted.items():
        if asked:
            raise ValueError(
                f"preparation.row_norm and {name} do not go together: shortened rows "
                "would be counted at values that they do not have; remove one of them"
            )


def require_checkable_rows(study: Study) -> None:
    """Refuse protected held-out rows that cannot be scored with noise."""
    if not study.rules.noise_aware:
        raise ValueError(
            f'[evaluation] with protected rows is not for protocol = "{study.protocol}"'
            f": {study.rules.why_not_noise_aware}; use {_with_noised_sums()}, set "
            "holdout_is_public = true if those rows are public, or remove it"
        )
    if study.inference.batch is not None:
        raise ValueError(
            "inference.batch and protected held-out rows do not go together: remove "
            "batch, or [evaluation]"
        )
    require_held_out_check(study.model)


def require_held_out_check(model: Model) -> HeldOutCheck:
    """What private held-out rows are scored by; ValueError where there is nothing."""
    if model.held_out_check is None:
        raise ValueError(
            f"a model of kind '{model.kind}' has no private check of held-out "
            "rows (nor has one with entry times): remove [evaluation], or set "
            "holdout_is_public = true if those rows are public"
        )
    return model.held_out_check


def _with_noised_sums() -> str:
    """Protocols whose studies can be checked and described."""
    return choices(lambda protocol: protocol.noise_aware)


def require_comparable_rival(study: Study) -> None:
    """Refuse an earlier fit of another outcome, or of other held-out rows."""
    held, privacy = study.evaluation, study.privacy
    if held is None or held.against is None or privacy is None:
        return
    rival = held.against
    earlier = type(study).model_validate(rival.study)
    if outcome_of(earlier.model) != outcome_of(study.model):
        raise ValueError(
            f"evaluation.against: '{rival.name}' predicts another outcome or cause, or "
            "over another range or horizon: compare fits of one outcome"
        )
    if earlier.evaluation is None or not earlier.checks_privately:
        raise ValueError(
            f"evaluation.against: '{rival.name}' held out no protected rows, so its "
            "fit has seen all of them: run it with [evaluation] first"
        )
    if earlier.privacy is None or earlier.privacy.unit != privacy.unit:
        raise ValueError(
            f"evaluation.against: '{rival.name}' has another privacy.unit, hence other "
            "held-out rows: use the same"
        )
    if privacy.person is None:
        raise ValueError(
            "evaluation.against: both fits must hold out the same records, which only "
            "a name tells: set privacy.unit in both studies to the column that names "
            "the person (or numbers the records, where each has one row)"
        )
    if any(known.imputed for known in earlier.features.values()):
        raise ValueError(
            f"evaluation.against: '{rival.name}' draws missing values, and how it drew "
            "them is not known here: compare with a run that has a stand-in for them"
        )
    theirs = (earlier.evaluation.holdout, earlier.evaluation.seed)
    if (held.holdout, held.seed) != theirs:
        raise ValueError(
            "evaluation.against: both fits need the same held-out rows; set holdout = "
            f"{theirs[0]:g} and seed = {theirs[1]}, as '{rival.name}' has"
        )
    # Lengths are those of its design matrix, for which its columns are needed.
    from cipherbayes.study.tables import preparation_of

    theirs_read = preparation_of(earlier).columns
    _read_columns_alike(study, privacy.person, rival.name, theirs_read)
    design = preparation_of(earlier).design
    _require_scores_of_any_record(study.model, earlier.model, design, rival.name)
    scales = 0 if rival.scales is None else len(rival.scales)
    wanted = 2 * design.moved if earlier.releases_scales else 0
    means, sds = np.split(np.array(rival.scales or ()), [scales // 2])
    # Also false for what is not a number.
    usable = np.all(np.abs(means) <= 1.0) and np.all((sds >= LEAST_SD) & (sds <= 1.0))
    fits = len(rival.draws[0]) == len(earlier.model.parameters(design))
    if not fits or scales != wanted or not usable:
        raise ValueError(
            f"evaluation.against: draws or scales are not those of '{rival.name}'"
        )


def _read_columns_alike(
    study: Study, person: str | None, name: str, theirs: Mapping[str, str]
) -> None:
    """Both fits read one table, so a column is words in both or numbers in both."""
    from cipherbayes.study.tables import preparation_of

    own: dict[str, str] = {**preparation_of(study).columns}
    own |= dict.fromkeys(study.model.outcome_columns().values(), "number")
    if person is not None:
        own[person] = "text"
    for column, kind in theirs.items():
        if own.get(column, kind) != kind:
            raise ValueError(
                f"evaluation.against: '{name}' reads the column '{column}' as "
                f"{'numbers' if kind == 'number' else 'levels'} and this study does "
                "not: give it the same kind in both, or a column of another name"
            )


def _require_scores_of_any_record(
    model: Model, earlier: Model, design: Design, name: str
) -> None:
    """Refuse an earlier model that cannot score a record as this one's is prepared.

    Found out with a made-up record, before there is a table: an error in a round would
    tell which sites have a held-out record at all.
    """
    ranges = model.outcome_ranges
    roles = [role for role in model.outcome_columns() if role in ranges]
    raw = {role: np.array([ranges[role].extremes[0]]) for role in roles}
    x = np.zeros((design.width, 1))
    theta = np.zeros((1, len(earlier.parameters(design))))
    try:
        prepared = model.prepare_outcome(raw)
        rows = Rows(design, x, prepared, kernels.squared_norms(x))
        log_scores(earlier, theta, rows)
    except Exception as error:
        raise ValueError(
            f"evaluation.against: '{name}' reads outcomes in another way than this "
            "study prepares them: compare fits of one kind of model"
        ) from error


def outcome_of(model: Model) -> tuple[Any, ...]:
    """What two models must have in common to predict the same thing."""
    settings = ("horizon", "cause", "low", "high", "classes")
    columns = tuple(sorted(model.outcome_columns().items()))
    return model.family, columns, *(getattr(model, name, None) for name in settings)


def require_known_groups(study: Study, groups: Sequence[str]) -> None:
    """Refuse a description by what is neither a site nor a feature with levels."""
    if not study.rules.noise_aware:
        raise ValueError(
            f'[describe] is not for protocol = "{study.protocol}": '
            f"{study.rules.why_not_noise_aware}; use {_with_noised_sums()}, or "
            "remove it"
        )
    if study.inference.batch is not None:
        raise ValueError(
            "inference.batch and [describe] do not go together: remove one of them"
        )
    if len(set(groups)) < len(groups):
        raise ValueError("describe.by names a group twice")
    if "site" in groups and "site" in study.features:
        raise ValueError(
            'describe.by: "site" is where records are, and a feature is called so too: '
            "give the feature another name, or leave it out of by"
        )
    for name in groups:
        feature = study.features.get(name)
        if name != "site" and (feature is None or feature.levels is None):
            raise ValueError(
                f"describe.by: '{name}' is neither \"site\" nor a feature with levels"
            )
