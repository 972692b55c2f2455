"""The releases of a private study, one phase for each kind, with their noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypedDict

from cipherbayes.data.characteristics import Characteristics
from cipherbayes.data.encoders import MEAN_SQUARES
from cipherbayes.data.residual_cells import ResidualCells
from cipherbayes.errors import StudyError
from cipherbayes.inference.gradient import summation_depth
from cipherbayes.inference.method import RoundShares
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models import Design
from cipherbayes.models.influence import InfluenceBound, require_bounded_influence
from cipherbayes.models.packing import packed_length
from cipherbayes.models.score_difference import BOUND, DIMENSION
from cipherbayes.privacy.accountant import (
    calibrate_multiplier,
    calibrate_noise,
    compose,
)
from cipherbayes.privacy.events import (
    Event,
    GaussianSum,
    PoissonSampled,
    Repeated,
)
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.protocols.phase import Phase, Purpose
from cipherbayes.study.checking_rules import require_held_out_check
from cipherbayes.study.scales import scales_budget
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.study.tables import imputing_of, preparation_of, slots_of

MOST_ROWS = 10**10
"""Rows that no table exceeds: for so many roundings are bounded where records are
persons."""
MOST_RECORDS = 10_000_000
"""Most records of a study that does not declare their number."""

SHARES: dict[Purpose, float] = {"records": 0.01, "moments": 0.1, "imputation": 0.05}
"""Share of μ² that each of these releases takes. Histograms and what follows them:
:mod:`~cipherbayes.study.scales`. The sampler's get the rest."""

TRAINING, HELD_OUT = "training", "held-out"
"""Parts of a table whose held-out rows are protected too."""
CHECKS: dict[Purpose, float] = {"check": 0.6, "residuals": 0.4}
"""Share of what describing leaves of μ² that each release on held-out rows takes."""
COMPARED: dict[Purpose, float] = {"check": 0.5, "residuals": 0.35, "difference": 0.15}
"""These shares where predictions are compared with those of an earlier fit."""
RANGES, RESIDUAL_RANGES = (16, 3.0), (5, 1.5)
"""Ranges of a number, and how many released standard deviations they span on each side,
where records are described and where residuals are added up."""
QUESTION_DRAWS = 32
"""Draws of the posterior whose mean prediction is checked."""

DEFAULT_CLIP = 1.0
"""Bound on a record's gradient where the study names none."""


class _Shape(TypedDict):
    """What all releases of a study share."""

    sites: int
    colluders: int
    dropouts: int
    records: int
    depth: int


def phases_of(study: PrivateStudy, design: Design) -> tuple[Phase, ...]:
    """A study's phases, in order; their noise composes to its budget.

    Formal guarantees
    -----------------
    A record is in the training rows or held out, for which its own values decide. So
    what is released of it is the description and all that precedes the posterior, or
    the description and all checks; either composes to the study's ε and δ at most.
    """
    privacy = study.privacy
    before = _preparatory_noise(study)
    columns = design.moved
    numbers = preparation_of(study).numbers(scales_budget(study).bins)
    counts = (numbers.histogram_bound, len(numbers.places) * numbers.bins)
    slots = slots_of(study)
    sizes: dict[Purpose, tuple[float, int]] = {
        "records": (1.0, 1 if slots is None else len(slots.sites)),
        "moments": (math.sqrt(2.0 * columns), 2 * columns),
        "histograms": counts,
        "windows": counts,
        "scales": (numbers.sums_bound, len(numbers.places) + columns),
    }
    imputing = imputing_of(study)
    models = None if imputing is None else imputing.models
    if models is not None:
        sizes["imputation"] = models.bound, models.dimension
    shape = _shape(study)
    phases = [
        Phase(
            purpose,
            number,
            ReleasePlan(
                clip=sizes[purpose][0],
                dimension=sizes[purpose][1],
                noise_multiplier=sigma,
                rounds=1,
                rate=1.0,
                **shape,
            ),
            numbers=numbers if purpose in ("histograms", "windows", "scales") else None,
            models=models if purpose == "imputation" else None,
        )
        for number, (purpose, sigma) in enumerate(before.items())
    ]
    lengths = _lengths(study, design, slots)
    closing = _closing(study, shape)
    events = [GaussianSum(sigma) for sigma in before.values()]
    events += [
        GaussianSum(phase.sums.noise_multiplier)
        for phase in closing
        if phase.rows is None
    ]
    first = len(before)
    shares = study.inference_method.round_shares()
    if shares is not None:
        sites = shape["sites"]
        # A study without an honest site is refused where its releases are planned.
        honest = max(sites - shape["colluders"] - shape["dropouts"], 1)
        mu, excess = mu_for(privacy.epsilon, privacy.delta), sites / honest
        clip = privacy.clip
        if clip is None:
            clip = typical_norm(study, design)
            if study.releases_scales and study.training_records is not None:
                clip = study.inference_method.loosened(
                    study.model,
                    clip,
                    curvature=study.model.curvature(design),
                    records=study.training_records,
                    mu=mu,
                    excess=excess,
                )
        bound = study.inference_method.influence_bound(
            study.model, clip, records=study.training_records, mu=mu, excess=excess
        )
        phases.extend(_influence(study, shares, bound, lengths, events, first, shape))
    else:
        phases.append(_gradient(study, lengths[0], events, first, shape))
    if study.checks_privately:
        phases = [replace(phase, rows=TRAINING) for phase in phases]
    for phase in closing:
        phases.append(replace(phase, first=sum(each.rounds for each in phases)))
    return tuple(phases)


