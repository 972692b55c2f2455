"""*Privacy*: the certificate in words, ε over rounds, what was released."""

from __future__ import annotations

import math

from cipherbayes.privacy.accountant import epsilon
from cipherbayes.privacy.events import Composed, Repeated
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.protocols.certificate import CertificateRecord, promised
from cipherbayes.protocols.phase import Phase
from cipherbayes.report.charts import Chart, Line, figure
from cipherbayes.report.markup import Content, Markup, facts, join, table, tag
from cipherbayes.report.numbers import Axis, number, short
from cipherbayes.report.run_contents import Contents, Spent
from cipherbayes.report.sections.security import protocol_facts

PURPOSES = {
    "records": "the number of records",
    "moments": "sums and squares of columns",
    "histograms": "histograms of columns over their public ranges",
    "windows": "histograms of columns inside the windows found",
    "imputation": "products of columns, for models of those with missing values",
    "scales": "sums and squares of columns inside the windows found",
    "gradient": "gradient sums",
    "influence": "weighted gradient sums",
    "describe": "counts of the records' characteristics",
    "check": "held-out rows by prediction and outcome",
    "residuals": "residuals of held-out rows by group",
    "difference": "log scores of held-out rows less those of an earlier fit",
}
SMALL, LARGE = 1.0, 3.0
"""ε up to which little is learnt of a row, and beyond which that cannot be said."""
STEPS = 20
"""Points of the curve of ε."""


def banner(contents: Contents) -> Markup:
    """What nobody may overlook: a result that promises nothing."""
    privacy = contents.record["privacy"]
    if privacy["certified"]:
        return Markup()
    study = contents.study
    if privacy["epsilon"] is None:
        title = "Not private"
        text = (
            "This run had no privacy budget. The numbers below are exact functions of "
            "the rows: treat this page as you treat the tables themselves."
        )
    elif study.insecure:
        title = "Not certified: insecure repeatable noise"
        text = (
            "The noise was drawn from a seed, for tests only. Whoever knows the seed "
            "removes it. This result protects nobody."
        )
    elif (known := contents.protocol.not_certified(privacy)) is not None:
        title, text = known
    else:
        title = "Not certified"
        text = "Nothing shows that this run kept its privacy promise."
    return tag(
        "div",
        tag("strong", title),
        tag("p", text),
        class_="banner",
        role="alert",
        id="banner",
    )


def privacy_section(contents: Contents) -> Markup:
    """The whole section."""
    privacy = contents.record["privacy"]
    if privacy["epsilon"] is None:
        return tag(
            "p",
            "Nothing is promised: there was no budget, no noise, and nothing was "
            "charged. Add a [privacy] table to the study for a private run.",
        )
    return join(
        _in_words(contents),
        _curve(contents),
        _releases(contents),
        _ledgers(contents),
        _not_promised(contents),
    )


def _in_words(contents: Contents) -> Markup:
    privacy = contents.record["privacy"]
    promise = promised(privacy)
    if promise is None:
        return Markup()
    e, d = promise
    if not privacy["certified"]:
        asked = short(contents.protocol.asked_epsilon(privacy))
        lead = tag(
            "p",
            tag("strong", "No promise is made. "),
            f"The study asked for ε = {asked} at δ = {short(d)}; this run does not "
            "certify it.",
            class_="lead",
        )
    else:
        unit = privacy.get("unit") or "row"
        whose = f"that {unit} was there"
        if declared_public(contents):
            whose = f"that {unit} was there and not held out"
        much: Content = tag("strong", f"almost the same about any one {unit}")
        if e > LARGE:
            much = f"a limited amount, at this ε not a small one, about any one {unit}"
        elif e > SMALL:
            much = f"little more about any one {unit}"
        lead = tag(
            "p",
            "Whoever sees everything that this study released learns ",
            much,
            f" whether or not {whose}: no outcome becomes more than e",
            tag("sup", short(e)),
            f" ≈ {number(math.exp(min(e, 700.0)))} times as likely, but for a "
            f"probability of {short(d)}.",
            class_="lead",
        )
    against = privacy["holds_against"] or ["nobody"]
    pair: Content = f"(ε, δ) = ({short(e)}, {short(d)})"
    pairs: list[tuple[str, Content]] = [
        ("Promise", pair if privacy["certified"] else "none"),
        (
            "Certified",
            "yes" if privacy["certified"] else tag("strong", "no", class_="bad"),
        ),
        ("Holds against", tag("ul", [tag("li", party) for party in against])),
        *protocol_facts(contents.protocol.limits(privacy)),
        ("Neighbours", _neighbours(contents)),
        ("Covers", privacy.get("covers") or "not said by the release that wrote it"),
        ("Spent", f"ε = {number(privacy.get('spent'), 4)} by the accountant"),
        ("Mechanism", privacy.get("mechanism", "")),
        *_noise(privacy),
        ("Colluding sites", f"{privacy.get('colluders', 0)} tolerated"),
        ("Lost sites", f"{privacy.get('dropouts', 0)} tolerated"),
    ]
    if privacy.get("sampling_rate", 1.0) < 1.0:
        pairs.append(
            ("Sampling", f"each row with {100 * privacy['sampling_rate']:.3g} %")
        )
    return join(lead, facts(pairs))


