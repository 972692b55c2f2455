"""Where a fit misses, in sentences and flags."""

from __future__ import annotations

import math

from cipherbayes.inference.flags import FlagRecord, flag_record
from cipherbayes.models.design import Design
from cipherbayes.results.record import FitTest, PrivateMetrics

SURPRISE = 0.05
"""How often any of a study's tests finds a misfit where there is none."""
SITES, ALL, RISK, FEATURE = "sites", "all rows", "predicted risk", "feature"
"""What a test is of. A feature may have any name, those of the others too."""
EVEN, CHANGING = "even", "over time"
"""Whether residuals are even over groups, and whether they stay so over time."""
OVERALL = {
    EVEN: "do not use its predictions as they are",
    CHANGING: "give the baseline another shape (weibull, piecewise with other cuts)",
}
"""What to do where all rows together are off."""
SURELY = 1.645
"""Standard deviations of noise by which a count must be above a number to be so in 95
of 100 cases."""
LEAST_EVENTS = 10.0
"""Events that held-out rows must surely have for scores to be told by them."""
SUSPECT = 0.1
"""Below which p the feature is named whose effect is likeliest to change over time,
where the predicted risk shows that one does."""


def _suspects(found: list[FitTest]) -> list[str]:
    """The feature whose effect is likeliest to change over time, if any is likely."""
    changing = [
        row for row in found if row["kind"] == FEATURE and row["what"] == CHANGING
    ]
    most = min(changing, key=lambda row: row["p"], default=None)
    return [most["by"]] if most is not None and most["p"] < SUSPECT else []


def sentence(row: FitTest, found: list[FitTest]) -> str:
    """What one of the tests found, in words."""
    by, kind, what = row["by"], row["kind"], row["what"]
    subject = f"'{by}'" if kind == FEATURE else kind
    if not row["misfit"]:
        if row["p"] < SURPRISE:
            over = ", effects over time" if what == CHANGING else ""
            over = ", over time" if over and kind in (ALL, RISK) else over
            return (
                f"{subject}{over}: p = {row['p']:.2g}, not significant after "
                "correction for all tests"
            )
        if kind == ALL:
            when = " in each half of the time" if what == CHANGING else ""
            return f"{subject}: as much as predicted{when}, within the noise"
        if kind == RISK:
            return "predicted risk: tells as much late as early, within the noise"
        if what == CHANGING:
            return f"{subject}: no sign that effects change over time"
        return f"{subject}: nothing missed that the noise would show"
    shown = [
        (abs(g["mean"]) / (g["upper"] - g["lower"]), g["mean"], g["group"])
        for g in row["groups"]
        if g["mean"] is not None and g["lower"] is not None and g["upper"] is not None
    ]
    group, more = "", ""
    if shown:
        _, mean, group = max(shown, key=lambda each: each[0])
        more = "more" if mean > 0.0 else "less"
        group = group if kind == SITES else f"{by} {group}"
    if kind == ALL:
        if what == CHANGING:
            return (
                f"all rows: there is {more} than predicted early, compared with late: "
                "the baseline is off"
            )
        return f"all rows: there is {more} than predicted: the fit is off as a whole"
    if kind == RISK:
        names = "".join(f" '{name}'," for name in _suspects(found))
        likely = f", most likely that of{names[:-1]}" if names else ""
        return (
            f"predicted risk: it tells {more} late than early: an effect changes over "
            f"time{likely}: hazards are not proportional"
        )
    if what == CHANGING:
        most = (
            f", most for {group} ({more} than predicted early, compared with late)"
            if shown
            else ""
        )
        return (
            f"{subject}: the effect changes over time{most}: hazards are not "
            "proportional"
        )
    if kind == SITES:
        which = f": {group} has {more} than predicted" if shown else ""
        return f"sites differ by more than the model says{which}"
    curve = {
        1: " (both ends have more than predicted: a curved effect)",
        -1: " (both ends have less than predicted: a curved effect)",
        0: "",
    }[row["bend"]]
    where = f"; for {group} there is {more} than predicted" if shown else ""
    return f"{subject}: the model misses something{where}{curve}"


def few_events(
    scores: PrivateMetrics, counted: float = math.inf, noise: float = 0.0
) -> list[FlagRecord]:
    """A flag where held-out rows may have so few events that scores are prior.

    ``counted`` is the sum of the noised counts of events and ``noise`` its standard
    deviation. The posterior takes no count to be negative, so where most cells are
    empty it has too many.
    """
    events = scores.get("events")
    if events is None:
        return []
    if min(events["lower"], counted - SURELY * noise) >= LEAST_EVENTS:
        return []
    count, low, high = (f"{events[each]:.0f}" for each in ("mean", "lower", "upper"))
    text = (
        f"few-events: held-out rows have about {count} events ({low} to {high}): how "
        "well predictions rank and fit is mostly assumed, not seen; hold out more "
        "rows, or raise epsilon"
    )
    return [flag_record("few-events", text, unusable=False, parameters=[])]


def misfit_flags(found: list[FitTest], design: Design) -> list[FlagRecord]:
    """One flag for each test that found something."""
    remedies = {
        EVEN: "give it another shape in the formula (a number: rcs, a transform, or "
        "levels; a category: its product with another feature)",
        CHANGING: "do not read one hazard ratio for the whole follow-up",
    }
    flags: list[FlagRecord] = []
    over_time = [row for row in found if row["misfit"] and row["what"] == CHANGING]
    changing = {row["by"] for row in over_time if row["kind"] == FEATURE}
    if any(row["kind"] == RISK for row in over_time):
        changing.update(_suspects(found))
    for row in found:
        if not row["misfit"]:
            continue
        remedy = remedies[row["what"]]
        if row["kind"] == ALL:
            remedy = OVERALL[row["what"]]
        if row["by"] in changing and row["what"] == EVEN and row["kind"] == FEATURE:
            remedy = "its effect changes over time, which another shape may not mend"
        if row["kind"] == SITES:
            remedy = "ask why, or let sites have levels of their own"
        features = [row["by"]] if row["kind"] == FEATURE else []
        if row["kind"] == RISK:
            features = _suspects(found)
        names = [
            name
            for name in design.names
            for feature in features
            if name == feature or name.startswith(f"{feature}[")
        ]
        text = f"misfit: {row['text']}; {remedy}"
        flags.append(flag_record("misfit", text, unusable=False, parameters=names))
    return flags
