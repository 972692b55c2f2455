"""A phase of a private study: releases of one kind, one a round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from cipherbayes.data.characteristics import Characteristics
from cipherbayes.data.column_models import ColumnModels
from cipherbayes.data.residual_cells import ResidualCells
from cipherbayes.data.windows import Numbers
from cipherbayes.errors import ProtocolError
from cipherbayes.models.held_out import HeldOutCheck
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.privacy.accountant import compose
from cipherbayes.privacy.events import (
    Event,
    OfRows,
    Repeated,
)
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.typing import Floats, Integers

if TYPE_CHECKING:  # the server imports this module, and nothing that draws noise
    from cipherbayes.privacy.noise import NoiseSource

Purpose = Literal[
    "records",
    "moments",
    "histograms",
    "windows",
    "scales",
    "imputation",
    "gradient",
    "influence",
    "describe",
    "check",
    "residuals",
    "difference",
]

AnyVector = TypeVar("AnyVector", Floats, Integers)

SCALING: frozenset[Purpose] = frozenset(
    {"moments", "histograms", "windows", "scales", "imputation"}
)
"""Releases that tell how later ones see the columns."""
PREPARATORY: frozenset[Purpose] = SCALING | {"records"}
"""Releases before the sampler's first."""

CLOSING: frozenset[Purpose] = frozenset(
    {"describe", "check", "residuals", "difference"}
)
"""Releases after the sampler's last: they describe the records and check the fit."""


@dataclass(frozen=True)
class Phase:
    """Releases of one kind, one a round.

    Attributes
    ----------
    purpose
        What is summed: one for each record (``records``; by site where sites may
        differ), columns and their
        squares (``moments``), one in a bin of each column (``histograms``, and
        ``windows`` inside those that they show), columns and their squares inside
        windows (``scales``), products of columns (``imputation``, for models of those
        with missing values), clipped gradients (``gradient``), or gradients weighted
        by x alone (``influence``); after the posterior one in a bin of each column
        (``describe``), one in a bin of predictions and outcomes (``check``),
        residuals by group (``residuals``), and how much better each record is
        predicted than by an earlier fit (``difference``).
    first
        Number of the first round.
    sums
        Clipping norm, length, grid, noise and range of the sum, coupled.
    information
        The same of a second sum in the same message, the packed information
        matrix; None where a round has none.
    weighting
        How far a record counts in an ``influence`` phase; None in others.
    numbers
        Which columns have histograms and windows, in the phases that make them.
    models
        Of the columns with missing values, in the phase that they are learnt from.
    rows
        The part of the records that it is about; None for all of them.
    characteristics, check, cells
        What is counted, compared or added up in the phases after the posterior.
    """

    purpose: Purpose
    first: int
    sums: ReleasePlan
    information: ReleasePlan | None = None
    weighting: InfluenceBound | None = None
    numbers: Numbers | None = None
    models: ColumnModels | None = None
    rows: str | None = None
    characteristics: Characteristics | None = None
    check: HeldOutCheck | None = None
    cells: ResidualCells | None = None

    @property
    def rounds(self) -> int:
        return self.sums.rounds

    @cached_property
    def parts(self) -> tuple[ReleasePlan, ...]:
        """The sums of one round, in the order of the vector."""
        if self.information is None:
            return (self.sums,)
        return (self.sums, self.information)

    @cached_property
    def dimension(self) -> int:
        """Length of a round's vector."""
        return sum(part.dimension for part in self.parts)

    @property
    def contributions(self) -> str:
        """What a sampling phase sums, in words."""
        if self.purpose == "influence":
            return "per-record scores and information matrices weighted by x"
        return "clipped per-record gradients"

    @property
    def preparatory(self) -> bool:
        """Whether the phase comes before the sampler's first round."""
        return self.purpose in PREPARATORY

    @property
    def closing(self) -> bool:
        """Whether the phase comes after the sampler's last round."""
        return self.purpose in CLOSING

    @property
    def scaling(self) -> bool:
        """Whether later phases see the columns as this one says."""
        return self.purpose in SCALING

    @cached_property
    def release(self) -> Event:
        """One round, for the accountant and the ledger."""
        event = compose(*(part.event for part in self.parts))
        return event if self.rows is None else OfRows(self.rows, event)

    @property
    def event(self) -> Event:
        """All rounds of the phase."""
        return Repeated(self.release, self.rounds)

    @property
    def bound(self) -> int:
        """Largest total of any of the sums, in grid units."""
        return max(part.bound for part in self.parts)

    def noised(self, total: Floats, noise: NoiseSource, label: str) -> Integers:
        """A site's vector: each sum on its grid plus the site's share of its noise.

        Formal guarantees
        -----------------
        Those of :class:`~cipherbayes.privacy.release.ReleasePlan` for every part,
        whose shares are drawn independently of each other.
        """
        shares = [noise.share(*share) for share in self.shares(label)]
        return self.on_grid(total) + np.concatenate(shares)

    def on_grid(self, total: Floats) -> Integers:
        """A site's sums in grid units, before noise."""
        pieces = zip(self.parts, self.split(total), strict=True)
        return np.concatenate([part.to_grid(values) for part, values in pieces])

    def shares(self, label: str) -> list[tuple[int, float, str]]:
        """Length, scale and label of a site's share of the noise of each sum."""
        labels = (label, f"{label}, information")
        return [
            (part.dimension, part.share_scale, name)
            for part, name in zip(self.parts, labels, strict=False)
        ]

    def split(self, vector: AnyVector) -> list[AnyVector]:
        """A round's vector, cut into its sums."""
        if vector.size != self.dimension:
            raise ProtocolError("a vector does not have the round's length")
        if self.information is None:
            return [vector]
        ends = np.cumsum([part.dimension for part in self.parts])
        return np.split(vector, ends[:-1])

    def in_range(self, total: Integers) -> bool:
        """Whether a decrypted total is one that public numbers allow."""
        return all(
            # Not np.abs, which leaves -2^63 as it is.
            bool(-part.bound <= values.min() and values.max() <= part.bound)
            for part, values in zip(self.parts, self.split(total), strict=True)
        )
