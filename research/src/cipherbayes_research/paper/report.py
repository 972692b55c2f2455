"""What an experiment says: rows of a table, paired differences, curves, notes."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

COLUMNS = (
    "setting",
    "sites",
    "epsilon",
    "certified",
    "metric",
    "mean",
    "sd",
    "splits",
    "paper",
)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    setting
        What was run; a run as printed states its claim here.
    epsilon
        The honest ε: certified, or what the accountant gives for the paper's own
        algorithm; None without privacy.
    certified
        Whether ε is a promise that the product makes.
    mean, sd, splits
        Over the splits; sd None for a single number.
    paper
        What the paper has in this place; None where it has nothing.
    """

    setting: str
    sites: int
    epsilon: float | None
    certified: bool
    metric: str
    mean: float | None
    sd: float | None
    splits: int
    paper: float | None = None


@dataclass(frozen=True)
class Difference:
    """Mean paired difference over the splits, with a 95 % interval."""

    first: str
    second: str
    epsilon: float | None
    metric: str
    mean: float
    lower: float
    upper: float
    splits: int


@dataclass(frozen=True)
class Curve:
    """A line of a picture: y over x, mean over the splits."""

    label: str
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Report:
    """Everything an experiment gives but its picture."""

    name: str
    title: str
    quick: bool
    rows: list[Row]
    differences: list[Difference] = field(default_factory=list)
    curves: dict[str, list[Curve]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON has it; ``name`` and ``rows`` are the stable part."""
        return {
            "name": self.name,
            "rows": [asdict(row) for row in self.rows],
            "quick": self.quick,
            "differences": [asdict(difference) for difference in self.differences],
            "curves": {
                panel: [asdict(curve) for curve in curves]
                for panel, curves in self.curves.items()
            },
            "notes": self.notes,
        }

    def write(self, folder: Path) -> None:
        """``NAME.json`` and ``NAME.csv``."""
        folder.mkdir(parents=True, exist_ok=True)
        document = json.dumps(self.document(), indent=2, allow_nan=False) + "\n"
        (folder / f"{self.name}.json").write_text(document, encoding="utf-8")
        with (folder / f"{self.name}.csv").open("w", newline="", encoding="utf-8") as f:
            table = csv.DictWriter(f, COLUMNS)
            table.writeheader()
            table.writerows(asdict(row) for row in self.rows)


def summarised(
    values: Sequence[float],
    *,
    setting: str,
    metric: str,
    sites: int = 1,
    epsilon: float | None = None,
    certified: bool = False,
    paper: float | None = None,
) -> Row:
    """A row from one value for each split."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Row(
        setting,
        sites,
        epsilon,
        certified,
        metric,
        float(np.mean(values)),
        spread,
        len(values),
        paper,
    )


def difference(
    first: Mapping[int, float],
    second: Mapping[int, float],
    names: tuple[str, str],
    *,
    metric: str,
    epsilon: float | None = None,
) -> Difference | None:
    """first − second over the splits that both have; None for fewer than two.

    The interval is Student's with the variance of Nadeau and Bengio (2003): test
    sets are a quarter of training sets that overlap, so the variance of the mean is
    (1/J + 1/4) s², not s²/J.
    """
    common = sorted(set(first) & set(second))
    if len(common) < 2:
        return None
    gaps = np.array([first[split] - second[split] for split in common])
    error = float(np.std(gaps, ddof=1)) * math.sqrt(1.0 / gaps.size + 0.25)
    reach = float(student.ppf(0.975, gaps.size - 1)) * error
    mean = float(gaps.mean())
    return Difference(
        *names, epsilon, metric, mean, mean - reach, mean + reach, gaps.size
    )


def known(differences: Iterable[Difference | None]) -> list[Difference]:
    """Those that could be computed."""
    return [each for each in differences if each is not None]