def _lengths(
    study: PrivateStudy, design: Design, slots: SiteSlots | None
) -> tuple[int, int]:
    """Numbers of a score sum, and of an information sum."""
    if slots is not None:
        return slots.dimension, slots.packed_length
    dimension = len(study.model.parameters(design))
    return dimension, packed_length(dimension)


def _closing(study: PrivateStudy, shape: _Shape) -> list[Phase]:
    """The releases after the posterior; their rounds are numbered later."""
    privacy, preparation = study.privacy, preparation_of(study)
    sites = tuple(sorted(study.sites)) or ("table",)
    check = study.model.held_out_check
    mu = mu_for(privacy.epsilon, privacy.delta)
    described = 0.0 if study.describe is None else study.describe.share

    def release(bound: float, dimension: int, share: float) -> ReleasePlan:
        # A little more than the share's noise, for what rounding adds to its cost.
        sigma = (1.0 + 2.0**-30) / (mu * math.sqrt(share))
        return ReleasePlan(
            clip=bound,
            dimension=dimension,
            noise_multiplier=sigma,
            rounds=1,
            rate=1.0,
            **shape,
        )

    phases: list[Phase] = []
    if study.describe is not None:
        table = Characteristics(
            preparation.column_bins(*RANGES, gaps=True),
            () if check is None else check.outcomes,
            study.describe.by,
            sites,
        )
        sums = release(table.bound, table.dimension, described)
        phases.append(Phase("describe", 0, sums, characteristics=table))
    if study.checks_privately:
        check = require_held_out_check(study.model)
        compared = study.stated_evaluation.against is not None
        parts = COMPARED if compared else CHECKS
        shares = {purpose: (1.0 - described) * part for purpose, part in parts.items()}
        sums = release(check.bound, check.cells, shares["check"])
        phases.append(Phase("check", 0, sums, rows=HELD_OUT, check=check))
        cells = ResidualCells(
            check, preparation.column_bins(*RESIDUAL_RANGES, gaps=False), sites
        )
        sums = release(cells.bound, cells.dimension, shares["residuals"])
        phases.append(Phase("residuals", 0, sums, rows=HELD_OUT, cells=cells))
        if compared:
            sums = release(BOUND, DIMENSION, shares["difference"])
            phases.append(Phase("difference", 0, sums, rows=HELD_OUT))
    return phases


def typical_norm(study: PrivateStudy, design: Design) -> float:
    """A guess of the norm of a prepared row, from public numbers alone.

    Rows beyond it are weighted down. Too small or too large a bound costs width,
    never privacy or coverage.
    """
    if study.releases_scales:
        squares = float(design.width - (design.intercept is not None))
    else:
        squares = sum(MEAN_SQUARES[f.kind] for f in study.features.values())
        if study.model.formula is not None:
            squares = float(preparation_of(study).mean_squares.sum())
    if study.preparation.row_norm is not None:
        squares = min(squares, study.preparation.row_norm**2)
    return math.sqrt((design.intercept or 0.0) ** 2 + squares)


