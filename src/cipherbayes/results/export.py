"""A result as plain files: CSV for any program, and a folder that R reads."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cipherbayes.results.record import MetaAnalysisRow
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
# NULL where the study has no such table.
table_of <- function(name) {
  file <- paste0(name, ".csv")
  if (file.exists(file.path(here, file))) read(file)
}
"""
READ_R += "".join(
    f'{name} <- table_of("{name}")\n'
    for name in (
        "effects",
        "survival",
        "subgroups",
        "curves",
        "scores",
        "calibration",
        "fit",
        "describe",
        "between",
        "sites",
        "site_records",
        "influence",
        "meta_analysis",
    )
)


def export(result: Result, folder: Path, *, for_r: bool = False) -> list[Path]:
    """Write a result's tables into a new folder; the files.

    ``summary.csv`` and ``draws.csv`` always (draws on the user's own units, one a line,
    with ``.chain``, ``.iteration`` and ``.draw`` as R's posterior package names them);
    ``effects.csv`` and ``survival.csv``, the reference record's curve, where the model
    has them; ``subgroups.csv`` and ``curves.csv`` where the study has a formula with
    products and curves; ``scores.csv``, ``calibration.csv`` and ``fit.csv`` (how much
    is missed in every group) where rows are held out; ``describe.csv`` where the study
    describes its records. Where sites may differ: ``between.csv``, ``sites.csv``,
    ``site_records.csv``, ``influence.csv`` and ``meta_analysis.csv``, and ``draws.csv``
    has ``site_effect[SITE,NAME]`` and ``between[NAME]`` too.
    """
    require_new_folder(folder, remedy="choose another --out")
    make_folder(folder)
    tables: dict[str, Sequence[Mapping[str, Any]]] = {
        "summary.csv": result.summary(),
        "effects.csv": result.effects(),
        "draws.csv": draw_rows(result),
        "describe.csv": result.describe(),
        "scores.csv": result.scores(),
        "calibration.csv": result.calibration(),
        "fit.csv": result.fit_groups(),
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
        tables["site_records.csv"] = hierarchy["records"]
        tables["influence.csv"] = hierarchy["influence"]
        tables["meta_analysis.csv"] = [
            meta_analysis_row(row) for row in hierarchy["meta_analysis"]
        ]
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


def meta_analysis_row(row: MetaAnalysisRow) -> dict[str, object]:
    """A row of a meta-analysis, the joint posterior's numbers beside it."""
    flat: dict[str, object] = {k: v for k, v in row.items() if k != "posterior"}
    return flat | {f"posterior_{k}": v for k, v in row["posterior"].items()}


def draw_rows(result: Result) -> list[dict[str, float]]:
    """Every draw with its place in its chain, counted from one; what differs between
    sites, and by how much, after the common parameters."""
    data = result.dataset
    theta = data["theta"]
    names = [str(name) for name in theta["parameter"].values]
    parts = [np.asarray(theta)]
    if "site_effect" in data:
        effects = data["site_effect"]
        names += [
            f"site_effect[{site},{name}]"
            for site in effects["site"].values
            for name in effects["varying"].values
        ]
        parts.append(np.asarray(effects).reshape(*parts[0].shape[:2], -1))
    if "between" in data:
        names += [f"between[{name}]" for name in data["between"]["spread"].values]
        parts.append(np.asarray(data["between"]))
    values = np.concatenate(parts, axis=2)
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
