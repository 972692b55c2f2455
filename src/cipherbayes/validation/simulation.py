"""Simulated studies: a truth from the prior, records, and noised releases.

The noise here comes from numpy. It protects nobody, because there is nobody in
simulated records; a real study's noise never comes from here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.errors import RunError
from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.noise_aware import (
    NoiseAware,
    NoiseAwareState,
    ScoreShape,
    influence_bound,
    noise_multiplier,
    rounds,
)
from cipherbayes.inference.released import Release
from cipherbayes.models import Design, Model, Prior
from cipherbayes.models.influence import require_bounded_influence
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.typing import Floats
from cipherbayes.validation.outcome_draws import draws

COLUMNS = {"y": "y", "time": "time", "event": "event"}
"""Outcome columns of simulated studies, by role."""
DELTA = 1e-5
QUANTILE = 0.9


@dataclass(frozen=True)
class Simulated:
    """One simulated study.

    ``clip`` is the 90 % quantile of ‖x‖ under the law of the columns.
    """

    model: Model
    prior: ResolvedPrior
    table: PreparedTable
    truth: Floats
    clip: float


def columns(
    rng: np.random.Generator,
    count: int,
    width: int,
    *,
    threshold: float = 0.3,
    alike: bool = False,
) -> Floats:
    """A constant, then columns as public bounds prepare them, shape ``(width, n)``.

    Two of three are continuous within [-1, 1], one is 0/1; all share one factor with
    loadings that differ from study to study. Where ``alike``, the fourth is almost the
    mean of the first two.
    """
    loadings = rng.uniform(-0.7, 0.7, width - 1)[:, None]
    common = rng.standard_normal(count)
    own = rng.standard_normal((width - 1, count))
    latent = loadings * common + np.sqrt(1.0 - loadings**2) * own
    x = np.clip(0.45 * latent, -1.0, 1.0)
    x[2::3] = latent[2::3] > threshold
    if alike:
        x[3] = 0.5 * (x[0] + x[1]) + 0.1 * x[3]
    return np.vstack([np.ones(count), x])


def simulate(
    kind: str,
    records: int,
    dimension: int,
    rng: np.random.Generator,
    *,
    prior_scale: float = 1.0,
    truth_scale: float = 1.0,
    intercept: float | None = None,
    separable: bool = False,
    rare_levels: bool = False,
    alike: bool = False,
) -> Simulated:
    """Records of a model whose parameters come from a normal prior.

    Parameters
    ----------
    prior_scale
        Standard deviation of the prior.
    truth_scale
        Standard deviations of the truth over the prior's.
    intercept
        Instead of a draw, e.g. -5 for rare outcomes.
    separable
        Outcomes of a logistic model are certain: 1 where the predictor is positive.
    rare_levels
        The 0/1 columns are 1 in one record of sixty-seven.
    alike
        One column is almost the mean of two others.
    """
    if kind not in draws():
        raise RunError(
            f"no simulation of a model of kind '{kind}'",
            remedy=f"choose one of {', '.join(draws())}",
        )
    draw = draws()[kind]
    model = draw.model(**draw.model_table(COLUMNS, half_range=1.0))
    width = dimension - len(model.extra_parameters())
    threshold = 2.17 if rare_levels else 0.3
    # A baseline hazard of its own takes the place of the constant column.
    constant = model.needs_intercept
    x = columns(rng, records, width + (not constant), threshold=threshold, alike=alike)
    x = x if constant else x[1:]
    truth = prior_scale * truth_scale * rng.standard_normal(dimension)
    if intercept is not None:
        truth[0] = intercept
    first = ("intercept",) if constant else ()
    names = (*first, *(f"x{j}" for j in range(1, width - len(first) + 1)))
    level = 1.0 if constant else None
    design = Design(names, np.zeros(width), np.ones(width), level)
    eta = truth[:width] @ x
    if separable:
        eta = np.where(eta > 0.0, np.inf, -np.inf)
    outcome = draw.outcome(eta, truth[width:], rng)
    table = PreparedTable.from_arrays(design, x, outcome)
    prior = Prior(scale=prior_scale).resolve(model.parameters(design))
    clip = float(np.quantile(np.linalg.norm(x, axis=0), QUANTILE))
    return Simulated(model, prior, table, truth, clip)


def release_rounds(
    study: Simulated,
    epsilon: float,
    rng: np.random.Generator,
    clip: float | None = None,
) -> tuple[NoiseAware, NoiseAwareState]:
    """All rounds of a study, with the noise of all records in one place.

    With K sites of which c may collude there is K / (K − c) times its variance,
    which the recursion is told and which is the same as a smaller ε here.
    """
    mu = mu_for(epsilon, DELTA)
    bound = influence_bound(
        study.model, clip or study.clip, records=study.table.count, mu=mu
    )
    sensitivities = require_bounded_influence(study.model).sensitivities(bound)
    shape = ScoreShape.of(study.model, study.table.design, bound=bound)
    recursion = NoiseAware(study.prior, shape)
    state = recursion.init()

    def noised(values: Floats, clip: float, share: float) -> tuple[Floats, float]:
        plan = ReleasePlan(
            clip=clip,
            dimension=values.size,
            noise_multiplier=noise_multiplier(mu, share),
            rounds=1,
            rate=1.0,
            sites=1,
            colluders=0,
            dropouts=0,
            records=study.table.count,
            depth=64,
        )
        sd = plan.noise_sd(1)
        return values + sd * rng.standard_normal(values.size), sd

    for each in rounds():
        sums = influence_sums(
            study.model,
            recursion.position(state),
            study.table,
            bound,
            with_information=each.information_share > 0.0,
        )
        gradient = noised(sums.gradient, sensitivities[0], each.gradient_share)
        information: tuple[Floats | None, float] = (None, 0.0)
        if sums.information is not None:
            information = noised(
                sums.information, sensitivities[1], each.information_share
            )
        state = recursion.advance(state, Release(*gradient, *information))
    return recursion, state
