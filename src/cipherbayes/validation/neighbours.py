"""Invented tables of a study that differ in one record, and questions to tell them by.

Nothing here is read from a site: records are drawn from what the study says in
public (ranges, levels, the kind of outcome), so an audit releases nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cipherbayes.data.features import level_name
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.planning import StudyPlan
from cipherbayes.protocol.contributions import Question
from cipherbayes.study import Study
from cipherbayes.tables import open_site
from cipherbayes.typing import Floats, Integers

SIZES = (4, 5, 8, 9, 64, 65, 512, 513, 1024, 1025)
"""Numbers of records at which loops, registers and compiled programs change."""

CANARIES = 4
"""Extreme records that are tried."""

Column = list[float] | list[str]


@dataclass(frozen=True)
class Neighbours:
    """A table, and the same table without one record."""

    present: PreparedTable
    absent: PreparedTable

    @property
    def canary(self) -> Floats:
        """The design row of the record in question, which stands first."""
        row: Floats = next(iter(self.present.blocks())).x[:, 0].copy()
        return row


def neighbours(study: Study, rows: int, canary: int, seed: int = 0) -> Neighbours:
    """Two neighbouring tables of ``rows`` and ``rows - 1`` invented records.

    The record in question is the first, so that all others change their place.

    Parameters
    ----------
    canary
        Which of the extreme records, from 0 to ``CANARIES`` - 1.
    """
    columns = invented_columns(study, rows, np.random.default_rng(seed))
    for name, extreme in _extremes(study, canary).items():
        columns[name][0] = extreme  # type: ignore[call-overload]
    table = pa.table(columns)
    site = next(iter(study.sites), "site")
    return Neighbours(
        open_site(study, site, table), open_site(study, site, table.slice(1))
    )


def invented_columns(
    study: Study, rows: int, rng: np.random.Generator
) -> dict[str, Column]:
    """Records that fit the study, a tenth of the numbers at the ends of their range."""
    columns: dict[str, Column] = {}
    for name, feature in study.features.items():
        if feature.levels is not None:
            codes = rng.integers(len(feature.levels), size=rows)
            columns[name] = [level_name(feature.levels[code]) for code in codes]
            continue
        assert feature.low is not None
        assert feature.high is not None
        values = rng.uniform(feature.low, feature.high, rows)
        ends = rng.choice([feature.low, feature.high], rows)
        columns[name] = np.where(rng.random(rows) < 0.1, ends, values).tolist()
    for role, name in study.model.outcome_columns().items():
        columns[name] = _outcome(study, role, rows, rng).tolist()
    return columns


def questions(plan: StudyPlan, near: Neighbours) -> Iterator[tuple[str, Question]]:
    """Questions at which a record might count for more than it may, each with a name.

    Zero, an ordinary place, the ends of what is allowed, weights that cancel each
    other on the canary's row, numbers too small to be normal; each with the smallest
    and the largest scales that any total could amount to.
    """
    rng = np.random.default_rng(1)
    farthest = plan.farthest_theta
    signs = np.where(np.arange(farthest.size) % 2, -1.0, 1.0)
    row = np.zeros(farthest.size)
    row[: near.canary.size] = near.canary[: farthest.size]
    places = {
        "zero": np.zeros(farthest.size),
        "ordinary": rng.normal(size=farthest.size),
        "as far as allowed": farthest.copy(),
        "far, signs in turn": farthest * signs,
        "cancelling": _cancelling(farthest * rng.uniform(0.5, 1.0, row.size), row),
        "cancelling, near": _cancelling(rng.normal(size=row.size), row),
        "denormal": signs * 1e-310,
    }
    for scales, moments in _scales(plan):
        for name, theta in places.items():
            yield f"{name}{scales}", Question(theta, moments)


def _scales(plan: StudyPlan) -> Iterator[tuple[str, Floats | None]]:
    """Moments that a coalition of server and CSP could claim were released."""
    if not any(phase.purpose == "moments" for phase in plan.preparatory):
        yield "", None
        return
    for name, size in ((", smallest scales", -1), (", largest scales", 1)):
        totals: list[Integers] = [
            np.full(phase.dimension, size * phase.bound, dtype=np.int64)
            for phase in plan.preparatory
        ]
        yield name, plan.facts(totals)["moments"]


def _cancelling(theta: Floats, row: Floats) -> Floats:
    """θ moved so that θ'x of a row is nothing but rounding errors."""
    norm = float(row @ row)
    moved = theta if norm == 0.0 else theta - row * (theta @ row) / norm
    largest = np.abs(theta).max()
    return np.clip(moved, -largest, largest)


def _outcome(study: Study, role: str, rows: int, rng: np.random.Generator) -> Floats:
    model = study.model
    horizon = float(getattr(model, "horizon", 1.0))
    if role == "time":
        return horizon * rng.uniform(0.2, 1.0, rows)
    if role == "entry":
        return horizon * rng.uniform(0.0, 0.1, rows)
    if role == "offset":
        return rng.uniform(1.0, 2.0, rows)
    if role == "event" or model.family == "binary":
        return rng.integers(2, size=rows).astype(np.float64)
    if model.family == "count":
        return rng.integers(5, size=rows).astype(np.float64)
    return rng.uniform(getattr(model, "low", 0.0), getattr(model, "high", 1.0), rows)


def _extremes(study: Study, canary: int) -> dict[str, float | str]:
    """An extreme record: each feature at one end, the outcome at one of its own."""
    high, late = bool(canary & 1), bool(canary & 2)
    record: dict[str, float | str] = {}
    for name, feature in study.features.items():
        if feature.levels is not None:
            record[name] = level_name(feature.levels[-1 if high else 0])
        else:
            assert feature.low is not None
            assert feature.high is not None
            record[name] = feature.high if high else feature.low
    model = study.model
    horizon = float(getattr(model, "horizon", 1.0))
    largest = {"binary": 1.0, "count": 1e6}.get(
        model.family, float(getattr(model, "high", 1.0))
    )
    smallest = float(getattr(model, "low", 0.0)) if model.family == "number" else 0.0
    ends = {
        "time": (1e-3 * horizon, 10.0 * horizon),
        "event": (1.0, 0.0),
        "entry": (0.0, 0.0),
        "offset": (1.0, 2.0),
        "y": (smallest, largest),
    }
    for role, name in model.outcome_columns().items():
        record[name] = ends[role][late]
    return record
