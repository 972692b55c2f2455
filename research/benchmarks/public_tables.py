"""Covariates of public tables as CSV files, for ``cipherbayes calibrate --table``.

    python research/benchmarks/public_tables.py FOLDER [--physionet set-a.tar.gz]

Constants of the posterior, of windows and of the plan's width were chosen on made-up
columns and on those of ``CHOSEN_ON``; coverage is reported on the others.
PhysioNet is left out without its archive.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

CHOSEN_ON = (
    "flchain",
    "gbsg2",
    "breast",
    "whas500",
    "rossi",
    "diabetes",
    "physionet",
    "stays-first",
)
REPORTED = ("aids", "veterans", "lung", "fair", "anes96", "randhie")
ADDED = ("modechoice", "star98", "wine")
"""Further tables that are reported on."""
MANY = ("stays-mean", "stays-extremes")
"""Those with more columns, reported on too."""
STAYS: dict[str, dict[str, int | None]] = {
    "stays-first": {"last": None, "first": 16},
    "stays-mean": {"mean": None},
    "stays-extremes": {"max": None, "min": 16},
}
"""PhysioNet's statistics of a stay beside its age, and how many series of each."""


def table_named(name: str, physionet: Path | None) -> pd.DataFrame:
    """Covariates of a public table: numbers and texts, none missing."""
    if name == "flchain":
        from sksurv.datasets import load_flchain

        frame = load_flchain()[0][["age", "sex", "kappa", "lambda", "creatinine"]]
        return frame.assign(creatinine=frame["creatinine"].fillna(1.0))
    if name == "gbsg2":
        from sksurv.datasets import load_gbsg2

        return load_gbsg2()[0]
    if name == "whas500":
        from sksurv.datasets import load_whas500

        columns = ["age", "bmi", "diasbp", "sysbp", "hr", "gender", "afb", "chf", "sho"]
        return load_whas500()[0][columns]
    if name == "rossi":
        from lifelines.datasets import load_rossi

        frame = load_rossi().drop(columns=["week", "arrest"])
        texts = ["fin", "race", "wexp", "mar", "paro"]
        return frame.astype(dict.fromkeys(texts, str))
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        frame = load_diabetes(as_frame=True, scaled=False).data
        return frame[["age", "sex", "bmi", "bp", "s3", "s5", "s6"]].astype({"sex": str})
    if name == "breast":
        from sklearn.datasets import load_breast_cancer

        frame = load_breast_cancer(as_frame=True).data
        return frame.iloc[:, [0, 1, 4, 7, 8, 14, 19]]
    if name == "aids":
        from sksurv.datasets import load_aids

        # txgrp is tx in finer groups; a numeric column of karnof's four values.
        frame = load_aids()[0].drop(columns=["txgrp", "strat2"])
        texts = ["hemophil", "ivdrug", "raceth", "sex", "tx"]
        return frame.astype({"karnof": float} | dict.fromkeys(texts, str))
    if name == "veterans":
        from sksurv.datasets import load_veterans_lung_cancer

        return load_veterans_lung_cancer()[0]
    if name == "lung":
        from lifelines.datasets import load_lung

        frame = load_lung().drop(columns=["inst", "time", "status"])
        return frame.dropna().astype({"sex": str})
    if name == "fair":
        from statsmodels.datasets import fair

        return fair.load_pandas().data.drop(columns=["affairs"])
    if name == "anes96":
        from statsmodels.datasets import anes96

        columns = ["logpopul", "TVnews", "selfLR", "PID", "age", "educ", "income"]
        return anes96.load_pandas().data[columns]
    if name == "randhie":
        from statsmodels.datasets import randhie

        return randhie.load_pandas().data.drop(columns=["mdvis"])
    if name == "modechoice":
        from statsmodels.datasets import modechoice

        columns = ["ttme", "invc", "invt", "gc", "hinc", "psize"]
        return modechoice.load_pandas().data[columns]
    if name == "star98":
        from statsmodels.datasets import star98

        columns = ["LOWINC", "PERASIAN", "PERBLACK", "PERHISP", "PERMINTE", "AVYRSEXP"]
        return star98.load_pandas().data[[*columns, "PERSPENK", "PTRATIO"]]
    if name == "wine":
        from sklearn.datasets import load_wine

        return load_wine(as_frame=True).data.iloc[:, [0, 1, 2, 3, 4, 7, 8, 9, 12]]
    assert name == "physionet" or name in STAYS
    assert physionet is not None
    from cipherbayes_research.datasets.physionet2012 import load_physionet2012

    frame = load_physionet2012(physionet, missing="keep").to_pandas()
    if name in STAYS:
        return _stays(frame, STAYS[name])
    wanted = ["Age", "GCS_last", "BUN_last", "Urine_last", "HR_last", "HCO3_last"]
    return frame[wanted].dropna()


def _stays(frame: pd.DataFrame, statistics: Mapping[str, int | None]) -> pd.DataFrame:
    """Age, and statistics of series that two of three stays have; gaps are means."""
    known = frame.loc[:, (frame.isna().mean() < 0.35) & (frame.nunique() > 10)]
    names = ["Age"]
    for statistic, most in statistics.items():
        names += [n for n in known.columns if n.endswith(f"_{statistic}")][:most]
    return known[names].fillna(known[names].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--physionet", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in (*CHOSEN_ON, *REPORTED, *ADDED, *MANY):
        if name in ("physionet", *STAYS) and arguments.physionet is None:
            continue
        frame = table_named(name, arguments.physionet)
        frame.columns = [str(column).replace(" ", "_") for column in frame.columns]
        path = arguments.folder / f"{name}.csv"
        frame.to_csv(path, index=False)
        print(f"{path}: {len(frame)} rows, {frame.shape[1]} columns")


if __name__ == "__main__":
    main()
