"""Cumulative incidences of competing causes, from the runs of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cipherbayes.models.survival import SurvivalCurves
from cipherbayes.report.charts import Chart, Line, figure
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import Axis, interval, number, percent
from cipherbayes.report.run_contents import Contents
from cipherbayes.report.sections.profiles import (
    label,
    reference_record,
    strongest_values,
)
from cipherbayes.results.incidence import cumulative_incidence
from cipherbayes.results.made_up import Value
from cipherbayes.results.record import MeanRow
from cipherbayes.typing import Floats

POINTS, TOLD = 60, 5
"""Points of a curve; times that the table names."""
NO_EVENT = "no event yet"


class IncidenceRow(MeanRow):
    """The cumulative incidence of a cause by a time, for a made-up record."""

    record: str
    cause: str
    time: float


@dataclass(frozen=True)
class Incidences:
    """Cumulative incidences of made-up records.

    Attributes
    ----------
    labels
        Of each record.
    times
        In the user's unit.
    causes
        For each cause, and for no event, ``mean``, ``lower`` and ``upper`` of shape
        ``(records, times)``.
    """

    labels: tuple[str, ...]
    times: Floats
    causes: Mapping[str, Mapping[str, Floats]]

    def rows(self) -> list[IncidenceRow]:
        """One row for each record, cause and time."""
        return [
            {
                "record": who,
                "cause": cause,
                "time": float(time),
                "mean": float(found["mean"][k, j]),
                "lower": float(found["lower"][k, j]),
                "upper": float(found["upper"][k, j]),
            }
            for k, who in enumerate(self.labels)
            for cause, found in self.causes.items()
            for j, time in enumerate(self.times)
        ]


def incidences(contents: Contents) -> Incidences | None:
    """Incidences of the reference record and of others; None with one cause alone."""
    if not contents.causes:
        return None
    results = {contents.cause_name: contents.result, **contents.causes}
    base: dict[str, Value] = {}
    for other in contents.causes.values():
        base |= reference_record(Contents(other))
    base |= reference_record(contents)
    labels, records = ["reference record"], [base]
    feature, values = strongest_values(contents)
    for value in values:
        labels.append(f"{feature} {label(value)}")
        records.append({**base, feature: value})
    columns = {name: [record[name] for record in records] for name in base}
    until = [
        float(model.reference_times()[-1])
        for model in (result.study.model for result in results.values())
        if isinstance(model, SurvivalCurves)
    ]
    if not until:
        return None
    times = np.linspace(0.0, min(until), POINTS + 1)[1:]
    found = dict(cumulative_incidence(results, pa.table(columns), times.tolist()))
    found[NO_EVENT] = found.pop("none")
    return Incidences(tuple(labels), times, found)


def incidence_part(contents: Contents) -> Markup:
    """Curves of every cause, and their numbers; nothing with one cause alone."""
    found = incidences(contents)
    if found is None:
        return Markup()
    share = percent(contents.record["interval"])
    spread = all(
        each.has_intervals for each in (contents.result, *contents.causes.values())
    )
    text = (
        "The probability of each cause by a time, all causes at work, "
        + (f"with {share} bands. " if spread else "without bands. ")
        + f"Causes: {'; '.join(list(found.causes)[:-1])}: each has a study of its own. "
        "The first chart is of the reference record, the others change one feature of "
        "it. Nobody’s row is shown."
    )
    charts = [
        _chart(found, k, contents, spread=spread) for k in range(len(found.labels))
    ]
    return join(
        tag("h3", "Cumulative incidence", id="incidence"),
        tag("p", text),
        tag("div", charts, class_="panels"),
        _numbers(found, share),
    )


def _chart(found: Incidences, k: int, contents: Contents, *, spread: bool) -> Markup:
    lines = [
        Line(
            cause,
            [0.0, *found.times.tolist()],
            [0.0, *each["mean"][k].tolist()],
            [0.0, *each["lower"][k].tolist()] if spread else None,
            [0.0, *each["upper"][k].tolist()] if spread else None,
        )
        for cause, each in found.causes.items()
        if cause != NO_EVENT
    ]
    last = float(found.times[-1])
    said = "; ".join(
        f"{line.name}: {percent(line.y[-1])} by {last:g}" for line in lines
    )
    return figure(
        Chart(
            title=found.labels[k].capitalize() if k == 0 else found.labels[k],
            said=said,
            x=Axis(0.0, last),
            y=Axis(0.0, 1.0),
            x_name=contents.study.model.outcome_columns()["time"],
            y_name="cumulative incidence",
            lines=lines,
            small=True,
        )
    )


def _numbers(found: Incidences, share: str) -> Markup:
    places: Sequence[int] = np.linspace(0, POINTS, TOLD + 1).astype(int)[1:].tolist()
    rows: list[list[Content]] = [
        [
            who,
            cause,
            number(float(found.times[j - 1])),
            number(float(each["mean"][k, j - 1])),
            interval(float(each["lower"][k, j - 1]), float(each["upper"][k, j - 1])),
        ]
        for k, who in enumerate(found.labels)
        for cause, each in found.causes.items()
        for j in places
    ]
    return tag(
        "details",
        tag("summary", "The incidences in numbers"),
        table(
            "Cumulative incidence of each cause",
            ["Record", "Cause", "By", "Probability", f"{share} interval"],
            rows,
            words=(0, 1),
            id_="incidence-values",
        ),
    )
