"""Run a study: check it against its tables, sample, and put the result together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.errors import StudyError
from cipherbayes.evaluation import evaluate
from cipherbayes.inference.chains import Draws, Progress, sample
from cipherbayes.inference.target import Target
from cipherbayes.result import NOT_PRIVATE, Result, assemble
from cipherbayes.study import Study
from cipherbayes.tables import (
    check_pooled,
    open_sites,
    preparation_of,
    split,
    with_sites,
)


def run(
    study: Study,
    tables: Mapping[str, Any] | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> Result:
    """Run a whole study on this machine.

    Parameters
    ----------
    study
        What to do.
    tables
        Site name -> path or frame. Left out: the paths in the study's ``[sites]``.
    progress
        Called with (rounds done, rounds in all).
    """
    started = time.perf_counter()
    study = with_sites(study, tables)
    prepared = open_sites(study, tables)
    if study.private or study.study.protocol != "pooled":
        raise StudyError("private studies cannot run yet")
    check_pooled(study, prepared)
    train, test = split(study, prepared)
    target = Target(study.model, resolve_prior(study), list(train.values()))
    draws = sample(target, study.inference, progress)
    return assemble(
        study,
        draws,
        privacy=NOT_PRIVATE,
        timing={
            "site_s": 0.0,
            "server_s": 0.0,
            "csp_s": 0.0,
            "wall_s": time.perf_counter() - started,
        },
        traffic={"per_round_site": 0, "total": 0},
        metrics=score(study, draws, test),
        warnings=[],
    )


def resolve_prior(study: Study) -> Any:
    """The prior of every parameter, in the order of θ."""
    names = study.model.parameters(preparation_of(study).design)
    try:
        return study.prior.resolve(names)
    except ValueError as error:
        raise StudyError(str(error), where=f"study '{study.name}', [prior]") from None


def score(
    study: Study, draws: Draws, test: Mapping[str, PreparedTable]
) -> dict[str, Any]:
    """Metrics on the held-out rows; none where the study holds none out."""
    if not test:
        return {}
    flat = draws.theta.reshape(-1, draws.theta.shape[-1])
    return evaluate(study.model, flat, list(test.values()))
