"""Coverage on the columns of a table: truths are stated, outcomes simulated.

A table's rows are taken as they are (drawn with replacement where more are asked for),
outcomes are simulated from a stated truth, and a whole private study is run on them
with default settings: ranges from the table, as many times too wide as asked for,
private scales, rounds, posterior. So the truth is known, and the columns are as
skewed, rare and correlated as real ones are. Beside it stands the posterior of the same
rows and outcomes without privacy, as the normal around its mode.

The table must be public or made up: ranges and levels are read from its rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from cipherbayes.models import Design
from cipherbayes.protocols.forecast import forecast_of
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.run import run
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats, JsonObject, Progress
from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.replicates import replicated
from cipherbayes.validation.trial_records import EVENTS, Ground, simulated, study_on


@dataclass(frozen=True)
class Trial:
    """One study on a table, parameter by parameter.

    Attributes
    ----------
    names, held, plain
        Parameters; whether the private interval and that without privacy hold it.
    ratio
        Width of the first over the second.
    expected
        What the plan said of that ratio, told how many records have the event.
    likely
        The range that the plan gave it.
    flags
        Names of flags and cautions with the parameters that they name; none where all
        are meant.
    unusable
        Whether a flag says not to use the intervals.
    off
        Released scales over the columns' own, where scales were released.
    away
        How far from the middle of its interval the truth lies, in half widths.
    """

    names: tuple[str, ...]
    held: tuple[bool, ...]
    plain: tuple[bool, ...]
    ratio: tuple[float, ...]
    expected: float
    flags: tuple[tuple[str, tuple[str, ...]], ...]
    unusable: bool
    off: tuple[float, ...] = ()
    away: tuple[float, ...] = ()
    likely: tuple[float, ...] = ()


def trial(columns: Columns, ground: Ground, number: int) -> Trial:
    """A whole private study on :func:`simulated` records."""
    records = simulated(columns, ground, number)
    names, want = records.names, records.want
    study = study_on(columns, ground, wider=ground.wider)
    planned = forecast_of(plan_releases(study), EVENTS[ground.events])
    result = run(study, _by_site(records.frame, ground.sites))
    found = {row["name"]: row for row in result.record["posterior"]}
    below = np.array([found[name]["lower"] for name in names])
    above = np.array([found[name]["upper"] for name in names])
    flags = [*result.record["flags"], *result.record["cautions"]]
    return Trial(
        names,
        tuple(map(bool, (below <= want) & (want <= above))),
        tuple(map(bool, (records.low <= want) & (want <= records.high))),
        tuple(map(float, (above - below) / (records.high - records.low))),
        planned.width_ratio,
        tuple((f["name"], tuple(f["parameters"])) for f in flags),
        any(f["unusable"] for f in flags),
        _scales_off(study, records.design, result.record["moments"]),
        tuple(map(float, np.abs(2.0 * want - below - above) / (above - below))),
        planned.likely or (),
    )


def _scales_off(
    study: Study, design: Design, moments: Sequence[float] | None
) -> tuple[float, ...]:
    """Released scales over the columns' own; none where none were released."""
    if moments is None:
        return ()
    first = 0 if design.intercept is None else 1
    public = preparation_of(study).design.half_width[first:]
    released = np.array(moments)[len(moments) // 2 :]
    if released.size != public.size:
        return ()
    return tuple(map(float, released * public / design.half_width[first:]))


def _by_site(frame: pa.Table, sites: int) -> dict[str, pa.Table]:
    edges = np.linspace(0, frame.num_rows, sites + 1).astype(int)
    return {
        f"s{k}": frame.slice(edges[k], edges[k + 1] - edges[k]) for k in range(sites)
    }


def trials(
    tables: Sequence[Columns],
    grounds: Sequence[Ground],
    replicates: int,
    *,
    results: Path | None = None,
    processes: int = 2,
    progress: Progress | None = None,
) -> list[tuple[str, Ground, list[Trial]]]:
    """All studies of every table and ground; see :func:`~.replicates.replicated`."""
    wanted = [
        (table, ground, number)
        for number in range(replicates)
        for table in tables
        for ground in grounds
    ]
    known = replicated(
        _work,
        {g.key(t.name, number): (t, g, number) for t, g, number in wanted},
        results=results,
        to_line=to_line,
        from_line=from_line,
        processes=processes,
        progress=progress,
    )
    return [
        (t.name, g, [known[g.key(t.name, number)] for number in range(replicates)])
        for t in tables
        for g in grounds
    ]


def _work(task: tuple[Columns, Ground, int]) -> Trial:
    return trial(*task)


def to_line(task: tuple[Columns, Ground, int], found: Trial) -> JsonObject:
    """A line of a file of results."""
    columns, ground, number = task
    study = {"table": columns.name, **asdict(ground), "number": number}
    return {"study": study, **asdict(found)}


def from_line(entry: Mapping[str, Any]) -> tuple[str, Trial]:
    """The key and the study of such a line."""
    stated = dict(entry["study"])
    name, number = stated.pop("table"), stated.pop("number")
    return Ground(**stated).key(name, number), Trial(
        tuple(entry["names"]),
        tuple(entry["held"]),
        tuple(entry["plain"]),
        tuple(entry["ratio"]),
        float(entry["expected"]),
        tuple((flag, tuple(about)) for flag, about in entry["flags"]),
        bool(entry["unusable"]),
        tuple(entry["off"]),
        tuple(entry.get("away", ())),
        tuple(entry.get("likely", ())),
    )


class TrialSummary(TypedDict):
    """What several studies on a table say together."""

    coverage: float
    se: float
    plain_coverage: float
    difference: float
    difference_se: float
    width_ratio: float
    expected_over_actual: float
    unusable: float
    usable_coverage: float | None
    replicates: int


class FlagRow(TypedDict):
    """Coverage of the parameters that a flag names, and of the others."""

    flag: str
    parameters: int
    coverage: float | None
    others: float | None


def summarised(found: Sequence[Trial]) -> TrialSummary:
    """Coverage with and without privacy, their difference, and widths.

    Standard errors are over studies, whose parameters are not independent.
    ``expected`` is the plan's width over the median width that there was.
    """
    private = np.array([np.mean(each.held) for each in found])
    plain = np.array([np.mean(each.plain) for each in found])
    width = np.array([np.median(each.ratio) for each in found])
    expected = np.array([each.expected for each in found])
    unflagged = [np.mean(each.held) for each in found if not each.unusable]
    return {
        "coverage": float(private.mean()),
        "se": _error(private),
        "plain_coverage": float(plain.mean()),
        "difference": float((private - plain).mean()),
        "difference_se": _error(private - plain),
        "width_ratio": float(np.median(width)),
        "expected_over_actual": float(np.median(expected / width)),
        "unusable": float(np.mean([each.unusable for each in found])),
        "usable_coverage": float(np.mean(unflagged)) if unflagged else None,
        "replicates": len(found),
    }


def _error(values: Floats) -> float:
    if values.size < 2:
        return float("nan")
    return float(values.std(ddof=1) / math.sqrt(values.size))


def by_flag(found: Sequence[Trial]) -> list[FlagRow]:
    """Coverage of parameters that a flag names, and of the others.

    A flag that names none means all of its study.
    """
    counts: dict[str, list[list[bool]]] = {}
    names = sorted({name for each in found for name, _ in each.flags})
    for name in names:
        marked: list[list[bool]] = [[], []]
        for each in found:
            about = [set(p or each.names) for flag, p in each.flags if flag == name]
            flagged = set().union(*about)
            for parameter, held in zip(each.names, each.held, strict=True):
                marked[parameter in flagged].append(held)
        counts[name] = marked
    return [
        {
            "flag": name,
            "parameters": len(marked[1]),
            "coverage": float(np.mean(marked[1])) if marked[1] else None,
            "others": float(np.mean(marked[0])) if marked[0] else None,
        }
        for name, marked in counts.items()
    ]
