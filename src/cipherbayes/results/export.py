"""A result as plain files: CSV for any program, and a folder that R reads."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cipherbayes.results.result import Result
from cipherbayes.storage.folders import make_folder, require_new_folder

READ_R = """\
# Reads the posterior of a cipherbayes study; needs the package posterior.
#   source("read.R"); posterior::summarise_draws(draws); bayesplot::mcmc_areas(draws)
here <- if (exists("folder")) folder else "."
read <- function(name) read.csv(file.path(here, name), check.names = FALSE)
draws <- read("draws.csv")
if (requireNamespace("posterior", quietly = TRUE)) {
  draws <- posterior::as_draws_df(draws)
}
summary_table <- read("summary.csv")
effects <- if (file.exists(file.path(here, "effects.csv"))) read("effects.csv")
survival <- if (file.exists(file.path(here, "survival.csv"))) read("survival.csv")
subgroups <- if (file.exists(file.path(here, "subgroups.csv"))) read("subgroups.csv")
curves <- if (file.exists(file.path(here, "curves.csv"))) read("curves.csv")
"""


def export(result: Result, folder: Path, *, for_r: bool = False) -> list[Path]:
    """Write a result's tables into a new folder; the files.

    ``summary.csv`` and ``draws.csv`` always (draws on the user's own units, one a line,
    with ``.chain``, ``.iteration`` and ``.draw`` as R's posterior package names them);
    ``effects.csv`` and ``survival.csv``, the reference record's curve, where the model
    has them; ``subgroups.csv`` and ``curves.csv`` where the study has a formula with
    products and curves; ``describe.csv`` where the study describes its records;
    ``between.csv`` and ``sites.csv`` where sites may differ.
    """
    require_new_folder(folder, remedy="choose another --out")
    make_folder(folder)
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        "summary.csv": result.summary(),
        "effects.csv": result.effects(),
        "draws.csv": draw_rows(result),
        "describe.csv": result.describe(),
    }
    tables["subgroups.csv"] = result.subgroups()
    tables["curves.csv"] = curve_rows(result)
    baseline = result.baseline()
    if baseline is not None:
        tables["survival.csv"] = baseline["survival"]
    hierarchy = result.hierarchy()
    if hierarchy is not None:
        tables["between.csv"] = hierarchy["between"]
        tables["sites.csv"] = hierarchy["sites"]
    files = [
        write_table(folder / name, rows)
        for name, rows in tables.items()
        if len(rows) > 0
    ]
    if for_r:
        path = folder / "read.R"
        path.write_text(READ_R, encoding="utf-8")
        files.append(path)
    return files


def curve_rows(result: Result) -> list[dict[str, object]]:
    """Every point of every curve of a formula."""
    return [
        {
            "feature": curve.feature,
            "by": curve.by,
            "level": curve.level,
            "measure": curve.measure,
            "reference": curve.reference,
            **point,
        }
        for curve in result.curves()
        for point in curve
    ]


def draw_rows(result: Result) -> list[dict[str, float]]:
    """Every draw with its place in its chain, counted from one."""
    theta = result.dataset["theta"]
    names = [str(name) for name in theta["parameter"].values]
    values = np.asarray(theta)
    chains, count, _ = values.shape
    return [
        {".chain": c + 1, ".iteration": i + 1, ".draw": c * count + i + 1}
        | dict(zip(names, values[c, i].tolist(), strict=True))
        for c in range(chains)
        for i in range(count)
    ]


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows, which all have the same keys, as a CSV file."""
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
