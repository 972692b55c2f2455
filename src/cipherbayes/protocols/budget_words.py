"""What fitting, checking and describing get of a budget, and what each buys."""

from __future__ import annotations

import math
from typing import NotRequired, TypedDict

from cipherbayes.models.score_difference import CLIP
from cipherbayes.privacy.accountant import compose, epsilon, total_mu
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.protocols.check_forecast import RARE, USUAL, Widths, expected_widths
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.study_plan import StudyPlan

NORMAL = 1.645
"""Standard deviations that a 90 % interval reaches."""
SCORES = {
    "auc": "AUC",
    "c_index": "concordance",
    "calibration_slope": "calibration slope",
    "calibration_in_the_large": "calibration in the large",
    "predicted_over_observed": "predicted over observed",
    "observed_over_expected": "observed over expected",
    "observed_over_expected_in_thirds": "the same in thirds of the risk",
    "rmse": "root mean squared error (in parts of it)",
}
USEFUL = {"auc": 0.15, "c_index": 0.15, "rmse": 0.5, "predicted_over_observed": 0.5}
"""Half widths from which on a score tells next to nothing, of the first of these that
a model has."""
ASSUMED = {
    "binary": "events in a fifth of the rows",
    "survival": "events in a third of the rows",
    "number": "errors of a seventh of the public range",
    "ordered": "errors of a seventh of all classes",
    "count": "a mean count of one",
}
"""What is assumed of the rows, by the family of the outcome."""
MOST_HELD = 0.5
"""Share of the rows from which on the fit lacks what is held out."""
MOST_NOISE = 0.25
"""Noise of a count, in records of a group, from which on a table tells nothing."""

MOST_SURE = 0.01
"""Noise of a count of the check, in held-out rows, up to which its intervals were found
to hold as often as they say."""
BEYOND = {
    "survival": "so much noise for so few rows makes intervals of scores wider than "
    "they need be: 90 % ones held in 0.92 to 0.95 of trials",
    "count": "so much noise for so few rows makes intervals of mean predictions hold "
    "less often than they say where predictions end abruptly: 90 % ones in about two "
    "thirds of trials",
}
"""What is known of intervals beyond that, by the family of the outcome."""


class BudgetUse(TypedDict):
    """What one use of a study's budget gets.

    Its ε alone, its share of the rows, and about how many these are; the noise of one
    of its counts, of a count of all records where groups add up to them, of sums of
    residuals, or of the mean difference of log scores; half widths of the scores'
    intervals, and of those where events are rare; and ε of a fit if every row were in
    four of five.
    """

    epsilon_alone: float
    rows: float
    records: NotRequired[float]
    count_noise: NotRequired[float]
    count_noise_of_all: NotRequired[float]
    half_widths: NotRequired[Widths]
    half_widths_rare: NotRequired[Widths]
    epsilon_alone_of_five_folds: NotRequired[float]
    difference_noise: NotRequired[float]
    residual_noise: NotRequired[float]


