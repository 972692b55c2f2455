"""Can it work? What public numbers alone say about a private study.

With N records, a clipping norm C and a total of μ over all rounds, the noise in the
averaged gradient sum has standard deviation s = C √(K/(K−c−r)) / μ in each
coordinate, and a coefficient has about the information I = N · curvature · E z²,
E z² ≈ 1/4 for a prepared column. So an effect of the prior's scale b moves the sum
by I b against s, and an interval is about √(1 + s²/I) times as wide as without
privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cipherbayes.inference.method import WidthRatio, WidthSetting
from cipherbayes.inference.methods import POINT
from cipherbayes.models.influence import require_bounded_influence
from cipherbayes.privacy.accountant import compose, epsilon
from cipherbayes.privacy.gaussian import epsilon_of, mu_for
from cipherbayes.protocols.site_words import hidden_sites_caution, own_levels
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.protocols.term_costs import TermCost, columns_lost, without_term
from cipherbayes.study.protocol_rules import choices
from cipherbayes.study.scales import scales_budget
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of

MEAN_SQUARE = 0.25
"""Mean square of a prepared column around its mean, guessed without data."""

RARE = 0.05
"""Share of records with the event that is rare."""

CLEAR = 3.0
"""Signal over noise from which an effect of the prior's scale can be seen."""


@dataclass(frozen=True)
class Forecast:
    """Prospects of a private study.

    Attributes
    ----------
    noise, signal
        Standard deviation of the noise in the averaged gradient sum; what an
        effect of the prior's scale adds to it.
    width_ratio
        Expected width of an interval over that without privacy.
    likely
        Between what widths most such studies are; None where that was never counted
        for the method.
    records_needed, epsilon_needed
        What would make the signal clear, everything else as it is.
    """

    noise: float
    signal: float
    width_ratio: float
    records_needed: int
    epsilon_needed: float | None
    likely: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """Signal over noise."""
        return self.signal / self.noise

    @property
    def drowned(self) -> bool:
        """Whether noise will hide effects of the prior's scale."""
        return self.ratio < CLEAR


def forecast_of(plan: StudyPlan, events: float | None = None) -> Forecast:
    """The prospects of a plan, from public numbers alone.

    ``events`` is the share of records with the event, or the mean count; what the
    study says, or a model's guess, where None.
    """
    study, release = plan.study, plan.last_phase.sums
    privacy = study.privacy
    events = privacy.events if events is None else events
    # A sampled study is as good as a full-batch one with the same ε and δ.
    spent = epsilon(compose(*(p.event for p in plan.sampling)), privacy.delta)
    mu = mu_for(spent, privacy.delta)
    sites = release.sites
    inflation = sites / (sites - release.colluders - release.dropouts)
    noise = release.clip * math.sqrt(inflation) / mu
    design = preparation_of(study).design
    standardised = study.releases_scales
    each = study.model.curvature(design)
    if events is not None:
        each = study.model.curvature_of(events, design)
    mass = each
    each *= 1.0 if standardised else MEAN_SQUARE
    records = _fitted_records(plan)
    information = records * each
    # No data can add more than all records pulling one way.
    most = records * release.clip
    signal = min(information * study.full_prior.usual_scale, most)
    factor = max(CLEAR * noise / signal, 1.0)
    ratio = _width_ratio(plan, mu, (each, mass), inflation)
    return Forecast(
        noise=noise,
        signal=signal,
        width_ratio=ratio.expected
        if ratio
        else math.sqrt(1.0 + noise**2 / information),
        records_needed=math.ceil(release.records * factor),
        epsilon_needed=_epsilon_for(mu * factor, privacy.delta),
        likely=None if ratio is None else (ratio.least, ratio.most),
    )


def _clear_from(plan: StudyPlan, forecast: Forecast) -> int:
    """Records from which the signal is clear: it grows as their number does."""
    evaluation = plan.study.evaluation
    fitted = 1.0 if evaluation is None else 1.0 - evaluation.holdout
    return math.ceil(_fitted_records(plan) * CLEAR / forecast.ratio / fitted)


