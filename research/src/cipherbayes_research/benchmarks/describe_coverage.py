"""How often intervals of a table of characteristics hold what the records say.

The records of a real table, at two sites or more, are counted as sites count them and
noised as a study's description is, in ranges made of scales that were released with
noise before. Only the noise differs between repetitions, because the intervals are
about these very records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase, Purpose
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.rounds import Closing
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.describing import describe_rows
from cipherbayes.results.record import DescribeRow
from cipherbayes.study.tables import open_site
from cipherbayes.typing import Bools, Floats, Integers
from cipherbayes_research.datasets.physionet2012 import OUTCOME as DIED
from cipherbayes_research.datasets.physionet2012 import load_physionet2012

DELTA, TAIL = 1e-5, 0.05
OUTCOME = "outcome"
INVENTED = 1500


def described_table(name: str, physionet: Path | None) -> pd.DataFrame:
    """Columns of a public or invented table with outcomes of 0 and 1, some values
    missing."""
    if name in _INVENTED:
        rng = np.random.default_rng(0)
        columns = _INVENTED[name](rng)
        return pd.DataFrame(columns | {OUTCOME: rng.random(INVENTED) < 0.3}).astype(
            float
        )
    if name == "physionet":
        assert physionet is not None
        frame = load_physionet2012(physionet, missing="mean").to_pandas()
        wanted = ["Age", "GCS_last", "BUN_last", "Urine_last", "HR_last", "HCO3_last"]
        return frame[wanted].assign(**{OUTCOME: frame[DIED].astype(float)})
    from sksurv import datasets

    x, y = getattr(datasets, f"load_{name}")()
    frame = x.drop(columns=["chapter", "flc.grp"], errors="ignore")
    for column in frame:
        if frame[column].dtype.kind not in "fi":
            frame[column] = frame[column].astype(str)
    return frame.assign(**{OUTCOME: y[y.dtype.names[0]].astype(float)})


def _six_shapes(rng: np.random.Generator) -> dict[str, Floats]:
    normal = rng.standard_normal((4, INVENTED))
    second = rng.random(INVENTED) < 0.4
    return {
        "normal": normal[0],
        "skewed": np.exp(0.7 * normal[1]),
        "rounded": (50.0 + 12.0 * normal[2]).round(),
        "even": rng.uniform(0.0, 10.0, INVENTED),
        "four values": rng.choice(4, INVENTED, p=[0.5, 0.3, 0.15, 0.05]).astype(float),
        "two groups": np.where(second, 6.0, 0.0) + normal[3],
    }


def _spikes(rng: np.random.Generator) -> dict[str, Floats]:
    """Smooth columns of which a part has one value, as stand-ins of missing ones have;
    and a column in which all are alike."""
    normal = rng.standard_normal((3, INVENTED))
    alike = rng.random((3, INVENTED)) < np.array([[0.1], [0.3], [0.5]])
    columns = {
        f"spike {k}": np.where(alike[k], each.mean(), each)
        for k, each in enumerate(np.exp(0.5 * normal))
    }
    return columns | {"alike": np.full(INVENTED, 7.0)}


def _scales(rng: np.random.Generator) -> dict[str, Floats]:
    """Scales of few values, many of them at an end."""
    normal = rng.standard_normal((4, INVENTED))
    return {
        "ceiling": np.clip((8.5 + 2.5 * normal[0]).round(), 0.0, 10.0),
        "floor": np.clip((1.5 + 3.0 * normal[1]).round(), 0.0, 12.0),
        "apgar": 10.0 - rng.poisson(np.exp(0.4 * normal[2] - 0.2)).clip(0, 10),
        "twenty": np.clip((14.0 + 6.0 * normal[3]).round(), 1.0, 20.0),
        "five": rng.choice(5, INVENTED, p=[0.05, 0.05, 0.1, 0.3, 0.5]).astype(float),
    }


_INVENTED = {"invented": _six_shapes, "spikes": _spikes, "scales": _scales}


def _features(frame: pd.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, column in frame.drop(columns=OUTCOME).items():
        if column.dtype.kind not in "fi":
            found[str(name)] = {"levels": sorted(column.unique())}
            continue
        low, high = float(column.min()), float(column.max())
        if low == high:
            low, high = 0.0, 3.0 * high
        found[str(name)] = {"low": low, "high": high + 0.1 * (high - low)}
        if column.isna().any():
            found[str(name)] |= {"missing": float(column.median()), "indicator": True}
    return found


def _truths(frame: pd.DataFrame) -> Iterator[tuple[str, str, float]]:
    """What the records say: column, statistic, value."""
    yield "", "rows", float(len(frame))
    for name, column in frame.items():
        if column.dtype.kind not in "fi" or name == OUTCOME:
            levels = column if name != OUTCOME else column.astype(int).astype(str)
            for level, count in levels.value_counts().items():
                yield str(name), f"count: {level}", float(count)
                yield str(name), f"share: {level}", float(count) / len(frame)
            continue
        if column.isna().any():
            yield str(name), "missing share", float(column.isna().mean())
        there = column.dropna().to_numpy(float)
        yield str(name), "mean", float(there.mean())
        yield str(name), "sd", float(there.std())
        for statistic, share in (("q1", 0.25), ("median", 0.5), ("q3", 0.75)):
            # The value of a record, not between two of them.
            value = np.quantile(there, share, method="inverted_cdf")
            yield str(name), statistic, float(value)


def described(
    frame: pd.DataFrame,
    epsilon: float,
    share: float,
    repetitions: int,
    seed: int,
    *,
    uneven: bool = False,
    sites: int = 2,
) -> Iterator[tuple[DescribeRow, float]]:
    """Rows of the table from repeated releases, and what the records say.

    Of two sites, records are at the first with a probability of 0.6; of 0.9 or 0.3
    where sites are ``uneven``, by whether the first number is above its median. The
    first of two sites is told, and every one of more. Each ε has random numbers of its
    own.
    """
    rng = np.random.default_rng([seed, round(1000 * epsilon)])
    if sites > 2:
        place = _many_sites(frame, sites, uneven, rng)
    else:
        at_a = rng.random(len(frame)) < (_uneven(frame) if uneven else 0.6)
        place = 1 - at_a.astype(np.int64)
    tables = {chr(97 + k): frame[place == k] for k in range(sites)}
    study = cb.Study(
        model=cb.models.Logistic(outcome=OUTCOME),
        features=_features(frame),
        preparation={"method": "private-scales"},
        privacy={"epsilon": epsilon, "delta": DELTA, "records": len(frame)},
        inference={"method": "averaged"},
        describe={"by": ["site"], "share": share},
        sites={site: {} for site in tables},
    )
    plan = plan_releases(study)
    (phase,) = plan.closing
    assert phase.characteristics is not None
    parties = [
        Contributions.of_site(study, site, open_site(study, site, table))
        for site, table in tables.items()
    ]
    told = list(tables) if sites > 2 else ["a"]
    truths = {
        (column, statistic, group): value
        for group, rows in (
            ("all", frame),
            *((f"site: {site}", tables[site]) for site in told),
        )
        for column, statistic, value in _truths(rows)
    }
    # That of all records is the study's own number.
    del truths["", "rows", "all"]

    def released(asked: Phase, scales: Floats | None) -> Floats:
        question = Question(np.zeros(1), scales)
        total = sum(party.total(asked, question) for party in parties)
        return total + rng.normal(0.0, asked.sums.noise_sd(1), asked.dimension)

    for _ in range(repetitions):
        facts: dict[Purpose, Floats] = {}
        for early in plan.preparatory:
            total = released(early, plan.scales(early, facts))
            facts[early.purpose] = plan.summarise_release(early, total, facts)
        scales = plan.moments(facts)
        closing = Closing(released(phase, scales), phase.sums.noise_sd(1))
        how = phase.characteristics
        for row in describe_rows(plan.study, how, closing, scales, TAIL):
            key = (row["column"], row["statistic"], row["group"])
            if key in truths:
                yield row, truths[key]


def _uneven(frame: pd.DataFrame) -> Floats:
    return np.where(_above(frame), 0.9, 0.3)


def _above(frame: pd.DataFrame) -> Bools:
    """Which records have a first number above its median."""
    number = next(
        frame[name] for name in frame if frame[name].dtype.kind in "fi"
    ).to_numpy(float)
    return np.asarray(number > np.nanmedian(number))


def _many_sites(
    frame: pd.DataFrame, sites: int, uneven: bool, rng: np.random.Generator
) -> Integers:
    """The site of each record. Sites are small and large; where they are ``uneven``
    the chance of one is larger or smaller, by a factor of e as one standard deviation,
    for records whose first number is above its median."""
    size, prefer = np.exp(0.6 * rng.standard_normal(sites)), rng.standard_normal(sites)
    chance = size * np.exp((uneven * _above(frame))[:, None] * prefer)
    upto = np.cumsum(chance, axis=1)
    place = rng.random((len(frame), 1)) * upto[:, -1:]
    return np.asarray((place > upto).sum(axis=1))


def describe_coverage(
    name: str,
    epsilon: float,
    share: float,
    repetitions: int,
    seed: int,
    physionet: Path | None = None,
    *,
    uneven: bool = False,
    sites: int = 2,
) -> dict[tuple[str, str], tuple[float, float, int]]:
    """For each kind of statistic, of all records and of a site's: how often intervals
    held it, their mean width over the value, and how many there were."""
    frame = described_table(name, physionet)
    found: dict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    rows = described(
        frame, epsilon, share, repetitions, seed, uneven=uneven, sites=sites
    )
    for row, truth in rows:
        kind = row["statistic"].partition(":")[0]
        group = row["group"] if sites == 2 or row["group"] == "all" else "a site"
        inside = row["lower"] - 1e-9 <= truth <= row["upper"] + 1e-9
        width = (row["upper"] - row["lower"]) / max(abs(truth), 1e-9)
        found[kind, group].append((inside, width))
    return {
        key: (
            float(np.mean([inside for inside, _ in each])),
            float(np.median([width for _, width in each])),
            len(each),
        )
        for key, each in found.items()
    }
