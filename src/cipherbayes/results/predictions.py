"""Predictions for tables of new rows: a mean with its interval, median survival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cipherbayes.data.blocks import take
from cipherbayes.data.imputing import DRAWS, Imputing, joined
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.rescaled import seen_through
from cipherbayes.data.tables import open_table
from cipherbayes.errors import DataError, MissingValuesError, RunError
from cipherbayes.inference.flags import FlagRecord
from cipherbayes.models.counts import CountModel
from cipherbayes.models.rows import Rows
from cipherbayes.models.survival import (
    SurvivalCurves,
    horizon_of,
    require_survival_curves,
)
from cipherbayes.results.effects import median_survival
from cipherbayes.results.record import BeyondRow, MedianSurvival
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import imputing_of, preparation_of
from cipherbayes.typing import Floats

PREDICTIVE_DRAWS = 2000
"""Most draws that a prediction averages over: all of a private study's, since
``verify`` compares all of them, and its interval's ends need no more."""
NAMED_ROWS = 5
"""Rows with missing values that a refusal names."""
NOT_OF_PREDICTIONS = (
    "mostly-prior",
    "correlation-not-learnt",
    "column-hidden",
    "columns-alike",
    "few-events",
)
"""Flags of intervals that are wide and not wrong, of effects one by one, and of scores;
unless they are unusable."""
ROWS = 256
"""Rows of a block, so that draws × rows × times stay in memory."""


