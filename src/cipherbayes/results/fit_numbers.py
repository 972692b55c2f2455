"""Where a fit misses, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from cipherbayes.data.column_bins import ColumnBins
from cipherbayes.data.residual_cells import ResidualCells
from cipherbayes.inference.misfit import (
    GroupTest,
    change_test,
    groups_test,
    level_test,
)
from cipherbayes.models.design import Design
from cipherbayes.models.rows import Rows
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.fit_sentences import (
    ALL,
    CHANGING,
    EVEN,
    FEATURE,
    RISK,
    SITES,
    SURPRISE,
    sentence,
)
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.record import (
    FitTest,
    MeanRow,
    PrivateMetrics,
    RiskOverTime,
)
from cipherbayes.results.user_values import range_names, user_values
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats

NAMES = {SITES: "site", ALL: "all", RISK: "risk"}
"""What ``by`` says of those that are no features."""
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
        """The halves of some groups alone."""
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
    scores: PrivateMetrics | None = None,
) -> list[FitTest]:
    """The tests of all rows together, of every feature and of the sites.

    Parameters
    ----------
    scores
        Of the same rows, where they are known: they tell too whether there is as much
        as predicted, and whether predicted risks hold all the time.
    """
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
        of = (SITES, None) if column is None else (FEATURE, column.column)
        even = groups_test(*own.together(), unsure, along)
        if even is not None:
            found.append(_row(of, EVEN, even, scale, names))
        if kinds == 2:
            shown = groups_test(*own.early_less_late(), np.zeros((size, size)), None)
            p = change_test(*own, unsure, along, free=column is None)
            if shown is not None and p is not None:
                found.append(_row(of, CHANGING, replace(shown, p=p), scale, names))
    scores = scores or {}
    if "risk_over_time" in scores:
        found = [_of_risk(scores["risk_over_time"]), *found]
    ratio = _observed_over_predicted(scores, scale)
    found = [*_overall(cells, parts, draws, design, made_up, scale, ratio), *found]
    # The most surprising one among all, the next among the others (Holm 1979).
    for rank, row in enumerate(sorted(found, key=lambda each: each["p"])):
        if not row["p"] < SURPRISE / (len(found) - rank):
            break
        row["misfit"] = True
    for row in found:
        row["text"] = sentence(row, found)
    return found


def _observed_over_predicted(
    scores: PrivateMetrics, scale: _Scale
) -> tuple[float, float] | None:
    """Log of how much more there is than predicted, and its standard deviation, where
    residuals are held and do not tell: of counts, and of survival to the horizon."""
    if "mean_observed" in scores and "predicted_over_observed" in scores:
        told = scores["predicted_over_observed"]
        ends = 1.0 / told["upper"], 1.0 / told["lower"]
    elif scores.get("observed_over_expected"):
        last = scores["observed_over_expected"][-1]
        ends = last["lower"], last["upper"]
    else:
        return None
    low, high = np.log(np.maximum(ends, 1e-9))
    reach = 2.0 * float(ndtri(0.5 + 0.5 * scale.interval))
    return 0.5 * float(low + high), max(float(high - low) / reach, 1e-9)


def _of_risk(risk: RiskOverTime) -> FitTest:
    return {
        "by": NAMES[RISK],
        "kind": RISK,
        "what": CHANGING,
        "p": risk["p"],
        "bend": 0,
        "groups": [
            {
                "group": "late less early",
                "mean": risk["mean"],
                "lower": risk["lower"],
                "upper": risk["upper"],
            }
        ],
        "misfit": False,
        "text": "",
    }


def _overall(
    cells: ResidualCells,
    parts: list[tuple[ColumnBins | None, _Halves, Floats]],
    draws: Floats,
    design: Design,
    made_up: MadeUp,
    scale: _Scale,
    ratio: tuple[float, float] | None,
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
    zero = Rows(design, np.zeros((design.width, 1)), {}, np.zeros(1))
    line = (draws[:, : design.width] @ mean)[:, None]
    line = line + check.log_baselines(draws, zero)
    unsure = slope**2 * np.atleast_2d(np.cov(line.T))
    share = np.maximum(all_rows.variances[:, 0], 1e-9)
    share = share / share.sum()
    level = float(share @ unsure @ share)
    test = _of_one(all_rows.together(), level)
    if ratio is not None:
        by_scores = _level(*ratio, level / slope**2, slope)
        if test is not None:
            # Of two looks at the same, the more surprising one.
            likelier = min(test, by_scores, key=lambda each: each.p)
            by_scores = replace(likelier, p=min(2.0 * likelier.p, 1.0))
        test = by_scores
    if test is not None:
        yield _row((ALL, None), EVEN, test, scale, ["all"])
    if check.kinds == 2:
        apart = float(np.array([1.0, -1.0]) @ unsure @ np.array([1.0, -1.0]))
        test = _of_one(all_rows.early_less_late(), apart)
        if test is not None:
            yield _row((ALL, None), CHANGING, test, scale, ["early less late"])


def _level(mean: float, sd: float, unsure: float, slope: float) -> GroupTest:
    """A test of how much the log of all that happened is off, which the posterior
    expects with a variance of ``unsure``; in units of the residuals' variance."""
    spread = float(np.hypot(sd, np.sqrt(unsure)))
    reach = float(ndtri(0.95)) * spread
    found = slope * np.array([mean, mean - reach, mean + reach])
    return GroupTest(2.0 * float(ndtr(-abs(mean) / spread)), 0, *found[:, None])


def _of_one(
    sums: tuple[Floats, Floats, tuple[float, float]], unsure: float
) -> GroupTest | None:
    residual, variance, noise = sums
    return level_test(float(residual[0]), float(variance[0]), noise, unsure)


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
    of: tuple[str, str | None],
    what: str,
    test: GroupTest,
    scale: _Scale,
    names: list[str],
) -> FitTest:
    """A test of all rows, of a feature with its name, or of the sites; whether it
    found something is known once all are made."""
    kind, feature = of
    return {
        "by": feature or NAMES[kind],
        "kind": kind,
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