def _fitted_records(plan: StudyPlan) -> int:
    """Records that the fit is expected to see; the most possible where N is open."""
    return plan.study.training_records or plan.last_phase.sums.records


def _width_ratio(
    plan: StudyPlan, mu: float, told: tuple[float, float], inflation: float
) -> WidthRatio | None:
    """What the method expects where it also has to learn its information matrix.

    ``told`` is what a record is expected to tell of a column and of a constant.
    """
    release, matrix = plan.last_phase.sums, plan.last_phase.information
    if matrix is None:
        return None
    design = preparation_of(plan.study).design
    bounded = require_bounded_influence(plan.study.model)
    unit = bounded.unit(design)
    information, mass = told
    # Before effects and events are known, a record tells what a model guesses.
    first = information / mass * plan.study.model.curvature(design)
    setting = WidthSetting(
        records=_fitted_records(plan),
        dimension=release.dimension,
        mu=mu,
        sensitivities=(release.clip, matrix.clip),
        information=information * unit**2,
        first_information=first * unit**2,
        prior_sd=plan.study.full_prior.usual_scale / unit,
        excess=inflation,
        levels=own_levels(plan.study),
        mass=mass * unit**2,
        intervals=len(plan.study.model.constants(design)),
        grows=bounded.multiplicative,
    )
    return plan.study.inference_method.width_ratio(setting)


def term_costs(plan: StudyPlan) -> list[TermCost]:
    """What each term of the study's formula costs; empty without a formula."""
    terms = plan.study.model.terms
    if terms is None:
        return []
    whole = forecast_of(plan).width_ratio
    costs: list[TermCost] = []
    for term in terms.terms:
        smaller, width = without_term(plan.study, terms, term), None
        columns = preparation_of(plan.study).design.width
        if smaller is not None:
            columns = columns_lost(plan.study, smaller)
            planned = plan.protocol.plan(smaller.with_privacy())
            if isinstance(planned, StudyPlan) and plan.study.privacy.records:
                width = whole / forecast_of(planned).width_ratio
        name = ":".join(factor.text for factor in term)
        costs.append({"term": name, "columns": columns, "width": width})
    return costs


def _epsilon_for(mu: float, delta: float) -> float | None:
    found = epsilon_of(mu, delta)
    return found if found < 100.0 else None


def prospects_in_words(plan: StudyPlan, forecast: Forecast) -> list[str]:
    """What the study can show; with an open N, from which N on it can."""
    if plan.study.privacy.records is None:
        return [
            "outlook     not known, because the number of records is not: add "
            "records = N under [privacy], which makes N public, to see it",
        ]
    method = plan.study.inference_method
    if method.is_point or method.interval_caution is not None:
        return [f"outlook     {POINT}"]
    lines = [f"intervals {_in_words(forecast, ' as wide as without privacy')}"]
    if (events := plan.study.privacy.events) is not None:
        lines[0] += f" with {_events_in_words(plan, events)}"
    else:
        lines += _with_few_events(plan, forecast)
    if forecast.likely is not None:
        lines.append(
            "correlated columns make intervals wide, and so does noise that happens to "
            "hide how they are correlated"
        )
    return [f"{'' if k else 'outlook':<12}{line}" for k, line in enumerate(lines)]


def _in_words(forecast: Forecast, beside: str = "") -> str:
    """How wide intervals are in the middle, and in most studies."""
    said = f"about {forecast.width_ratio:.2f} ×{beside}"
    if forecast.likely is None:
        return said
    low, high = forecast.likely
    return f"{said} ({low:.2g} to {high:.2g} × in most studies)"