def budget_uses(plan: StudyPlan) -> dict[str, BudgetUse]:
    """What fitting, checking and describing get; empty where a study only fits.

    Each with the ε that it would cost alone, its share of the rows, and the noise of
    one of its counts; checking with that of a group's sum of residuals and with how
    wide its intervals will be, where the number of records is public.
    """
    if not plan.closing:
        return {}
    study, delta = plan.study, plan.study.privacy.delta
    records = study.privacy.records
    held = study.stated_evaluation.holdout if study.checks_privately else 0.0
    uses: dict[str, tuple[list[Phase], float]] = {
        "fitting": ([p for p in plan.phases if not p.closing], 1.0 - held),
        "describing": ([p for p in plan.closing if p.rows is None], 1.0),
        "checking": ([p for p in plan.closing if p.rows is not None], held),
    }
    found: dict[str, BudgetUse] = {}
    for name, (phases, rows) in uses.items():
        if not phases:
            continue
        cost = epsilon(compose(*(phase.event for phase in phases)), delta)
        found[name] = {"epsilon_alone": cost, "rows": rows}
        if records is not None:
            found[name]["records"] = records * rows
        if name != "fitting":
            sums = phases[0].sums
            found[name]["count_noise"] = sums.noise_sd(sums.sites)
        for phase in phases:
            noise = phase.sums.noise_sd(phase.sums.sites)
            if phase.cells is not None:
                found[name]["residual_noise"] = noise
            if phase.characteristics is not None:
                # Every grouping's groups are all records between them.
                groupings = phase.characteristics.groupings()
                told = sum(1.0 / len(groups) for _, groups in groupings)
                found[name]["count_noise_of_all"] = noise / math.sqrt(told)
            if phase.check is not None and records is not None:
                widths = expected_widths(phase.check, records * rows, noise)
                found[name]["half_widths"] = widths[USUAL]
                if RARE in widths:
                    found[name]["half_widths_rare"] = widths[RARE]
    if held:
        # In five folds a row would be in four fits, each with a fourth of its μ².
        mu = total_mu(compose(*(phase.event for phase in uses["fitting"][0])))
        found["fitting"]["epsilon_alone_of_five_folds"] = epsilon(
            GaussianSum(2.0 / mu), delta
        )
    return found | _compared(plan, held)


def _compared(plan: StudyPlan, held: float) -> dict[str, BudgetUse]:
    """What a comparison with an earlier fit gets: its noise in the mean difference."""
    phases = [phase for phase in plan.closing if phase.purpose == "difference"]
    if not phases:
        return {}
    (phase,) = phases
    cost = epsilon(phase.event, plan.study.privacy.delta)
    found: BudgetUse = {"epsilon_alone": cost, "rows": held}
    if plan.study.privacy.records is not None:
        rows = plan.study.privacy.records * held
        found["difference_noise"] = CLIP * phase.sums.noise_sd(phase.sums.sites) / rows
    return {"comparing": found}


def budget_lines(plan: StudyPlan) -> list[tuple[str, str]]:
    """What each use gets, in words: its name, which is empty where a line goes on."""
    uses = budget_uses(plan)
    if not uses:
        return []
    fitting = uses["fitting"]
    said = f"ε = {fitting['epsilon_alone']:.3g} alone, on {_share(fitting)} of the rows"
    lines = [("fitting", f"{said}{_about(fitting)}")]
    if "checking" in uses:
        lines += _checking(uses["checking"], plan.study.model.family)
        beyond = beyond_trials(plan)
        lines += [] if beyond is None else [("", beyond)]
        folds = fitting["epsilon_alone_of_five_folds"]
        lines.append(
            (
                "five folds",
                "not offered: every row would pay for four fits of "
                f"ε = {folds:.3g} each, with twice the noise",
            )
        )
    if "comparing" in uses:
        compared = uses["comparing"]
        noise = compared.get("difference_noise")
        known = "" if noise is None else f": known to ±{NORMAL * noise:.2g} (90 %)"
        lines.append(
            (
                "comparing",
                f"ε = {compared['epsilon_alone']:.3g} of checking, for the mean "
                f"difference of log scores{known} but for what rows vary by",
            )
        )
    if "describing" in uses:
        described = uses["describing"]
        own, whole = described["count_noise"], described["count_noise_of_all"]
        known = f"a count is known to ±{_known(own)} (90 %)"
        if whole != own:
            known = (
                f"a count in a group is known to ±{_known(own)} (90 %), one of "
                f"all records to ±{_known(whole)}: the noise of groups adds up"
            )
        cost = f"ε = {described['epsilon_alone']:.3g} alone, on all rows: {known}"
        lines.append(("describing", cost))
    return lines


