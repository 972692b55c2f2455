"""Missing values drawn several times over, record by record.

A record without a value of a feature becomes ``DRAWS`` rows that differ in it alone,
drawn from p(value | the record's complete features). What each row then counts depends
on how well it explains the outcome (:mod:`cipherbayes.inference.imputed`), so the
outcome, and whatever curve or product the value is part of, has its say in every
imputation.

The distribution is public, or a model that the study learnt
(:mod:`cipherbayes.data.column_models`). Draws are not random: they are a shifted
lattice, and the shift is a hash of the record. So a record's rows depend on that
record, the study and what was released before, and are the same whenever they are
asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from scipy.special import ndtri

from cipherbayes.data.blocks import take
from cipherbayes.data.column_models import ColumnModel, ColumnModels
from cipherbayes.data.encoders import Levels, Number
from cipherbayes.data.features import Feature, KnownSpread
from cipherbayes.data.preparation import Preparation
from cipherbayes.data.prepared import MEMORY_LIMIT, PreparedTable
from cipherbayes.data.record_places import place_of_row
from cipherbayes.data.rescaled import seen_through
from cipherbayes.models import kernels
from cipherbayes.models.design import fill_products
from cipherbayes.models.rows import Rows, absent_role
from cipherbayes.typing import Bools, Floats, Integers

DRAWS = 20
"""Rows of a record with missing values."""
SEED = 0x64726177696E67
"""Seed of the hash that shifts a record's draws; no study holds rows out by it."""
NARROWEST = 1e-6
"""Least distance of a draw's quantile from 0 and 1."""


