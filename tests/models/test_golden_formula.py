"""Non-private fits of formulas agree with statsmodels' of the same formula.

Posterior means under a flat prior against maximum likelihood, to within a tenth of a
posterior standard deviation. Curves have other columns there, so what is compared is
what they say: differences of the linear predictor between records.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from statsmodels.miscmodels.ordinal_model import OrderedModel

import cipherbayes as cb
from cipherbayes.results.made_up import MadeUp
from cipherbayes.study.schema import Study

pytestmark = pytest.mark.slow
FEATURES: dict[str, Any] = {
    "age": {"low": 20, "high": 100},
    "sex": {"levels": ["F", "M"]},
    "grade": {"levels": ["I", "II", "III"]},
    "dose": {"low": 0.5, "high": 50},
}
OURS = "rcs(age, [30, 50, 65, 90]) * sex + C(grade, ref='II') * log(dose)"
THEIRS = (
    "cr(age, knots=[50, 65], lower_bound=30, upper_bound=90, constraints='center')"
    " * sex + C(grade, Treatment('II')) * np.log(dose)"
)
RECORDS = pd.DataFrame(
    {
        "age": [60.0, 80.0, 40.0, 40.0, 60.0, 60.0, 60.0],
        "sex": ["F", "F", "F", "M", "M", "F", "F"],
        "grade": ["II", "II", "II", "II", "II", "III", "I"],
        "dose": [5.0, 5.0, 5.0, 5.0, 5.0, 20.0, 1.0],
    }
)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(11)
    rows = 4000
    frame = pd.DataFrame(
        {
            "age": rng.uniform(25.0, 95.0, rows),
            "sex": rng.choice(["F", "M"], rows),
            "grade": rng.choice(["I", "II", "III"], rows),
            "dose": np.exp(rng.normal(1.5, 0.7, rows)).clip(0.5, 50.0),
        }
    )
    third = frame["grade"] == "III"
    eta = (
        0.02 * (frame["age"] - 60.0)
        + 0.001 * (frame["age"] - 60.0) ** 2 * (frame["sex"] == "M")
        + 0.5 * third
        + (0.4 - 0.6 * third) * (np.log(frame["dose"]) - 1.5)
    )
    frame["death"] = (rng.random(rows) < 1 / (1 + np.exp(0.8 - eta))).astype(float)
    frame["days"] = rng.uniform(5.0, 50.0, rows)
    frame["falls"] = rng.poisson(frame["days"] / 20.0 * np.exp(0.5 * eta - 0.5))
    return frame


def ours(model: dict[str, Any], frame: pd.DataFrame) -> Any:
    study = Study(
        model=model,
        features=FEATURES,
        prior={"scale": 30.0},
        # Chains start around the mode: few rounds are enough to settle.
        inference={"rounds": 1100, "burn_in": 1 / 11},
    )
    return cb.run(study, {"all": frame})


def agree(result: Any, theirs: Any, records: pd.DataFrame = RECORDS) -> None:
    """Every record against the first, on the linear predictor's own scale."""
    columns = MadeUp(result.study, None).in_user_units(RECORDS.to_dict("records"))
    user = np.asarray(result.dataset["theta"])
    user = user.reshape(-1, user.shape[-1])[:, : len(columns)]
    changes = user @ (columns[:, 1:] - columns[:, :1])
    eta = theirs.predict(records, which="linear").to_numpy()
    gap = (changes.mean(axis=0) - (eta[1:] - eta[0])) / changes.std(axis=0)
    assert np.abs(gap).max() < 0.1


def test_a_logistic_formula_is_statsmodels(frame: pd.DataFrame) -> None:
    result = ours({"kind": "logistic", "formula": f"death ~ {OURS}"}, frame)
    theirs = smf.glm(f"death ~ {THEIRS}", frame, family=sm.families.Binomial()).fit()
    agree(result, theirs)
    # Products of plain columns are the same parameters on both sides.
    rows = {row["name"]: row for row in result.summary()}
    own = rows["grade[III]:log(dose)"]
    other = theirs.params["C(grade, Treatment('II'))[T.III]:np.log(dose)"]
    assert own["sd"] is not None
    assert abs(own["mean"] - other) < 0.1 * own["sd"]


def test_a_poisson_formula_with_an_offset_is_statsmodels(frame: pd.DataFrame) -> None:
    model = {
        "kind": "poisson",
        "formula": f"falls ~ {OURS} + offset(log(days))",
        "per": 20.0,
    }
    theirs = smf.glm(
        f"falls ~ {THEIRS}",
        frame,
        family=sm.families.Poisson(),
        offset=np.log(frame["days"]),
    ).fit()
    agree(ours(model, frame), theirs)


