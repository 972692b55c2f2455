"""Scores and information of records whose missing values are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cipherbayes as cb
from cipherbayes.data.imputing import DRAWS, Expansion
from cipherbayes.inference import imputed
from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.target import Target
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.packing import unpack
from cipherbayes.results.run import target_of
from cipherbayes.study.tables import (
    as_sites,
    imputing_of,
    open_sites,
    preparation_of,
    with_sites,
)
from cipherbayes.typing import Floats

FEATURES: dict[str, dict[str, Any]] = {
    "age": {"low": 20, "high": 100},
    "bmi": {"low": 5, "high": 55, "missing": "impute"},
}
MODELS: dict[str, dict[str, Any]] = {
    "logistic": {"kind": "logistic", "outcome": "y"},
    "poisson": {"kind": "poisson", "outcome": "y"},
    "exponential": {
        "kind": "exponential",
        "time": "days",
        "event": "y",
        "horizon": 5.0,
    },
}


def study_of(kind: str) -> cb.Study:
    return cb.Study(model=MODELS[kind], features=FEATURES, prior={"scale": 20.0})


def frame_of(kind: str, rows: int, seed: int = 3) -> pd.DataFrame:
    """A third of one column is missing, more often where the outcome was bad."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows)
    bmi = 27 + 0.25 * (age - 60) + 4 * rng.standard_normal(rows)
    eta = -0.5 + 0.03 * (age - 60) + 0.15 * (bmi - 27)
    event = rng.exponential(4.0 * np.exp(-eta))
    days = np.minimum(event, 5.0)
    if kind == "logistic":
        y = (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(float)
    elif kind == "poisson":
        y = rng.poisson(np.exp(eta)).astype(float)
    else:
        y = (event < 5.0).astype(float)
    gone = rng.random(rows) < np.where(y > 0, 0.5, 0.2)
    bmi = np.where(gone, np.nan, bmi)
    return pd.DataFrame({"age": age, "bmi": bmi, "y": y, "days": days})


def target(study: cb.Study, frame: pd.DataFrame) -> Target:
    study, tables = as_sites(study, frame)
    study = with_sites(study, tables)
    return target_of(study, open_sites(study, tables))


@pytest.mark.parametrize("kind", MODELS)
def test_the_score_is_the_gradient_of_the_observed_likelihood(kind: str) -> None:
    """Fisher's identity, by differences."""
    found = target(study_of(kind), frame_of(kind, 200))
    theta = np.array([0.2, -0.5, 1.0])
    step = 1e-5
    slopes = [
        (found.log_density(theta + step * e) - found.log_density(theta - step * e))
        / (2 * step)
        for e in np.eye(3)
    ]
    assert found.gradient(theta) == pytest.approx(np.array(slopes), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "exponential"])
def test_information_is_complete_less_what_is_missing(kind: str) -> None:
    """Louis's identity: the curvature of the observed likelihood, on average."""
    study, frame = study_of(kind), frame_of(kind, 8000)
    whole = target(study, frame)
    mode = whole.mode()
    curvature = whole.curvature(mode) - np.diag(whole.prior.scale**-2.0)
    bound = InfluenceBound(clip=100.0, stop=100.0)
    (table,) = whole.tables
    found = influence_sums(
        study.model,
        mode,
        table,
        bound,
        with_information=True,
        expand=whole.expand,
    )
    assert found.information is not None
    ours = unpack(found.information)
    assert ours == pytest.approx(curvature, rel=0.05, abs=0.03 * np.trace(curvature))
    complete = influence_sums(study.model, mode, table, bound, with_information=True)
    assert complete.information is not None
    # The stand-ins would have told twice as much about the column with gaps.
    covariance = np.linalg.inv(ours)[2, 2]
    gaps = float(np.isnan(frame["bmi"]).mean())
    assert covariance > 1.0 / (whole.curvature(mode)[2, 2] * (1.0 + gaps))


