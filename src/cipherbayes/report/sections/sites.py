"""*How sites differ*: the spread between them, each site, and who weighs how much."""

from __future__ import annotations

import math

from cipherbayes.protocols.site_words import (
    alike_in_words,
    few_sites_caution,
    given_away,
    given_in_words,
    outcomes_told,
    records_word,
    share_in_words,
)
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.report.charts import interval_axis, interval_row
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import Axis, interval, number, percent
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.record import (
    BetweenRow,
    HierarchyRecord,
    InfluenceRow,
    SiteRow,
)
from cipherbayes.study.tables import preparation_of

MEDIAN_OF_TWO = math.sqrt(2.0) * 0.6744897501960817
"""Median of |b₁ − b₂| / τ for two sites at random (Larsen and Merlo 2005)."""
ALMOST_NOTHING, MUCH = 1.1, 1.5
"""Median ratios between two sites below which they hardly differ, and above which they
differ a lot."""
LEVEL = "their level"
SOME, NOTABLE = 0.3, 0.8
"""Posterior standard deviations from which a shift is some, and worth a look."""
SHAPE = "baseline"
"""What the shape of a stratified baseline is called."""
CHART = tag("span", "chart", class_="unseen")


def sites_section(contents: Contents) -> Markup:
    """The whole section; empty for one site."""
    hierarchy = contents.result.hierarchy()
    if hierarchy is None:
        if len(contents.record["sites"]) < 2:
            return Markup()
        return tag("p", f"Sites are {alike_in_words(contents.study)}.")
    return join(
        _spread(contents, hierarchy),
        _caterpillar(contents, hierarchy),
        _influence(hierarchy),
        _meta_analysis(contents, hierarchy),
        _given_away(contents, hierarchy),
    )


# -- how much --------------------------------------------------------------


def _spread(contents: Contents, hierarchy: HierarchyRecord) -> Markup:
    share = percent(contents.record["interval"])
    if not hierarchy["between"]:
        return tag(
            "p",
            "Each site has parameters of its own that say nothing of the others’ "
            "(fixed effects): there is no spread to estimate and no prediction for a "
            "new site. The common parameter is the mean over the sites.",
        )
    said = [tag("p", spread_in_words(contents, row)) for row in hierarchy["between"]]
    if contents.study.hierarchy is not None:
        few = few_sites_caution(
            contents.study.hierarchy, len({row["site"] for row in hierarchy["sites"]})
        )
        said += [tag("p", f"{line}.".capitalize()) for line in few]
    rows: list[list[Content]] = [
        [
            row["name"],
            number(row["mean"]),
            number(row["sd"]),
            interval(row["lower"], row["upper"]),
            number(row["rhat"], 4),
            number(row["ess"], 3),
        ]
        for row in hierarchy["between"]
    ]
    return join(
        said,
        table(
            f"Spread between sites: τ, mean and {share} interval",
            ["What differs", "τ", "sd", f"{share} interval", "R-hat", "ESS"],
            rows,
            id_="between",
        ),
    )


def spread_in_words(contents: Contents, row: BetweenRow) -> str:
    """How much sites differ, for a reader who knows no τ."""
    measure = contents.study.model.measure or ""
    name = row["name"]
    if not _is_level(contents, name) or not measure.endswith("ratio"):
        unit = f" per unit of {name}" if name in contents.study.features else ""
        return (
            f"The effect of {name}, the logarithm of its {measure}{unit}, differs "
            f"between sites with a standard deviation of {number(row['mean'])} "
            f"({number(row['lower'])} to {number(row['upper'])}) around the common one."
        )
    middle, low, high = (
        math.exp(MEDIAN_OF_TWO * row[key]) for key in ("mean", "lower", "upper")
    )
    name = f"{name} in each interval, beside their level" if name == SHAPE else LEVEL
    said = f"Sites differ in {name}"
    if high < ALMOST_NOTHING:
        said = f"Sites hardly differ in {name}"
    elif low > MUCH:
        said = f"Sites differ a lot in {name}"
    elif low < ALMOST_NOTHING:
        said = f"Whether sites differ much in {name} cannot be told"
    return (
        f"{said}: take two sites at random and the same patient at both; in half of "
        f"all such pairs the {measure} between the two is above {number(middle)} "
        f"({number(low)} to {number(high)})."
    )


