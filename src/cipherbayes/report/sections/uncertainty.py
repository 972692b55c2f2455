"""*How sure*: what privacy costs in width, and whether the chains have settled."""

from __future__ import annotations

import math

import numpy as np

from cipherbayes.inference.diagnostics import ESS_LIMIT, RHAT_LIMIT
from cipherbayes.inference.flags import MOSTLY_PRIOR
from cipherbayes.inference.methods import POINT
from cipherbayes.protocols.forecast import forecast_of
from cipherbayes.protocols.plan_description import prior_in_words
from cipherbayes.report.charts import bar_row, trace
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import NONE, number, percent
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.record import ParameterRow
from cipherbayes.study.tables import preparation_of, resolve_prior
from cipherbayes.typing import Floats

MOST_TRACES = 30
TRACE_POINTS = 240


def uncertainty_section(contents: Contents) -> Markup:
    """The whole section."""
    if contents.result.has_intervals:
        return join(_widths(contents), _chains(contents))
    text = contents.protocol.interval_caution(contents.study)
    if text is None:
        return tag(
            "p",
            f"{POINT[0].upper()}{POINT[1:]}, so nothing here says how far the point "
            "may be from the truth.",
        )
    points = "This report shows points without intervals. "
    several = len(contents.result.draws()) > 1
    return join(
        tag("p", tag("strong", points), text),
        _chains(contents) if several else Markup(),
    )


def _widths(contents: Contents) -> Markup:
    prior = prior_sds(contents)
    private = contents.result.draws().std(axis=0, ddof=1) / prior
    without = contents.sd_without_privacy
    free = None if without is None else np.array(without) / prior
    shown = slice(0, MOST_TRACES)
    widest = max(*private[shown], *([] if free is None else free[shown]))
    rows: list[list[Content]] = []
    for k, row in enumerate(contents.record["posterior"][shown]):
        bars = [(100.0 * private[k] / widest, "private")]
        cells: list[Content] = [percent_of(private[k])]
        if free is not None:
            bars.append((100.0 * free[k] / widest, "open"))
            cells += [percent_of(free[k]), f"{number(private[k] / free[k], 2)} ×"]
        cells.append("mostly prior" if private[k] > MOSTLY_PRIOR else "from the rows")
        rows.append([row["name"], bar_row(bars), *cells])
    headings: list[Content] = ["Parameter", tag("span", "chart", class_="unseen")]
    if free is None:
        headings.append("Width, of the prior’s")
    else:
        headings += ["Private", "Without privacy, expected", "Privacy costs"]
    headings.append("What speaks")
    level = percent(contents.record["interval"])
    text = (
        f"How wide the {level} interval still is, as a share of what the prior alone "
        "would say: the less, the more the rows have said. The prior is "
        f"{prior_in_words(contents.study)}. "
    )
    if free is not None:
        cost = float(np.median(private / free))
        text += (
            "The second bar is the width to expect of a fit of the rows themselves, "
            "without noise and without bounds on any record’s part in a sum, told from "
            "what was released. In the middle, privacy makes an interval "
            f"{number(cost, 2)} times as wide."
        )
    elif contents.plan is not None and contents.plan.study.privacy.records is not None:
        ratio = forecast_of(contents.plan).width_ratio
        text += (
            "This sampler releases no information matrix, so what privacy costs in "
            "width is known from public numbers only (records, clipping norm, ε): a "
            f"factor of at least about {number(ratio)}."
        )
    return join(
        tag("h3", "What the rows have said, and what privacy costs"),
        tag("p", text),
        table(
            "Interval width after the study, as a share of the prior’s",
            headings,
            rows,
            words=(1, len(headings) - 1),
            class_="widths",
            id_="widths",
        ),
    )


def percent_of(share: float) -> str:
    """A share to two digits."""
    return f"{number(100.0 * share, 2)} %"


def prior_sds(contents: Contents) -> Floats:
    """The prior’s sd of each parameter, on the prepared scale."""
    prior = resolve_prior(contents.study, preparation_of(contents.study).design)
    return prior.scale * _unit_sd(prior.kind, prior.df)


def _unit_sd(kind: str, df: float) -> float:
    """Standard deviation of a prior of scale one."""
    if kind == "laplace":
        return math.sqrt(2.0)
    if kind == "student-t" and df > 2.0:
        return math.sqrt(df / (df - 2.0))
    return 1.0


def _chains(contents: Contents) -> Markup:
    theta = np.asarray(contents.result.posterior["posterior"].to_dataset()["theta"])
    chains, count, width = theta.shape
    every = max(-(-count // TRACE_POINTS), 1)
    rows: list[list[Content]] = []
    for index, row in list(enumerate(contents.record["posterior"]))[:MOST_TRACES]:
        rows.append(
            [
                row["name"],
                trace(theta[:, ::every, index].tolist()),
                number(row["rhat"], 4),
                number(row["ess"]) if row["ess"] is not None else NONE,
                _verdict(row),
            ]
        )
    one = chains == 1
    text = f"{chains} chain{'' if one else 's'} of {count:,} kept draws. " + (
        "R-hat compares chains and needs two; a private study has one, since every "
        "chain would spend a budget of its own. ESS is the number of independent "
        "draws that the chain is worth."
        if one
        else "R-hat near 1 means that the chains agree; ESS is the number of "
        "independent draws that they are worth."
    )
    if width > MOST_TRACES:
        text += f" The first {MOST_TRACES} of {width} parameters are shown."
    return join(
        tag("h3", "Have the chains settled?"),
        tag("p", text),
        table(
            "Traces of the kept draws, R-hat and effective draws",
            ["Parameter", "Trace", "R-hat", "ESS", "Verdict"],
            rows,
            words=(1, 4),
            class_="traces",
            id_="convergence",
        ),
    )


def _verdict(row: ParameterRow) -> Content:
    rhat, ess = row["rhat"], row["ess"]
    if rhat is None and ess is None:
        return tag("strong", "too few draws to tell", class_="bad")
    if rhat is not None and rhat > RHAT_LIMIT:
        return tag("strong", "not mixed", class_="bad")
    if ess is not None and ess < ESS_LIMIT:
        return tag("strong", "few draws" if ess >= 20 else "do not use", class_="bad")
    return "settled"
