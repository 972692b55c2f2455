"""Attack a study's own releases, and bound its ε from below.

The attacker asks every phase at the question where one record moves the sums
farthest, knows every other record and the shares of c colluding sites, and adds up
what all rounds tell. The sums are the study's own (its model, preparation, bounds
and grid), the noise is drawn by the source that a site draws from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cipherbayes.privacy.noise import NoiseSource, SecureNoise
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.protocol import protocol_of
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats, Integers
from cipherbayes.validation.canary import (
    AuditResult,
    epsilon_lower_bound,
    gaussian_epsilon_lower_bound,
)
from cipherbayes.validation.mechanisms import Scores, paper_releases
from cipherbayes.validation.sensitivity import Shift, worst_shifts

COORDINATES = 2
"""How many coordinates of a sum's difference the attacker looks at, the largest ones:
drawing noise for all of them would take most of the time and add little."""


@dataclass(frozen=True)
class StudyAudit:
    """What an audit of a study found.

    Attributes
    ----------
    result
        The claim and the lower bound.
    shifts
        For each phase the question at which a record moved the sums farthest.
    differences
        Questions whose answers, refusals or charges alone tell the tables apart.
    """

    result: AuditResult
    shifts: Sequence[Shift]
    differences: Sequence[str] = ()

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, by the bound or because a record counted for
        more than its sensitivity, or because an answer alone told."""
        too_far = any(shift.share > 1.0 for shift in self.shifts)
        return self.result.refuted or too_far or bool(self.differences)


def audit_study(
    study: Study,
    *,
    runs: int = 8_000,
    confidence: float = 0.95,
    noise: NoiseSource | None = None,
) -> StudyAudit:
    """Attack a study's releases; no site's table is read.

    A study in the paper's own mode is audited as Algorithm 3 with its own numbers.
    """
    private = study.with_privacy()
    claimed = protocol_of(study).audited_claim(private)
    if claimed is not None:
        claim = private.privacy.epsilon, private.privacy.delta
        scores = paper_releases(*claim, runs // 2, setting=claimed)
        return StudyAudit(result_of(study, study.study.noise, scores, confidence), ())
    plan = plan_releases(study)
    shifts = worst_shifts(plan)
    scores = _scores(plan, shifts, runs // 2, noise or SecureNoise())
    gaussian = all(phase.sums.rate == 1.0 for phase in plan.phases)
    result = result_of(study, study.protocol, scores, confidence, gaussian=gaussian)
    told = [shift.name for shift in shifts if shift.told_apart]
    return StudyAudit(result, shifts, told)


def result_of(
    study: Study,
    mechanism: str,
    scores: Scores,
    confidence: float,
    *,
    gaussian: bool = False,
) -> AuditResult:
    """The lower bound on ε from an attacker's scores, beside the study's claim.

    Parameters
    ----------
    gaussian
        Whether the claim is that of a Gaussian mechanism, which can be tested more
        sharply.
    """
    privacy = study.with_privacy().privacy
    delta = privacy.delta
    bound = gaussian_epsilon_lower_bound if gaussian else epsilon_lower_bound
    return AuditResult(
        mechanism=mechanism,
        claimed_epsilon=privacy.epsilon,
        delta=delta,
        lower_bound=bound(scores.present, scores.absent, delta, confidence),
        confidence=confidence,
        runs=scores.present.size + scores.absent.size,
        noise=scores.noise,
    )


def certain_scores(runs: int) -> Scores:
    """Scores of an attacker who is right every time."""
    return Scores(np.ones(runs), np.zeros(runs), "none")


def largest_coordinates(
    phase: Phase, difference: Integers
) -> Iterator[tuple[ReleasePlan, Floats]]:
    """The largest coordinates of the difference, for each sum of a round."""
    for part, piece in zip(phase.parts, phase.split(difference), strict=True):
        sizes = np.sort(np.abs(piece.astype(np.float64)))[::-1]
        yield part, sizes[:COORDINATES]


def _scores(
    plan: StudyPlan, shifts: Sequence[Shift], runs: int, noise: NoiseSource
) -> Scores:
    """Log-likelihood ratios of all rounds together, with the record and without.

    Both tables' runs use the same draws, as in
    :func:`cipherbayes.validation.mechanisms.gaussian_sum`.
    """
    answered = [
        (shift.phase, shift.difference)
        for shift in shifts
        if shift.difference is not None
    ]
    if len(answered) < len(shifts):
        return certain_scores(runs)
    present, absent = np.zeros(runs), np.zeros(runs)
    rows = plan.dearest_part
    for phase, difference in answered:
        if phase.rows not in (None, rows):
            continue  # a record is in one part only
        rate = phase.sums.rate
        for _ in range(phase.rounds):
            drawn, information = np.zeros(runs), 0.0
            for part, sizes in largest_coordinates(phase, difference):
                variance = honest_variance(part)
                for size in sizes[sizes > 0.0]:
                    drawn += size * _honest_noise(part, noise, runs) / variance
                    information += size**2 / variance
            absent += _ratio(drawn, information, rate)
            taking = information * (np.random.default_rng().random(runs) < rate)
            present += _ratio(drawn + taking, information, rate)
    name = "insecure-repeatable" if noise.insecure else "secure"
    return Scores(present, absent, name)


def _ratio(seen: Floats, information: float, rate: float) -> Floats:
    """Log-likelihood ratio of a shift of size √information in units of the noise."""
    plain = seen - information / 2.0
    if rate == 1.0:
        return plain
    return np.logaddexp(math.log1p(-rate), math.log(rate) + plain)


def honest_variance(part: ReleasePlan) -> float:
    """Variance of a coordinate's noise without the shares of colluders and lost sites,
    in grid units."""
    honest = part.sites - part.colluders - part.dropouts
    return honest * part.share_scale**2


def _honest_noise(part: ReleasePlan, noise: NoiseSource, runs: int) -> Floats:
    total = np.zeros(runs)
    for k in range(part.sites - part.colluders - part.dropouts):
        total += noise.share(runs, part.share_scale, f"audit {k}")
    return total
