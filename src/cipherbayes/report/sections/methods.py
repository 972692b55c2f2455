"""*For a paper*: a paragraph of methods and the items of a reporting checklist."""

from __future__ import annotations

from collections.abc import Iterator

from cipherbayes.data.imputing import DRAWS
from cipherbayes.inference.between_sites import NEIGHBOURS
from cipherbayes.models.survival import cause_of
from cipherbayes.protocols.certificate import promised
from cipherbayes.protocols.plan_description import shapes_in_words
from cipherbayes.protocols.site_words import shapes_differ
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import interval, number, percent, short
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.made_up import MadeUp
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import near_each_other, preparation_of

AWARE = ", which count the noise that was added for privacy"
MEASURES = {
    "auc": "AUC",
    "c_index": "concordance",
    "brier": "Brier score",
    "calibration_in_the_large": "calibration in the large",
    "calibration_slope": "calibration slope",
    "predicted_over_observed": "predicted over observed",
    "observed_over_expected": "observed over expected",
    "rmse": "root mean squared error",
}
"""Scores of held-out rows that a paper gives."""
LEFT = "not in the study file: yours to write"


def methods_section(contents: Contents) -> Markup:
    """The whole section."""
    rows: list[list[Content]] = [list(item) for item in checklist(contents)]
    return join(
        tag("p", "To paste into a paper, and to correct there: it says what the study "
            "file and the run say, and nothing of how patients were chosen."),
        tag("blockquote", methods_paragraph(contents), id="methods-paragraph"),
        table(
            "Items of STROBE (S) and TRIPOD (T) that this run answers",
            ["Item", "Answer"],
            rows,
            words=(1,),
            class_="checklist",
            id_="checklist",
        ),
    )  # fmt: skip


def methods_paragraph(contents: Contents) -> str:
    """Model, prior, privacy and software in the words of a methods section."""
    study, record = contents.study, contents.record
    privacy, sites = record["privacy"], len(record["sites"])
    model = _model(study)
    place = f"{sites} sites" if sites > 1 else "one site"
    said = (
        f"We fitted a Bayesian {model} of {_outcome(study)} to the records of {place}, "
        f"with {len(study.features)} predictor{'s' * (len(study.features) != 1)} "
        f"({', '.join(study.features)}). "
        f"{_ranges(study)} {_gaps(study)}{_held_out(study)}{_described(study)}"
        f"{_prior(study)} "
        f"{_between(study)}"
    )
    promise = promised(privacy)
    if promise is None:
        said += "Records were analysed in one place, without differential privacy. "
    else:
        word = "is" if privacy["certified"] else "is NOT certified to be"
        said += (
            f"What was released {word} ({short(promise[0])}, "
            f"{short(promise[1])})-differentially private for adding or removing "
            f"one {_record(study)}, spent in {contents.all_rounds} rounds"
            + ("; no record left its site. " if contents.protocol.federated else ". ")
        )
    if all(row["lower"] is None for row in record["posterior"]):
        said += "Estimates are points without intervals. "
    else:
        said += (
            "Effects are posterior medians and parameters posterior means, with "
            f"{percent(record['interval'])} credible intervals"
            + (AWARE if study.inference_method.needs_privacy else "")
            + ". "
        )
    return said + (
        f"{_lost(contents)}The analysis was stated in a study file (SHA-256 "
        f"{record['study_hash'][:16]}) and run with cipherbayes "
        f"{record['cipherbayes']}.{_other_releases(contents)}"
    )


def _lost(contents: Contents) -> str:
    """What a lost site changed of what was fitted; a space at the end."""
    flags = contents.record["flags"]
    said = [flag["message"] for flag in flags if flag["name"] == "site-lost"]
    return f"During the rounds, {said[0]}. " if said else ""


def _other_releases(contents: Contents) -> str:
    """What ledgers on this machine show of other studies of the same tables."""
    promise = promised(contents.record["privacy"])
    if promise is None:
        return ""
    epsilon, delta = promise
    # At a smaller δ the study alone may count for more than its own ε.
    others = [
        book
        for book in contents.ledgers
        if book.delta >= delta and book.spent > 1.001 * epsilon
    ]
    if not others:
        return ""
    most = short(max(book.spent for book in others))
    sites = ", ".join(book.site for book in others)
    return (
        f" The same tables were used for other releases too ({sites}: ε up to {most} "
        "in all by their ledgers)."
    )


