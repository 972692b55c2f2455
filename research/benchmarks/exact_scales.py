"""A study on a public table without its scales: releases, rounds and posterior alone.

Columns are standardised by their own scales, which nobody releases, and noise comes
from a seed, in one process: a quarter of the time of a whole study, for questions of
the posterior. Noise is that of the study's plan, all sites' together.
"""

from __future__ import annotations

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.noise_aware import (
    Effort,
    NoiseAware,
    NoiseAwareState,
    ScoreShape,
    sample_posterior,
)
from cipherbayes.inference.released import Release
from cipherbayes.models.prior import UNIT, WIDE, Prior
from cipherbayes.protocols.forecast import forecast_of
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.trial_records import (
    EVENTS,
    TAIL,
    Ground,
    Records,
    simulated,
    study_on,
)
from cipherbayes.validation.trials import Trial

EFFORT = Effort(chains=4, warm_up=150, kept=150, doublings=2)
NOISE = 99
"""Part of the seed of a study's noise: its records are simulated, and nobody is to be
protected."""


def trial_with_exact_scales(
    columns: Columns, ground: Ground, number: int, scale: float | None = None
) -> Trial:
    """Study ``number`` of a table, as :func:`~cipherbayes.validation.trials.trial`.

    ``scale`` is that of the prior of effects; the default where None.
    """
    records = simulated(columns, ground, number)
    plan = plan_releases(study_on(columns, ground, wider=1.0))
    posterior = sample_posterior(
        *_rounds(records, plan, number, scale), seed=number, effort=EFFORT
    )
    theta = posterior.draws.theta
    draws = records.study.model.to_user_scale(
        theta.reshape(-1, theta.shape[-1]), records.design
    )
    below, above = np.quantile(draws, [TAIL, 1.0 - TAIL], axis=0)
    names, want = records.names, records.want
    planned = forecast_of(plan, EVENTS[ground.events])
    return Trial(
        names,
        tuple(map(bool, (below <= want) & (want <= above))),
        tuple(map(bool, (records.low <= want) & (want <= records.high))),
        tuple(map(float, (above - below) / (records.high - records.low))),
        planned.width_ratio,
        tuple((f.code, tuple(names[j] for j in f.parameters)) for f in posterior.flags),
        any(flag.unusable for flag in posterior.flags),
        away=tuple(map(float, np.abs(2.0 * want - below - above) / (above - below))),
        likely=planned.likely or (),
    )


def _rounds(
    records: Records, plan: StudyPlan, number: int, scale: float | None
) -> tuple[NoiseAware, NoiseAwareState]:
    """All rounds of a plan, noised."""
    model, design = plan.study.model, records.design
    raw = {
        role: records.outcome.get(column, np.zeros(records.x.shape[1]))
        for role, column in model.outcome_columns().items()
    }
    table = PreparedTable.from_arrays(design, records.x, model.prepare_outcome(raw))
    stated = Prior()
    if scale is not None:
        stated = Prior(scale=scale, intercept=WIDE, shape=UNIT)
    prior = model.prior_of(stated.filled_in(standardised=True), design)
    bound = plan.last_phase.weighting
    assert bound is not None
    recursion = NoiseAware(prior, ScoreShape.of(model, design, bound=bound))
    state, rng = recursion.init(), np.random.default_rng([number, NOISE])
    for phase in plan.phases:
        if phase.weighting is None:
            continue
        for _ in range(phase.rounds):
            matrix, place = phase.information, recursion.position(state)
            sums = influence_sums(
                model, place, table, bound, with_information=matrix is not None
            )
            sd = phase.sums.noise_sd(phase.sums.sites)
            gradient = sums.gradient + sd * rng.standard_normal(sums.gradient.size)
            information, information_sd = None, 0.0
            if matrix is not None and sums.information is not None:
                information_sd = matrix.noise_sd(matrix.sites)
                white = rng.standard_normal(sums.information.size)
                information = sums.information + information_sd * white
            release = Release(gradient, sd, information, information_sd)
            state = recursion.advance(state, release)
    return recursion, state
