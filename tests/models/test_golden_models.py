"""Every model's posterior without privacy agrees with an independent implementation.

Posterior means under a flat prior are compared with maximum likelihood, to within a
tenth of a posterior standard deviation, on data large enough for the two to agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from lifelines import CoxPHFitter, WeibullAFTFitter
from lifelines.datasets import load_dd
from scipy.optimize import minimize
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor

import cipherbayes as cb
from cipherbayes.study.schema import Study
from cipherbayes_research.datasets.flchain import load_flchain

pytestmark = pytest.mark.slow
FEATURES = {"age": {"low": 50, "high": 101}, "sex": {"levels": ["F", "M"]}}
HORIZON = 5000.0


@pytest.fixture(scope="module")
def flchain() -> pd.DataFrame:
    pytest.importorskip("sksurv")
    frame = load_flchain().to_pandas()[["age", "sex", "futime", "death", "kappa"]]
    # Every other row: half the time, and still large enough.
    return frame[frame["futime"] > 0][::2].reset_index(drop=True)


def fitted(
    model: dict[str, Any],
    frame: pd.DataFrame,
    features: Any = FEATURES,
    scale: float = 30.0,
) -> Any:
    study = Study(
        model=model,
        features=features,
        prior={"scale": scale},
        # Chains start around the mode: few rounds are enough to settle.
        inference={"rounds": 1650, "burn_in": 1 / 11},
    )
    return {row["name"]: row for row in cb.run(study, {"all": frame}).summary()}


def agree(rows: Any, expected: dict[str, float]) -> None:
    for name, value in expected.items():
        assert abs(rows[name]["mean"] - value) < 0.1 * rows[name]["sd"], name


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": frame["age"].astype(float),
            "sex[M]": (frame["sex"] == "M").astype(float),
            "time": frame["futime"] / HORIZON,
            "event": frame["death"].astype(float),
        }
    )


def survival(kind: str, **keys: Any) -> dict[str, Any]:
    columns = {"time": "futime", "event": "death", "horizon": HORIZON}
    return {"kind": kind, **columns, **keys}


def test_weibull_is_lifelines_on_flchain(flchain: pd.DataFrame) -> None:
    rows = fitted(survival("weibull"), flchain)
    reference = WeibullAFTFitter().fit(numbers(flchain), "time", "event").params_
    shape = np.exp(reference["rho_", "Intercept"])
    names = ("age", "sex[M]")
    agree(rows, {n: -shape * reference["lambda_", n] for n in names})
    agree(rows, {"log_shape": np.log(shape)})


def test_piecewise_is_lifelines_on_flchain(flchain: pd.DataFrame) -> None:
    cuts = [0.1, 0.3, 0.6]
    rows = fitted(survival("piecewise", cuts=[HORIZON * cut for cut in cuts]), flchain)
    data = numbers(flchain)
    reference = _piecewise_maximum_likelihood(data, cuts)
    agree(rows, {"age": reference[0], "sex[M]": reference[1]})
    cox = CoxPHFitter().fit(data, "time", "event").params_
    agree(rows, {name: cox[name] for name in ("age", "sex[M]")})


def _piecewise_maximum_likelihood(data: pd.DataFrame, cuts: list[float]) -> Any:
    """Poisson regression of person-time split at the cuts (Holford, 1980)."""
    parts = []
    for j, (start, end) in enumerate(zip([0.0, *cuts], [*cuts, np.inf], strict=True)):
        at_risk = data[data["time"] > start]
        parts.append(
            at_risk.assign(
                interval=j,
                exposure=np.minimum(at_risk["time"], end) - start,
                count=at_risk["event"] * (at_risk["time"] <= end),
            )
        )
    split = pd.concat(parts)
    x = np.column_stack(
        [
            split["age"] - 70.0,
            split["sex[M]"],
            *(split["interval"] == j for j in range(1, len(cuts) + 1)),
        ]
    ).astype(float)
    model = PoissonRegressor(
        alpha=0.0, tol=1e-10, max_iter=2000, solver="newton-cholesky"
    )
    rate = split["count"] / split["exposure"]
    return model.fit(x, rate, sample_weight=split["exposure"]).coef_


def test_hazard_ratios_tend_to_coxs_as_the_grid_refines() -> None:
    """Durations of regimes, in whole years, with many ties."""
    data = load_dd()[["duration", "observed", "un_continent_name"]]
    data = data[data["un_continent_name"].isin(["Africa", "Americas", "Europe"])]
    features = {"un_continent_name": {"levels": ["Africa", "Americas", "Europe"]}}
    names = ["un_continent_name[Americas]", "un_continent_name[Europe]"]
    dummies = pd.DataFrame(
        {
            name: (data["un_continent_name"] == name[18:-1]).astype(float)
            for name in names
        }
    ).assign(time=data["duration"], event=data["observed"])
    cox = CoxPHFitter().fit(dummies, "time", "event").params_
    distance = []
    for intervals in (2, 24):
        model = {
            "kind": "piecewise",
            "time": "duration",
            "event": "observed",
            "horizon": 47.0,
            "intervals": intervals,
        }
        rows = fitted(model, data, features, scale=5.0)
        gap = [(rows[n]["mean"] - cox[n]) / rows[n]["sd"] for n in names]
        distance.append(np.max(np.abs(gap)))
    assert distance[0] > 0.5
    # Efron's and the discrete grid treat ties of whole years differently.
    assert distance[1] < distance[0] / 2.0


def test_gompertz_is_scipys_maximum_likelihood_on_flchain(
    flchain: pd.DataFrame,
) -> None:
    rows = fitted(survival("gompertz"), flchain)
    data = numbers(flchain)
    x = np.column_stack([np.ones(len(data)), data["age"] - 70.0, data["sex[M]"]])
    time, event = data["time"].to_numpy(), data["event"].to_numpy()

    def loss(theta: Any) -> float:
        eta, a = x @ theta[:-1], theta[-1]
        cumulative = np.exp(eta) * (np.exp(a * time) - 1.0) / a
        return float(-np.sum(event * (eta + a * time) - cumulative))

    start = np.array([-1.0, 0.1, 0.1, 0.5])
    found = minimize(
        loss,
        start,
        method="Nelder-Mead",
        options={"maxfev": 20_000, "xatol": 1e-7, "fatol": 1e-7},
    ).x
    agree(rows, {"age": found[1], "sex[M]": found[2], "growth": found[3] / HORIZON})


def test_linear_regression_is_scikit_learns(flchain: pd.DataFrame) -> None:
    data = flchain.assign(log_kappa=np.log(flchain["kappa"]))
    rows = fitted(
        {"kind": "linear", "outcome": "log_kappa", "low": -4.0, "high": 3.0}, data
    )
    x = numbers(flchain)[["age", "sex[M]"]].to_numpy()
    reference = LinearRegression().fit(x, data["log_kappa"])
    agree(rows, dict(zip(("age", "sex[M]"), reference.coef_, strict=True)))
    residual = data["log_kappa"] - reference.predict(x)
    agree(rows, {"intercept": reference.intercept_, "log_sd": np.log(residual.std())})


def test_poisson_regression_is_scikit_learns(flchain: pd.DataFrame) -> None:
    rows = fitted(
        {"kind": "poisson", "outcome": "death", "exposure": "futime", "per": HORIZON},
        flchain,
    )
    data = numbers(flchain)
    x = np.column_stack([data["age"] - 70.0, data["sex[M]"]])
    reference = PoissonRegressor(alpha=0.0, tol=1e-10, max_iter=2000).fit(
        x, data["event"] / data["time"], sample_weight=data["time"]
    )
    agree(rows, dict(zip(("age", "sex[M]"), reference.coef_, strict=True)))


def test_logistic_regression_is_scikit_learns(flchain: pd.DataFrame) -> None:
    rows = fitted({"kind": "logistic", "outcome": "death"}, flchain)
    x = numbers(flchain)[["age", "sex[M]"]].to_numpy() - [70.0, 0.0]
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=2000)
    reference.fit(x, flchain["death"])
    agree(rows, dict(zip(("age", "sex[M]"), reference.coef_[0], strict=True)))
