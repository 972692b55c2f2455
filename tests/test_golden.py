"""Non-private fits on real data agree with independent implementations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cipherbayes as cb
from cipherbayes.data.flchain import load_flchain
from cipherbayes.data.physionet2012 import load_physionet2012
from cipherbayes.evaluation import evaluate
from cipherbayes.tables import open_sites
from cipherbayes.study import Study

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SPLITS = 3

pytestmark = [pytest.mark.slow, pytest.mark.realdata]


def split_rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(n)
    return order[n // 5 :], order[: n // 5]


def fit(study: Study, train: pd.DataFrame) -> cb.Result:
    return cb.run(study, {"all": train})


def held_out(result: cb.Result, test: pd.DataFrame) -> dict:
    tables = open_sites(result.study, {"all": test})
    return evaluate(result.study.model, result.draws(), list(tables.values()))


@pytest.fixture(scope="module")
def physionet(physionet_archive: Path) -> pd.DataFrame:
    return load_physionet2012(physionet_archive, missing="mean").to_pandas()


def test_physionet_auc_is_within_a_hundredth_of_ridge_logistic_regression(
    physionet: pd.DataFrame,
) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    paper = Study.load(EXAMPLES / "paper-as-printed.toml")
    study = Study(
        model=paper.model,
        features=paper.features,
        prior={"scale": 1.0},
        inference={"rounds": 1000, "chains": 2},
    )
    names = list(paper.features)
    ours, theirs = [], []
    for seed in range(SPLITS):
        train, test = split_rows(len(physionet), seed)
        result = fit(study, physionet.iloc[train])
        ours.append(held_out(result, physionet.iloc[test])["auc"])
        x, y = physionet[names], physionet["In-hospital_death"]
        best = max(
            roc_auc_score(
                y.iloc[test],
                make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))
                .fit(x.iloc[train], y.iloc[train])
                .decision_function(x.iloc[test]),
            )
            for c in (0.001, 0.01, 0.1, 1.0)
        )
        theirs.append(best)
    # The rival's ridge strength is even picked on the test rows.
    assert np.mean(ours) > np.mean(theirs) - 0.01


def test_flchain_concordance_is_within_five_thousandths_of_lifelines() -> None:
    pytest.importorskip("sksurv")
    from lifelines import CoxPHFitter
    from lifelines.utils import concordance_index

    frame = load_flchain().to_pandas()
    example = Study.load(EXAMPLES / "flchain.toml")
    study = Study(
        model={
            "kind": "exponential",
            "time": "futime",
            "event": "death",
            "horizon": 5000.0,
        },
        features=example.features,
        prior={"scale": 5.0},
        inference={"rounds": 2000, "chains": 2},
    )
    coded = frame.copy()
    coded["sex"] = (coded["sex"] == "M").astype(float)
    coded["mgus"] = coded["mgus"].astype(float)
    coded["creatinine"] = coded["creatinine"].fillna(1.0)
    for name in ("kappa", "lambda", "creatinine"):
        coded[name] = np.log(coded[name])
    for seed in range(SPLITS):
        train, test = split_rows(len(frame), seed)
        result = fit(study, frame.iloc[train])
        ours = held_out(result, frame.iloc[test])["c_index"]
        cox = CoxPHFitter().fit(coded.iloc[train].astype(float), "futime", "death")
        risk = cox.predict_log_partial_hazard(coded.iloc[test].astype(float))
        theirs = concordance_index(
            coded["futime"].iloc[test], -risk, coded["death"].iloc[test]
        )
        assert ours > theirs - 0.005


def test_flchain_coefficients_agree_with_exponential_maximum_likelihood() -> None:
    """Events per unit of time, weighted by time, are the same likelihood as Poisson."""
    pytest.importorskip("sksurv")
    from sklearn.linear_model import PoissonRegressor

    frame = load_flchain().to_pandas()[["age", "sex", "futime", "death"]]
    study = Study(
        model=cb.models.Exponential(time="futime", event="death", horizon=5000.0),
        features={
            "age": {"low": 50, "high": 101},
            "sex": {"levels": ["F", "M"]},
        },
        prior={"scale": 20.0},
        inference={"rounds": 6000},
    )
    rows = {row["name"]: row for row in fit(study, frame).summary()}
    years = frame["futime"] / 365.25
    reference = PoissonRegressor(alpha=0.0, tol=1e-9, max_iter=1000).fit(
        np.column_stack([frame["age"] - 70.0, frame["sex"] == "M"]),
        frame["death"] / years,
        sample_weight=years,
    )
    for name, expected in zip(("age", "sex[M]"), reference.coef_, strict=True):
        assert abs(rows[name]["mean"] - expected) < 0.1 * rows[name]["sd"]
    at_70 = rows["intercept"]["mean"] + 70.0 * rows["age"]["mean"] + np.log(365.25)
    assert at_70 == pytest.approx(reference.intercept_, abs=0.005)
