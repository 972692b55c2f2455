"""What the releases after the posterior say: scores, misfit, and who the records are.

Everything here is made of released totals, of draws and of the public study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from cipherbayes.data.rescaled import rescaled_design
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.count_check import LEAST_ROWS, check_counts
from cipherbayes.inference.flags import FlagRecord
from cipherbayes.inference.number_check import MeanFit, NumberFit, check_numbers
from cipherbayes.inference.paired_scores import mean_difference
from cipherbayes.inference.recalibration import BinaryFit, recalibrate
from cipherbayes.inference.survival_check import (
    GROUPS,
    check_survival,
    risk_test,
)
from cipherbayes.models.design import Design
from cipherbayes.models.held_out import (
    INTERVALS,
    LOG_HAZARDS,
    LOG_ODDS,
    BinaryCheck,
    HeldOutCheck,
    SurvivalCheck,
)
from cipherbayes.models.held_out_numbers import (
    COUNT_EDGES,
    NUMBER_BINS,
    CountCheck,
    NumberCheck,
)
from cipherbayes.models.rows import Rows
from cipherbayes.protocols.plan import Plan
from cipherbayes.protocols.rounds import Closing
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.results.described_groups import SiteCounts
from cipherbayes.results.describing import describe_rows
from cipherbayes.results.fit_numbers import fit_record
from cipherbayes.results.fit_sentences import few_events, misfit_flags
from cipherbayes.results.record import (
    AucAt,
    BrierAt,
    CalibrationBin,
    DescribeRow,
    DifferenceRow,
    MeanRow,
    ObservedOverExpected,
    PrivateMetrics,
)
from cipherbayes.study.rival import Rival
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats

NOISE_REACH = 1.645
"""Standard deviations of its noise that nine of ten counts stay within."""
APART = 1.86
"""How many times as much noise as a sum the number of rows in a bin has, where rows are
shared between bins: rows all over a bin count 1/6, 2/3 and 1/6, and the inverse of that
has rows of this norm."""


@dataclass(frozen=True)
class Checked:
    """What is known of a fit besides its posterior.

    Attributes
    ----------
    metrics
        Scores of held-out rows with intervals, and where the fit misses.
    flags
        Misfits, as ``result.json`` has them.
    describe
        The table of the records' characteristics.
    """

    metrics: PrivateMetrics = field(default_factory=PrivateMetrics)
    flags: list[FlagRecord] = field(default_factory=list)
    describe: list[DescribeRow] = field(default_factory=list)


def check_fit(
    plan: Plan, draws: Draws, moments: Floats | None, closing: Mapping[str, Closing]
) -> Checked:
    """Scores, tests of the fit, characteristics: from the rounds after the posterior.

    Parameters
    ----------
    moments
        Released means and standard deviations, where the study has them.
    closing
        What was released, by purpose; a run that stopped early lacks some.
    """
    if not isinstance(plan, StudyPlan) or not closing:
        return Checked()
    study = plan.study
    flat = draws.theta.reshape(-1, draws.theta.shape[-1])
    tail = (1.0 - study.inference.interval) / 2.0
    design = _design(study, moments)
    metrics: PrivateMetrics = {}
    flags: list[FlagRecord] = []
    table: list[DescribeRow] = []
    for phase in plan.closing:
        released = closing.get(phase.purpose)
        if released is None:
            continue
        if phase.check is not None:
            rows = _expected_rows(study)
            scores = scores_of(phase.check, released, flat, design, tail, rows)
            metrics = {"private": True, **scores, **metrics}
            events = phase.check.events(released.total)
            noise = released.noise * float(np.sqrt(events.size))
            if events.size:
                flags += few_events(scores, float(events.sum()), noise)
        elif phase.purpose == "difference":
            rival = study.stated_evaluation.stated_rival
            metrics["difference"] = _difference(rival, released, metrics, tail)
        elif phase.cells is not None:
            if draws.is_point:
                continue  # what it is unsure of, it does not say
            found = fit_record(
                phase.cells, released, flat, design, moments, study, metrics
            )
            metrics["fit"] = found
            flags += misfit_flags(found, design)
        elif phase.characteristics is not None:
            table = describe_rows(
                study,
                phase.characteristics,
                released,
                moments,
                tail,
                _site_counts(plan, draws),
            )
    return Checked(metrics, flags, table)


def _design(study: PrivateStudy, moments: Floats | None) -> Design:
    design = preparation_of(study).design
    if moments is None:
        return design
    mean, sd = np.split(moments, 2)
    return rescaled_design(design, mean, sd)


def _expected_rows(study: PrivateStudy) -> float | None:
    """Held-out rows that the study expects; None where N is not public."""
    records = study.privacy.records
    return None if records is None else records * study.stated_evaluation.holdout


def _site_counts(plan: StudyPlan, draws: Draws) -> SiteCounts | None:
    """How many records each site has, by what was released of those that are fitted
    where sites may differ: all but those that are held out."""
    counts, held_out, study = draws.site_records, 0.0, plan.study
    if counts is None or counts.size != len(study.sites):
        return None
    if study.evaluation is not None:
        if not study.checks_privately:
            return None  # public rows are not counted
        held_out = study.evaluation.holdout
    (sums,) = (each.sums for each in plan.phases if each.purpose == "records")
    chance = counts * held_out
    sd = np.sqrt(sums.noise_sd(sums.sites) ** 2 + chance.mean())
    return SiteCounts(counts / (1.0 - held_out), float(sd) / (1.0 - held_out))


def _difference(
    rival: Rival, released: Closing, metrics: PrivateMetrics, tail: float
) -> DifferenceRow:
    """How much better this fit predicts than the earlier one that the study names."""
    # As many as the check of the same rows has counted.
    rows = np.linspace(metrics["rows"]["lower"], metrics["rows"]["upper"], 101)
    draws = mean_difference(released.total, released.noise, rows)
    return {
        "against": rival.name,
        "study_hash": rival.study_hash,
        **mean_row(draws, tail),
    }


def scores_of(
    how: HeldOutCheck,
    released: Closing,
    draws: Floats,
    design: Design,
    tail: float,
    rows: float | None,
) -> PrivateMetrics:
    """Scores of held-out rows with intervals, as ``result.json`` has them.

    Parameters
    ----------
    tail
        What an interval leaves out on either side.
    rows
        Held-out rows to be expected; None where the study does not know.
    """
    total, noise = released.total, released.noise
    match how:
        case BinaryCheck():
            return _binary(total, noise, rows, tail)
        case SurvivalCheck():
            return _survival(how, total, noise, rows, draws, design, tail)
        case NumberCheck():
            low, high = (np.full(NUMBER_BINS, end) for end in how.ends)
            reach = how.error_reach
            numbers = check_numbers(total, noise, low, high, reach, rows)
            return _numbers(numbers, tail, noise)
        case CountCheck():
            spread_by = how.dispersion(draws)
            fit = check_counts(total, noise, COUNT_EDGES, how.caps, rows, spread_by)
            ratio = fit.mean_predicted / fit.mean_observed
            said = mean_row(ratio, tail)
            return {**_numbers(fit, tail, noise), "predicted_over_observed": said}
    return {}


def mean_row(draws: Floats, tail: float) -> MeanRow:
    """Mean and interval of draws."""
    lower, upper = np.quantile(draws, [tail, 1.0 - tail])
    return {"mean": float(draws.mean()), "lower": float(lower), "upper": float(upper)}


def _binary(
    counts: Floats, noise: float, rows: float | None, tail: float
) -> PrivateMetrics:
    fit = recalibrate(counts, noise, tuple(LOG_ODDS.tolist()), rows)
    bins = fit.rows.mean(axis=0) >= LEAST_ROWS
    of_bin = noise * APART * float(np.sqrt(2.0))  # of two outcomes
    return {
        "rows": mean_row(fit.rows.sum(axis=1), tail),
        "events": mean_row(fit.events, tail),
        "auc": mean_row(fit.auc, tail),
        "brier": mean_row(fit.brier, tail),
        "log_score": mean_row(fit.log_score, tail),
        "calibration_intercept": mean_row(fit.calibration_intercept, tail),
        "calibration_slope": mean_row(fit.calibration_slope, tail),
        "calibration_in_the_large": mean_row(fit.calibration_in_the_large, tail),
        "predicted_over_observed": mean_row(fit.predicted_over_observed, tail),
        "calibration_table": [
            _bin(fit, int(j), tail, of_bin) for j in np.flatnonzero(bins)
        ],
    }


def _bin(fit: BinaryFit | MeanFit, j: int, tail: float, noise: float) -> CalibrationBin:
    """One bin of a calibration curve, whose count has so much noise."""
    found, rows = mean_row(fit.observed[:, j], tail), float(fit.rows[:, j].mean())
    return {
        "rows": rows,
        "predicted": float(fit.predicted[:, j].mean()),
        "observed": found["mean"],
        "lower": found["lower"],
        "upper": found["upper"],
        "within_noise": rows < NOISE_REACH * noise,
    }


def _survival(
    how: SurvivalCheck,
    counts: Floats,
    noise: float,
    rows: float | None,
    draws: Floats,
    design: Design,
    tail: float,
) -> PrivateMetrics:
    times = np.arange(1.0, INTERVALS + 1.0) / INTERVALS
    zero = Rows(design, np.zeros((design.width, 1)), {}, np.zeros(1))
    some = draws[:: -(-len(draws) // 200)]
    with np.errstate(all="ignore"):
        baseline = how.model.cumulative_hazard(some, zero, times[None, None, :])[:, 0]
        parts = np.diff(baseline / baseline[:, -1:], axis=1, prepend=0.0)
    shares = np.clip(np.nan_to_num(parts, nan=1.0 / INTERVALS), 1e-6, 1.0).mean(axis=0)
    edges = tuple(LOG_HAZARDS.tolist())
    fit = check_survival(counts, noise, edges, shares / shares.sum(), rows)
    change = risk_test(counts, noise, edges, shares / shares.sum(), rows)
    reach = float(ndtri(1.0 - tail)) * change.sd
    user = (times * how.model.horizon).tolist()
    groups: list[ObservedOverExpected] = [
        {
            "group": group,
            "time": t,
            "expected": float(fit.expected[:, g, k].mean()),
            "observed": float(fit.observed[:, g, k].mean()),
            **mean_row(fit.observed_over_expected[:, g, k], tail),
        }
        for g, group in enumerate(GROUPS)
        for k, t in enumerate(user)
    ]
    return {
        "rows": mean_row(fit.rows.sum(axis=1), tail),
        "events": mean_row(fit.events, tail),
        "c_index": mean_row(fit.c_index, tail),
        "log_score": mean_row(fit.log_score, tail),
        "calibration_slope": mean_row(fit.calibration_slope, tail),
        "auc_at": [
            _auc_at(t, mean_row(fit.auc[:, k], tail)) for k, t in enumerate(user)
        ],
        "brier_at": [
            _brier_at(t, mean_row(fit.brier[:, k], tail)) for k, t in enumerate(user)
        ],
        "observed_over_expected": groups,
        "risk_over_time": {
            "mean": change.mean,
            "lower": change.mean - reach,
            "upper": change.mean + reach,
            "p": change.p,
        },
    }


def _auc_at(time: float, found: MeanRow) -> AucAt:
    ends = found["lower"], found["upper"]
    return {"time": time, "auc": found["mean"], "lower": ends[0], "upper": ends[1]}


def _brier_at(time: float, found: MeanRow) -> BrierAt:
    ends = found["lower"], found["upper"]
    return {"time": time, "brier": found["mean"], "lower": ends[0], "upper": ends[1]}


def _numbers(fit: MeanFit, tail: float, noise: float) -> PrivateMetrics:
    found: PrivateMetrics = {"rows": mean_row(fit.everybody, tail)}
    if isinstance(fit, NumberFit):
        found["rmse"] = mean_row(fit.rmse, tail)
    if np.any(fit.shown):
        found["mean_predicted"] = mean_row(fit.mean_predicted, tail)
        found["mean_observed"] = mean_row(fit.mean_observed, tail)
    found["calibration_table"] = [
        _bin(fit, int(j), tail, noise) for j in np.flatnonzero(fit.shown)
    ]
    return found