@dataclass(frozen=True)
class Imputing:
    """How a study draws missing values.

    Attributes
    ----------
    preparation
        How raw columns become the design matrix.
    models
        Of the columns whose models are learnt.
    """

    preparation: Preparation
    models: ColumnModels

    @classmethod
    def of(
        cls, preparation: Preparation, roles: tuple[str, ...], *, scaled: bool
    ) -> Imputing | None:
        """That of a study whose outcomes have these roles; None where nothing is drawn.

        Parameters
        ----------
        scaled
            Whether columns are seen through released means and standard deviations.
        """
        if not preparation.imputed:
            return None
        models = ColumnModels.of(preparation, roles, scaled=scaled)
        return cls(preparation, models)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Whose missing values are drawn."""
        return self.preparation.imputed

    def split(self, scales: Floats | None) -> tuple[Floats | None, Floats | None]:
        """Moments and column models, of what a question says of the columns."""
        learnt = self.models.length
        if scales is None or not learnt:
            return scales, None
        moments = scales[: scales.size - learnt]
        return (moments if moments.size else None), scales[scales.size - learnt :]

    def expanded(self, block: Rows, scales: Floats | None) -> tuple[Rows, Rows | None]:
        """Complete records, and the rows of the others, ``DRAWS`` of each in a row.

        Both as they look through the moments in ``scales``.

        Formal guarantees
        -----------------
        A record is either among the complete ones, as it is, or its rows stand
        together; they depend on the record and ``scales`` alone. Whatever the scales
        are, drawn numbers lie within the public range.
        """
        moments, _ = self.split(scales)
        see = seen_through(self.preparation.design, moments)
        complete, gaps = self.parted(block)
        return see(complete), None if gaps is None else see(self.drawn(gaps, scales))

    def parted(self, block: Rows) -> tuple[Rows, Rows | None]:
        """Complete records, and the others where there are any, as prepared."""
        some = self.lacking(block)
        if not some.any():
            return block, None
        complete: Integers = np.flatnonzero(~some)
        return take(block, complete), take(block, np.flatnonzero(some))

    def lacking(self, block: Rows) -> Bools:
        """Which records have gaps."""
        return np.asarray(self._absent(block).any(axis=0))

    def drawn(self, block: Rows, scales: Floats | None) -> Rows:
        """``DRAWS`` rows of each record, as they are prepared."""
        return self._filled(block, self._absent(block), *self.split(scales))

    def _absent(self, block: Rows) -> Bools:
        """Which records lack which feature, shape ``(features, m)``."""
        return np.array([block.outcome[absent_role(n)] > 0.5 for n in self.features])

    def with_model_errors(
        self,
        theta: Floats,
        scales: Floats | None,
        constants: tuple[int, ...],
        seed: int,
    ) -> Floats:
        """Draws of θ that count how far the learnt models of columns may be off.

        Parameters
        ----------
        constants
            Parameters that are constant over records, or constant in an interval.
        """
        learnt = self.models.read(self.split(scales)[1])
        rng = np.random.default_rng([seed, DRAWS])
        return self.models.shifted(theta, learnt, constants, rng)

    def _filled(
        self,
        block: Rows,
        absent: Bools,
        moments: Floats | None,
        learnt: Floats | None,
    ) -> Rows:
        design = self.preparation.design
        seen = seen_through(design, moments)(block)
        models = self.models.read(learnt)
        x = np.repeat(block.x, DRAWS, axis=1)
        for order, (name, gaps) in enumerate(zip(self.features, absent, strict=True)):
            (rows,) = np.nonzero(gaps)
            if not rows.size:
                continue
            quantiles = _lattice(take(block, rows), order, len(self.features))
            feature = self.preparation.features[name]
            if name in models:
                raw = self._learnt(name, models[name], take(seen, rows), quantiles)
            else:
                raw = _public(feature, quantiles)
            where = (rows[:, None] * DRAWS + np.arange(DRAWS)).ravel()
            for encoder in self.preparation.encoders_of(name):
                columns = np.empty((len(encoder.names), where.size))
                if isinstance(encoder, Levels):
                    encoder.fill_drawn(raw, columns)
                else:
                    encoder.fill(raw, columns, "")
                x[encoder.first : encoder.first + len(columns), where] = columns
        fill_products(design, x)
        outcome = {role: np.repeat(v, DRAWS) for role, v in block.outcome.items()}
        return Rows(design, x, outcome, kernels.squared_norms(x))

    def _learnt(
        self, name: str, model: ColumnModel, seen: Rows, quantiles: Floats
    ) -> pa.Array:
        """Raw values from a model of the column, in units of the seen columns."""
        middle = self.models.predicted(model, seen)
        encoder = self.preparation.encoders_of(name)[0]
        if isinstance(encoder, Levels):
            return _levels(encoder.known, _shares(middle), quantiles)
        assert isinstance(encoder, Number)
        away = middle[0][:, None] + model.sd * ndtri(quantiles)
        # The line of the column as it is seen, taken back to the user's units.
        centre = float(seen.design.centre[encoder.first])
        half = float(seen.design.half_width[encoder.first])
        if seen.design.curves and encoder.first in self._places_of_lines:
            # A curve's line keeps its prepared units in the design.
            centre = encoder.centre + encoder.half_width * centre
            half *= encoder.half_width
        values = centre + half * away
        return pa.array(encoder.feature.untransformed(values).ravel())

    @cached_property
    def _places_of_lines(self) -> frozenset[int]:
        """Places of the lines of curves."""
        return frozenset(curve.first for curve in self.preparation.design.curves)


def joined(moments: Floats | None, learnt: Floats | None) -> Floats | None:
    """What :meth:`Imputing.split` takes apart."""
    parts = [part for part in (moments, learnt) if part is not None]
    return np.concatenate(parts) if parts else None


class Expansion:
    """What :meth:`Imputing.expanded` makes of tables, kept where it fits in memory.

    Every pass asks for the same rows: draws do not depend on θ.
    """

    def __init__(
        self,
        imputing: Imputing,
        tables: Sequence[PreparedTable],
        scales: Floats | None,
    ) -> None:
        self.imputing, self.scales = imputing, scales
        self._kept: dict[int, tuple[Rows, Rows | None]] = {}
        self._held: dict[int, Rows] = {}
        for table in tables:
            size = 8 * table.count * table.design.width * (DRAWS + 1)
            if table.in_memory and size <= MEMORY_LIMIT:
                self._held |= {id(block): block for block in table.blocks()}

    def __call__(self, block: Rows) -> tuple[Rows, Rows | None]:
        """Complete records of a block, and the drawn rows of the others."""
        found = self._kept.get(id(block))
        if found is None:
            found = self.imputing.expanded(block, self.scales)
            if id(block) in self._held:
                self._kept[id(block)] = found
        return found


def _public(feature: Feature, quantiles: Floats) -> pa.Array:
    known = feature.missing
    assert isinstance(known, KnownSpread)
    if known.shares is not None:
        names = feature.level_names
        shares = np.array([[known.shares[name]] for name in names])
        return _levels(names, shares, quantiles)
    mean, sd = known.normal
    values = mean + sd * ndtri(quantiles)
    return pa.array(feature.untransformed(values).ravel())


def _shares(others: Floats) -> Floats:
    """Shares of all levels, of those of all but the first; both by record.

    Formal guarantees
    -----------------
    A record's shares have the same bits alone and among others: numpy's own sum over
    the first axis adds in another order for one record than for several.
    """
    first = np.maximum(1.0 - kernels.add_rows(others), 0.0)
    shares = np.vstack([first, others])
    return np.asarray(shares / kernels.add_rows(shares))


def _levels(names: list[str], shares: Floats, quantiles: Floats) -> pa.DictionaryArray:
    """Levels by their cumulated shares, which have shape ``(levels, records)``."""
    code = np.zeros(quantiles.shape, dtype=np.int64)
    total = np.zeros(shares.shape[1])
    for share in shares[:-1]:
        total = total + share
        code += quantiles > total[:, None]
    return pa.DictionaryArray.from_arrays(pa.array(code.ravel()), pa.array(names))


def _lattice(block: Rows, order: int, features: int) -> Floats:
    """Quantiles of each record's draws, shape ``(records, DRAWS)``.

    Even steps in the first feature and multiples of an irrational number in the others
    (the powers of the root of g^(f + 1) = g + 1), shifted by a hash of the record.
    """
    shift = place_of_row(block, SEED + order)[:, None]
    steps = np.arange(DRAWS)[None]
    if order == 0:
        places = (steps + shift) / DRAWS
    else:
        places = (steps * _root(features - 1) ** -order + shift) % 1.0
    return np.clip(places, NARROWEST, 1.0 - NARROWEST)


def _root(features: int) -> float:
    root = 1.5
    for _ in range(40):
        root = (1.0 + root) ** (1.0 / (features + 1))
    return root
