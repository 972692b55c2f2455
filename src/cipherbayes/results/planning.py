"""What a study will cost, before any row is read: with its tables' budgets."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path

from cipherbayes.engine.local_settings import local_settings
from cipherbayes.engine.new_run import budget_warnings
from cipherbayes.engine.table_identity import ledger_of
from cipherbayes.protocols.forecast import steps_of_curves
from cipherbayes.protocols.plan import plan_study
from cipherbayes.protocols.plan_description import PlanDescription, prior_in_words
from cipherbayes.protocols.site_words import alike_in_words
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.run import require_study
from cipherbayes.study.schema import Study

OTHER_PRIOR = (
    "(a private study standardises its columns where it can, and its prior is then for "
    'a standard deviation; preparation.method = "public-bounds" in both studies gives '
    "both this prior)"
)


def plan(study: Study) -> PlanDescription:
    """Rounds, noise, ε as it grows, what intervals will be like, and what to change.

    Prints as ``cipherbayes plan`` does; ``warnings`` has what is wrong, ``record()``
    the numbers. Ledgers of the study's tables are asked whether they can pay.
    """
    require_study(study)
    described = _private(study) if study.private else _without_privacy(study)
    return reduce(PlanDescription.with_warning, _absent_files(study), described)


def _absent_files(study: Study) -> list[str]:
    """Tables that are not on this machine: right where a plan is made elsewhere."""
    files = {name: site.data for name, site in study.sites.items()}
    return [
        f"sites.{name}: there is no file {file} on this machine, which a run here needs"
        for name, file in files.items()
        if file is not None and not Path(file).exists()
    ]


def _private(study: Study) -> PlanDescription:
    planned = plan_study(study)
    described = planned.protocol.describe(planned)
    local = {
        name: local_settings(site, ledger_of(site, site.data))
        for name, site in study.sites.items()
    }
    described = replace(described, lines=[*described.lines, *_reference(study)])
    # Whatever words a protocol has of its own, its cautions are in them.
    left_out = [each for each in planned.cautions() if each not in described.warnings]
    warnings = [*left_out, *budget_warnings(planned, local)]
    return reduce(PlanDescription.with_warning, warnings, described)


def _reference(study: Study) -> list[str]:
    """Which numbers of the reference record nobody chose and no release will tell."""
    left = [
        name
        for name, known in study.features.items()
        if known.levels is None and name not in (study.reference or {})
    ]
    released = study.preparation_method != "public-bounds"
    if released or study.model.measure is None or not left:
        return []
    record = MadeUp(study, None).reference
    told = ", ".join(f"{name} {float(record[name]):.3g}" for name in left)
    return [
        f"reference   {told}: in the middle of public ranges, since no means are "
        f"released; state reference = {{ {left[0]} = ... }} where patients are others"
    ]


def _without_privacy(study: Study) -> PlanDescription:
    lines = [
        f"{study.name}: {study.model.kind}, pooled, without privacy",
        "nothing is noised and nothing is charged",
        f"prior       {prior_in_words(study)}",
    ]
    if study.preparation.method is None:
        lines.append(f"            {OTHER_PRIOR}")
    if study.hierarchy is None and len(study.sites) > 1:
        lines.append(f"sites       {alike_in_words(study)}")
    return PlanDescription(
        lines,
        rounds=study.inference.rounds,
        warnings=[
            "no [privacy] table: whoever reads the result learns about the rows",
            *steps_of_curves(study),
        ],
    )