def _is_level(contents: Contents, name: str) -> bool:
    """Whether it is the constant, or the baseline, in which sites differ."""
    model, design = contents.study.model, preparation_of(contents.study).design
    parameters = model.parameters(design)
    levels = {parameters[j].partition("[")[0] for j in model.constants(design)}
    return name in {*levels, SHAPE}


# -- each site ---------------------------------------------------------------


def _caterpillar(contents: Contents, hierarchy: HierarchyRecord) -> Markup:
    share = percent(contents.record["interval"])
    names = list(dict.fromkeys(row["name"] for row in hierarchy["sites"]))
    plots = [
        _one_caterpillar(
            f"{name}: each site’s difference from the common value, as the logarithm "
            f"of the {contents.study.model.measure}, {share} intervals",
            [row for row in hierarchy["sites"] if row["name"] == name],
            share,
        )
        for name in names
    ]
    return join(
        tag("h3", "Each site"),
        tag(
            "p",
            "How far a site lies from the common value, its patients’ features taken "
            "into account, the lowest first. "
            + (
                "A site that tells little is drawn towards the others."
                if hierarchy["between"]
                else "Sites are not drawn towards each other."
            )
            + _together(contents)
            + _at_centres(contents)
            + " This is no ranking: intervals that overlap do not tell sites apart.",
        ),
        plots,
    )


def _together(contents: Contents) -> str:
    """Which sites have their parameters together, or took no part to the end."""
    hierarchy = contents.study.hierarchy
    groups = {} if hierarchy is None else hierarchy.groups
    said = [f" {name} is {' and '.join(sites)}." for name, sites in groups.items()]
    said += [
        f" {site} was lost in round {number + 1} and is told as a site that took no "
        "part."
        for site, number in contents.lost
    ]
    return "".join(said)


def _at_centres(contents: Contents) -> str:
    """Says for which patient sites' levels are told, where their slopes differ."""
    hierarchy = contents.study.hierarchy
    if hierarchy is None or not hierarchy.slopes:
        return ""
    return f" Levels are those of a patient with {_centres(contents)}."


def _centres(contents: Contents) -> str:
    """Where the columns' centres are."""
    if contents.record["moments"] is not None:
        return "every column at its released mean"
    return "numbers in the middle of their public ranges and reference levels"


def _one_caterpillar(caption: str, rows: list[SiteRow], share: str) -> Markup:
    rows = sorted(rows, key=lambda row: row["mean"])
    ends = [end for row in rows for end in (row["lower"], row["upper"])]
    axis = Axis.around(ends, include=0.0)
    shown: list[list[Content]] = [
        [
            row["site"],
            interval_row(axis, row["mean"], row["lower"], row["upper"], 0.0),
            number(row["mean"]),
            interval(row["lower"], row["upper"]),
        ]
        for row in rows
    ]
    return table(
        caption,
        ["Site", CHART, "Difference", f"{share} interval"],
        shown,
        words=(1,),
        foot=["", interval_axis(axis), "", ""],
        class_="forest",
    )


# -- who weighs how much -------------------------------------------------------


def _influence(hierarchy: HierarchyRecord) -> Markup:
    if not hierarchy["influence"]:
        return Markup()
    strongest: dict[str, InfluenceRow] = {}
    for row in hierarchy["influence"]:
        known = strongest.get(row["site"])
        if known is None or abs(row["shift"]) > abs(known["shift"]):
            strongest[row["site"]] = row
    rows: list[list[Content]] = [
        [
            site,
            row["name"],
            number(row["shift"], 2),
            _verdict(abs(row["shift"])),
        ]
        for site, row in strongest.items()
    ]
    return join(
        tag("h3", "A site’s say in where sites lie"),
        tag(
            "p",
            "How far the common parameter that moves most would move, in posterior "
            "standard deviations, if a site’s own parameters were not counted among "
            "the others’. It is computed from what is above and in the releases; no "
            "row is read for it. It is not the fit without that site: what a site’s "
            "patients say of common effects is in sums over all sites, which are all "
            "that is released, and stays in.",
        ),
        table(
            "A site’s own parameters not counted",
            ["Site", "Parameter that moves most", "Shift, in sd", "Verdict"],
            rows,
            words=(1, 3),
            id_="influence",
        ),
    )


