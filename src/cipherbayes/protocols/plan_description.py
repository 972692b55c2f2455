"""What `cipherbayes plan` and whoever approves a study read of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypedDict

from cipherbayes.models import Model
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.protocols.budget_words import (
    BudgetUse,
    budget_cautions,
    budget_lines,
    budget_uses,
)
from cipherbayes.protocols.certificate import covers
from cipherbayes.protocols.forecast import (
    RARE,
    Forecast,
    advice,
    forecast_of,
    prospects_in_words,
    signal_in_words,
    term_costs,
)
from cipherbayes.protocols.imputation_words import (
    ImputationCost,
    imputation_cost,
    imputation_lines,
)
from cipherbayes.protocols.plan import Plan
from cipherbayes.protocols.site_words import needs_in_words, sites_in_words
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.protocols.term_costs import TermCost
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of, slots_of
from cipherbayes.typing import JsonObject

INSECURE_NOISE = (
    "noise       INSECURE: from a seed that everyone knows. It protects nobody and is "
    "for tests on one machine"
)
OTHER_PRIOR = (
    "(without a [privacy] table it would be of scale 1 for half of a column's public "
    'range; preparation.method = "public-bounds" gives both studies that one)'
)
NO_PARAMETERS = {
    "scheme": None,
    "ring": None,
    "modulus_bits": None,
    "security_bits": None,
}


class PlanFigures(TypedDict, total=False):
    """What ``plan --json`` says of a study that releases noised sums."""

    epsilon_after: dict[str, float]
    sampling_rate: float
    clip: float
    dimension: int
    signal_over_noise: float | None
    width_ratio: float | None
    width_ratio_rare: float | None
    width_likely: tuple[float, float] | None
    width_likely_rare: tuple[float, float] | None
    budget: dict[str, BudgetUse]
    terms: list[TermCost]
    imputation: ImputationCost


@dataclass(repr=False)
class PlanDescription:
    """What ``cipherbayes plan`` says: lines for people, values for programs.

    Attributes
    ----------
    lines
        Text without markup.
    paper_claim
        The claimed and the honest ε of the paper's own method.
    parameters
        Encryption parameters; all None where nothing is encrypted.
    further
        Values that only some protocols have.
    """

    lines: list[str]
    rounds: int | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    certified: bool = False
    paper_claim: dict[str, float] | None = None
    parameters: Mapping[str, str | int | None] = field(
        default_factory=lambda: dict(NO_PARAMETERS)
    )
    bytes_per_round_site: int = 0
    warnings: list[str] = field(default_factory=list)
    further: PlanFigures = field(default_factory=PlanFigures)

    def __repr__(self) -> str:
        return "\n".join([*self.lines, *(f"warning: {w}" for w in self.warnings)])

    def with_warning(self, text: str) -> PlanDescription:
        """The same with one warning more."""
        return replace(self, warnings=[*self.warnings, text])

    def record(self) -> JsonObject:
        """What ``cipherbayes plan --json`` prints."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        further = values.pop("further")
        del values["lines"]
        return {**values, **further}


def describe(plan: StudyPlan) -> PlanDescription:
    """The plan of a study that releases noised sums."""
    forecast = forecast_of(plan)
    release, encryption = plan.last_phase.sums, plan.encryption
    growth = epsilon_by_tenths(plan)
    cautions = plan.cautions()
    costs = term_costs(plan)
    drawn = imputation_cost(plan)
    further: PlanFigures = {
        "epsilon_after": {str(rounds): spent for rounds, spent in growth},
        "sampling_rate": release.rate,
        "clip": release.clip,
        "dimension": release.dimension,
        "signal_over_noise": None,
        "width_ratio": None,
        "width_ratio_rare": None,
        "width_likely": None,
        "width_likely_rare": None,
    }
    if plan.study.privacy.records is not None:
        further["signal_over_noise"] = forecast.ratio
        further["width_ratio"] = forecast.width_ratio
        further["width_likely"] = forecast.likely
        rare = forecast_of(plan, RARE)
        further["width_ratio_rare"] = rare.width_ratio
        further["width_likely_rare"] = rare.likely
    if uses := budget_uses(plan):
        further["budget"] = uses
    if costs:
        further["terms"] = costs
    if drawn is not None:
        further["imputation"] = drawn
    return PlanDescription(
        [
            *_lines(plan, forecast),
            *_terms_in_words(costs),
            *imputation_lines(drawn),
            *_technical_lines(plan, forecast, growth),
        ],
        rounds=plan.rounds,
        noise_multiplier=plan.noise_multiplier,
        epsilon=growth[-1][1],
        delta=plan.study.privacy.delta,
        certified=plan.certified,
        parameters=NO_PARAMETERS if encryption is None else encryption.record(),
        bytes_per_round_site=0 if encryption is None else encryption.message_bytes,
        warnings=[*advice(plan, forecast), *budget_cautions(plan), *cautions],
        further=further,
    )