def signal_in_words(plan: StudyPlan, forecast: Forecast) -> str:
    """How large an effect is beside the noise."""
    said = "an effect as large as the prior expects is "
    if plan.study.privacy.records is None:
        return (
            f"{said}{CLEAR:g} times the noise from about "
            f"{_clear_from(plan, forecast):,} records on"
        )
    return f"{said}{forecast.ratio:.3g} times the noise (seen from {CLEAR:g} on)"


def _events_in_words(plan: StudyPlan, events: float) -> str:
    if plan.study.model.family == "count":
        return f"a mean count of {events:.2g}"
    return f"events in {events:.2g} of the records"


def _with_few_events(plan: StudyPlan, forecast: Forecast) -> list[str]:
    """How wide intervals are where events are rare; nothing where there are none."""
    rare = forecast_of(plan, RARE)
    if rare.width_ratio == forecast.width_ratio:
        return []
    return [
        f"{_in_words(rare)} with {_events_in_words(plan, RARE)}; say what is known of "
        "them: events = ... under [privacy]"
    ]


def advice(plan: StudyPlan, forecast: Forecast) -> list[str]:
    """Plain warnings about a study that will run, but not well."""
    study = plan.study
    privacy = study.privacy
    warnings = []
    if study.insecure:
        warnings.append(
            "INSECURE-REPEATABLE NOISE: for tests only, protects nobody, not certified"
        )
    records = plan.last_phase.sums.records
    if privacy.records is not None and privacy.delta * records > 0.1:
        size = (
            "not below" if privacy.delta * records >= 1.0 else "not much smaller than"
        )
        warnings.append(
            f"delta = {privacy.delta:g} is {size} 1/N = {1.0 / records:.2g}: it would "
            "allow what publishes somebody's whole record now and then; lower it, e.g. "
            f"to {0.01 / records:.0e}"
        )
    warnings.extend(_few_sites(study))
    warnings.extend(hidden_sites_caution(plan))
    if forecast.drowned:
        enough = [f"N = {forecast.records_needed:,} records"]
        if forecast.epsilon_needed is not None:
            enough.append(f"epsilon = {forecast.epsilon_needed:.2g}")
        warnings.append(
            "noise will drown effects of the prior's scale (an effect is only "
            f"{forecast.ratio:.2g} times the noise); {' or '.join(enough)} would "
            "suffice"
        )
    if study.scales_wanted and not study.releases_scales:
        warnings.append(
            "N and epsilon are too small to find the columns' scales privately "
            f"(a bin's noise is {100.0 * (scales_budget(study).noise or 0.0):.2g} % of "
            "N): columns keep their public ranges, so choose these as tight as public "
            "knowledge allows, or raise epsilon or N"
        )
    warnings.extend(steps_of_curves(study))
    warnings.extend(study.inference_method.cautions(study.model))
    if study.inference_method.is_point:
        warnings.append(POINT)
    return warnings


def steps_of_curves(study: Study) -> list[str]:
    """Steps that were asked for and mean nothing: a curve has no effect per step."""
    terms = study.model.terms
    factors = [] if terms is None else [f for term in terms.terms for f in term]
    curved = dict.fromkeys(f.column for f in factors if f.curve)
    return [
        f"features.{name}.per does not apply to a curve: its effect is told between "
        "two values; for others ask in Python, "
        f'cb.Result.load(DIR).contrast("{name}", VALUE, AGAINST)'
        for name in curved
        if study.features[name].per is not None
    ]


def _few_sites(study: Study) -> list[str]:
    """What one or two sites cannot have of a study between several."""
    if not study.rules.federated or len(study.sites) > 2:
        return []
    if len(study.sites) == 1:
        return [
            "one site: there is nobody to hide its part from, and encryption adds "
            f"nothing; protocol = {choices(lambda each: not each.federated)} under "
            "[study] gives the same for less"
        ]
    return [
        "two sites: each can take its own part away from the total, so the other's "
        "noise alone protects the rest; a third site would be a better protection"
        + ("" if study.colluders else ", and colluders = 0 protects neither from it")
    ]
