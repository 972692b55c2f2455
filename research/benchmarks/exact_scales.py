"""A study on a public table without its scales: releases, rounds and posterior alone.

Columns are standardised by their own scales, which nobody releases, and noise comes
from a seed, in one process: a quarter of the time of a whole study, for questions of
the posterior. Noise is that of the study's plan, all sites' together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.noise_aware import (
    Effort,
    NoiseAware,
    NoiseAwareState,
    Posterior,
    ScoreShape,
    sample_posterior,
)
from cipherbayes.inference.noise_aware.schedule import WINDOW
from cipherbayes.inference.released import Release
from cipherbayes.models.prior import UNIT, WIDE, Prior, ResolvedPrior
from cipherbayes.protocols.forecast import forecast_of
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.typing import Floats
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
QUIETER = 30.0
"""How many times less noise information sums have that are taken to be known."""


@dataclass(frozen=True)
class Released:
    """What a study on a table released, and what only a simulation knows of it.

    Attributes
    ----------
    records, plan
        Of the study.
    recursion, state
        All of its rounds.
    information
        The mean of the window's information sums without their noise, packed.
    """

    records: Records
    plan: StudyPlan
    recursion: NoiseAware
    state: NoiseAwareState
    information: Floats

    def under(self, scale: float) -> Released:
        """The same releases under a prior of effects of another scale."""
        prior = _prior(self.records, self.plan, scale)
        return replace(self, recursion=replace(self.recursion, prior=prior))

    def with_known_information(self) -> Released:
        """The same releases with hardly any noise in the window's information sums."""
        information = self.state.information.copy()
        precision = self.state.information_precision.copy()
        precision[1] *= QUIETER**2
        information[1] = precision[1] * self.information
        state = replace(
            self.state, information=information, information_precision=precision
        )
        return replace(self, state=state)

    def posterior(self, number: int) -> tuple[Posterior, Floats]:
        """The posterior of study ``number``, and its draws on the user's scale."""
        found = sample_posterior(self.recursion, self.state, seed=number, effort=EFFORT)
        theta = found.draws.theta.reshape(-1, found.draws.theta.shape[-1])
        return found, self.plan.study.model.to_user_scale(theta, self.records.design)

    def trial(self, posterior: Posterior, draws: Floats, events: str) -> Trial:
        """What a posterior of it is worth."""
        records = self.records
        below, above = interval_ends(draws)
        names, want = records.names, records.want
        planned = forecast_of(self.plan, EVENTS[events])
        return Trial(
            names,
            tuple(map(bool, (below <= want) & (want <= above))),
            tuple(map(bool, (records.low <= want) & (want <= records.high))),
            tuple(map(float, (above - below) / (records.high - records.low))),
            planned.width_ratio,
            tuple(
                (f.code, tuple(names[j] for j in f.parameters)) for f in posterior.flags
            ),
            any(flag.unusable for flag in posterior.flags),
            away=tuple(
                map(float, np.abs(2.0 * want - below - above) / (above - below))
            ),
            likely=planned.likely or (),
        )


def interval_ends(draws: Floats) -> tuple[Floats, Floats]:
    """Ends of the 90 % intervals of all parameters."""
    below, above = np.quantile(draws, [TAIL, 1.0 - TAIL], axis=0)
    return below, above


def trial_with_exact_scales(
    columns: Columns, ground: Ground, number: int, scale: float | None = None
) -> Trial:
    """Study ``number`` of a table, as :func:`~cipherbayes.validation.trials.trial`.

    ``scale`` is that of the prior of effects; the default where None.
    """
    released = release_with_exact_scales(columns, ground, number, scale)
    return released.trial(*released.posterior(number), ground.events)


def _prior(records: Records, plan: StudyPlan, scale: float | None) -> ResolvedPrior:
    stated = Prior()
    if scale is not None:
        stated = Prior(scale=scale, intercept=WIDE, shape=UNIT)
    resolved = stated.filled_in(standardised=True)
    return plan.study.model.prior_of(resolved, records.design)


def release_with_exact_scales(
    columns: Columns,
    ground: Ground,
    number: int,
    scale: float | None = None,
    noise: int = 0,
) -> Released:
    """All rounds of study ``number`` of a table, noised.

    ``noise`` numbers sets of noise on the same records.
    """
    records = simulated(columns, ground, number)
    plan = plan_releases(study_on(columns, ground, wider=1.0))
    model, design = plan.study.model, records.design
    raw = {
        role: records.outcome.get(column, np.zeros(records.x.shape[1]))
        for role, column in model.outcome_columns().items()
    }
    table = PreparedTable.from_arrays(design, records.x, model.prepare_outcome(raw))
    bound = plan.last_phase.weighting
    assert bound is not None
    recursion = NoiseAware(
        _prior(records, plan, scale), ScoreShape.of(model, design, bound=bound)
    )
    state, rng = recursion.init(), np.random.default_rng([number, NOISE + noise])
    exact = []
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
                exact.append(sums.information)
                information_sd = matrix.noise_sd(matrix.sites)
                white = rng.standard_normal(sums.information.size)
                information = sums.information + information_sd * white
            release = Release(gradient, sd, information, information_sd)
            state = recursion.advance(state, release)
    window = np.mean(exact[-WINDOW:], axis=0)
    return Released(records, plan, recursion, state, window)
