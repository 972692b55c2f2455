"""Non-private fits beside scikit-learn and lifelines, on the same splits.

``python research/benchmarks/accuracy.py [ARCHIVE]`` prints the differences; ARCHIVE is
PhysioNet 2012's set-a.tar.gz (without it that comparison is left out).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.models.metrics import evaluate_each
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_sites
from cipherbayes_research.datasets.flchain import load_flchain
from cipherbayes_research.datasets.physionet2012 import load_physionet2012

ROOT = Path(__file__).resolve().parents[2]


def split_rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """80 % for training, 20 % for testing."""
    order = np.random.default_rng(seed).permutation(n)
    return order[n // 5 :], order[: n // 5]


def held_out(result: cb.Result, test: pd.DataFrame) -> dict[str, Any]:
    """Metrics of a fit on rows it has not seen."""
    tables = open_sites(result.study, {"all": test})
    draws = result.draws()
    return evaluate_each(result.study.model, [(draws, t) for t in tables.values()])


def physionet_auc(archive: Path, splits: int) -> list[tuple[float, float]]:
    """(ours, scikit-learn's) test AUC with all 184 features.

    The baseline standardises its columns and even gets its ridge strength picked on
    the test rows.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame = load_physionet2012(archive, missing="mean").to_pandas()
    paper = Study.load(ROOT / "examples" / "paper-as-printed.toml")
    study = Study(
        model=paper.model,
        features=paper.features,
        prior={"scale": 1.0},
        inference={"rounds": 550, "burn_in": 1 / 11, "chains": 2},
    )
    x, y = frame[list(paper.features)], frame["In-hospital_death"]
    found = []
    for seed in range(splits):
        train, test = split_rows(len(frame), seed)
        result = cb.run(study, {"all": frame.iloc[train]})
        baseline = max(
            roc_auc_score(
                y.iloc[test],
                make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))
                .fit(x.iloc[train], y.iloc[train])
                .decision_function(x.iloc[test]),
            )
            for c in (0.001, 0.01, 0.1, 1.0)
        )
        found.append((held_out(result, frame.iloc[test])["auc"], float(baseline)))
    return found


def flchain_concordance(splits: int) -> list[tuple[float, float]]:
    """(ours, lifelines' Cox model's) C-index with the same columns."""
    from lifelines import CoxPHFitter
    from lifelines.utils import concordance_index

    frame = load_flchain().to_pandas()
    example = Study.load(ROOT / "examples" / "flchain.toml")
    study = Study(
        model=example.model,
        features={
            **example.features,
            "flc.grp": {"low": 1, "high": 10},
            "mgus": {"levels": [0, 1]},
        },
        prior={"scale": 5.0},
        inference={"rounds": 1100, "burn_in": 1 / 11, "chains": 2},
    )
    coded = frame.copy()
    coded["sex"] = (coded["sex"] == "M").astype(float)
    coded["creatinine"] = coded["creatinine"].fillna(1.0)
    for name in ("kappa", "lambda", "creatinine"):
        coded[name] = np.log(coded[name])
    coded = coded.astype(float)
    found = []
    for seed in range(splits):
        train, test = split_rows(len(frame), seed)
        result = cb.run(study, {"all": frame.iloc[train]})
        cox = CoxPHFitter().fit(coded.iloc[train], "futime", "death")
        risk = cox.predict_log_partial_hazard(coded.iloc[test])
        baseline = concordance_index(
            coded["futime"].iloc[test], -risk, coded["death"].iloc[test]
        )
        found.append((held_out(result, frame.iloc[test])["c_index"], float(baseline)))
    return found


def _print(what: str, pairs: list[tuple[float, float]]) -> None:
    ours, theirs = np.mean(pairs, axis=0)
    print(
        f"{what}: ours {ours:.4f}, theirs {theirs:.4f}, difference {ours - theirs:+.4f}"
    )


def main() -> None:
    """Print both comparisons."""
    _print("FLchain C-index vs lifelines Cox, 3 splits", flchain_concordance(3))
    if len(sys.argv) > 1 and Path(sys.argv[1]).exists():
        pairs = physionet_auc(Path(sys.argv[1]), 3)
        _print("PhysioNet AUC vs scikit-learn ridge, 3 splits", pairs)
    else:
        print("PhysioNet AUC: left out, give the archive set-a.tar.gz")


if __name__ == "__main__":
    main()
