"""The releases of a private study, one phase for each kind, with their noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypedDict, TypeVar

import numpy as np

from cipherbayes.data.characteristics import Characteristics
from cipherbayes.data.encoders import MEAN_SQUARES
from cipherbayes.data.residual_cells import ResidualCells
from cipherbayes.data.windows import Numbers
from cipherbayes.errors import ProtocolError, StudyError
from cipherbayes.inference.gradient import summation_depth
from cipherbayes.inference.influence import packed_length
from cipherbayes.inference.method import RoundShares
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models import Design
from cipherbayes.models.held_out import HeldOutCheck
from cipherbayes.models.influence import InfluenceBound, require_bounded_influence
from cipherbayes.models.score_difference import BOUND, DIMENSION
from cipherbayes.privacy.accountant import calibrate, calibrate_noise, compose
from cipherbayes.privacy.events import (
    Event,
    GaussianSum,
    OfRows,
    PoissonSampled,
    Repeated,
)
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.study.scales import scales_budget
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.study.tables import preparation_of, slots_of
from cipherbayes.typing import Floats, Integers

if TYPE_CHECKING:  # the server imports this module, and nothing that draws noise
    from cipherbayes.privacy.noise import NoiseSource

Purpose = Literal[
    "records",
    "moments",
    "histograms",
    "windows",
    "scales",
    "gradient",
    "influence",
    "describe",
    "check",
    "residuals",
    "difference",
]

AnyVector = TypeVar("AnyVector", Floats, Integers)

MOST_ROWS = 10**10
"""Rows that no table exceeds: for so many roundings are bounded where records are
persons."""
MOST_RECORDS = 10_000_000
"""Most records of a study that does not declare their number."""

SHARES: dict[Purpose, float] = {"records": 0.01, "moments": 0.1}
"""Share of μ² that each of these releases takes. Histograms and what follows them:
:mod:`~cipherbayes.study.scales`. The sampler's get the rest."""

SCALING: frozenset[Purpose] = frozenset({"moments", "histograms", "windows", "scales"})
"""Releases that tell how later ones see the columns."""
PREPARATORY: frozenset[Purpose] = SCALING | {"records"}
"""Releases before the sampler's first."""

CLOSING: frozenset[Purpose] = frozenset(
    {"describe", "check", "residuals", "difference"}
)
"""Releases after the sampler's last: they describe the records and check the fit."""

TRAINING, HELD_OUT = "training", "held-out"
"""Parts of a table whose held-out rows are protected too."""
CHECKS: dict[Purpose, float] = {"check": 0.7, "residuals": 0.3}
"""Share of what describing leaves of μ² that each release on held-out rows takes."""
COMPARED: dict[Purpose, float] = {"check": 0.6, "residuals": 0.25, "difference": 0.15}
"""The same where predictions are compared with those of an earlier fit."""
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


