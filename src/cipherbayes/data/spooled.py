"""Blocks of prepared records, read in every pass from a file without a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from cipherbayes.data.blocks import block_count, gather, ordered_map
from cipherbayes.data.scratch import Fresh, Reused, Space
from cipherbayes.data.spool import Spool, Stored
from cipherbayes.models import kernels
from cipherbayes.models.design import Design
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats, Integers

T = TypeVar("T")


class SpooledBlocks:
    """Blocks in a file without a name, each read by whichever thread needs it.

    Parameters
    ----------
    spool, stored
        The file, and where its blocks are.
    design
        The columns' meaning.
    roles
        Of the outcomes, in the order in which they are stored.
    recipes
        How stored columns become those of the design.
    selection
        The records that count here, as sorted positions; all of them where None.
    """

    def __init__(
        self,
        spool: Spool,
        stored: Sequence[Stored],
        design: Design,
        roles: Sequence[str],
        recipes: Floats,
        selection: Integers | None = None,
    ) -> None:
        self.design = design
        self._spool = spool
        self._stored = stored
        self._roles = roles
        self._recipes = recipes
        self._selection = selection
        self._total = sum(each.layout.rows for each in stored)

    @property
    def count(self) -> int:
        return self._total if self._selection is None else self._selection.size

    def blocks(self, rows: Integers | None = None) -> Iterator[Rows]:
        positions = self._positions(rows)
        if positions is None:
            return (self._restore(k, Fresh()) for k in range(len(self._stored)))
        return (self._gather(positions, k) for k in range(block_count(positions.size)))

    def map(
        self, function: Callable[[Rows], T], rows: Integers | None = None
    ) -> Iterator[T]:
        """As :meth:`Blocks.map`; a block is valid during the call only."""
        positions = self._positions(rows)
        if positions is not None:
            count = block_count(positions.size)
            return ordered_map(lambda k: function(self._gather(positions, k)), count)
        space = Reused("restored")

        def work(k: int) -> T:
            with space.borrow(len(self._recipes), self._stored[k].layout.rows) as x:
                return function(self._restored(k, x))

        return ordered_map(work, len(self._stored))

    def select(self, rows: Integers) -> SpooledBlocks:
        return SpooledBlocks(
            self._spool, self._stored, self.design, self._roles, self._recipes,
            self._positions(rows),
        )  # fmt: skip

    def moved(self, design: Design, mean: Floats, scale: Floats) -> SpooledBlocks:
        """The same records, (x - mean) * scale in each column: of a design that has no
        columns made of others."""
        recipes = self._recipes.copy()
        recipes[: design.width, 4], recipes[: design.width, 5] = mean, scale
        return SpooledBlocks(
            self._spool, self._stored, design, self._roles, recipes, self._selection
        )

    def _restored(self, k: int, x: Floats) -> Rows:
        """Block k, its columns and outcomes in ``x``."""
        stored, width = self._stored[k], self.design.width
        norms = np.empty(stored.layout.rows)
        with Reused("stored").borrow(1, stored.layout.size // 8 + 1) as buffer:
            record = self._spool.read(stored, buffer[0].view(np.uint8))
            kernels.restore_columns(
                record, stored.layout.offsets, stored.layout.kinds, self._recipes,
                x, norms, width,
            )  # fmt: skip
        outcome = dict(zip(self._roles, x[width:], strict=True))
        return Rows(self.design, x[:width], outcome, norms)

    def _restore(self, k: int, space: Space) -> Rows:
        with space.borrow(len(self._recipes), self._stored[k].layout.rows) as x:
            return self._restored(k, x)

    def _gather(self, positions: Integers, k: int) -> Rows:
        return gather(lambda index: self._restore(index, Fresh()), positions, k)

    def _positions(self, rows: Integers | None) -> Integers | None:
        if self._selection is None or rows is None:
            return self._selection if rows is None else rows
        positions: Integers = self._selection[rows]
        return positions
