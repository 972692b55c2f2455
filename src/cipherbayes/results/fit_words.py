"""Where a fit misses, as numbers and as sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.data.residual_cells import ResidualCells
from cipherbayes.inference.misfit import (
    GroupTest,
    test_change,
    test_groups,
    test_level,
)
from cipherbayes.inference.noise_aware.flags import FlagRecord, flag_record
from cipherbayes.models.base import Rows
from cipherbayes.models.design import Design
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.record import FitTest, MeanRow
from cipherbayes.results.user_values import range_names, user_values
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats

SURPRISE = 0.05
"""How often any of a study's tests finds a misfit where there is none."""
SITES, ALL = "site", "all"
EVEN, CHANGING = "even", "over time"
"""Whether residuals are even over groups, and whether they stay so over time."""
OVERALL = {
    EVEN: "do not use its predictions as they are",
    CHANGING: "give the baseline another shape (weibull, piecewise with other cuts)",
}
"""What to do where all rows together are off."""
SOME = 400
"""Draws that tell how unsure the posterior is of all rows together."""
LEAST_HALF = 0.05
"""Least share of a half of the time: its sum is noised, and may be negative."""


class _Halves(NamedTuple):
    """Residuals and variances of each half of the time and group, and their noise.

    A model without time has one half.
    """

    residuals: Floats
    variances: Floats
    noise: tuple[float, float]

    def of(self, place: slice) -> _Halves:
        """Those of some groups."""
        return _Halves(self.residuals[:, place], self.variances[:, place], self.noise)

    def together(self) -> tuple[Floats, Floats, tuple[float, float]]:
        """Over the whole of the time."""
        wider = float(np.sqrt(len(self.residuals)))
        own, theirs = self.noise
        sums = self.residuals.sum(axis=0), self.variances.sum(axis=0)
        return *sums, (wider * own, wider * theirs)

    def early_less_late(self) -> tuple[Floats, Floats, tuple[float, float]]:
        """What a group has early more than late, whatever its level is.

        A group whose log hazard is higher by b has V b more than predicted, V the
        variance in either half. With shares r of V early and late, of all groups,

            D = r_late S_early - r_early S_late

        has mean zero whatever b is, variance r_early r_late V, and mean r_early r_late
        V c where the group's log hazard is higher by c early than late.
        """
        early = float(self.variances[0].sum() / max(self.variances.sum(), 1e-9))
        early = min(max(early, LEAST_HALF), 1.0 - LEAST_HALF)
        late, both = 1.0 - early, early * (1.0 - early)
        own, theirs = self.noise
        return (
            late * self.residuals[0] - early * self.residuals[1],
            both * self.variances.sum(axis=0),
            (float(np.hypot(early, late)) * own, both * float(np.sqrt(2.0)) * theirs),
        )


class _Scale(NamedTuple):
    """How a test's numbers become the user's: their unit, and how wide an interval is.

    Attributes
    ----------
    unit
        What one of them is in the user's units.
    interval
        Probability inside of the study's intervals.
    """

    unit: float
    interval: float

    def row(self, shift: float, lower: float, upper: float) -> MeanRow:
        """What a group lacks, from its 90 % interval."""
        wider = ndtri(0.5 + 0.5 * self.interval) / ndtri(0.95)
        return {
            "mean": float(self.unit * shift),
            "lower": float(self.unit * (shift + wider * (lower - shift))),
            "upper": float(self.unit * (shift + wider * (upper - shift))),
        }


def fit_record(
    cells: ResidualCells,
    released: Closing,
    draws: Floats,
    design: Design,
    moments: Floats | None,
    study: Study,
) -> list[FitTest]:
    """The tests of all rows together, of every feature and of the sites."""
    kinds, check = cells.check.kinds, cells.check
    residuals, variances = released.total.reshape(2, kinds, cells.cells)
    slope = check.slope(draws)
    scale = _Scale(check.unit / slope, study.inference.interval)
    # As if a residual moved with the linear predictor by its own variance.
    weight = check.variance_weight
    noise = released.noise, released.noise / weight
    sums = _Halves(residuals, variances / weight, noise)
    covariance = slope**2 * np.atleast_2d(np.cov(draws[:, : design.width].T))
    made_up = MadeUp(study, moments)
    found: list[FitTest] = []
    parts: list[tuple[ColumnBins | None, _Halves, Floats]] = []
    start = 0
    columns: list[ColumnBins | None] = [*cells.features, None]
    for column in columns:
        size = len(cells.sites) if column is None else column.size
        own = sums.of(slice(start, start + size))
        start += size
        rows, along = _records(column, size, made_up)
        parts.append((column, own, rows))
        unsure = rows @ covariance @ rows.T
        names = list(cells.sites) if column is None else range_names(column, moments)
        by = SITES if column is None else column.column
        even = test_groups(*own.together(), unsure, along)
        if even is not None:
            found.append(_row(by, EVEN, even, scale, names))
        if kinds == 2:
            shown = test_groups(*own.early_less_late(), np.zeros((size, size)), None)
            p = test_change(*own, unsure, along, free=column is None)
            if shown is not None and p is not None:
                found.append(_row(by, CHANGING, replace(shown, p=p), scale, names))
    found = [*_overall(cells, parts, draws, design, made_up, scale), *found]
    level = SURPRISE / max(len(found), 1)
    for row in found:
        row["misfit"] = row["p"] < level
        row["text"] = _sentence(row)
    return found


