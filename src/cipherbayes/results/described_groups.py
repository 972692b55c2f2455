"""Draws of how many records every group has, and of what kinds, from noised counts.

A draw is one table of the records: groups add up to all of them, the bins of a column
to the records of its group, whichever the column, and nothing is negative.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cipherbayes.data.characteristics import SITE, WEIGHTS, Characteristics
from cipherbayes.inference.described import CHAINS, KEPT, bin_shares
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.described_columns import DescribedColumn
from cipherbayes.typing import Bools, Floats

DRAWS = CHAINS * KEPT
UNTOLD = 1e3
"""Noise of a count that is not to be used, in that of the others."""
RAKED = 30
"""Times that draws of a column in groups are scaled to the records of its bins and to
those of its groups."""


class SiteCounts(NamedTuple):
    """How many records each site was counted to have before, and the standard deviation
    of that."""

    counts: Floats
    sd: float


@dataclass(frozen=True)
class CountedGroups:
    """What was released of the groups of one grouping, and draws of their records.

    Attributes
    ----------
    name, groups
        What records are grouped by, and the groups; nothing groups all of them.
    bins
        Released counts of each column in each group, by the column's name.
    sums
        Released sums of each number in each group, by the column's name.
    noise
        Standard deviation of the noise of each.
    rows
        Draws of the records of each group, ``(groups, s)``.
    """

    name: str
    groups: tuple[str, ...]
    bins: dict[str, Floats]
    sums: dict[str, Floats]
    noise: float
    rows: Floats

    @property
    def labels(self) -> list[str]:
        """The groups as the table names them."""
        return [f"{self.name}: {group}" for group in self.groups]


def counted_groups(
    table: Characteristics,
    columns: list[DescribedColumn],
    released: Closing,
    records: float | None,
    sites: SiteCounts | None,
) -> list[CountedGroups]:
    """Every grouping with draws of how many records its groups have.

    Every column counts each record once: the columns' sums are repeated counts of a
    group, the surer the fewer bins a column has.

    Parameters
    ----------
    records
        Of all groups, where that is public.
    sites
        What is known of the sites' records besides.
    """
    parts: list[tuple[str, tuple[str, ...], dict[str, Floats], dict[str, Floats]]] = []
    start = 0
    ends = np.cumsum(table.sizes)
    for name, groups in table.groupings():
        size = table.width * len(groups)
        block = released.total[start : start + size].reshape(len(groups), table.width)
        start += size
        own = {
            column.name: block[:, end - column.size : end]
            for column, end in zip(columns, ends.tolist(), strict=True)
        }
        pairs = block[:, table.bins :].reshape(len(groups), -1, len(WEIGHTS))
        sums = dict(zip(table.numbers, pairs.transpose(1, 0, 2), strict=True))
        parts.append((name, groups, own, sums))
    told = [
        _sizes(name, own, parts, sites, released.noise) for name, _, own, _ in parts
    ]
    rng = np.random.default_rng(2)
    # The sum of a grouping's groups, each with the same noise, tells of all records.
    weights = np.array([1.0 / (len(mean) * sd**2) for mean, sd in told])
    everybody = weights @ [mean.sum() for mean, _ in told] / weights.sum()
    drawn = everybody + rng.standard_normal(DRAWS) / np.sqrt(weights.sum())
    total = np.maximum(drawn, 0.0) if records is None else np.full(DRAWS, records)
    found = []
    for (name, groups, own, sums), (mean, sd) in zip(parts, told, strict=True):
        rows = mean[:, None] + sd * rng.standard_normal((mean.size, DRAWS))
        rows = np.maximum(rows + (total - rows.sum(axis=0)) / mean.size, 0.0)
        rows *= total / np.maximum(rows.sum(axis=0), 1e-9)
        found.append(CountedGroups(name, groups, own, sums, released.noise, rows))
    return found


def _sizes(
    name: str,
    own: dict[str, Floats],
    parts: list[Any],
    sites: SiteCounts | None,
    noise: float,
) -> tuple[Floats, float]:
    """How many records the groups of a grouping have by released counts, and the
    standard deviation of each."""
    counts, weights = [], []
    for column, bins in own.items():
        if column == name:
            # Groups by the levels of a column: all others of its bins are empty.
            counts.append(np.diagonal(bins))
            weights.append(1.0)
        else:
            counts.append(bins.sum(axis=1))
            weights.append(1.0 / bins.shape[1])
    for other, _, theirs, _ in parts:
        if other != name and name in theirs:
            counts.append(theirs[name].sum(axis=0))
            weights.append(1.0 / len(theirs[name]))
    if name == SITE and sites is not None:
        counts.append(sites.counts)
        weights.append((noise / sites.sd) ** 2)
    total = float(np.sum(weights))
    mean: Floats = np.array(weights) @ np.array(counts) / total
    return mean, noise / float(np.sqrt(total))


class ColumnDraws(NamedTuple):
    """Draws of a column in the groups of a grouping: the share of each bin, ``(groups,
    s, bins)``, and whether the column is taken to be smooth, ``(s,)``."""

    shares: Floats
    smooth: Bools


def column_draws(
    columns: list[DescribedColumn], counted: CountedGroups
) -> dict[str, ColumnDraws]:
    """Every column in the groups of a grouping, by its name; columns alike in shape are
    sampled together. Bins of missing values, where there are any, come last."""
    alike: dict[tuple[Any, ...], list[DescribedColumn]] = defaultdict(list)
    for column in columns:
        if column.name != counted.name:
            shape = len(_kept(column)), column.levels is None, column.missing
            alike[shape].append(column)
    found: dict[str, ColumnDraws] = {}
    for (size, ranges, missing), same in alike.items():
        counts = np.stack([counted.bins[each.name][:, _kept(each)] for each in same])
        noise = np.full(size, counted.noise)
        mean, sd = counted.rows.mean(axis=1), counted.rows.std(axis=1)
        rows = np.tile(mean, (len(same), 1)), np.tile(sd, (len(same), 1))
        absent = np.zeros((len(same), len(mean), DRAWS))
        if missing and ranges:
            gaps = np.stack([counted.bins[each.name][:, -1] for each in same])
            absent = _absent(gaps, counted.noise, rows)
            away = absent.mean(axis=2) * rows[0], absent.std(axis=2) * rows[0]
            rows = rows[0] - away[0], np.hypot(rows[1], away[1])
        profile = np.stack([_profile(each) for each in same]) if ranges else None
        drawn = bin_shares(counts, noise, rows, ranges=ranges, profile=profile)
        for k, each in enumerate(same):
            shares = np.zeros((len(mean), DRAWS, each.size))
            shares[..., _kept(each)] = drawn.shares[k] * (1.0 - absent[k][..., None])
            if missing and ranges:
                shares[..., -1] = absent[k]
            found[each.name] = ColumnDraws(shares, drawn.smooth[k])
    return found


def _kept(column: DescribedColumn) -> list[int]:
    """Bins that may have records; of missing values only where levels are beside."""
    kept = list(range(*column.possible))
    if column.missing and column.levels is not None:
        kept.append(column.size - 1)
    return kept


def _profile(column: DescribedColumn) -> Floats:
    """Logarithms of counts that a number's ranges may be expected to have: a normal
    density, where mean and standard deviation are known about."""
    first, last = column.possible
    found = np.zeros(last - first)
    if column.spread is not None:
        middle = 0.5 * (column.size - column.missing - 1) - first
        away = (np.arange(last - first) - middle) / column.spread
        found += -0.5 * away**2 + 0.5 * np.mean(away**2)
    if column.widths is not None:
        found += np.log(column.widths)
    return found


def _absent(missing: Floats, noise: float, rows: tuple[Floats, Floats]) -> Floats:
    """Draws of the share of missing values: by their count alone, since ranges that may
    be empty are never told to be."""
    counts = np.stack([rows[0] - missing, missing], axis=2)
    noises = np.array([UNTOLD * noise, noise])
    return bin_shares(counts, noises, rows, ranges=False).shares[..., 1]


def raked(counts: Floats, bins: Floats, groups: Floats) -> Floats:
    """Draws of counts ``(groups, s, bins)`` scaled so that they add up to those of the
    ``bins`` and of the ``groups``, again and again in turn."""
    for _ in range(RAKED):
        counts = counts * (bins / np.maximum(counts.sum(axis=0), 1e-12))
        counts = counts * (groups / np.maximum(counts.sum(axis=2), 1e-12))[..., None]
    return counts
