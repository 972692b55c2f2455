"""What is publicly known of a raw column: its range, or its levels."""

from __future__ import annotations

import unicodedata
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from cipherbayes.data.tables import Kind
from cipherbayes.models.transforms import TransformName, transform_named
from cipherbayes.typing import Floats

Level = str | int | bool

IMPUTED = "impute"
"""Where missing values are drawn from a model of the column that the study learns."""


class KnownSpread(BaseModel):
    """What is publicly known of the values of a column that is missing here and there.

    Attributes
    ----------
    mean, sd
        Of a number, after its transform.
    shares
        Of each level of a category; they add up to one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float | None = Field(default=None, allow_inf_nan=False)
    sd: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    shares: dict[str, float] | None = None

    @property
    def normal(self) -> tuple[float, float]:
        """Mean and standard deviation of a number; ValueError for a category."""
        if self.mean is None or self.sd is None:
            raise ValueError("a category has shares, no mean and standard deviation")
        return self.mean, self.sd


class Feature(BaseModel):
    """One raw column and what is publicly known of it.

    Either a number with ``low``, ``high`` and perhaps a ``transform``, or a
    category with ``levels``, the first of which is the reference.

    Attributes
    ----------
    low, high
        The public range, in the user's units; values beyond it are clipped to it.
    transform
        ``"log"``, ``"log1p"`` or ``"sqrt"``, applied after clipping.
    levels
        The categories, at least two.
    missing
        What stands in for a missing value: a number within the range, or a level. Or
        where it is drawn from, several times over: a :class:`KnownSpread`, or
        ``"impute"`` for a model of the column that the study learns. Without it a table
        with missing values is refused.
    indicator
        Whether a 0/1 column says which values were missing.
    per
        The step that effects are told for, in the user's units: 10 for ratios per ten
        years. Left out: one unit, or a doubling where the transform is a logarithm.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: float | None = Field(default=None, allow_inf_nan=False)
    high: float | None = Field(default=None, allow_inf_nan=False)
    transform: TransformName | None = None
    levels: tuple[Level, ...] | None = None
    missing: float | Level | KnownSpread | None = None
    indicator: bool = False
    per: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)

    @property
    def level_names(self) -> list[str]:
        """The levels of a category as texts; none of a number."""
        return [level_name(level) for level in self.levels or ()]

    @property
    def kind(self) -> Kind:
        """How the raw column is read."""
        return "number" if self.levels is None else "text"

    @property
    def imputed(self) -> bool:
        """Whether missing values are drawn, several times over."""
        return isinstance(self.missing, KnownSpread) or self.learns

    @property
    def learns(self) -> bool:
        """Whether they are drawn from a model that the study learns."""
        levels = self.levels or ()
        return self.missing == IMPUTED and IMPUTED not in map(level_name, levels)

    @property
    def stand_in(self) -> float | Level | None:
        """What is in the place of a missing value, for good or until it is drawn."""
        if not self.imputed:
            assert not isinstance(self.missing, KnownSpread)
            return self.missing
        if self.levels is not None:
            return self.levels[0]
        low, high = self.ends
        return low + (high - low) / 2.0

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of a number's public range."""
        if self.low is None or self.high is None:
            raise TypeError("a category has no range")
        return self.low, self.high

    def transformed(self, values: Floats) -> Floats:
        """f(v) for values within the range."""
        return transform_named(self.transform).apply(values)

    def untransformed(self, values: Floats) -> Floats:
        """The values within the range whose transform this is."""
        values = transform_named(self.transform).undo(values)
        return np.clip(values, self.low, self.high)

    def affine(self) -> tuple[float, float]:
        """Centre c and half width h of a number's transformed range."""
        low, high = self.transformed(np.array(self.ends)).tolist()
        return low + (high - low) / 2.0, (high - low) / 2.0

    def require(self, value: object) -> None:
        """Refuse what is no number of the public range, or none of the levels."""
        if self.levels is not None:
            names = self.level_names
            known = isinstance(value, str | int) and level_name(value) in names
            if not known:
                raise ValueError(f"not one of the levels {', '.join(names)}")
            return
        low, high = self.ends
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("not a number")
        if not low <= value <= high:
            raise ValueError(f"not between low and high ({low:g} to {high:g})")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.levels is None:
            self._check_range()
        else:
            self._check_levels(self.levels)
        if self.per is not None and (self.levels is not None or self.transform):
            raise ValueError("per is for a number without a transform: remove it")
        if self.indicator and self.missing is None:
            raise ValueError(
                "indicator = true needs 'missing': the value that stands in for a "
                "missing one"
            )
        if self.indicator and self.imputed:
            raise ValueError(
                "indicator = true says that missing values are a group of their own, "
                "imputation that they are like the others: remove one of them"
            )
        return self

    def _check_range(self) -> None:
        low, high, missing = self.low, self.high, self.missing
        if low is None or high is None:
            raise ValueError("needs either low and high, or levels")
        if not low < high:
            raise ValueError("low must be below high")
        if self.transform is not None:
            transform = transform_named(self.transform)
            with np.errstate(all="ignore"):
                if not np.isfinite(transform.apply(np.array([low, high]))).all():
                    raise ValueError(
                        f'transform = "{self.transform}" needs {transform.needs}'
                    )
        with np.errstate(all="ignore"):
            _, half = self.affine()
            if not (0.0 < half < np.inf and 1.0 / half < np.inf):
                raise ValueError("low and high are too far apart or too close together")
        if missing is None or missing == IMPUTED:
            return
        if isinstance(missing, KnownSpread):
            self._check_spread(missing)
            return
        if isinstance(missing, str | bool):
            raise ValueError(
                "missing must be a number for a feature with low and high, "
                '{ mean, sd }, or "impute"'
            )
        if not low <= missing <= high:
            raise ValueError("missing must lie between low and high")

    def _check_levels(self, levels: tuple[Level, ...]) -> None:
        if not (self.low is None and self.high is None and self.transform is None):
            raise ValueError("has levels, so it takes no low, high or transform")
        if len(levels) < 2:
            raise ValueError("levels needs at least two levels")
        texts = [text for level in levels for text in spellings(level)]
        if len(set(texts)) < len(texts):
            raise ValueError("levels names the same level twice")
        if "" in texts:
            raise ValueError("levels has an empty name: use 'missing' for empty fields")
        if any(map(hides_something, texts)):
            raise ValueError(
                "levels has a name with a blank at an end, or with a character that is "
                "not seen: leave it out (cells are read without blanks at their ends)"
            )
        if isinstance(self.missing, KnownSpread):
            self._check_shares(self.missing, tuple(map(level_name, levels)))
        elif not (
            self.missing is None
            or self.learns
            or level_name(self.missing) in map(level_name, levels)
        ):
            raise ValueError(
                'missing must be one of the levels, { shares }, or "impute"'
            )

    def _check_spread(self, known: KnownSpread) -> None:
        if known.shares is not None or known.mean is None or known.sd is None:
            raise ValueError("missing of a number takes mean and sd, both of them")
        centre, half = self.affine()
        if not centre - half <= known.mean <= centre + half:
            raise ValueError(
                "missing.mean lies outside of low and high (after the transform)"
            )
        if known.sd > half:
            raise ValueError(
                "missing.sd is more than half of the range from low to high (after the "
                "transform)"
            )

    def _check_shares(self, known: KnownSpread, names: tuple[str, ...]) -> None:
        shares = known.shares
        if known.mean is not None or known.sd is not None or shares is None:
            raise ValueError("missing of a category takes the shares of its levels")
        if set(shares) != set(names):
            raise ValueError(
                f"missing.shares must name every level: {', '.join(names)}"
            )
        if min(shares.values()) < 0.0 or abs(sum(shares.values()) - 1.0) > 1e-6:
            raise ValueError("missing.shares must be at least 0 and add up to 1")


def hides_something(text: str) -> bool:
    """Whether whoever reads a text cannot see all of it: blanks at an end, or controls.

    Of a line of text nothing else is taken off where cells are read.
    """
    ends = text[:1] + text[-1:]
    unseen = any(unicodedata.category(letter)[0] == "C" for letter in text)
    return unseen or any(unicodedata.category(end)[0] == "Z" for end in ends)


def level_name(level: float | Level | None) -> str:
    """A level as text; TOML's true is the text ``true``."""
    return str(level).lower() if isinstance(level, bool) else str(level)


def spellings(level: Level) -> tuple[str, ...]:
    """Texts that mean the level: files write true as True, and 1 as 1.0."""
    name = level_name(level)
    if isinstance(level, bool):
        return name, name.title(), name.upper()
    if name.removeprefix("-").isdecimal():
        return name, f"{name}.0"
    return (name,)
