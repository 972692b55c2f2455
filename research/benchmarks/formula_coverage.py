"""How often intervals of curves and interactions hold the truth, under privacy.

Each study draws effects from the prior of its own formula, so that 90 % intervals
should hold the truth in 90 of 100 studies. Outcomes are binary, survival times with
censoring, counts with more spread than Poisson's over an exposure (dispersion 0.2 to
1.5), or of four ordered classes. Each study is also fitted without privacy (a normal
posterior at the mode, wide prior), the control. FILE gets a line for each study; those
that are there are not repeated, and all are added up. Usage:

    python research/benchmarks/formula_coverage.py FILE --kind ordinal --studies 40
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.run import target_of
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import as_sites, open_sites, preparation_of, with_sites
from cipherbayes.typing import Floats
from coverage_rows import (
    add_up,
    coverage_options,
    held_share,
    interval,
    lines,
    missing_studies,
    write,
)

FORMULA = "y ~ rcs(age, 4) + sex * diabetes + log(creatinine)"
RECORDS = pd.DataFrame(
    {
        "age": [60.0, 45.0, 75.0, 85.0, 60.0, 60.0, 60.0, 60.0],
        "sex": ["F", "F", "F", "F", "M", "F", "M", "F"],
        "diabetes": ["no", "no", "no", "no", "no", "yes", "yes", "no"],
        "creatinine": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0],
    }
)
NAMES = (
    "age 45", "age 75", "age 85", "sex", "diabetes", "sex and diabetes", "creatinine"
)  # fmt: skip


MODELS: dict[str, dict[str, Any]] = {
    "logistic": {"kind": "logistic", "formula": FORMULA},
    "negative-binomial": {
        "kind": "negative-binomial", "formula": f"{FORMULA} + offset(log(years))"
    },
    "ordinal": {"kind": "ordinal", "formula": FORMULA, "classes": 4},
    "exponential": {
        "kind": "exponential", "formula": FORMULA.replace("y", "Surv(days, died)", 1),
        "horizon": 5.0,
    },
}  # fmt: skip


def study_of(kind: str, records: int, epsilon: float | None) -> Study:
    """The study that is simulated; without ε its control."""
    rest: dict[str, Any] = {"prior": {"scale": 10.0}}
    if epsilon is not None:
        rest = {"privacy": {"epsilon": epsilon, "delta": 1e-6, "records": records}}
    return Study(
        study={"protocol": "pooled"},
        model=MODELS[kind],
        features={
            "age": {"low": 18, "high": 110},
            "sex": {"levels": ["F", "M"]},
            "diabetes": {"levels": ["no", "yes"]},
            "creatinine": {"low": 0.05, "high": 20},
        },
        **rest,
    )


def simulated(
    kind: str, records: int, rng: np.random.Generator
) -> tuple[pd.DataFrame, Floats]:
    """Records, and the true change of the linear predictor of each contrast."""
    frame = pd.DataFrame(
        {
            "age": rng.normal(62.0, 13.0, records).clip(18.0, 110.0),
            "sex": rng.choice(["F", "M"], records),
            "diabetes": rng.choice(["no", "yes"], records, p=[0.75, 0.25]),
            "creatinine": np.exp(rng.normal(0.0, 0.5, records)).clip(0.05, 20.0),
        }
    )
    line, bend, sex, diabetes, both, creatinine = 0.5 * rng.standard_normal(6)

    def eta(rows: pd.DataFrame) -> Floats:
        # The truth is a restricted spline of the study's own knots.
        age = (rows["age"].to_numpy() - 64.0) / 46.0
        made = MadeUp(study_of("logistic", records, 1.0), None).in_user_units(
            rows.to_dict("records")
        )
        male, ill = rows["sex"] == "M", rows["diabetes"] == "yes"
        return np.asarray(
            line * age / 0.3
            + bend * made[2] / 0.4
            + sex * male
            + diabetes * ill
            + both * (male & ill)
            + creatinine * np.log(rows["creatinine"]) / 0.5
        )

    add_outcomes(kind, eta(frame), frame, rng)
    truth = eta(RECORDS)
    return frame, truth[1:] - truth[0]


def add_outcomes(
    kind: str, eta: Floats, frame: pd.DataFrame, rng: np.random.Generator
) -> None:
    """What the model says of records with these linear predictors."""
    if kind == "negative-binomial":
        frame["years"] = rng.uniform(0.5, 3.0, len(frame))
        spread = rng.uniform(0.2, 1.5)
        rate = rng.gamma(1.0 / spread, spread * np.exp(eta - 0.5) * frame["years"])
        frame["y"] = np.asarray(rng.poisson(rate), dtype=np.float64)
    elif kind == "ordinal":
        latent = eta + rng.logistic(size=len(frame))
        cuts = np.array([-1.0, 0.3, 1.5]) + 0.3 * rng.standard_normal()
        frame["y"] = np.searchsorted(cuts, latent).astype(float)
    elif kind == "exponential":
        event = rng.exponential(np.exp(rng.uniform(1.0, 3.0) - eta))
        until = rng.uniform(1.0, 5.0, len(frame))
        frame["days"] = np.minimum(event, until) + 1e-9
        frame["died"] = (event < until).astype(float)
    else:
        chance = 1.0 / (1.0 + np.exp(1.0 - eta))
        frame["y"] = (rng.random(len(frame)) < chance).astype(float)


def changes(study: Study, user: Floats) -> Floats:
    """Draws of every contrast, of draws of the parameters in the user's units."""
    columns = MadeUp(study, None).in_user_units(RECORDS.to_dict("records"))
    found: Floats = user[:, : len(columns)] @ (columns[:, 1:] - columns[:, :1])
    return found


def without_privacy(study: Study, frame: pd.DataFrame) -> Floats:
    """Draws of every contrast from a normal posterior of all rows at its mode."""
    study, tables = as_sites(study, frame)
    study = with_sites(study, tables)
    target = target_of(study, open_sites(study, tables))
    mode = target.mode()
    covariance = np.linalg.inv(target.curvature(mode))
    theta = np.random.default_rng(0).multivariate_normal(mode, covariance, 4000)
    return changes(
        study, study.model.to_user_scale(theta, preparation_of(study).design)
    )


def main() -> None:
    """Run the studies that are missing, and add up."""
    given = coverage_options(__doc__, MODELS).parse_args()
    for line in missing_studies(given):
        rng = np.random.default_rng(line["seed"])
        frame, truth = simulated(given.kind, given.records, rng)
        plain = without_privacy(study_of(given.kind, given.records, None), frame)
        result = cb.run(study_of(given.kind, given.records, given.epsilon), frame)
        user = np.asarray(result.dataset["theta"])
        private = interval(changes(result.study, user.reshape(-1, user.shape[-1])))
        line |= {"truth": np.round(truth, 5).tolist(), "control": interval(plain)}
        line |= {"private": private, "held": held_share(plain, private)}
        line["flags"] = [flag["code"] for flag in result.record["flags"]]
        write(given.rows, line)
    add_up(lines(given.rows), NAMES)


if __name__ == "__main__":
    main()