def checklist(contents: Contents) -> Iterator[tuple[str, str]]:
    """Items, and what the study or the run answers."""
    study, record = contents.study, contents.record
    privacy = record["privacy"]
    yield "Setting, dates, eligibility (S5, S6; T4, T5)", LEFT
    yield "Outcome (S7; T6)", _outcome(study)
    yield "Predictors (S7; T7)", ", ".join(study.features)
    declared = study.privacy.records if study.privacy is not None else None
    yield (
        "Number of records (S10, S13; T8, T13)",
        (LEFT if declared is None else f"{declared:,} declared, at {_sites(contents)}"),
    )
    yield "Missing values (S12c; T9)", _missing(study)
    model = _model(study)
    yield "How predictors were handled (S11; T10a)", _ranges(study)
    yield (
        "Statistical methods (S12a; T10b)",
        (f"{model}; inference: {record['method']}. {_prior(study)} {_between(study)}"),
    )
    holdout = study.evaluation
    yield (
        "Validation (T10c, T16)",
        (
            "no rows held out"
            if holdout is None
            else f"{percent(holdout.holdout)} of rows held out"
        ),
    )
    if record.get("describe"):
        yield "Characteristics of the records (S14; T13b)", "Who the records are"
    if record["metrics"]:
        yield "Performance of the model (T10d, T16)", performance(contents)
    yield "Estimates with precision (S16; T15)", "Effects, All parameters"
    yield (
        "Limits of the analysis (S19; T18)",
        ("; ".join(record["warnings"]) or "the run gives no warning"),
    )
    yield (
        "Privacy of those in the records (S22 where asked)",
        (
            "none"
            if privacy["epsilon"] is None
            else f"ε = {short(privacy['epsilon'])}, δ = {short(privacy['delta'])}, "
            + ("certified" if privacy["certified"] else "NOT certified")
        ),
    )


def performance(contents: Contents) -> str:
    """The scores of held-out rows that papers report, with their intervals."""
    said = []
    for row in contents.result.scores():
        if row["score"] not in MEASURES or row["group"] != "all rows":
            continue
        when = "" if row["time"] is None else f" at {short(row['time'])}"
        value = f"{MEASURES[row['score']]}{when} {number(row['mean'])}"
        if row["lower"] is not None and row["upper"] is not None:
            value += f" ({interval(row['lower'], row['upper'])})"
        said.append(value)
    share = percent(contents.record["interval"])
    return f"{'; '.join(said)} ({share} intervals, where given)" if said else LEFT


def _model(study: Study) -> str:
    model = study.model
    title = model.title or f"{model.kind.replace('-', ' ')} model"
    if study.hierarchy is not None and shapes_differ(study):
        title = f"site-stratified {title}"
    return title


def _prior(study: Study) -> str:
    """The prior of effects and of constants, and what columns they are of."""
    prior = study.full_prior
    columns = "scaled to their public ranges"
    if study.releases_scales:
        columns = "standardised by means and standard deviations released with noise"
    elif study.preparation_method != "public-bounds":
        columns = "standardised by their means and standard deviations"
    said = f"Coefficients had {prior.kind} priors of scale {prior.scale:g} on columns "
    said += columns
    if study.model.constants(preparation_of(study).design):
        scale = prior.scale if prior.intercept is None else prior.intercept
        constant = "the intercept" if study.intercept else "the baseline's log hazards"
        said += f", {constant} of scale {scale:g}"
    if prior.shape is not None and (shapes := shapes_in_words(study)):
        said += f", {shapes} of scale {prior.shape:g}"
    if prior.parameters:
        said += f"; priors of their own had {', '.join(prior.parameters)}"
    return f"{said}."


def _between(study: Study) -> str:
    """What differs between sites, and the prior of how much; a space at the end."""
    hierarchy = study.hierarchy
    if hierarchy is None:
        return ""
    kind = hierarchy.effects
    parts = []
    if hierarchy.intercept and shapes_differ(study):
        parts.append("baseline hazards of their own level and shape")
    elif hierarchy.intercept:
        parts.append(f"{kind} intercepts")
    if hierarchy.slopes:
        parts.append(f"{kind} slopes of {', '.join(hierarchy.slopes)}")
    groups = hierarchy.groups.items()
    together = "; ".join(
        f"{' and '.join(each)} as one, '{name}'" for name, each in groups
    )
    said = f"Sites had {' and '.join(parts)}" + (f" ({together})" if together else "")
    if kind == "fixed":
        return f"{said} that were not drawn towards each other. "
    said += (
        ", normal around the common ones, with half-normal priors of scale "
        f"{hierarchy.scale:g} for their standard deviations. "
    )
    if near_each_other(study):
        said += (
            "The common log hazard of each interval of the baseline but the first was "
            "normal around that of the one before, with standard deviation "
            f"{NEIGHBOURS:g}. "
        )
    if not hierarchy.intercept:
        return said
    if hierarchy.context is False:
        return f"{said}Levels did not follow the means of covariates. "
    return (
        f"{said}A site's level could follow the means of covariates there "
        "(Mundlak 1978). "
    )


