"""The table of the records' characteristics, from noised counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cipherbayes.data.characteristics import Characteristics
from cipherbayes.inference.described import bin_shares
from cipherbayes.protocols.rounds import Closing
from cipherbayes.results.record import DescribeRow
from cipherbayes.results.user_values import user_values
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats

QUANTILES = {"q1": 0.25, "median": 0.5, "q3": 0.75}
RANGE_SPREAD = 16.0 / 6.0
"""A released standard deviation in bins: sixteen of them span six."""


@dataclass(frozen=True)
class _Column:
    """A column's bins.

    Attributes
    ----------
    levels
        Names, where bins are levels.
    edges
        Outer and inner edges of a number's ranges in the user's units.
    missing
        Whether the last bin is that of missing values.
    spread
        Standard deviation in bins, where it is known about.
    """

    name: str
    size: int
    levels: tuple[str, ...] | None
    edges: Floats | None
    missing: bool
    spread: float | None


def describe_rows(
    study: Study,
    table: Characteristics,
    released: Closing,
    moments: Floats | None,
    tail: float,
) -> list[DescribeRow]:
    """Rows of the table: all records, then every group.

    Counts of a column's levels add up to the records of their group, groups add up to
    all records, and nothing is negative.
    """
    columns = list(_columns(table, moments))
    blocks, labels, noises = _blocks(table, released)
    rows = _group_sizes(study, table, blocks, noises, labels)
    found: list[DescribeRow] = []
    results: dict[tuple[int, str], Floats] = {}
    start = 0
    for column in columns:
        own = blocks[:, start : start + column.size]
        start += column.size
        for noise in dict.fromkeys(noises):
            chosen = [g for g, each in enumerate(noises) if each == noise]
            shares = bin_shares(
                own[chosen],
                noise,
                rows[chosen].mean(axis=1),
                ranges=column.levels is None,
                missing=column.missing,
                spread=column.spread,
            )
            for g, part in zip(chosen, shares, strict=True):
                results[g, column.name] = part
    for g, label in enumerate(labels):
        found.append(_row("", "rows", label, rows[g], tail))
        for column in columns:
            found += _statistics(column, label, results[g, column.name], rows[g], tail)
    return found


def _columns(table: Characteristics, moments: Floats | None) -> Iterator[_Column]:
    for column in table.features:
        edges = None
        if column.levels is None:
            inner = column.edges(moments)
            step = inner[1] - inner[0]
            ends = np.array([inner[0] - step, *inner, inner[-1] + step])
            edges = user_values(column, ends)
        known = moments is not None and column.levels is None
        yield _Column(
            column.column,
            column.size,
            column.levels,
            edges,
            column.tells_missing,
            RANGE_SPREAD if known else None,
        )
    for outcome in table.outcomes:
        inner = np.array(outcome.edges)
        edges = None
        if outcome.levels is None:
            step = inner[1] - inner[0]
            ends = np.array([inner[0] - step, *inner, inner[-1] + step])
            edges = outcome.centre + outcome.scale * ends
        size = inner.size + 1
        yield _Column(outcome.column, size, outcome.levels, edges, False, None)


def _blocks(
    table: Characteristics, released: Closing
) -> tuple[Floats, list[str], list[float]]:
    """Counts of all records and of every group, their names, and their noise.

    All records are the groups of the first grouping together.
    """
    counts: list[Floats] = []
    labels, noises = ["all"], []
    start = 0
    for number, (name, groups) in enumerate(table.groupings()):
        size = table.width * len(groups)
        part = released.total[start : start + size].reshape(len(groups), table.width)
        start += size
        if number == 0:
            counts.append(part.sum(axis=0))
            noises.append(released.noise * float(np.sqrt(len(groups))))
        if name:
            counts += list(part)
            labels += [f"{name}: {group}" for group in groups]
            noises += [released.noise] * len(groups)
    return np.array(counts), labels, noises


def _group_sizes(
    study: Study,
    table: Characteristics,
    blocks: Floats,
    noises: list[float],
    labels: list[str],
) -> Floats:
    """Draws of the number of records of each group; groups add up to all of them."""
    rng = np.random.default_rng(2)
    columns = len(table.sizes)
    # Every column counts each record once, so the columns' sums are repeated counts.
    means = blocks.sum(axis=1) / columns
    sds = np.array(noises) * np.sqrt(table.width) / columns
    drawn = means[:, None] + sds[:, None] * rng.standard_normal((len(means), 1600))
    draws: Floats = np.maximum(drawn, 0.0)
    assert study.privacy is not None
    if study.privacy.records is not None:
        draws[0] = study.privacy.records
    start = 1
    for name, groups in table.groupings():
        if name:
            part = draws[start : start + len(groups)]
            part *= draws[0] / np.maximum(part.sum(axis=0), 1e-9)
            start += len(groups)
    return draws


def _statistics(
    column: _Column, label: str, shares: Floats, rows: Floats, tail: float
) -> Iterator[DescribeRow]:
    if column.missing:
        absent = shares[:, -1]
        yield _row(column.name, "missing share", label, absent, tail)
        shares = shares[:, :-1] / np.maximum(1.0 - absent, 1e-9)[:, None]
    if column.levels is not None:
        present = rows[: len(shares)]
        if column.missing:
            present = present * (1.0 - absent)
        for level, share in zip(column.levels, shares.T, strict=True):
            yield _row(column.name, f"count: {level}", label, share * present, tail)
            yield _row(column.name, f"share: {level}", label, share, tail)
        return
    assert column.edges is not None
    middles = 0.5 * (column.edges[1:] + column.edges[:-1])
    mean = shares @ middles
    widths = np.diff(column.edges)
    # Values lie evenly within a range.
    square = shares @ (middles**2 + widths**2 / 12.0)
    yield _row(column.name, "mean", label, mean, tail)
    sd = np.sqrt(np.maximum(square - mean**2, 0.0))
    yield _row(column.name, "sd", label, sd, tail)
    below = np.concatenate([np.zeros((len(shares), 1)), np.cumsum(shares, axis=1)], 1)
    for name, share_below in QUANTILES.items():
        values = np.array([np.interp(share_below, cdf, column.edges) for cdf in below])
        yield _row(column.name, name, label, values, tail)


def _row(
    column: str, statistic: str, group: str, draws: Floats, tail: float
) -> DescribeRow:
    lower, upper = np.quantile(draws, [tail, 1.0 - tail])
    return {
        "column": column,
        "statistic": statistic,
        "group": group,
        "mean": float(draws.mean()),
        "lower": float(lower),
        "upper": float(upper),
    }