def beyond_trials(plan: StudyPlan) -> str | None:
    """What is known of a check's intervals where noise is so large beside the held-out
    rows that they do not hold as often as they say; None where they do."""
    records, family = plan.study.privacy.records, plan.study.model.family
    phases = [phase for phase in plan.closing if phase.check is not None]
    if not phases or records is None or family not in BEYOND:
        return None
    rows = records * plan.study.stated_evaluation.holdout
    sums = phases[0].sums
    return BEYOND[family] if sums.noise_sd(sums.sites) > MOST_SURE * rows else None


def _checking(check: BudgetUse, family: str) -> list[tuple[str, str]]:
    lines = [
        (
            "checking",
            f"ε = {check['epsilon_alone']:.3g} alone, on the other "
            f"{_share(check)}{_about(check)}: a row pays for one of the two; a sum "
            f"of prediction × outcome is known to ±{_known(check['count_noise'])} "
            "(90 %), a group's sum of residuals to "
            f"±{_known(check['residual_noise'])}",
        )
    ]
    if "half_widths" in check:
        usual = widths_in_words(check["half_widths"])
        lines.append(("", f"scores to about, with {ASSUMED[family]}: {usual} (90 %)"))
    if "half_widths_rare" in check:
        rare = widths_in_words(check["half_widths_rare"])
        lines.append(("", f"the same with events in a twentieth: {rare}"))
    return lines


def widths_in_words(widths: Widths) -> str:
    """How well each score will be known."""
    return ", ".join(f"{SCORES[name]} ±{each:.2g}" for name, each in widths.items())


def _known(noise: float) -> str:
    """How far 90 % of noise with this standard deviation reaches."""
    reach = NORMAL * noise
    return f"{reach:.3g}" if reach < 1000.0 else f"{reach:,.0f}"


def _share(use: BudgetUse) -> str:
    return f"{100 * use['rows']:.4g} %"


def _about(use: BudgetUse) -> str:
    return f" (about {use['records']:,.0f})" if "records" in use else ""


def budget_cautions(plan: StudyPlan) -> list[str]:
    """Warnings of checks and descriptions that will tell next to nothing."""
    uses = budget_uses(plan)
    found = []
    if "checking" in uses:
        found += _useless_check(uses["checking"])
    if "checking" in uses and uses["checking"]["rows"] > MOST_HELD:
        found.append(
            f"evaluation.holdout = {uses['checking']['rows']:g} leaves "
            f"{_share(uses['fitting'])} of the rows{_about(uses['fitting'])} to the "
            "fit: hold out less, e.g. 0.2"
        )
    if "describing" in uses:
        found += _useless_description(plan, uses["describing"])
    return found


def _useless_check(check: BudgetUse) -> list[str]:
    widths = check.get("half_widths", {})
    judged = next((name for name in USEFUL if name in widths), None)
    if judged is None or widths[judged] < USEFUL[judged]:
        return []
    more = "hold out more (evaluation.holdout), " if check["rows"] < MOST_HELD else ""
    return [
        f"checking will tell next to nothing: about {check['records']:,.0f} rows are "
        f"held out, and with this noise {SCORES[judged]} is known to "
        f"±{widths[judged]:.2g}; {more}raise epsilon or N, or leave [evaluation] out"
    ]


def _useless_description(plan: StudyPlan, described: BudgetUse) -> list[str]:
    (table,) = (p.characteristics for p in plan.closing if p.characteristics)
    if "records" not in described:
        return []
    groups = max(len(names) for _, names in table.groupings())
    records, noise = described["records"], described["count_noise"]
    if NORMAL * noise < MOST_NOISE * records / groups:
        return []
    there = (
        f"a group has about {records / groups:,.0f}"
        if groups > 1
        else f"there are {records:,.0f}"
    )
    remedy = "raise describe.share, epsilon or N"
    if table.by:
        remedy += ', or leave some of "by" out'
    return [
        f"describing will tell next to nothing{' of groups' if groups > 1 else ''}: a "
        f"count is known to ±{_known(noise)} where {there} records; {remedy}"
    ]
