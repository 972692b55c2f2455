"""Where a fit misses, as numbers and as sentences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.data.residual_cells import ResidualCells
from cipherbayes.inference.misfit import GroupTest, test_groups
from cipherbayes.inference.noise_aware.flags import FlagRecord, flag_record
from cipherbayes.models.design import Design
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.record import FitTest
from cipherbayes.results.user_values import range_names, user_values
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats

SURPRISE = 0.05
"""How often any of a study's tests finds a misfit where there is none."""
SITES = "site"
EVEN, CHANGING = "even", "over time"
"""Whether residuals are even over groups, and whether they stay so over time."""
LEAST_HALF = 0.05
"""Least share of a half of the time: its sum is noised, and may be negative."""


class TestedSums(NamedTuple):
    """Residuals and variances by group, and how much of a sum's noise either has."""

    residuals: Floats
    variances: Floats
    noise: tuple[float, float]


def _together(residuals: Floats, variances: Floats) -> TestedSums:
    """Over the whole of the time."""
    wider = float(np.sqrt(len(residuals)))
    return TestedSums(residuals.sum(axis=0), variances.sum(axis=0), (wider, wider))


def _early_less_late(residuals: Floats, variances: Floats) -> TestedSums:
    """What a group has early more than late, whatever its level is.

    A group whose log hazard is higher by b has V b more than predicted, V the variance
    in either half. With shares r of V early and late, of all groups,

        D = r_late S_early - r_early S_late

    has mean zero whatever b is, variance r_early r_late V, and mean r_early r_late V c
    where the group's log hazard is higher by c early than late.
    """
    early = float(variances[0].sum() / max(variances.sum(), 1e-9))
    early = min(max(early, LEAST_HALF), 1.0 - LEAST_HALF)
    late = 1.0 - early
    both = early * late
    return TestedSums(
        late * residuals[0] - early * residuals[1],
        both * variances.sum(axis=0),
        (float(np.hypot(early, late)), both * float(np.sqrt(2.0))),
    )


def fit_record(
    cells: ResidualCells,
    released: Closing,
    draws: Floats,
    design: Design,
    moments: Floats | None,
    study: Study,
) -> list[FitTest]:
    """The tests of every feature and of the sites."""
    kinds = cells.check.kinds
    residuals, variances = released.total.reshape(2, kinds, cells.cells)
    variances = variances / cells.check.variance_weight
    sums = [(EVEN, _together(residuals, variances))]
    if kinds == 2:
        sums.append((CHANGING, _early_less_late(residuals, variances)))
    noise = released.noise, released.noise / cells.check.variance_weight
    covariance = np.atleast_2d(np.cov(draws[:, : design.width].T))
    made_up = MadeUp(study, moments)
    found: list[FitTest] = []
    start = 0
    columns: list[ColumnBins | None] = [*cells.features, None]
    for column in columns:
        size = len(cells.sites) if column is None else column.size
        place = slice(start, start + size)
        start += size
        unsure, along = _unsure(column, size, made_up, covariance)
        for what, tested in sums:
            test = test_groups(
                tested.residuals[place],
                tested.variances[place],
                (tested.noise[0] * noise[0], tested.noise[1] * noise[1]),
                unsure if what == EVEN else np.zeros((size, size)),
                along,
                2 if what == EVEN else 1,
            )
            if test is not None:
                names = (
                    list(cells.sites)
                    if column is None
                    else range_names(column, moments)
                )
                found.append(_row(column, what, test, names))
    level = SURPRISE / max(len(found), 1)
    for row in found:
        row["misfit"] = row["p"] < level
        row["text"] = _sentence(row)
    return found


def _unsure(
    column: ColumnBins | None, size: int, made_up: MadeUp, covariance: Floats
) -> tuple[Floats, Floats | None]:
    """x'Cov x of every pair of groups, other features as in the reference record; and
    where the groups of a number are."""
    records = [made_up.reference] * size
    along = None
    if column is not None and column.levels is not None:
        for level, name in enumerate(column.levels):
            records[level] = {**made_up.reference, column.column: name}
    elif column is not None:
        edges = column.edges(made_up.moments)
        step = float(edges[1] - edges[0])
        centres = edges[0] - 0.5 * step + step * np.arange(float(column.count))
        for group, value in enumerate(user_values(column, centres).tolist()):
            records[group] = {**made_up.reference, column.column: value}
        # Missing values are no place on a scale.
        along = None if column.tells_missing else centres
    rows = made_up.rows(records).x.T
    return rows @ covariance @ rows.T, along


def _row(
    column: ColumnBins | None, what: str, test: GroupTest, names: list[str]
) -> FitTest:
    """A test; whether it found something is known once all are made."""

    def number(value: float) -> float | None:
        return None if np.isnan(value) else float(value)

    return {
        "by": SITES if column is None else column.column,
        "what": what,
        "p": test.p,
        "bend": test.trend if what == EVEN else 0,
        "groups": [
            {
                "group": name,
                "mean": number(test.shift[g]),
                "lower": number(test.lower[g]),
                "upper": number(test.upper[g]),
            }
            for g, name in enumerate(names)
        ],
        "misfit": False,
        "text": "",
    }


def _sentence(row: FitTest) -> str:
    by, what = row["by"], row["what"]
    subject = "sites" if by == SITES else f"'{by}'"
    if not row["misfit"]:
        if row["p"] < SURPRISE:
            over = ", effects over time" if what == CHANGING else ""
            return (
                f"{subject}{over}: p = {row['p']:.2g}, not significant after "
                "correction for all tests"
            )
        if what == CHANGING:
            return f"{subject}: no sign that effects change over time"
        return f"{subject}: nothing missed that the noise would show"
    # Where the noise hides how many records a group has, none of them is named.
    shown = [
        (abs(g["mean"]) / (g["upper"] - g["lower"]), g["mean"], g["group"])
        for g in row["groups"]
        if g["mean"] is not None and g["lower"] is not None and g["upper"] is not None
    ]
    group, more = "", ""
    if shown:
        _, mean, group = max(shown, key=lambda each: each[0])
        more = "more" if mean > 0.0 else "less"
        group = group if by == SITES else f"{by} {group}"
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
    if by == SITES:
        which = f": {group} has {more} than predicted" if shown else ""
        return f"sites differ by more than the model says{which}"
    curve = {
        1: " (both ends have more than predicted: a curved effect)",
        -1: " (both ends have less than predicted: a curved effect)",
        0: "",
    }[row["bend"]]
    where = f"; for {group} there is {more} than predicted" if shown else ""
    return f"{subject}: the model misses something{where}{curve}"


def misfit_flags(
    found: list[FitTest], study: Study, design: Design
) -> list[FlagRecord]:
    """One flag for each test that found something."""
    remedies = {
        EVEN: "give it another shape in the formula (rcs, a transform), or levels",
        CHANGING: "do not read one hazard ratio for the whole follow-up",
    }
    flags: list[FlagRecord] = []
    for row in found:
        if not row["misfit"]:
            continue
        remedy = remedies[row["what"]]
        if row["by"] == SITES:
            remedy = "ask why, or let sites have levels of their own"
        names = [
            name
            for name in design.names
            if name == row["by"] or name.startswith(f"{row['by']}[")
        ]
        text = f"misfit: {row['text']}; {remedy}"
        flags.append(flag_record("misfit", text, unusable=False, parameters=names))
    return flags
