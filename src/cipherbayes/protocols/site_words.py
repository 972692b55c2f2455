"""Whether sites may differ, and what each gives away by it, for whoever reads a plan.

A site's own slot of a gradient sum is its outcomes less those that its patients'
features predict; the noise of all rounds together is how exactly that becomes known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.study.schema import PrivateStudy, Study
from cipherbayes.study.sections import Hierarchy
from cipherbayes.study.tables import preparation_of, slots_of

ALIKE = (
    "taken to be alike: where their levels differ for reasons that are no feature, "
    "intervals are too narrow"
)
TWICE = 2.0
"""Standard deviations of the noise that are told as what may become known."""
FEW_SITES = 5
"""Sites from which on they tell how much they differ."""
HIDDEN = 1.0
"""Noise, twice its standard deviation, over a site's outcomes that hides these."""
ENOUGH = 4.0
"""Outcomes of a site with an equal share, over that noise, from which on a fit can be
used: a rule of thumb."""
OUTCOMES = 0.2
"""Share of records with the outcome, where what is told of a site is put in numbers."""


@dataclass(frozen=True)
class GivenAway:
    """How exactly anybody knows of one site, twice the noise's standard deviation.

    Attributes
    ----------
    records
        How many it has.
    outcomes
        How many more or fewer outcomes it has than its patients' features predict, at
        best: unusual records, and long survivors past a point, count for less. None
        where sites differ in slopes alone.
    each
        The same of one number of a site's own: of the outcomes in one interval of a
        baseline, and of the sum of (outcome less predicted) times a column whose effect
        differs, in the units that the column is prepared in.
    """

    records: float
    outcomes: float | None
    each: float


def alike_in_words(study: Study) -> str:
    """Says that sites are taken to be alike, and how a study lets them differ."""
    bounded = study.model.bounded_influence
    may = bounded is not None and bounded.multilevel
    if not may or (study.private and not study.rules.multilevel):
        return ALIKE
    return f"{ALIKE}; a [hierarchy] table lets them differ"


def given_away(plan: StudyPlan) -> GivenAway:
    """What the noise of a plan with sites that differ leaves to be known of a site."""
    study, hierarchy = plan.study, plan.study.stated_hierarchy
    counts = next(phase.sums for phase in plan.phases if phase.purpose == "records")
    records = TWICE * counts.noise_sd(counts.sites)
    precision = sum(
        phase.rounds / phase.sums.noise_sd(phase.sums.sites) ** 2
        for phase in plan.sampling
    )
    each = TWICE / math.sqrt(precision)
    if not hierarchy.intercept:
        return GivenAway(records, None, each)
    design = preparation_of(study).design
    # A baseline has a slot for every interval; a level one of the constant's size.
    slots = _intervals(study)
    unit = 1.0 if design.intercept is None else design.intercept
    return GivenAway(records, math.sqrt(slots) * each / unit, each)


def sites_in_words(plan: StudyPlan) -> list[str]:
    """Whether sites may differ; where they may, line by line what each gives away."""
    study = plan.study
    slots = slots_of(study)
    if slots is None:
        return [alike_in_words(study)] if len(study.sites) > 1 else []
    hierarchy = study.stated_hierarchy
    said = " and ".join(
        [
            *(["their level"] if hierarchy.intercept else []),
            *(["their baseline's shape"] if shapes_differ(study) else []),
            *(f"the effect of {name}" for name in hierarchy.slopes),
        ]
    )
    own = len(slots.places)
    together = "".join(
        f"; {' and '.join(sites)} are one, '{name}'"
        for name, sites in hierarchy.groups.items()
    )
    return [
        f"may differ in {said} ({hierarchy.effects} effects): each site has "
        f"{own} number{'' if own == 1 else 's'} of its own in every sum of gradients"
        f"{together}",
        *few_sites_caution(hierarchy, len(slots.sites)),
        *given_in_words(plan),
    ]


