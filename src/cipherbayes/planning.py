"""What a study implies before any data is read: releases, noise, range, parameters.

Every party derives the same plan from the study alone, so nobody has to be
believed about the noise, the grid or the number of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from cipherbayes.crypto.parameters import ParameterSet, choose
from cipherbayes.crypto.signatures import Identity
from cipherbayes.errors import DataError, ProtocolError, StudyError
from cipherbayes.inference.gradient import summation_depth
from cipherbayes.inference.released import DEFAULT_ROUNDS, RECURSIONS, Recursion
from cipherbayes.models import Design
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.privacy.accountant import calibrate, calibrate_noise, compose
from cipherbayes.privacy.events import (
    Event,
    GaussianSum,
    PoissonSampled,
    Repeated,
)
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.protocol.messages import RunManifest
from cipherbayes.study import Study
from cipherbayes.tables import preparation_of
from cipherbayes.typing import Floats, Integers

if TYPE_CHECKING:  # the server imports this module, and nothing that draws noise
    from cipherbayes.privacy.noise import NoiseSource

Purpose = Literal["records", "moments", "gradient", "influence"]

AnyVector = TypeVar("AnyVector", Floats, Integers)

MOST_RECORDS = 10_000_000
"""Most records of a study that does not declare their number."""

SHARES: dict[Purpose, float] = {"records": 0.01, "moments": 0.1}
"""Share of μ² that each preparatory release takes; the gradients get the rest."""


@dataclass(frozen=True)
class Phase:
    """Releases of one kind, one a round.

    Attributes
    ----------
    purpose
        What is summed: one for each record (``records``), columns and their
        squares (``moments``), clipped gradients (``gradient``), or gradients
        weighted by x alone (``influence``).
    first
        Number of the first round.
    privacy
        Clipping norm, length, grid, noise and range, coupled.
    information
        The same of a second sum in the same message, the packed information
        matrix; None where a round has none.
    """

    purpose: Purpose
    first: int
    privacy: ReleasePlan
    information: ReleasePlan | None = None

    @property
    def rounds(self) -> int:
        return self.privacy.rounds

    @property
    def parts(self) -> tuple[ReleasePlan, ...]:
        """The sums of one round, in the order of the vector."""
        if self.information is None:
            return (self.privacy,)
        return (self.privacy, self.information)

    @property
    def dimension(self) -> int:
        """Length of a round's vector."""
        return sum(part.dimension for part in self.parts)

    @property
    def preparatory(self) -> bool:
        """Whether the phase comes before the sampler's first round."""
        return self.purpose in SHARES

    @cached_property
    def release(self) -> Event:
        """One round, for the accountant and the ledger."""
        return compose(*(part.event for part in self.parts))

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
        pieces = [
            part.to_grid(values) + noise.share(part.dimension, part.share_scale, name)
            for part, values, name in zip(
                self.parts,
                self.split(total),
                (label, f"{label}, information"),
                strict=False,
            )
        ]
        return np.concatenate(pieces)

    def split(self, vector: AnyVector) -> list[AnyVector]:
        """A round's vector, cut into its sums."""
        if vector.size != self.dimension:
            raise ProtocolError("a vector does not have the round's length")
        ends = np.cumsum([part.dimension for part in self.parts])
        return np.split(vector, ends[:-1])

    def in_range(self, total: Integers) -> bool:
        """Whether a decrypted total is one that public numbers allow."""
        return all(
            bool(np.abs(values).max() <= part.bound)
            for part, values in zip(self.parts, self.split(total), strict=True)
        )


@dataclass(frozen=True)
class StudyPlan:
    """What all parties of a private study agree on without talking to each other."""

    study: Study
    phases: tuple[Phase, ...]

    @cached_property
    def study_hash(self) -> bytes:
        """The study's fingerprint, as messages carry it."""
        return bytes.fromhex(self.study.fingerprint())

    @property
    def rounds(self) -> int:
        """Releases of all phases."""
        return sum(phase.rounds for phase in self.phases)

    @property
    def preparatory(self) -> tuple[Phase, ...]:
        """The phases before the sampler's first round."""
        return tuple(phase for phase in self.phases if phase.preparatory)

    @property
    def sampling(self) -> tuple[Phase, ...]:
        """The phases that the posterior comes from."""
        return tuple(phase for phase in self.phases if not phase.preparatory)

    @property
    def gradient(self) -> Phase:
        """The last of these, the one with the most weight."""
        return self.phases[-1]

    @property
    def event(self) -> Event:
        """Everything that the study releases."""
        return compose(*(phase.event for phase in self.phases))

    def event_after(self, rounds: int) -> Event | None:
        """What the first rounds have released; None for none."""
        events: list[Event] = []
        for phase in self.phases:
            done = min(max(rounds - phase.first, 0), phase.rounds)
            if done:
                events.append(Repeated(phase.release, done))
        return compose(*events) if events else None

    @property
    def minimum_roster(self) -> int:
        """Fewest sites whose sum may be decrypted."""
        assert self.study.privacy is not None
        return len(self.study.sites) - self.study.privacy.dropouts

    @cached_property
    def parameters(self) -> ParameterSet | None:
        """The smallest vetted parameter set that holds every release."""
        if self.study.protocol != "secure-sum":
            return None
        return choose(
            max(phase.bound for phase in self.phases),
            len(self.study.sites),
            max(phase.dimension for phase in self.phases),
        )

    def phase_of(self, number: int) -> Phase | None:
        """The phase of a round."""
        for phase in self.phases:
            if phase.first <= number < phase.first + phase.rounds:
                return phase
        return None

    def check_site(self, name: str, count: int) -> None:
        """Refuse a table that the plan's range was not made for."""
        most = self.gradient.privacy.records
        if count > most:
            raise DataError(
                f"the table has more rows than the study's {most}",
                where=f"site {name}",
                remedy="correct privacy.records, the number of rows over all sites",
            )

    def check_manifest(
        self, manifest: RunManifest, run: bytes, pinned: Mapping[str, Identity]
    ) -> None:
        """Raise ProtocolError unless a manifest is exactly this study's."""
        parameters = self.parameters
        expected = (run, self.study_hash, self.rounds, tuple(sorted(self.study.sites)))
        given = (
            manifest.run,
            manifest.study,
            manifest.rounds,
            manifest.roster.sites,
        )
        if parameters is None or given != expected:
            raise ProtocolError(
                "the run's manifest is not the study's",
                remedy="give every party the same study file and release",
            )
        if manifest.parameters != parameters.id:
            raise ProtocolError("the manifest names other encryption parameters")
        if manifest.csp != pinned["csp"].raw:
            raise ProtocolError("the manifest names another CSP")
        manifest.roster.verify(run=run, study=self.study_hash, pinned=pinned)

    def recursion(self, records: float) -> Recursion:
        """The study's sampler, for N declared or released."""
        design = preparation_of(self.study).design
        settings = self.study.inference
        return RECURSIONS[settings.method](
            settings,
            resolve_prior(self.study, design),
            records=records,
            rounds=sum(phase.rounds for phase in self.sampling),
            rate=self.gradient.privacy.rate,
            curvature=self.study.model.largest_curvature(design),
        )

    def digest(self, phase: Phase, total: Floats, records: float) -> Floats:
        """What is kept of a preparatory release.

        The number of records, at least one; or mean and standard deviation of each
        column, kept where a column of the public range can have them.
        """
        if phase.purpose == "records":
            return np.maximum(np.rint(total), 1.0)
        width = phase.dimension // 2
        mean = np.clip(total[:width] / records, -1.0, 1.0)
        square = np.clip(total[width:] / records, 0.0, 1.0)
        variance = np.clip(square - mean**2, 0.01**2, 1.0)
        return np.concatenate([mean, np.sqrt(variance)])