def _overall(
    cells: ResidualCells,
    parts: list[tuple[ColumnBins | None, _Halves, Floats]],
    draws: Floats,
    design: Design,
    made_up: MadeUp,
    scale: _Scale,
) -> Iterator[FitTest]:
    """Whether there is as much as predicted in all rows together, and in each half of
    the time.

    Every feature's groups have all rows between them, each sum with noise of its own:
    the more groups, the more noise, and the less it counts.
    """
    sizes = np.array([own.residuals.shape[1] for _, own, _ in parts])
    weights = 1.0 / sizes / np.sum(1.0 / sizes)

    def summed(each: Callable[[_Halves], Floats]) -> Floats:
        every = [each(own).sum(axis=1) for _, own, _ in parts]
        total: Floats = weights @ np.array(every)
        return total

    wider = float(np.sqrt(1.0 / np.sum(1.0 / sizes)))
    own, theirs = parts[0][1].noise
    all_rows = _Halves(
        summed(lambda own: own.residuals)[:, None],
        summed(lambda own: own.variances)[:, None],
        (wider * own, wider * theirs),
    )
    (reference,) = made_up.rows([made_up.reference]).x.T
    mean = reference + sum(
        (_shares(own) @ (rows - reference) for _, own, rows in parts),
        np.zeros_like(reference),
    )
    check, slope = cells.check, cells.check.slope(draws)
    some = draws[:: -(-len(draws) // SOME)]
    zero = Rows(design, np.zeros((design.width, 1)), {}, np.zeros(1))
    line = (some[:, : design.width] @ mean)[:, None] + check.log_baselines(some, zero)
    unsure = slope**2 * np.atleast_2d(np.cov(line.T))
    share = np.maximum(all_rows.variances[:, 0], 1e-9)
    share = share / share.sum()
    test = _of_one(all_rows.together(), float(share @ unsure @ share))
    if test is not None:
        yield _row(ALL, EVEN, test, scale, ["all"])
    if check.kinds == 2:
        apart = float(np.array([1.0, -1.0]) @ unsure @ np.array([1.0, -1.0]))
        test = _of_one(all_rows.early_less_late(), apart)
        if test is not None:
            yield _row(ALL, CHANGING, test, scale, ["early less late"])


def _of_one(
    sums: tuple[Floats, Floats, tuple[float, float]], unsure: float
) -> GroupTest | None:
    residual, variance, noise = sums
    return test_level(float(residual[0]), float(variance[0]), noise, unsure)


def _shares(own: _Halves) -> Floats:
    """Shares of the groups in the variance of all; some are noise."""
    weight = np.maximum(own.variances.sum(axis=0), 0.0)
    total = float(weight.sum())
    size = weight.size
    shares: Floats = weight / total if total > 0.0 else np.full(size, 1.0 / size)
    return shares


def _records(
    column: ColumnBins | None, size: int, made_up: MadeUp
) -> tuple[Floats, Floats | None]:
    """A record of each group as the model sees it, other features as in the reference
    record; and where the groups of a number are."""
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
    return made_up.rows(records).x.T, along


def _row(
    by: str, what: str, test: GroupTest, scale: _Scale, names: list[str]
) -> FitTest:
    """A test; whether it found something is known once all are made."""
    return {
        "by": by,
        "what": what,
        "p": test.p,
        "bend": test.trend if what == EVEN else 0,
        "groups": [
            {"group": name, **scale.row(*ends)}
            for name, *ends in zip(
                names, test.shift, test.lower, test.upper, strict=True
            )
        ],
        "misfit": False,
        "text": "",
    }


def _sentence(row: FitTest) -> str:
    by, what = row["by"], row["what"]
    subject = {SITES: "sites", ALL: "all rows"}.get(by, f"'{by}'")
    if not row["misfit"]:
        if row["p"] < SURPRISE:
            over = ", effects over time" if what == CHANGING else ""
            over = ", over time" if over and by == ALL else over
            return (
                f"{subject}{over}: p = {row['p']:.2g}, not significant after "
                "correction for all tests"
            )
        if by == ALL:
            when = " in each half of the time" if what == CHANGING else ""
            return f"{subject}: as much as predicted{when}, within the noise"
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
        group = group if by == SITES else f"{by} {group}"
    if by == ALL:
        if what == CHANGING:
            return (
                f"all rows: there is {more} than predicted early, compared with late: "
                "the baseline is off"
            )
        return f"all rows: there is {more} than predicted: the fit is off as a whole"
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
        if row["by"] == ALL:
            remedy = OVERALL[row["what"]]
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