def _outcome(study: Study) -> str:
    columns = study.model.outcome_columns()
    if "time" in columns and "event" in columns:
        said, time = f"time to the event '{columns['event']}'", columns["time"]
        cause = cause_of(study.model)
        if cause is not None:
            said = f"time to an event of cause {cause} in '{columns['event']}'"
        if "entry" in columns:
            time += f", at risk from {columns['entry']}"
        if cause is not None:
            time += "; cause-specific hazard, other causes censored"
        return f"{said} ({time})"
    if "offset" in columns:
        role = "exposure" if getattr(study.model, "exposure", None) else "log exposure"
        offset = columns.pop("offset")
        return f"{', '.join(columns.values())} ({role}: {offset})"
    return ", ".join(dict.fromkeys(columns.values())) or "the records' mean"


def _sites(contents: Contents) -> str:
    count = len(contents.record["sites"])
    return f"{count} sites" if count > 1 else "one site"


def _gaps(study: Study) -> str:
    """What was done about missing values, where any may be; a space at the end."""
    if all(feature.missing is None for feature in study.features.values()):
        return ""
    return f"Missing values were {_missing(study)}. "


def _held_out(study: Study) -> str:
    """The share that the fit has not seen; a space at the end."""
    if study.evaluation is None:
        return ""
    said = (
        f"{percent(study.evaluation.holdout)} of the records were held out of the fit, "
        "to check its predictions. "
    )
    if not study.checks_privately:
        return said
    person = study.privacy is not None and study.privacy.person is not None
    chosen = "person's name" if person else "record"
    compared = ", and how much better they were predicted than by an earlier fit"
    if study.evaluation.against is None:
        compared = ""
    return said + (
        f"They were chosen by a hash of the {chosen} and are protected like all "
        "others: counts of prediction by outcome, and sums of residuals by predictor "
        f"and by site{compared}, were released with noise within the same budget. "
        "Intervals of scores count that these records are a sample and that noise was "
        "added. "
    )


def _described(study: Study) -> str:
    """That characteristics were released; a space at the end."""
    if study.describe is None:
        return ""
    return (
        "Characteristics of the records (counts and sums of each variable) were "
        "released with noise within the same budget. "
    )


def _record(study: Study) -> str:
    """What one record is, where it is not a row."""
    person = None if study.privacy is None else study.privacy.person
    return "record" if person is None else f"person (all rows of one '{person}')"


def _missing(study: Study) -> str:
    known = study.features
    stated = [n for n, f in known.items() if f.missing is not None and not f.imputed]
    public = [n for n, f in known.items() if f.imputed and not f.learns]
    learnt = [n for n, f in known.items() if f.learns]
    shown = [n for n in stated if known[n].indicator]
    said = [f"replaced by a stated value in {', '.join(stated)}"] * bool(stated)
    said += [f"with an indicator of its own in {', '.join(shown)}"] * bool(shown)
    times = f"multiply imputed ({DRAWS} draws, weighted by the outcome's likelihood)"
    said += [
        f"{times} in {', '.join(public)} from distributions that the study states"
    ] * bool(public)
    learnt_by = " with noise" if study.private else ""
    said += [
        f"{times} in {', '.join(learnt)} from a regression on the complete features, "
        f"learnt{learnt_by}, under the assumption that they are missing at random "
        "given these and the outcome"
    ] * bool(learnt)
    return "; ".join(said) or "none allowed: a table with a missing value is refused"


def _ranges(study: Study) -> str:
    numbers = [n for n, f in study.features.items() if f.levels is None]
    changed = [f"{n} ({f.transform})" for n, f in study.features.items() if f.transform]
    said = "Categories entered as indicators against their first level."
    if study.model.formula is not None:
        levels = MadeUp(study, None).levels
        against = ", ".join(
            f"{name} {levels(name)[0]}"
            for name, known in study.features.items()
            if known.levels is not None
        )
        said = (
            f"The formula was {study.model.formula}. Categories entered as indicators "
            f"against a reference level{f' ({against})' if against else ''}, curves as "
            "orthogonal columns over the range."
        )
    if numbers:
        said = f"Numbers were clipped to ranges that the study states. {said}"
    return said + (f" Transformed: {', '.join(changed)}." if changed else "")