def _shape(study: PrivateStudy) -> _Shape:
    """What all releases of a study share."""
    privacy = study.privacy
    pooled = not study.rules.federated
    records = privacy.records or MOST_RECORDS
    # Of persons it is not known how many rows they have.
    rows = records if privacy.person is None else MOST_ROWS
    return {
        "sites": 1 if pooled else max(len(study.sites), 1),
        "colluders": 0 if pooled else study.colluders,
        "dropouts": 0 if pooled else privacy.dropouts,
        "records": records,
        # A pooled study also adds up its tables.
        "depth": summation_depth(rows) + max(64, len(study.sites)),
    }


def _preparatory_noise(study: PrivateStudy) -> dict[Purpose, float]:
    """σ of each release before the sampler's first."""
    privacy = study.privacy
    shares: dict[Purpose, float] = {}
    if privacy.records is None or study.hierarchy is not None:
        shares["records"] = SHARES["records"]
    if study.preparation_method == "private-moments":
        shares["moments"] = SHARES["moments"]
    elif study.preparation_method == "private-scales":
        budget = scales_budget(study)
        if any(feature.levels is None for feature in study.features.values()):
            shares["histograms"] = shares["windows"] = budget.histograms
        shares["scales"] = budget.sums
    if any(feature.learns for feature in study.features.values()):
        shares["imputation"] = SHARES["imputation"]
    mu = mu_for(privacy.epsilon, privacy.delta)
    return {purpose: 1.0 / (mu * math.sqrt(share)) for purpose, share in shares.items()}


def _gradient(
    study: PrivateStudy,
    dimension: int,
    before: list[GaussianSum],
    first: int,
    shape: _Shape,
) -> Phase:
    """The rounds of a chain, all alike, beside other releases."""
    privacy = study.privacy
    rate = 1.0
    if study.inference.batch is not None:
        rate = _sampling_rate(study, study.inference.batch, shape["records"])
    rounds = study.inference.rounds or study.inference_method.default_rounds

    def everything(sigma: float) -> Event:
        release: Event = GaussianSum(sigma)
        if rate < 1.0:
            release = PoissonSampled(rate, GaussianSum(sigma))
        return compose(*before, Repeated(release, rounds))

    if before:
        sigma = calibrate_multiplier(everything, privacy.epsilon, privacy.delta)
    else:
        sigma = calibrate_noise(privacy.epsilon, privacy.delta, rounds, rate)
    release = ReleasePlan(
        clip=privacy.clip or DEFAULT_CLIP,
        dimension=dimension,
        noise_multiplier=sigma,
        rounds=rounds,
        rate=rate,
        **shape,
    )
    return Phase("gradient", first, release)


def _influence(
    study: PrivateStudy,
    rounds: Sequence[RoundShares],
    bound: InfluenceBound,
    lengths: tuple[int, int],
    before: list[GaussianSum],
    first: int,
    shape: _Shape,
) -> Iterable[Phase]:
    """Rounds of sums weighted by x, grouped where they are alike."""
    privacy = study.privacy
    sensitivities = require_bounded_influence(study.model).sensitivities(bound)
    shares = [
        share for r in rounds for share in (r.gradient_share, r.information_share)
    ]
    relative = [1.0 / math.sqrt(share) for share in shares if share]

    def everything(sigma: float) -> Event:
        return compose(*before, *(GaussianSum(sigma * factor) for factor in relative))

    sigma = calibrate_multiplier(everything, privacy.epsilon, privacy.delta)
    scores, matrices = zip(sensitivities, lengths, strict=True)

    def release(size: tuple[float, int], share: float, count: int) -> ReleasePlan:
        return ReleasePlan(
            clip=size[0],
            dimension=size[1],
            noise_multiplier=sigma / math.sqrt(share),
            rounds=count,
            rate=1.0,
            **shape,
        )

    for (score, matrix), alike in groupby(
        rounds, key=lambda r: (r.gradient_share, r.information_share)
    ):
        count = len(list(alike))
        yield Phase(
            "influence",
            first,
            release(scores, score, count),
            release(matrices, matrix, count) if matrix else None,
            bound,
        )
        first += count


def _sampling_rate(study: PrivateStudy, batch: int, records: int) -> float:
    if study.inference.sampling != "poisson":
        raise StudyError(
            'inference.sampling = "fixed" has no certified amplification here',
            where=f"study '{study.name}'",
            remedy='set sampling = "poisson", or leave batch out',
        )
    if study.privacy.records is None:
        raise StudyError(
            "inference.batch needs the public number of records",
            where=f"study '{study.name}'",
            remedy="set privacy.records",
        )
    return min(batch / records, 1.0)
