"""The reference record at one site and another, where sites may differ."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from cipherbayes.report.charts import interval_axis, interval_row
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import Axis, interval, number, percent, round_up
from cipherbayes.report.run_contents import Contents
from cipherbayes.report.sections.curves import CHART
from cipherbayes.report.sections.profiles import reference_record
from cipherbayes.results.record import HierarchyRecord
from cipherbayes.typing import Floats

MOST_SITES = 24
"""With more, a table of each is a table that nobody reads."""


def at_sites_part(contents: Contents, times: Floats | None) -> Markup:
    """Predictions for a typical site, a new one and each; nothing where all are alike.

    Parameters
    ----------
    times
        Those of the survival curves, of which the last is told; None for others.
    """
    hierarchy = contents.result.hierarchy()
    if hierarchy is None:
        return Markup()
    rows = _predicted(contents, hierarchy, None if times is None else times[-1:])
    values = [float(each) for _, ends in rows for each in ends.values()]
    low, high = min(values), round_up(max(values))
    # A probability is shown from zero, up to one.
    bounded = times is not None or contents.study.model.family == "binary"
    axis = Axis(0.0, min(high, 1.0)) if bounded else Axis.around([low, high])
    share = percent(contents.record["interval"])
    shown: list[list[Content]] = [
        [
            name,
            interval_row(axis, ends["mean"], ends["lower"], ends["upper"], None),
            number(ends["mean"]),
            interval(ends["lower"], ends["upper"]),
        ]
        for name, ends in rows
    ]
    return join(
        tag("h3", "The reference record at one site and another"),
        tag("p", _words(hierarchy)),
        table(
            f"{_what(contents, times)}, {share} intervals",
            ["Site", CHART, "Mean", f"{share} interval"],
            shown,
            words=(1,),
            foot=["", interval_axis(axis), "", ""],
            class_="forest",
            id_="at-sites",
        ),
    )


def _words(hierarchy: HierarchyRecord) -> str:
    if not hierarchy["between"]:
        return (
            "The curves above are of the mean over this study’s sites, which are "
            "fixed: nothing is said of a hospital that took no part."
        )
    return (
        "The curves above are of a typical site, one at the common level and with the "
        "common effects: how far sites lie from it is not in their bands. For a "
        "hospital that took no part, take the line of a new site, whose interval "
        "counts how much sites differ. cipherbayes predict does the same for other "
        "patients, with --new-site or --site NAME."
    )


def _what(contents: Contents, times: Floats | None) -> str:
    columns = contents.study.model.outcome_columns()
    outcome = next(iter(columns.values()), "outcome")
    if times is not None:
        return f"Event-free at {columns['time']} = {times[-1]:g}"
    if contents.study.model.family == "binary":
        return f"P({outcome})"
    return f"Mean {outcome}"


def _predicted(
    contents: Contents, hierarchy: HierarchyRecord, times: Floats | None
) -> list[tuple[str, dict[str, float]]]:
    """Mean and interval of the reference record, by where it is."""
    result, record = contents.result, reference_record(contents)
    given = pa.table({name: [value] for name, value in record.items()})
    predict = partial(result.predict, given, times=times, where="reference record")
    typical = "a typical site" if hierarchy["between"] else "the mean over sites"
    found = {
        typical: result.predict_at_common(given, times=times, where="reference record")
    }
    if hierarchy["between"]:
        found["a new site"] = predict(new_site=True)
    sites = dict.fromkeys(row["site"] for row in hierarchy["sites"])
    if len(sites) <= MOST_SITES:
        for site in sites:
            found[site] = predict(site=site)
    return [
        (name, {key: float(np.ravel(ends)[0]) for key, ends in each.items()})
        for name, each in found.items()
    ]