def test_weights_of_a_record_add_up_to_at_most_one() -> None:
    study, frame = study_of("logistic"), frame_of("logistic", 100)
    tables = as_sites(study, frame)[1]
    assert tables is not None
    table = open_sites(with_sites(study, tables), tables)["table"]
    imputing = imputing_of(study)
    assert imputing is not None
    models = imputing.models
    (block,) = table.blocks()
    learnt = models.learn(models.sums(block, block), 0.0)
    _, rows = Expansion(imputing, [table], learnt)(block)
    assert rows is not None
    for size in (0.0, 1.0, 1e3, 1e7):
        theta: Floats = size * np.array([1.0, -1.0, 1.0])
        share = imputed.weights(study.model, theta, rows, DRAWS)
        assert (share >= 0.0).all()
        for record in share[:10]:
            assert sum(map(Fraction, record.tolist())) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "exponential"])
def test_a_fit_is_what_rubins_rules_make_of_many_imputations(kind: str) -> None:
    """Multiple imputation made by hand: values drawn from the joint model (on a grid,
    Bartlett et al. 2015), a fit of each table by statsmodels, and Rubin's rules."""
    frame = frame_of(kind, 1500)
    study = study_of(kind)
    whole = target(study, frame)
    mode = whole.mode()
    turn = preparation_of(study).design.to_user_scale(np.eye(3))
    ours = mode @ turn
    sd = np.sqrt(np.diag(turn.T @ np.linalg.inv(whole.curvature(mode)) @ turn))
    means, variances = map(np.array, zip(*imputations(kind, frame), strict=True))
    inside, between = variances.mean(axis=0), means.var(axis=0, ddof=1)
    rubin = np.sqrt(inside + (1.0 + 1.0 / len(means)) * between)
    away = (ours - means.mean(axis=0)) / rubin
    # The chain of imputations leaves about 0.05 open.
    assert np.abs(away[1:]).max() < 0.15
    assert sd[1:] == pytest.approx(rubin[1:], rel=0.08)
    assert sd[2] > 1.05 * np.sqrt(inside[2])


def imputations(kind: str, frame: pd.DataFrame) -> Iterator[tuple[Floats, Floats]]:
    """Estimates and variances of completed tables, from a chain."""
    import statsmodels.api as sm

    rng = np.random.default_rng(0)
    filled, gaps = frame.copy(), frame["bmi"].isna().to_numpy()
    filled.loc[gaps, "bmi"] = frame["bmi"].mean()
    age, y = frame["age"].to_numpy(), frame["y"].to_numpy()
    days = frame["days"].to_numpy()
    grid = np.linspace(5.0, 55.0, 101)
    for sweep in range(110):
        line = sm.OLS(filled["bmi"], sm.add_constant(filled["age"])).fit()
        sigma = np.sqrt(line.ssr / rng.chisquare(line.df_resid))
        slopes = rng.multivariate_normal(
            line.params, sigma**2 * line.normalized_cov_params
        )
        columns = sm.add_constant(filled[["age", "bmi"]])
        if kind == "logistic":
            found = sm.Logit(filled["y"], columns).fit(disp=0)
        else:  # whose likelihood is that of Poisson events over the time at risk
            found = sm.GLM(
                filled["y"],
                columns,
                family=sm.families.Poisson(),
                offset=np.log(days),
            ).fit()
        theta = rng.multivariate_normal(found.params, found.cov_params())
        if sweep >= 10:
            yield found.params.to_numpy(), np.diag(found.cov_params())
        middle = slopes[0] + slopes[1] * age[gaps]
        eta = theta[0] + theta[1] * age[gaps][:, None] + theta[2] * grid
        log = -0.5 * ((grid - middle[:, None]) / sigma) ** 2
        if kind == "logistic":
            log += y[gaps][:, None] * eta - np.logaddexp(0.0, eta)
        else:
            log += y[gaps][:, None] * eta - days[gaps][:, None] * np.exp(eta)
        share = np.exp(log - log.max(axis=1, keepdims=True)).cumsum(axis=1)
        chosen = (share < rng.random(len(share))[:, None] * share[:, -1:]).sum(axis=1)
        filled.loc[gaps, "bmi"] = grid[np.minimum(chosen, 100)]