@dataclass(frozen=True)
class Predictor:
    """A finished study that is asked about new rows.

    Attributes
    ----------
    moments
        Released means and deviations of the columns; None where there are none.
    column_models
        Learnt models of the columns with missing values; None where there are none.
    tail
        Probability outside either end of an interval; None where the run has points.
    """

    study: Study
    moments: Floats | None
    column_models: Floats | None
    tail: float | None

    def predict(
        self,
        draws: Floats,
        table: Any,
        times: Sequence[float] | Floats | None,
        where: str,
    ) -> dict[str, Floats]:
        """Mean and ends of the interval over draws on the prepared scale, for each
        row; the mean three times where the run has points.

        Where a value is missing that the study draws, what is predicted is the mean
        over its draws given the row's other columns.
        """
        self._require_times(times is not None)
        at = None if times is None else np.asarray(times, dtype=float)
        parts: list[Floats] = []
        for values in self._predicted(draws, table, at, where):
            mean = lower = upper = values.mean(axis=0)
            if self.tail is not None:
                ends = [self.tail, 1.0 - self.tail]
                lower, upper = np.quantile(values, ends, axis=0)
            parts.append(np.stack([mean, lower, upper]))
        mean, lower, upper = np.concatenate(parts, axis=1)
        return {"mean": mean, "lower": lower, "upper": upper}

    def _predicted(
        self, draws: Floats, table: Any, at: Floats | None, where: str
    ) -> Iterator[Floats]:
        """What every draw predicts, for some rows after the other."""
        model, imputing = self.study.model, self._imputing
        if imputing is None:
            for rows in self.rows_of(table, where):
                yield model.predict(draws, rows, at)
            return
        scales = joined(self.moments, self.column_models)
        for block in self._blocks(table, where, ROWS // DRAWS, gaps=True):
            complete, drawn = imputing.expanded(block, scales)
            lacking = imputing.lacking(block)
            found = model.predict(draws, complete, at)
            values = np.empty((found.shape[0], block.count, *found.shape[2:]))
            values[:, ~lacking] = found
            if drawn is not None:
                each = model.predict(draws, drawn, at)
                shape = (each.shape[0], -1, DRAWS, *each.shape[2:])
                values[:, lacking] = each.reshape(shape).mean(axis=2)
            yield values

    @property
    def _imputing(self) -> Imputing | None:
        """How missing values are drawn; None where they cannot be."""
        found = imputing_of(self.study)
        if found is None or (found.models.length and self.column_models is None):
            return None
        return found

    def beyond_ranges(self, table: Any, where: str) -> list[BeyondRow]:
        """The columns with values beyond their public range, and how many they are.

        Such a value is held at the end of the range, as it is in the fit.
        """
        ranges = {
            name: (feature.low, feature.high)
            for name, feature in self.study.features.items()
            if feature.low is not None and feature.high is not None
        }
        below, above = dict.fromkeys(ranges, 0), dict.fromkeys(ranges, 0)
        count = 0
        for chunk in open_table(table, where).chunks(dict.fromkeys(ranges, "number")):
            count += chunk.num_rows
            for name, (low, high) in ranges.items():
                values = chunk.column(name).to_numpy(zero_copy_only=False)
                below[name] += int(np.sum(values < low))
                above[name] += int(np.sum(values > high))
        return [
            {
                "feature": name,
                "low": low,
                "high": high,
                "below": below[name],
                "above": above[name],
                "rows": count,
            }
            for name, (low, high) in ranges.items()
            if below[name] or above[name]
        ]

    def exposures(self, table: Any, where: str) -> Floats:
        """The exposure of each row of a table, for a model of counts that has one."""
        model = self.study.model
        if not isinstance(model, CountModel) or model.offset_column is None:
            raise RunError(
                "expected counts are for a model of counts with an exposure",
                where=f"study '{self.study.name}'",
                remedy="leave them out: predictions are what the model says already",
            )
        column = model.offset_column
        read = open_table(table, where).chunks({column: "number"})
        parts = [chunk.column(column).to_numpy(zero_copy_only=False) for chunk in read]
        values = np.concatenate([np.empty(0), *parts])
        if model.exposure is None:
            values = np.exp(values)
        if not np.all((values > 0.0) & (values < np.inf)):
            raise DataError(
                f"column '{column}' has values that are missing or no exposures",
                where=where,
                remedy="give a positive exposure (or its logarithm) for every row",
            )
        return values

    def median_survival(
        self, draws: Floats, table: Any, where: str
    ) -> list[MedianSurvival]:
        """Median survival time of each row."""
        curves = require_survival_curves(self.study.model)
        return [
            median_survival(times, self.tail)
            for rows in self.rows_of(table, where)
            for times in curves.median(draws, rows).T
        ]

    def rows_of(self, table: Any, where: str = "table") -> Iterator[Rows]:
        """A table to predict for, in small blocks; no value may be missing."""
        seen = seen_through(preparation_of(self.study).design, self.moments)
        for block in self._blocks(table, where, ROWS, gaps=False):
            rows = seen(block)
            yield Rows(rows.design, rows.x, {}, rows.squared_norms)

    def _blocks(
        self, table: Any, where: str, most: int, *, gaps: bool
    ) -> Iterator[Rows]:
        """The rows as they are prepared, in blocks of at most so many."""
        try:
            prepared = PreparedTable.for_prediction(
                open_table(table, where), preparation_of(self.study), gaps=gaps
            )
            for block in prepared.blocks():
                for start in range(0, block.count, most):
                    stop = min(start + most, block.count)
                    yield take(block, np.arange(start, stop))
        except MissingValuesError as error:
            raise self._with_rows(error, table, where) from None
        except DataError as error:
            # A finished study has its levels and columns for good.
            remedy = error.remedy
            if ".levels" in remedy:
                remedy = (
                    "the study knows no other: correct it, leave such rows out, or fit "
                    "a study with this level"
                )
            raise DataError(error.what, where=error.where, remedy=remedy) from None

    def _with_rows(
        self, error: MissingValuesError, table: Any, where: str
    ) -> DataError:
        """The refusal of a column with missing values, for whoever has the table."""
        column, preparation = error.column, preparation_of(self.study)
        (encoder, *_), start = preparation.encoders_of(column), 0
        rows: list[int] = []
        kind = preparation.columns[column]
        for chunk in open_table(table, where).chunks({column: kind}):
            absent = encoder.absent(chunk.column(column))
            rows = (start + np.flatnonzero(absent)).tolist()
            start += chunk.num_rows
            if rows:
                break
        named = ", ".join(str(row) for row in rows[:NAMED_ROWS])
        word = "row" if len(rows) == 1 else "rows"
        more = " and others" if len(rows) > NAMED_ROWS else ""
        return DataError(
            f"column '{column}' has missing values: {word} {named}{more}, where the "
            "first row is 0",
            where=where,
            remedy="the study has nothing in their place: fill them in, or leave "
            "these rows out",
        )

    def _require_times(self, given: bool) -> None:
        """Refuse times for one number a row, and curves without times."""
        model, where = self.study.model, f"study '{self.study.name}'"
        if given and not model.predicts_over_time:
            raise RunError(
                f"a model of kind '{model.kind}' predicts one number for a row, not a "
                "curve over time",
                where=where,
                remedy="leave the times out",
            )
        if not given and model.predicts_over_time:
            raise RunError(
                "a survival model predicts at times",
                where=where,
                remedy="give some in the unit of the time column, e.g. times=[365]",
            )


def beyond_in_words(row: BeyondRow) -> str:
    """E.g. ``'age': 3 of 500 values are above 100 and predicted as 100``."""
    low, high = f"{row['low']:g}", f"{row['high']:g}"
    sides = [
        f"{count:,} {'is' if count == 1 else 'are'} {side} {end}"
        for count, side, end in (
            (row["below"], "below", low),
            (row["above"], "above", high),
        )
        if count
    ]
    return (
        f"column '{row['feature']}': of {row['rows']:,} values {' and '.join(sides)}, "
        "beyond its public range; they are predicted as if at its end"
    )


def beyond_horizon(study: Study, times: Sequence[float] | Floats | None) -> str:
    """What to warn of where times lie beyond the horizon; nothing where none does."""
    horizon = horizon_of(study.model)
    if times is None or horizon is None or not np.any(np.asarray(times) > horizon):
        return ""
    return (
        f"times beyond the horizon of {horizon:g}: there is nothing but the model "
        "there, which extrapolates"
    )


def flags_of_predictions(
    study: Study, flags: Sequence[FlagRecord], reach: float | None
) -> list[FlagRecord]:
    """The flags that whoever predicts must have read.

    Those that call intervals wide, not wrong, say nothing against a prediction, whose
    interval is as wide; nor do those of single effects, and of scores. One of intervals
    of a baseline is left out where no prediction reaches them.

    Parameters
    ----------
    reach
        The latest time that is predicted for, in the user's unit; None where a
        prediction has no time, or may reach anywhere.
    """
    model = study.model
    beyond: set[str] = set()
    if isinstance(model, SurvivalCurves) and reach is not None:
        beyond = model.parameters_after(reach)
    return [
        flag
        for flag in flags
        if (flag["unusable"] or flag["name"] not in NOT_OF_PREDICTIONS)
        and not (flag["parameters"] and set(flag["parameters"]) <= beyond)
    ]


def thinned(draws: Floats) -> Floats:
    """At most ``PREDICTIVE_DRAWS`` of them."""
    return draws[:: -(-len(draws) // PREDICTIVE_DRAWS)]