def given_in_words(plan: StudyPlan) -> list[str]:
    """What each site gives away, line by line, where sites may differ."""
    study, known = plan.study, given_away(plan)
    hierarchy, slots = study.stated_hierarchy, slots_of(study)
    assert slots is not None
    learns = [
        f"so anyone learns of each site its number of {records_word(study)} to about "
        f"± {known.records:.0f} (two standard deviations of the noise, as every ± here)"
    ]
    if known.outcomes is not None:
        learns.append(
            "and by how many its outcomes are more or fewer than its patients' "
            f"features predict to ± {known.outcomes:.0f} at best"
            + _in_intervals(study, known)
        )
    learns += [
        f"and how its outcomes go with {name}: the sum of (outcome less predicted) × "
        f"{name}, in {unit_of_columns(study)}, to ± {known.each:.0f}"
        for name in hierarchy.slopes
    ]
    return [
        *learns,
        "one record is protected as in any study, a hospital as a whole is not",
        *_of_typical_sites(study, len(slots.sites), known),
        *_full_counts(study),
    ]


def _intervals(study: Study) -> int:
    """Intervals of the baseline; 1 where there is a constant column instead."""
    return len(study.model.constants(preparation_of(study).design))


def own_levels(study: PrivateStudy) -> int:
    """Constants that belong to one site each, an interval's among them; none where
    sites are alike."""
    slots = slots_of(study)
    if slots is None or not study.stated_hierarchy.intercept:
        return 0
    return len(slots.sites) * _intervals(study)


def shapes_differ(study: Study) -> bool:
    """Whether each site's baseline has a shape of its own."""
    hierarchy = study.stated_hierarchy
    fixed = hierarchy.effects == "fixed" and hierarchy.intercept
    return hierarchy.baseline == "stratified" or (fixed and _intervals(study) > 1)


def _in_intervals(study: PrivateStudy, known: GivenAway) -> str:
    """What is known of a site in each interval of a baseline, where there are some."""
    intervals = _intervals(study)
    if intervals == 1:
        return ""
    return f", in each of the {intervals} intervals to ± {known.each:.0f}"


def few_sites_caution(hierarchy: Hierarchy, sites: int) -> list[str]:
    """A warning that few sites hardly tell how much sites differ."""
    if sites >= FEW_SITES or hierarchy.effects == "fixed":
        return []
    return [
        f"{sites} sites hardly tell how much sites differ: τ, and with it what is "
        "said of a new site, is mostly its prior, half-normal of scale "
        f"{hierarchy.scale:g}"
    ]


def unit_of_columns(study: PrivateStudy) -> str:
    """What a prepared column counts in."""
    if study.releases_scales:
        return "standard deviations"
    return "half widths of its public range"


def records_word(study: Study) -> str:
    """Which records of a site the count is of: those the model is fitted to."""
    return "records" if study.evaluation is None else "training records"


def _full_counts(study: Study) -> list[str]:
    """What the table of characteristics tells besides, of all of a site's records."""
    if study.describe is None or "site" not in study.describe.by:
        return []
    held = "" if study.evaluation is None else ", held-out ones included"
    return [
        "[describe] by site releases, of each site's records, their full count"
        f"{held}, how many have the outcome, and every feature's distribution"
    ]


def outcomes_needed(plan: StudyPlan) -> float | None:
    """How many outcomes all sites together need; None where sites have no level."""
    slots = slots_of(plan.study)
    known = None if slots is None else given_away(plan).outcomes
    if slots is None or known is None:
        return None
    return ENOUGH * known * len(slots.sites)


def needs_in_words(plan: StudyPlan) -> list[str]:
    """How many outcomes a fit needs that can be used; nothing where the records are
    too few for it, which is warned of."""
    needed, records = outcomes_needed(plan), plan.study.training_records
    if needed is None:
        return []
    said = f"about {float(f'{needed:.2g}'):,.0f}"
    if (expected := outcomes_expected(plan.study)) is not None and expected < needed:
        return []  # which is warned of
    if records is not None and plan.study.model.family != "count":
        if needed >= records:
            return []
        word = records_word(plan.study)
        said += f", {100.0 * needed / records:.2g} % of the {word},"
    return [
        f"{said} are needed over all sites: with fewer the sampler may not agree with "
        "itself, and the budget is spent on a result that cannot be used"
    ]