def resolve_prior(study: Study, design: Design) -> ResolvedPrior:
    """The prior of every parameter, in the order of θ."""
    try:
        return study.prior.resolve(study.model.parameters(design))
    except ValueError as error:
        raise StudyError(str(error), where=f"study '{study.name}', [prior]") from None


def plan_study(study: Study) -> StudyPlan:
    """Lay out a private study's releases within its budget.

    Formal guarantees
    -----------------
    The composition of all phases is (ε, δ)-differentially private with the study's
    ε and δ, by the accountant.
    """
    privacy = study.privacy
    assert privacy is not None
    if study.inference.method not in RECURSIONS:
        known = " or ".join(f'"{name}"' for name in sorted(RECURSIONS))
        raise StudyError(
            f'inference.method = "{study.inference.method}" is not available',
            where=f"study '{study.name}'",
            remedy=f"choose {known}",
        )
    design = preparation_of(study).design
    resolve_prior(study, design)
    dimension = len(study.model.parameters(design))
    records = privacy.records or MOST_RECORDS
    rate = 1.0
    if study.inference.batch is not None:
        rate = _sampling_rate(study, records)
    rounds = study.inference.rounds or DEFAULT_ROUNDS[study.inference.method]
    noise = _noise(study, rounds, rate)
    pooled = study.protocol == "pooled"
    shape = {
        "sites": 1 if pooled else max(len(study.sites), 1),
        "colluders": 0 if pooled else study.colluders,
        "dropouts": 0 if pooled else privacy.dropouts,
        "records": records,
        "depth": summation_depth(records) + 64,
    }
    columns = design.width - (design.intercept is not None)
    sizes: dict[Purpose, tuple[int, float, int, float]] = {
        "records": (1, 1.0, 1, 1.0),
        "moments": (1, math.sqrt(2.0 * columns), 2 * columns, 1.0),
        "gradient": (rounds, privacy.clip, dimension, rate),
    }
    phases: list[Phase] = []
    for purpose, sigma in noise.items():
        count, clip, length, share = sizes[purpose]
        release = ReleasePlan(
            clip=clip,
            dimension=length,
            noise_multiplier=sigma,
            rounds=count,
            rate=share,
            **shape,
        )
        phases.append(Phase(purpose, sum(p.rounds for p in phases), release))
    return StudyPlan(study, tuple(phases))


def _sampling_rate(study: Study, records: int) -> float:
    batch = study.inference.batch
    assert batch is not None
    assert study.privacy is not None
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


def _noise(study: Study, rounds: int, rate: float) -> dict[Purpose, float]:
    """σ of each phase, in the order of the phases."""
    privacy = study.privacy
    assert privacy is not None
    epsilon, delta = privacy.epsilon, privacy.delta
    wanted: list[Purpose] = []
    if privacy.records is None:
        wanted.append("records")
    if study.preparation.method == "private-moments":
        wanted.append("moments")
    if not wanted:
        return {"gradient": calibrate_noise(epsilon, delta, rounds, rate)}
    mu = mu_for(epsilon, delta)
    noise = {purpose: 1.0 / (mu * math.sqrt(SHARES[purpose])) for purpose in wanted}
    before: list[Event] = [GaussianSum(sigma) for sigma in noise.values()]

    def everything(sigma: float) -> Event:
        release: Event = GaussianSum(sigma)
        if rate < 1.0:
            release = PoissonSampled(rate, GaussianSum(sigma))
        return compose(*before, Repeated(release, rounds))

    noise["gradient"] = calibrate(everything, epsilon, delta)
    return noise