def _noise(privacy: CertificateRecord) -> list[tuple[str, Content]]:
    """How much noise there was, against what one record can move."""
    sigma, clip = number(privacy.get("noise_multiplier"), 4), privacy.get("clip")
    if clip is None:
        return [("Noise", f"σ = {sigma} × what one record moves, in the first round")]
    return [
        ("Noise", f"σ = {sigma} × the clipping norm"),
        ("Clipping norm", number(clip)),
    ]


def _curve(contents: Contents) -> Markup:
    plan = contents.plan
    if plan is None or plan.study.privacy is None:
        return Markup()
    budget = plan.study.privacy.epsilon
    rounds = sorted({0, *(-(-plan.rounds * k // STEPS) for k in range(1, STEPS + 1))})
    x = [float(count) for count in rounds]
    y = [plan.epsilon_after(count) for count in rounds]
    done = contents.record["rounds"]
    return figure(
        Chart(
            title="ε spent, round by round",
            said=f"ε grows from 0 to {number(y[-1])} over {plan.rounds} rounds; the "
            f"budget is {short(budget)}. The result rests on {done} rounds of the fit.",
            x=Axis(0.0, float(plan.rounds)),
            y=Axis(0.0, 1.12 * budget),
            x_name="round",
            y_name="ε",
            lines=[Line("", x, y)],
            levels=[(budget, f"budget {short(budget)}")],
        )
    )


def _releases(contents: Contents) -> Markup:
    plan = contents.plan
    if plan is None or plan.study.privacy is None:
        return Markup()
    delta = plan.study.privacy.delta
    # Rounds of one kind differ in their noise only: a row a kind.
    kinds: dict[str, list[tuple[Phase, ReleasePlan]]] = {}
    for phase in plan.phases:
        names = (PURPOSES.get(phase.purpose, phase.purpose), "information matrix")
        for name, release in zip(names, phase.parts, strict=False):
            kinds.setdefault(name, []).append((phase, release))
    rows: list[list[Content]] = []
    for name, releases in kinds.items():
        count = sum(phase.rounds for phase, _ in releases)
        sigmas = [release.noise_multiplier for _, release in releases]
        composed = Composed(
            tuple(Repeated(release.event, phase.rounds) for phase, release in releases)
        )
        rows.append(
            [
                name,
                f"{count:,}",
                f"{releases[0][1].dimension:,}",
                number(max(release.clip for _, release in releases)),
                number(sigmas[0], 4)
                if min(sigmas) == max(sigmas)
                else f"{number(min(sigmas))} to {number(max(sigmas))}",
                number(epsilon(composed, delta)),
            ]
        )
    apart = ""
    if contents.study.checks_privately:
        apart = "; a row is held out or not, so it pays for one of the two"
    return table(
        "All that was released of the rows covered, each kind with the ε it would cost "
        f"alone{apart}",
        [
            "Release",
            "Times",
            "Numbers a round",
            "One record moves it by",
            "σ",
            "ε alone",
        ],
        rows,
        id_="releases",
    )


def _ledgers(contents: Contents) -> Markup:
    if not contents.ledgers:
        return Markup()
    rows: list[list[Content]] = [
        [
            book.site,
            number(book.spent, 4),
            short(book.budget),
            _left(book),
            short(book.delta),
        ]
        for book in contents.ledgers
    ]
    return table(
        "The tables’ ledgers: ε over all studies so far",
        ["Site", "Spent", "Budget", "Left", "δ"],
        rows,
        id_="ledgers",
    )


def declared_public(contents: Contents) -> bool:
    """Whether held-out rows are declared public, and so not protected."""
    study = contents.study
    return study.evaluation is not None and not study.checks_privately


def _neighbours(contents: Contents) -> str:
    if (person := _person(contents)) is None:
        return "adding or removing one record (one row)"
    return f"adding or removing one person (all rows with the same {person} at a site)"


def _several_rows(contents: Contents) -> str:
    if _person(contents) is None:
        return (
            "A person with several rows is protected as several records: give one row "
            "a person, or name the column that says whose row it is as privacy.unit."
        )
    return "A person with rows at two sites is protected as two persons."


def _person(contents: Contents) -> str | None:
    """The column that names a person."""
    privacy = contents.study.privacy
    return None if privacy is None else privacy.person


def _left(book: Spent) -> str:
    """What is left, but for what calibration leaves unspent by its tolerance."""
    left = book.budget - book.spent
    return number(left, 4) if left > 1e-4 * book.budget else "nothing"


def _not_promised(contents: Contents) -> Markup:
    items = [
        _several_rows(contents),
        "What is true of a population is not hidden: that a habit is harmful is said "
        "also about people who did not take part.",
        "How long parties took depends a little on their rows and is not protected.",
    ]
    if declared_public(contents):
        items.insert(
            0,
            "The held-out rows are not protected: the study declares them public, and "
            "their scores are exact.",
        )
    if contents.protocol.federated:
        items.insert(
            0,
            "Parties on one machine are not apart: whoever owns the machine can read "
            "everything. Against the server and the CSP (crypto service provider, who "
            "holds the key) the promise needs separate machines.",
        )
    return join(
        tag("h3", "What is not promised"),
        tag("ul", [tag("li", item) for item in items]),
    )
