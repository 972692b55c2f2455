"""Private intervals beside the non-private posterior, on real data.

    python research/benchmarks/intervals.py [ARCHIVE] [--out FOLDER]

runs FLchain, FLchain with two columns that it should not have and, with ARCHIVE
(PhysioNet 2012's set-a.tar.gz), mortality in intensive care with eight core variables,
each over five encrypted sites at ε = 1 and 3 and pooled without privacy. It prints a
table for each and, with FOLDER, draws the intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.study.schema import Study
from cipherbayes_research.datasets.flchain import load_flchain
from cipherbayes_research.datasets.physionet2012 import load_physionet2012

ROOT = Path(__file__).resolve().parents[2]
CORE = (
    "Age", "GCS_last", "BUN_last", "Urine_last", "Lactate_last", "HR_last",
    "HCO3_last", "Bilirubin_last",
)  # fmt: skip
LEFT_OUT = {"flc.grp": {"low": 1, "high": 10}, "mgus": {"levels": [0, 1]}}
"""FLchain's columns that the example leaves out: they show what goes wrong."""
BUDGETS = (None, 3.0, 1.0)
SITES = 5
Rows = list[dict[str, Any]]


def compare(
    example: str, frame: pd.DataFrame, columns: Sequence[str], **changes: Any
) -> dict[float | None, Rows]:
    """Effects of one standard deviation of each column, for every budget."""
    document = Study.load(ROOT / "examples" / example).document()
    features = document["features"] | LEFT_OUT
    document["features"] = {name: features[name] for name in columns}
    document.update(changes)
    found = {}
    for epsilon in BUDGETS:
        study = dict(document, inference={}, sites={}, study={"name": "intervals"})
        if epsilon is None:
            del study["privacy"]
            study["preparation"] = {"method": "public-bounds"}
            tables = {"all": frame}
        else:
            study["privacy"] = {"epsilon": epsilon, "records": len(frame)}
            parts = np.array_split(np.arange(len(frame)), SITES)
            tables = {f"site-{k}": frame.iloc[rows] for k, rows in enumerate(parts)}
        summary = cb.run(Study.model_validate(study), tables).summary()
        found[epsilon] = cast(Rows, summary)
    return found


def table(found: dict[float | None, Rows]) -> list[str]:
    """Mean and interval of each parameter, and the mean ratio of widths."""
    reference = {row["name"]: row for row in found[None]}
    lines = [" | ".join(["parameter", *(label(budget) for budget in found)])]
    for name in reference:
        cells = [name]
        for rows in found.values():
            row = next(row for row in rows if row["name"] == name)
            cells.append(
                f"{row['mean']:.3g} ({row['lower']:.3g} to {row['upper']:.3g})"
            )
        lines.append(" | ".join(cells))
    ratios = ["width"]
    for rows in found.values():
        each = [
            (row["upper"] - row["lower"])
            / (reference[row["name"]]["upper"] - reference[row["name"]]["lower"])
            for row in rows
        ]
        ratios.append(f"{np.median(each):.2f} ×")
    return [*lines, " | ".join(ratios)]


def label(epsilon: float | None) -> str:
    return "not private" if epsilon is None else f"ε = {epsilon:g}"


def draw(found: dict[float | None, Rows], path: Path) -> None:
    """Intervals in units of the non-private posterior's sd, around its mean."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "intervals", "font.size": 9})
    reference = {row["name"]: row for row in found[None]}
    names = list(reference)
    figure, axis = plt.subplots(figsize=(7.0, 0.5 + 0.42 * len(names)))
    styles = ["o", "s", "D"]
    shades = ["#000000", "#0072b2", "#d55e00"]
    for k, (budget, rows) in enumerate(found.items()):
        for row in rows:
            base = reference[row["name"]]
            place = names.index(row["name"]) + 0.22 * (k - 1)
            ends = [(row[e] - base["mean"]) / base["sd"] for e in ("lower", "upper")]
            axis.plot(ends, [place, place], color=shades[k], lw=1.6)
            axis.plot(
                (row["mean"] - base["mean"]) / base["sd"],
                place,
                styles[k],
                color=shades[k],
                ms=4,
                label=label(budget) if row is rows[0] else None,
            )
    axis.axvline(0.0, color="0.8", lw=0.8, zorder=0)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("distance from the non-private mean, in its standard deviations")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="best")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    shuffled = np.random.default_rng(0).permutation
    frame = load_flchain().to_pandas()
    frame = frame.iloc[shuffled(len(frame))]
    columns = ["age", "sex", "kappa", "lambda", "creatinine"]
    studies = {
        "flchain": compare("flchain.toml", frame, columns),
        "flchain-alike": compare("flchain.toml", frame, [*columns, *LEFT_OUT]),
    }
    if given.archive is not None:
        frame = load_physionet2012(given.archive, missing="keep").to_pandas()
        studies["physionet"] = compare(
            "physionet.toml",
            frame.iloc[shuffled(len(frame))],
            CORE,
            preparation={"method": "private-moments"},
            prior={"scale": 1.0},
        )
    for name, found in studies.items():
        print(f"\n{name}")
        print("\n".join(table(found)))
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            draw(found, given.out / f"intervals-{name}.svg")


if __name__ == "__main__":
    main()