def outcomes_expected(study: PrivateStudy) -> float | None:
    """How many outcomes all sites have by the study's own word; None where it says
    nothing."""
    share, records = study.privacy.events, study.training_records
    return None if share is None or records is None else share * records


def outcomes_told(study: PrivateStudy) -> tuple[float, str]:
    """Share of records with the outcome that is told of, and that share in words."""
    if (events := study.privacy.events) is None:
        return OUTCOMES, "one record in five has the outcome"
    return events, f"records have {events:.2g} outcomes each, as the study says,"


def few_outcomes_caution(plan: StudyPlan) -> list[str]:
    """A warning where a study says itself that it has too few outcomes."""
    needed, expected = outcomes_needed(plan), outcomes_expected(plan.study)
    if needed is None or expected is None or expected >= needed:
        return []
    return [
        f"about {expected:,.0f} outcomes are to be expected (privacy.events), and "
        f"about {float(f'{needed:.2g}'):,.0f} are needed over all sites: with fewer "
        "the sampler may not agree with itself, and the budget is spent on a result "
        f"that cannot be used. {_remedies(plan)}"
    ]


def _remedies(plan: StudyPlan) -> str:
    """What helps where sites' own numbers are lost in noise."""
    slots = slots_of(plan.study)
    together = slots is not None and len(slots.sites) > 2
    first = "Put sites together under hierarchy.groups, take" if together else "Take"
    return f"{first} fewer cuts, raise epsilon, or remove [hierarchy]"


def hidden_sites_caution(plan: StudyPlan) -> list[str]:
    """A warning where noise will hide what differs between sites."""
    if found := few_outcomes_caution(plan):
        return found
    study, slots = plan.study, slots_of(plan.study)
    records = study.training_records
    if slots is None or records is None or not study.stated_hierarchy.intercept:
        return []
    intervals, outcomes = _intervals(study), given_away(plan).outcomes
    if outcomes is None:
        return []
    each = outcomes / math.sqrt(intervals)
    share, where_so = outcomes_told(study)
    usual = share * records / (len(slots.sites) * intervals)
    if each < HIDDEN * usual:
        return []
    where = "" if intervals == 1 else f" in each of {intervals} intervals"
    return [
        f"noise will hide what sites have of their own: one with an equal share has "
        f"about {usual:.0f} outcomes{where} where {where_so} known to "
        f"± {each:.0f}; levels of sites, and where they lie, will be mostly prior, and "
        f"the sampler may not agree with itself, with the budget spent. "
        f"{_remedies(plan)}"
    ]


def _of_typical_sites(study: PrivateStudy, sites: int, known: GivenAway) -> list[str]:
    """What is known of a usual site and of a small one, in shares of their records."""
    declared = study.training_records
    if declared is None or known.outcomes is None:
        return []
    told, (share, where_so) = [], outcomes_told(study)
    for name, count in (
        (
            f"with {declared // sites:,} {records_word(study)}, an equal share,",
            declared / sites,
        ),
        (f"with a tenth of that, {declared // (10 * sites):,},", declared / sites / 10),
    ):
        events = known.outcomes / (share * count)
        told.append(
            f"{name} {share_in_words(known.records / count)} of its records and "
            f"{share_in_words(events)} of its outcomes"
        )
    together = ["sites can be put together under hierarchy.groups"]
    return [
        f"where {where_so} that is, for a site {told[0]}",
        f"for one {told[1]}",
        *(together if sites > 2 else []),
    ]


def share_in_words(share: float) -> str:
    """± a share in per cent; "nothing" where it is 100 % or about as much."""
    percent = f"{100 * share:.2g}" if share < 0.1 else f"{100 * share:.0f}"
    return f"± {percent} %" if share < 0.995 else "nothing"
