"""How often intervals of a table of characteristics hold what the records say.

The records of a real table, at two sites, are counted as sites count them and noised as
a study's description is; only the noise differs between repetitions, because the
intervals are about these very records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.rounds import Closing
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.describing import describe_rows
from cipherbayes.study.tables import open_site, preparation_of
from cipherbayes.typing import Floats
from cipherbayes_research.datasets.physionet2012 import OUTCOME as DIED
from cipherbayes_research.datasets.physionet2012 import load_physionet2012

DELTA, TAIL = 1e-5, 0.05
OUTCOME = "outcome"


def described_table(name: str, physionet: Path | None) -> pd.DataFrame:
    """Columns of a public table with outcomes of 0 and 1, some values missing."""
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


def _features(frame: pd.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, column in frame.drop(columns=OUTCOME).items():
        if column.dtype.kind not in "fi":
            found[str(name)] = {"levels": sorted(column.unique())}
            continue
        low, high = float(column.min()), float(column.max())
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


def describe_coverage(
    name: str,
    epsilon: float,
    share: float,
    repetitions: int,
    seed: int,
    physionet: Path | None = None,
) -> dict[tuple[str, str], tuple[float, float, int]]:
    """For each kind of statistic, of all records and of a site's: how often intervals
    held it, their mean width over the value, and how many there were."""
    frame = described_table(name, physionet)
    rng = np.random.default_rng(seed)
    at_a = rng.random(len(frame)) < 0.6
    tables = {"a": frame[at_a], "b": frame[~at_a]}
    study = cb.Study(
        model=cb.models.Logistic(outcome=OUTCOME),
        features=_features(frame),
        preparation={"method": "private-scales"},
        privacy={"epsilon": epsilon, "delta": DELTA, "records": len(frame)},
        inference={"method": "averaged"},
        describe={"by": ["site"], "share": share},
        sites={"a": {}, "b": {}},
    )
    plan = plan_releases(study)
    (phase,) = plan.closing
    assert phase.characteristics is not None
    opened = {site: open_site(study, site, table) for site, table in tables.items()}
    scales = _scales(study, opened)
    asked = Question(np.zeros(1), scales)
    total = sum(
        Contributions.of_site(study, site, table).total(phase, asked)
        for site, table in opened.items()
    )
    noise = phase.sums.clip / (mu_for(epsilon, DELTA) * np.sqrt(share))
    truths = {
        (column, statistic, group): value
        for group, rows in (("all", frame), ("site: a", tables["a"]))
        for column, statistic, value in _truths(rows)
    }
    found: dict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    for _ in range(repetitions):
        released = Closing(total + rng.normal(0.0, noise, phase.dimension), noise)
        rows = describe_rows(plan.study, phase.characteristics, released, scales, TAIL)
        for row in rows:
            key = (row["column"], row["statistic"], row["group"])
            if key not in truths or (key[1] == "rows" and key[2] == "all"):
                continue
            kind = row["statistic"].partition(":")[0]
            inside = row["lower"] - 1e-9 <= truths[key] <= row["upper"] + 1e-9
            width = (row["upper"] - row["lower"]) / max(abs(truths[key]), 1e-9)
            found[kind, row["group"]].append((inside, width))
    return {
        key: (
            float(np.mean([inside for inside, _ in each])),
            float(np.median([width for _, width in each])),
            len(each),
        )
        for key, each in found.items()
    }


def _scales(study: cb.Study, opened: dict[str, Any]) -> Floats:
    """Means and standard deviations of the prepared columns, as if released exactly."""
    design = preparation_of(study).design
    blocks = [block.x for table in opened.values() for block in table.blocks()]
    x = np.concatenate(blocks, axis=1)[design.moved_places]
    return np.concatenate([x.mean(axis=1), np.maximum(x.std(axis=1), 0.01)])