def _verdict(shift: float) -> str:
    if shift > NOTABLE:
        return "worth a look"
    return "some" if shift > SOME else "small"


def _meta_analysis(contents: Contents, hierarchy: HierarchyRecord) -> Markup:
    share = percent(contents.record["interval"])
    spread = {row["name"]: row for row in hierarchy["between"]}
    rows: list[list[Content]] = []
    for row in hierarchy["meta_analysis"]:
        ours = row["posterior"]
        # All intervals of a common baseline have one spread.
        stem = row["name"].partition("[")[0]
        between = spread.get(row["name"], spread.get(stem))
        rows.append(
            [
                row["name"],
                number(ours["mean"]),
                interval(ours["lower"], ours["upper"]),
                number(row["estimate"]),
                interval(row["lower"], row["upper"]),
                "–" if between is None else number(between["mean"]),
                number(row["between"]),
            ]
        )
    return join(
        tag("h3", "Beside a meta-analysis"),
        tag(
            "p",
            "The same sites combined in two stages, each site’s own estimate first, "
            "then random effects (DerSimonian and Laird): what is done where no joint "
            "model can be fitted. With few sites its τ is rough and its interval too "
            "short. Levels, of both, are those of a patient with "
            f"{_centres(contents)}.",
        ),
        table(
            f"The posterior and a random-effects meta-analysis, {share} intervals",
            [
                "Parameter",
                "Here",
                f"{share} interval",
                "Meta-analysis",
                f"{share} interval",
                "τ here",
                "τ meta-analysis",
            ],
            rows,
            id_="meta-analysis",
        ),
    )


def _given_away(contents: Contents, hierarchy: HierarchyRecord) -> Markup:
    if contents.plan is None:
        return Markup()
    given = given_in_words(contents.plan)
    said = (
        "Numbers that belong to one site are released with noise that hides a record, "
        f"not a hospital, {'; '.join(given)}."
    )
    return join(
        tag("h3", "What a site gave away"),
        tag("p", said.replace("± ", "±\N{NO-BREAK SPACE}")),
        _known_of_each(
            contents, hierarchy, contents.plan, records_word(contents.study)
        ),
    )


def _known_of_each(
    contents: Contents, hierarchy: HierarchyRecord, plan: StudyPlan, records: str
) -> Markup:
    """What each site gives away, by its number of records as it was released, or by
    that of the table of characteristics, which counts every release."""
    described = {
        row["group"]: row
        for row in contents.record.get("describe", [])
        if row["statistic"] == "rows"
    }
    rows: list[list[Content]] = []
    known, (share, _) = given_away(plan), outcomes_told(plan.study)
    for row in hierarchy.get("records", []):
        count, reach = row["records"], known.records
        said = f"{count:,.0f} ± {reach:,.0f}"
        if (counted := described.get(f"site: {row['site']}")) is not None:
            count = max(counted["mean"], 1.0)
            reach = 0.5 * (counted["upper"] - counted["lower"])
            ends = interval(counted["lower"], counted["upper"])
            said = f"{number(counted['mean'])} ({ends})"
        told: list[Content] = [row["site"], said, share_in_words(reach / count)]
        if known.outcomes is not None:
            events = known.outcomes / (share * count)
            told.append(share_in_words(events))
        rows.append(told)
    if not rows:
        return Markup()
    fitted = "" if described or not contents.study.checks_privately else " fitted"
    heads = [
        "Site",
        f"{records.capitalize()}{fitted}, as released",
        f"Of its {records}",
    ]
    if known.outcomes is not None:
        heads.append(f"Of its outcomes, {share:.2g} a record")
    return table("How exactly each site is known", heads, rows, id_="given-away")
