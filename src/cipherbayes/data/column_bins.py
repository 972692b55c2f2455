"""Every feature in bins: levels as they are, numbers in ranges that are public or
released.

A record is in exactly one bin of a feature, so that counts of the bins add up to the
number of records. A missing value is in a bin of its own where an indicator tells it
or where it is drawn; else it is in that of its stand-in, which nothing tells from a
value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.data.features import Feature
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Bools, Floats, Integers

FAR, LEAST_WINDOW = 5.0, 2.0**-20
"""Values farther from the released mean count in sums as so many standard deviations
away; and the least half width of a window."""


@dataclass(frozen=True)
class ColumnBins:
    """A feature's bins.

    Attributes
    ----------
    column
        The raw column.
    first, moment
        Place of its first column in the design, and among the columns that released
        moments move.
    count
        Ranges of a number, or levels.
    levels
        Names of the levels of a category; None for a number.
    reference
        Whether the first level has a column too.
    feature, centre, half_width
        How a number is prepared.
    reach
        Ranges of a number span so many released standard deviations on each side.
    indicator
        Place of the column that tells missing values; None where there is none.
    gap
        Role that tells the missing values that are drawn; None where none are.
    """

    column: str
    first: int
    moment: int
    count: int
    levels: tuple[str, ...] | None = None
    reference: bool = False
    feature: Feature | None = None
    centre: float = 0.0
    half_width: float = 1.0
    reach: float = 3.0
    indicator: int | None = None
    gap: str | None = None

    @property
    def number(self) -> Feature:
        """What is known of a number; TypeError for a category."""
        if self.feature is None:
            raise TypeError(f"{self.column} is a category")
        return self.feature

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of a category's bins; TypeError for a number."""
        if self.levels is None:
            raise TypeError(f"{self.column} is a number")
        return (*self.levels, "missing") if self.tells_missing else self.levels

    @property
    def tells_missing(self) -> bool:
        """Whether there is a bin, the last one, of missing values."""
        return self.indicator is not None or self.gap is not None

    @property
    def size(self) -> int:
        """Bins in all."""
        return self.count + self.tells_missing

    def edges(self, scales: Floats | None) -> Floats:
        """Edges between a number's ranges, in prepared units; the outer ranges are
        open.

        Parameters
        ----------
        scales
            Released means, then standard deviations, of the columns that they move;
            None for the public range.
        """
        centre, reach = 0.0, 1.0
        if scales is not None:
            mean, sd = np.split(scales, 2)
            centre = float(mean[self.moment])
            reach = self.reach * float(sd[self.moment])
        return centre + reach * np.linspace(-1.0, 1.0, self.count + 1)[1:-1]

    @property
    def has_sums(self) -> bool:
        """Whether it is a number in the units in which it is prepared."""
        return self.feature is not None and self.feature.transform is None

    def window(self, scales: Floats | None) -> tuple[float, float]:
        """Middle and half width of where a number's sums tell values apart, in prepared
        units: as far as its public range, or :data:`FAR` released standard deviations
        from the released mean."""
        if scales is None:
            return 0.0, 1.0
        mean, sd = (float(part[self.moment]) for part in np.split(scales, 2))
        return mean, max(min(FAR * sd, 1.0 + abs(mean)), LEAST_WINDOW)

    def places(self, rows: Rows, scales: Floats | None) -> Floats:
        """Where in the window each record is, from -1 to 1; zero if it is missing."""
        middle, half = self.window(scales)
        away = np.nan_to_num((rows.x[self.first] - middle) / half)
        place: Floats = np.clip(away, -1.0, 1.0)
        place[self._missing(rows)] = 0.0
        return place

    def bins(self, rows: Rows, scales: Floats | None) -> Integers:
        """The bin of each record, whose columns are as they are prepared."""
        x = rows.x
        if self.levels is not None:
            place = np.zeros(x.shape[1], dtype=np.int64)
            for level in range(1, self.count):
                place[x[self.first + level - (not self.reference)] > 0.5] = level
        else:
            place = np.searchsorted(self.edges(scales), x[self.first]).astype(np.int64)
        place[self._missing(rows)] = self.count
        return place

    def _missing(self, rows: Rows) -> Bools:
        """Whose values are in the bin of missing ones."""
        missing = np.zeros(rows.x.shape[1], dtype=np.bool_)
        if self.indicator is not None:
            missing |= rows.x[self.indicator] > 0.5
        if self.gap is not None:
            missing |= rows.outcome[self.gap] > 0.5
        return missing