@dataclass(frozen=True)
class Phase:
    """Releases of one kind, one a round.

    Attributes
    ----------
    purpose
        What is summed: one for each record (``records``; by site where sites may
        differ), columns and their
        squares (``moments``), one in a bin of each column (``histograms``, and
        ``windows`` inside those that they show), columns and their squares inside
        windows (``scales``), clipped gradients (``gradient``), or gradients weighted
        by x alone (``influence``); after the posterior one in a bin of each column
        (``describe``), one in a bin of predictions and outcomes (``check``),
        residuals by group (``residuals``), and how much better each record is
        predicted than by an earlier fit (``difference``).
    first
        Number of the first round.
    sums
        Clipping norm, length, grid, noise and range of the sum, coupled.
    information
        The same of a second sum in the same message, the packed information
        matrix; None where a round has none.
    weighting
        How far a record counts in an ``influence`` phase; None in others.
    numbers
        Which columns have histograms and windows, in the phases that make them.
    rows
        The part of the records that it is about; None for all of them.
    characteristics, check, cells
        What is counted, compared or added up in the phases after the posterior.
    """

    purpose: Purpose
    first: int
    sums: ReleasePlan
    information: ReleasePlan | None = None
    weighting: InfluenceBound | None = None
    numbers: Numbers | None = None
    rows: str | None = None
    characteristics: Characteristics | None = None
    check: HeldOutCheck | None = None
    cells: ResidualCells | None = None

    @property
    def rounds(self) -> int:
        return self.sums.rounds

    @property
    def parts(self) -> tuple[ReleasePlan, ...]:
        """The sums of one round, in the order of the vector."""
        if self.information is None:
            return (self.sums,)
        return (self.sums, self.information)

    @property
    def dimension(self) -> int:
        """Length of a round's vector."""
        return sum(part.dimension for part in self.parts)

    @property
    def contributions(self) -> str:
        """What a sampling phase sums, in words."""
        if self.purpose == "influence":
            return "per-record scores and information matrices weighted by x"
        return "clipped per-record gradients"

    @property
    def preparatory(self) -> bool:
        """Whether the phase comes before the sampler's first round."""
        return self.purpose in PREPARATORY

    @property
    def closing(self) -> bool:
        """Whether the phase comes after the sampler's last round."""
        return self.purpose in CLOSING

    @property
    def scaling(self) -> bool:
        """Whether later phases see the columns as this one says."""
        return self.purpose in SCALING

    @cached_property
    def release(self) -> Event:
        """One round, for the accountant and the ledger."""
        event = compose(*(part.event for part in self.parts))
        return event if self.rows is None else OfRows(self.rows, event)

    @property
    def event(self) -> Event:
        """All rounds of the phase."""
        return Repeated(self.release, self.rounds)

    @property
    def bound(self) -> int:
        """Largest total of any of the sums, in grid units."""
        return max(part.bound for part in self.parts)

    def noised(self, total: Floats, noise: NoiseSource, label: str) -> Integers:
        """A site's vector: each sum on its grid plus the site's share of its noise.

        Formal guarantees
        -----------------
        Those of :class:`~cipherbayes.privacy.release.ReleasePlan` for every part,
        whose shares are drawn independently of each other.
        """
        shares = [noise.share(*share) for share in self.shares(label)]
        return self.on_grid(total) + np.concatenate(shares)

    def on_grid(self, total: Floats) -> Integers:
        """A site's sums in grid units, before noise."""
        pieces = zip(self.parts, self.split(total), strict=True)
        return np.concatenate([part.to_grid(values) for part, values in pieces])

    def shares(self, label: str) -> list[tuple[int, float, str]]:
        """Length, scale and label of a site's share of the noise of each sum."""
        labels = (label, f"{label}, information")
        return [
            (part.dimension, part.share_scale, name)
            for part, name in zip(self.parts, labels, strict=False)
        ]

    def split(self, vector: AnyVector) -> list[AnyVector]:
        """A round's vector, cut into its sums."""
        if vector.size != self.dimension:
            raise ProtocolError("a vector does not have the round's length")
        if self.information is None:
            return [vector]
        ends = np.cumsum([part.dimension for part in self.parts])
        return np.split(vector, ends[:-1])

    def in_range(self, total: Integers) -> bool:
        """Whether a decrypted total is one that public numbers allow."""
        return all(
            # Not np.abs, which leaves -2^63 as it is.
            bool(-part.bound <= values.min() and values.max() <= part.bound)
            for part, values in zip(self.parts, self.split(total), strict=True)
        )


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
            preparation.column_bins(*RANGES),
            () if check is None else check.outcomes,
            study.describe.by,
            sites,
        )
        sums = release(table.bound, table.dimension, described)
        phases.append(Phase("describe", 0, sums, characteristics=table))
    if study.checks_privately:
        assert check is not None  # see the study's rules
        assert study.evaluation is not None
        compared = study.evaluation.against is not None
        parts = COMPARED if compared else CHECKS
        shares = {purpose: (1.0 - described) * part for purpose, part in parts.items()}
        sums = release(check.bound, check.cells, shares["check"])
        phases.append(Phase("check", 0, sums, rows=HELD_OUT, check=check))
        cells = ResidualCells(check, preparation.column_bins(*RESIDUAL_RANGES), sites)
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
        rate = _sampling_rate(study, shape["records"])
    rounds = study.inference.rounds or study.inference_method.default_rounds

    def everything(sigma: float) -> Event:
        release: Event = GaussianSum(sigma)
        if rate < 1.0:
            release = PoissonSampled(rate, GaussianSum(sigma))
        return compose(*before, Repeated(release, rounds))

    if before:
        sigma = calibrate(everything, privacy.epsilon, privacy.delta)
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

    sigma = calibrate(everything, privacy.epsilon, privacy.delta)
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


def _sampling_rate(study: PrivateStudy, records: int) -> float:
    batch = study.inference.batch
    assert batch is not None
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