def epsilon_by_tenths(plan: Plan) -> list[tuple[int, float]]:
    """ε spent after each tenth of the rounds."""
    tenths = sorted({-(-plan.rounds * k // 10) for k in range(1, 11)})
    return [(rounds, plan.epsilon_after(rounds)) for rounds in tenths]


def _named_lines(name: str, said: Sequence[str]) -> list[str]:
    """Lines of which the first has a name."""
    return [f"{'' if k else name:<12}{line}" for k, line in enumerate(said)]


def _lines(plan: StudyPlan, forecast: Forecast) -> list[str]:
    study, release = plan.study, plan.last_phase.sums
    privacy = study.privacy
    records = f"{privacy.records:,}" if privacy.records else "released with noise"
    count = len(study.sites)
    sites = f"{count} site{'' if count == 1 else 's'}"
    person = privacy.person
    record = "record" if person is None else f"person (all rows of one '{person}')"
    lines = [
        f"{study.name}: {study.model.kind}, {study.protocol}, "
        f"{sites if study.rules.federated else 'one place'}, N = {records}, "
        f"{parameters_in_words(plan)}",
        f"promise     ({privacy.epsilon:g}, {privacy.delta:g})-differential privacy, "
        f"adding or removing one {record}{'' if plan.certified else ', not certified'}",
        *prospects_in_words(plan, forecast),
        *_named_lines("outcomes", needs_in_words(plan)),
        f"prior       {prior_in_words(study)}",
        *([f"            {OTHER_PRIOR}"] if other_prior_without_privacy(study) else []),
    ]
    lines += _named_lines("sites", sites_in_words(plan))
    lines += [f"{name:<12}{text}" for name, text in budget_lines(plan)]
    if study.rules.federated:
        lines.append(
            f"colluders   {release.colluders} of {sites} may pool what they know; "
            f"{release.dropouts} may be lost"
        )
    return lines


def _technical_lines(
    plan: StudyPlan, forecast: Forecast, growth: list[tuple[int, float]]
) -> list[str]:
    """How the promise is kept: for whoever checks it."""
    release, encryption = plan.last_phase.sums, plan.encryption
    spent = ", ".join(f"{e:.2g} after {n}" for n, e in growth)
    sampled = f", each on {100 * release.rate:.3g} % of the rows"
    fitting = sum(phase.rounds for phase in plan.sampling)
    others = f", {fitting} of them" if fitting < plan.rounds else ""
    lines = [
        f"releases    {plan.rounds} rounds{others} of {plan.study.method}"
        + (sampled if release.rate < 1 else ""),
        f"epsilon     {spent}",
        *_named_lines("noise", _noise(plan)),
        f"signal      {signal_in_words(plan, forecast)}",
    ]
    if encryption is not None:
        lines += [
            f"encryption  {encryption}",
            f"traffic     {encryption.message_bytes:,} bytes from each site in a "
            f"round, about {encryption.total_bytes / 1e6:,.0f} MB in all",
        ]
    return lines


def parameters_in_words(plan: StudyPlan) -> str:
    """How many of each sort, e.g. ``5 coefficients, intercept, log_shape``."""
    study = plan.study
    design = preparation_of(study).design
    constant = 0 if design.intercept is None else 1
    columns = design.width - constant
    words = [f"{columns} coefficient{'' if columns == 1 else 's'}"]
    words += ["intercept"] * constant
    named = study.model.parameters(design)
    for stem, names in itertools.groupby(
        named[design.width :], lambda name: name.partition("[")[0]
    ):
        count = len(list(names))
        words.append(stem if count == 1 else f"{count} × {stem}")
    if (slots := slots_of(study)) is not None:
        words.append(f"{len(slots.places)} of each site's own")
    return ", ".join(words)


def other_prior_without_privacy(study: Study) -> bool:
    """Whether the study would have another prior if its budget were removed."""
    return study.releases_scales and study.preparation.method is None


def prior_in_words(study: Study) -> str:
    """What the prior of effects expects, in the terms of a reader of results."""
    prior = study.full_prior
    scale = prior.usual_scale
    unit = (
        "a standard deviation of a column"
        if study.releases_scales
        else ("half of a column's public range")
    )
    said = f"{prior.kind} of scale {scale:g} for {unit}"
    if prior.kind == "normal" and study.model.measure is not None:
        said += f": {_effects_in_words(study.model, 1.96 * scale)} in 95 of 100"
    if prior.intercept is not None:
        said += f"; constants {prior.intercept:g}"
    names = shapes_in_words(study)
    if prior.shape is not None and names:
        said += f"; {names} {prior.shape:g}"
    return said


def shapes_in_words(study: Study) -> str:
    """What parameters there are that are neither effects nor constants."""
    design = preparation_of(study).design
    names = study.model.parameters(design)
    found = (names[place].partition("[")[0] for place in study.model.shapes(design))
    return ", ".join(dict.fromkeys(found))


def _effects_in_words(model: Model, most: float) -> str:
    """Effects that change the linear predictor by so much at most."""
    if model.family == "number":
        # The linear predictor counts in half widths of the outcome's range.
        return f"{model.measure}s of at most {50 * most:.2g} % of the outcome's range"
    low, high = math.exp(-most), math.exp(most)
    return f"{model.measure}s between {low:.2g} and {high:.2g}"


def _noise(plan: StudyPlan) -> list[str]:
    release, weighting = plan.last_phase.sums, plan.last_phase.weighting
    if weighting is None:
        return [f"{_noise_beside_a_record(release, 'totals')}, in every round"]
    matrix = plan.last_phase.information
    said = [
        _noise_beside_a_record(
            release, "totals of gradients (where records pull effects)"
        )
    ]
    if matrix is not None:
        curvatures = "totals of curvatures (how strongly they hold them there)"
        said.append(_noise_beside_a_record(matrix, curvatures))
    return [
        *said,
        f"in the last {plan.last_phase.rounds} rounds; an unusual record, whose "
        f"prepared row is longer than {weighting.clip:.3g}, adds less",
    ]


def _noise_beside_a_record(release: ReleasePlan, totals: str) -> str:
    """The noise of a release, beside the most that one record adds to it."""
    noise = release.noise_multiplier * release.clip
    return (
        f"standard deviation {noise:.3g} on {totals}, to which one record adds "
        f"{release.clip:.3g} at most"
    )


def approval_lines(plan: StudyPlan) -> list[str]:
    """What a study spends and sends, for whoever decides whether it may run."""
    study, privacy = plan.study, plan.study.privacy
    widest = max(phase.dimension for phase in plan.phases)
    records = f"{privacy.records:,}" if privacy.records else "counted with noise"
    against = "; ".join(plan.protocol.holds_against(study)) or "nobody"
    lines = [
        f"records     {records}, the most {privacy.units} that all sites together may "
        "have",
        f"promise     epsilon {privacy.epsilon:g}, delta {privacy.delta:g}; holds "
        f"against {against}",
        f"covers      {covers(plan)}",
        f"rounds      {plan.rounds}, charged to the table's ledger first",
        f"leaves here in each round one vector of at most {widest} numbers: a sum over "
        f"{privacy.units}, each bounded, plus noise drawn here; {plan.protocol.leaves}",
        *_named_lines("sites", sites_in_words(plan)),
        "is opened   what the vectors of all sites give together"
        + (", or of all but the lost" if privacy.dropouts else ""),
        *(f"{name:<12}{text}" for name, text in budget_lines(plan)),
    ]
    return [*lines, INSECURE_NOISE] if study.insecure else lines


def _terms_in_words(costs: list[TermCost]) -> list[str]:
    """One line for each term."""
    said = []
    for cost in costs:
        word = "column" if cost["columns"] == 1 else "columns"
        line = f"{cost['term']}: {cost['columns']} {word} with its products"
        if cost["width"] is not None:
            line += f", other intervals {cost['width']:.3f} × as wide as without it"
        said.append(line)
    return _named_lines("terms", said)