def test_a_survival_formula_is_a_poisson_regression_of_split_times(
    frame: pd.DataFrame,
) -> None:
    """A hazard that is constant in intervals has the likelihood of counts of events
    with the time at risk in each interval as exposure."""
    rng, cuts = np.random.default_rng(7), [5.0, 15.0]
    frame = frame[:2000].copy()
    event = rng.exponential(20.0 * np.exp(-0.5 * (frame["age"] - 60.0) / 20.0))
    frame["died"] = (event < frame["days"]).astype(float)
    frame["days"] = np.minimum(event, frame["days"])
    model = {
        "kind": "piecewise",
        "formula": f"Surv(days, died) ~ {OURS}",
        "horizon": 50.0,
        "cuts": cuts,
    }
    ends = [0.0, *cuts, 50.0]
    parts = [
        frame[frame["days"] > low].assign(
            interval=str(low),
            exposed=lambda rows, low=low, high=high: (
                rows["days"].clip(upper=high) - low
            ),
            died=lambda rows, high=high: rows["died"] * (rows["days"] <= high),
        )
        for low, high in itertools.pairwise(ends)
    ]
    split = pd.concat(parts, ignore_index=True)
    theirs = smf.glm(
        f"died ~ C(interval) + {THEIRS}",
        split,
        family=sm.families.Poisson(),
        offset=np.log(split["exposed"]),
    ).fit()
    agree(ours(model, frame), theirs, RECORDS.assign(interval="0.0"))


def statsmodels_agrees(rows: Any, theirs: Any, names: dict[str, str]) -> None:
    for own, other in names.items():
        gap = abs(rows[own]["mean"] - theirs.params[other])
        assert gap < 0.1 * rows[own]["sd"], own


def test_a_negative_binomial_is_statsmodels(frame: pd.DataFrame) -> None:
    rng, frame = np.random.default_rng(5), frame[:2000]
    male = (frame["sex"] == "M").astype(float)
    mean = frame["days"] / 20.0 * np.exp(0.3 * male + 0.01 * (frame["age"] - 60.0))
    data = frame.assign(falls=rng.poisson(mean * rng.gamma(1.4, 1.0 / 1.4, len(frame))))
    study = Study(
        model={
            "kind": "negative-binomial",
            "formula": "falls ~ age * sex + offset(log(days))",
            "per": 20.0,
        },
        features={name: FEATURES[name] for name in ("age", "sex")},
        prior={"scale": 30.0},
        inference={"rounds": 2000},
    )
    rows: Any = {row["name"]: row for row in cb.run(study, {"all": data}).summary()}
    theirs = smf.negativebinomial(
        "falls ~ I(age - 60) * sex", data, exposure=data["days"]
    ).fit(disp=0, maxiter=200)
    statsmodels_agrees(
        rows,
        theirs,
        {"age": "I(age - 60)", "age:sex[M]": "I(age - 60):sex[T.M]"},
    )
    log_alpha = np.log(theirs.params["alpha"])
    own = rows["log_dispersion"]
    assert abs(own["mean"] - log_alpha) < 0.1 * own["sd"]


def test_an_ordered_logistic_is_statsmodels(frame: pd.DataFrame) -> None:
    rng, frame = np.random.default_rng(6), frame[:2000]
    male = (frame["sex"] == "M").astype(float)
    latent = 0.6 * male + 0.02 * (frame["age"] - 60.0) + rng.logistic(size=len(frame))
    cuts = [-1.0, 0.3, 0.9, 2.5]
    data = frame.assign(stage=np.searchsorted(cuts, latent), male=male)
    study = Study(
        model={"kind": "ordinal", "formula": "stage ~ age + sex", "classes": 5},
        features={name: FEATURES[name] for name in ("age", "sex")},
        prior={"scale": 30.0},
        # Chains start around the mode: few rounds are enough to settle.
        inference={"rounds": 1100, "burn_in": 1 / 11},
    )
    rows: Any = {row["name"]: row for row in cb.run(study, {"all": data}).summary()}
    centred = data.assign(age=data["age"] - 60.0)
    theirs = OrderedModel(data["stage"], centred[["age", "male"]], distr="logit").fit(
        method="bfgs", disp=0
    )
    statsmodels_agrees(
        rows,
        theirs,
        {
            "age": "age",
            "sex[M]": "male",
            "log_gap[1-2]": "1/2",
            "log_gap[2-3]": "2/3",
            "log_gap[3-4]": "3/4",
        },
    )
