"""The plan of a study whose rounds release noised sums."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from cipherbayes.data.imputing import Imputing
from cipherbayes.data.range_ends import piles
from cipherbayes.data.windows import hidden_scales, scales_of, windows_of
from cipherbayes.errors import DataError, StudyError
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.method import PublicFacts, SiteRecords
from cipherbayes.inference.released import Recursion
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.privacy.accountant import epsilon, total_mu
from cipherbayes.privacy.events import Composed, Event, Repeated, of_one_run
from cipherbayes.protocols.phase import Phase, Purpose
from cipherbayes.protocols.plan import Plan, plan_study
from cipherbayes.protocols.releases import QUESTION_DRAWS
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import (
    imputing_of,
    preparation_of,
    resolve_prior,
    site_prior,
    slots_of,
)
from cipherbayes.typing import Floats, Integers

PRIOR_SCALES, FARTHEST_THETA = 1e3, 1e7
"""How far from zero a question may be."""


@dataclass(frozen=True)
class StudyPlan(Plan):
    """The plan of a study whose rounds release noised sums, in phases."""

    phases: tuple[Phase, ...]

    @property
    def rounds(self) -> int:
        """Releases of all phases."""
        return sum(phase.rounds for phase in self.phases)

    def charges(self) -> Counter[Event]:
        charged: Counter[Event] = Counter()
        for phase in self.phases:
            charged[phase.release] += phase.rounds
        return charged

    @property
    def preparatory(self) -> tuple[Phase, ...]:
        """The phases before the sampler's first round."""
        return tuple(phase for phase in self.phases if phase.preparatory)

    @property
    def preparatory_names(self) -> tuple[str, ...]:
        return tuple(phase.purpose for phase in self.preparatory)

    @property
    def sampling(self) -> tuple[Phase, ...]:
        """The phases that the posterior comes from."""
        return tuple(
            phase
            for phase in self.phases
            if not phase.preparatory and not phase.closing
        )

    @property
    def closing(self) -> tuple[Phase, ...]:
        """The phases after the sampler's last round, of one round each."""
        return tuple(phase for phase in self.phases if phase.closing)

    @property
    def closing_names(self) -> tuple[str, ...]:
        return tuple(phase.purpose for phase in self.closing)

    @property
    def last_phase(self) -> Phase:
        """The last phase of sampling, which has most of the budget."""
        return self.sampling[-1]

    @property
    def event(self) -> Event:
        """Everything that the study releases."""
        return of_one_run(phase.event for phase in self.phases)

    @property
    def dearest_part(self) -> str | None:
        """The part of the tables, training or held-out, that the study spends most on;
        None where it holds no protected rows out."""
        parts: dict[str, list[Event]] = {}
        for phase in self.phases:
            if phase.rows is not None:
                parts.setdefault(phase.rows, []).append(phase.event)
        if not parts:
            return None
        return max(parts, key=lambda name: total_mu(Composed(tuple(parts[name]))))

    def event_after(self, rounds: int) -> Event | None:
        """What the first rounds have released; None for none."""
        events: list[Event] = []
        for phase in self.phases:
            done = min(max(rounds - phase.first, 0), phase.rounds)
            if done:
                events.append(Repeated(phase.release, done))
        return of_one_run(events) if events else None

    def rounds_prepared(self, kept: Container[str]) -> int:
        """Rounds whose preparatory results are kept under these names."""
        return sum(phase.rounds for phase in self.preparatory if phase.purpose in kept)

    def epsilon_after(self, rounds: int) -> float:
        """ε that the first rounds have spent, at the study's δ; 0 before the first."""
        event = self.event_after(rounds)
        return 0.0 if event is None else epsilon(event, self.study.privacy.delta)

    @cached_property
    def noise_multiplier(self) -> float:
        """σ of a sampling round; where rounds differ, that of as many equal ones
        with the same composition, √T / μ."""
        parts = [
            (part, phase.rounds) for phase in self.sampling for part in phase.parts
        ]
        if len(parts) == 1:
            return parts[0][0].noise_multiplier
        mu_squared = sum(n / part.noise_multiplier**2 for part, n in parts)
        rounds = sum(phase.rounds for phase in self.sampling)
        return math.sqrt(rounds / mu_squared)

    def phase_of(self, number: int) -> Phase | None:
        """The phase of a round; None beyond the last."""
        for phase in self.phases:
            if phase.first <= number < phase.first + phase.rounds:
                return phase
        return None

    def phase_at(self, number: int) -> Phase:
        """The phase of one of the study's rounds."""
        phase = self.phase_of(number)
        if phase is None:
            raise ValueError(
                f"the study has {self.rounds} rounds and no round {number}"
            )
        return phase

    def purpose(self, number: int) -> str | None:
        phase = self.phase_of(number)
        return None if phase is None else phase.purpose

    def check_site(self, name: str, count: int) -> None:
        """Refuse a table that the plan's range was not made for."""
        most = self.last_phase.sums.records
        if count > most:
            units = self.study.privacy.units
            raise DataError(
                f"the table has more {units} than the study's {most}",
                where=f"site {name}",
                remedy=f"correct privacy.records, the number of {units} over all sites",
            )

    def noise_in_words(self, sizes: Sequence[int]) -> str:
        sums = self.phase_at(len(sizes) - 1).sums
        low, high = (sums.noise_sd(each(sizes)) / sums.clip for each in (min, max))
        deep = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        return (
            f"in the last round honest sites' noise adds up to {deep} times what one "
            f"record moves, at least the certified {sums.noise_multiplier:.4g}"
        )

    @cached_property
    def prior(self) -> ResolvedPrior:
        """The prior of every parameter; of all sites together where they may differ."""
        common = resolve_prior(self.study, preparation_of(self.study).design)
        slots = slots_of(self.study)
        return common if slots is None else site_prior(self.study, slots, common)

    def sampler(self, facts: Mapping[Purpose, Floats]) -> Recursion:
        """The study's sampler, for what preparatory rounds released."""
        records = self.records(facts)
        if self.study.hierarchy is None:
            return self.recursion(records)
        return self._recursion(records, self._site_records(facts))

    def recursion(self, records: float) -> Recursion:
        """The study's sampler, for N declared or released."""
        return self._recursion(records, None)

    def _recursion(self, records: float, site_records: SiteRecords | None) -> Recursion:
        return self.study.inference_method.recursion(
            PublicFacts(
                settings=self.study.inference,
                prior=self.prior,
                model=self.study.model,
                design=preparation_of(self.study).design,
                records=records,
                site_records=site_records,
                rounds=sum(phase.rounds for phase in self.sampling),
                rate=self.last_phase.sums.rate,
                bound=self.last_phase.weighting,
            )
        )

    @cached_property
    def farthest_theta(self) -> Floats:
        """How far from zero each parameter may be asked about: |μ₀| + 1000 max(σ₀, 1)
        of its prior, at most 10⁷.

        No sampler gets there unless it diverged. Farther out a linear predictor would
        be nothing but the rounding error of terms that cancel each other.
        """
        prior = self.prior
        farthest = np.abs(prior.mean) + PRIOR_SCALES * np.maximum(prior.scale, 1.0)
        return np.minimum(farthest, FARTHEST_THETA)

    def usable_theta(self, phase: Phase, theta: Floats) -> bool:
        """Whether a phase may be asked at ``theta``: public numbers alone decide."""
        size = self.question_size(phase)
        if theta.size != size:
            return False
        if phase.preparatory or phase.characteristics is not None:
            return bool(theta[0] == 0.0)
        farthest = self.farthest_theta
        # Also false for what is not a number.
        return bool((np.abs(theta.reshape(-1, farthest.size)) <= farthest).all())

    def question_size(self, phase: Phase) -> int:
        """Length of the vector that a phase is asked about."""
        if phase.preparatory or phase.characteristics is not None:
            return 1
        draws = QUESTION_DRAWS if _asks_draws(phase) else 1
        return draws * self.farthest_theta.size

    def closing_question(self, phase: Phase, draws: Floats) -> Floats:
        """The vector that a phase after the posterior asks about.

        A zero where records are described, some draws one after the other where
        predictions are checked, and the draws' mean where residuals are added up; all
        within the range in which sites answer.

        Parameters
        ----------
        draws
            All draws on the prepared scale, shape ``(s, d)``.
        """
        if phase.characteristics is not None:
            return np.zeros(1)
        held = np.clip(draws, -self.farthest_theta, self.farthest_theta)
        if not _asks_draws(phase):
            mean: Floats = held.mean(axis=0)
            return mean
        places = np.linspace(0.0, len(held) - 1.0, QUESTION_DRAWS).round()
        chosen: Floats = held[places.astype(np.int64)]
        return chosen.ravel()

    def facts(self, totals: Sequence[Integers]) -> dict[Purpose, Floats]:
        """What the totals of the first preparatory rounds, in grid units, amount to."""
        key = tuple(values.tobytes() for values in totals)
        facts = self._facts_of.get(key)
        if facts is None:
            facts = {}
            for phase, values in zip(self.preparatory, totals, strict=False):
                total = phase.sums.from_grid(values)
                facts[phase.purpose] = self.summarise_release(phase, total, facts)
            self._facts_of.clear()
            self._facts_of[key] = facts
        return dict(facts)

    @cached_property
    def _facts_of(self) -> dict[tuple[bytes, ...], dict[Purpose, Floats]]:
        """A cache of one entry: the last totals, and the facts made of them."""
        return {}

    def before(self, phase: Phase) -> tuple[Phase, ...]:
        """The preparatory phases that a phase's question rests on: all before it."""
        return tuple(each for each in self.preparatory if each.first < phase.first)

    def scales(
        self, phase: Phase | None, facts: Mapping[Purpose, Floats]
    ) -> Floats | None:
        """Released scales through which a phase sees the columns: the newest before it.

        After the last phase where ``phase`` is None. None where no phase tells.
        """
        earlier = self.preparatory if phase is None else self.before(phase)
        told = [each.purpose for each in earlier if each.scaling]
        return facts.get(told[-1]) if told else None

    @cached_property
    def imputing(self) -> Imputing | None:
        """How missing values are drawn; None where none are."""
        return imputing_of(self.study)

    def moments(self, facts: Mapping[Purpose, Floats]) -> Floats | None:
        """Released means and standard deviations of the columns, if there are any."""
        scales = self.scales(None, facts)
        return scales if self.imputing is None else self.imputing.split(scales)[0]

    def column_models(self, facts: Mapping[Purpose, Floats]) -> Floats | None:
        """Released models of the columns with missing values, if there are any."""
        scales = self.scales(None, facts)
        return None if self.imputing is None else self.imputing.split(scales)[1]

    def with_model_errors(self, draws: Draws, facts: Mapping[Purpose, Floats]) -> Draws:
        """Draws that count how far the models of columns may be off."""
        if self.imputing is None:
            return draws
        constants = self.study.model.constants(preparation_of(self.study).design)
        seed, scales = self.study.inference.seed, self.scales(None, facts)
        theta = self.imputing.with_model_errors(draws.theta, scales, constants, seed)
        return replace(draws, theta=theta)

    def records(self, facts: Mapping[Purpose, Floats]) -> float:
        """N, as it was released or as the study declares it."""
        declared = self.study.training_records
        if declared is None and "records" in facts:
            return float(facts["records"].sum())
        return float(declared or 1)

    def _site_records(self, facts: Mapping[Purpose, Floats]) -> SiteRecords | None:
        """How many records each site has, as it was released."""
        if self.study.hierarchy is None or "records" not in facts:
            return None
        (phase,) = (each for each in self.phases if each.purpose == "records")
        return SiteRecords(facts["records"], phase.sums.noise_sd(phase.sums.sites))

    def piles(
        self, phase: Phase, total: Floats, facts: Mapping[Purpose, Floats]
    ) -> Floats | None:
        """Shares of values that pile up at the ends of public ranges; None where a
        phase does not look at these."""
        if phase.numbers is None or phase.purpose != "histograms":
            return None
        noise = phase.sums.noise_sd(phase.sums.sites)
        return piles(total, noise, self.records(facts), phase.numbers)

    def hidden_scales(
        self, phase: Phase, total: Floats, facts: Mapping[Purpose, Floats]
    ) -> Floats | None:
        """Shares of equal values where noise hides how far the others lie; None where a
        phase does not look for windows a second time."""
        if phase.numbers is None or phase.purpose != "windows":
            return None
        noise = phase.sums.noise_sd(phase.sums.sites)
        return hidden_scales(total, noise, self.records(facts), phase.numbers)

    def summarise_release(
        self, phase: Phase, total: Floats, facts: Mapping[Purpose, Floats]
    ) -> Floats:
        """What is kept of a preparatory release, given those before it.

        The number of records (of each site), at least one; windows of the numbers; or
        mean and standard deviation of each column, and after them the models of those
        with missing values. All are kept where a column of the public range can have
        them.
        """
        if phase.purpose == "records":
            return np.maximum(np.rint(total), 1.0)
        records, seen = self.records(facts), self.scales(phase, facts)
        noise = phase.sums.noise_sd(phase.sums.sites)
        if phase.models is not None:
            learnt = phase.models.learn(total, noise)
            return learnt if seen is None else np.concatenate([seen, learnt])
        if phase.numbers is not None:
            read = scales_of if phase.purpose == "scales" else windows_of
            return read(total, noise, records, phase.numbers, seen)
        width = phase.dimension // 2
        mean = np.clip(total[:width] / records, -1.0, 1.0)
        square = np.clip(total[width:] / records, 0.0, 1.0)
        # A variance below its own noise would blow a rare column up to any scale.
        noise /= records
        lowest = min(max(0.01**2, 2.0 * noise), 1.0)
        variance = np.clip(square - mean**2, lowest, 1.0)
        return np.concatenate([mean, np.sqrt(variance)])


def _asks_draws(phase: Phase) -> bool:
    """Whether a phase compares what draws predict, not what their mean does."""
    return phase.purpose in ("check", "difference")


AnyStudyPlan = TypeVar("AnyStudyPlan", bound=StudyPlan)


def plan_releases(study: Study) -> StudyPlan:
    """The plan of a study that releases noised sums, in phases."""
    plan = plan_study(study)
    if not isinstance(plan, StudyPlan):
        raise StudyError("has no noised sums to look at", where=f"study '{study.name}'")
    return plan
