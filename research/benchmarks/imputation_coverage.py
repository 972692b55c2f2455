"""How often intervals hold the truth where values are missing.

With and without privacy. Each study draws its effects, and loses values of a number
(about 30 %) and of a category (about 20 %) with a probability that depends on the
outcome and on a complete column. The missing ones are drawn from models that the study
learns (``impute``), or, without privacy only, a constant stands in for them beside an
indicator (``indicator``). FILE gets a line for each study; those that are there are not
repeated, and all are added up. Usage:

    python research/benchmarks/imputation_coverage.py FILE --kind logistic --studies 40
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.data.imputing import Expansion
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

NAMES = ("age", "sex[M]", "bmi", "smoker[yes]")
SCALES = np.array([10.0, 1.0, 5.0, 1.0])
"""Change of each feature that its effect refers to, so that effects are of one size."""
MODELS: dict[str, dict[str, Any]] = {
    "logistic": {"kind": "logistic", "outcome": "y"},
    "linear": {"kind": "linear", "outcome": "y", "low": -4.0, "high": 4.0},
    "exponential": {
        "kind": "exponential", "time": "days", "event": "died", "horizon": 5.0
    },
}  # fmt: skip
MISSING: dict[str, tuple[Any, Any]] = {
    "impute": ("impute", "impute"),
    "indicator": (27.0, "no"),
}


def study_of(kind: str, records: int, epsilon: float | None, how: str) -> Study:
    """The study that is simulated; without privacy where there is no ε."""
    number, category = MISSING[how]
    told = {"indicator": how == "indicator"}
    private: dict[str, Any] = {}
    if epsilon is not None:
        private["privacy"] = {"epsilon": epsilon, "delta": 1e-6, "records": records}
    return Study(
        model=MODELS[kind],
        features={
            "age": {"low": 20, "high": 100},
            "sex": {"levels": ["F", "M"]},
            "bmi": {"low": 5, "high": 55, "missing": number, **told},
            "smoker": {"levels": ["no", "yes"], "missing": category, **told},
        },
        prior={} if epsilon is not None else {"scale": 10.0},
        study={"protocol": "pooled"},
        **private,
    )


def simulated(
    kind: str, records: int, rng: np.random.Generator
) -> tuple[pd.DataFrame, Floats]:
    """Records with gaps, and the true effects."""
    age = rng.normal(60.0, 10.0, records)
    male = rng.random(records) < 0.5
    z = (age - 60.0) / 10.0
    link = rng.uniform(-0.6, 0.6)
    around = np.sqrt(1.0 - link**2) * rng.standard_normal(records)
    bmi = 27.0 + 5.0 * (link * z + around)
    chance = 1.0 / (1.0 + np.exp(0.5 + rng.uniform(-0.6, 0.6) * z))
    smoker = rng.random(records) < chance
    effects = 0.5 * rng.standard_normal(4)
    eta = effects @ np.vstack([z, male, (bmi - 27.0) / 5.0, smoker])
    frame = pd.DataFrame(
        {
            "age": age,
            "sex": np.where(male, "M", "F"),
            "bmi": bmi,
            "smoker": np.where(smoker, "yes", "no").astype(object),
        }
    )
    if kind == "logistic":
        high = rng.random(records) < 1.0 / (1.0 + np.exp(0.7 - eta))
        frame["y"] = high.astype(float)
    elif kind == "linear":
        frame["y"] = eta + rng.standard_normal(records)
        high = np.asarray(frame["y"] > 0.3)
    else:
        event = rng.exponential(3.0 * np.exp(-eta))
        until = rng.uniform(1.0, 5.0, records)
        high = event < until
        frame["days"] = np.minimum(event, until) + 1e-9
        frame["died"] = high.astype(float)
    steep, outcome = rng.uniform(-1.0, 1.0), rng.uniform(-1.0, 1.0)
    gone = 1.0 / (1.0 + np.exp(0.9 - steep * z - outcome * (2.0 * high - 1.0)))
    frame.loc[rng.random(records) < gone, "bmi"] = np.nan
    gone = 1.0 / (1.0 + np.exp(1.5 + outcome * (2.0 * high - 1.0)))
    frame.loc[rng.random(records) < gone, "smoker"] = None
    return frame, effects / SCALES


def without_privacy(study: Study, frame: pd.DataFrame) -> Floats:
    """Draws of the effects from a normal posterior of all rows at its mode."""
    study, tables = as_sites(study, frame)
    study = with_sites(study, tables)
    target = target_of(study, open_sites(study, tables))
    mode = target.mode()
    rng = np.random.default_rng(0)
    covariance = np.linalg.inv(target.curvature(mode))
    theta = rng.multivariate_normal(mode, covariance, 4000)[None]
    design = preparation_of(study).design
    if isinstance(target.expand, Expansion):
        constants = study.model.constants(design)
        drawn = target.expand
        theta = drawn.imputing.with_model_errors(theta, drawn.scales, constants, 0)
    names = list(study.model.parameters(design))
    user = study.model.to_user_scale(theta[0], design)
    found: Floats = user[:, [names.index(name) for name in NAMES]]
    return found


def main() -> None:
    """Run the studies that are missing, and add up."""
    parser = coverage_options(__doc__, MODELS)
    parser.add_argument("--without-privacy", action="store_true")
    given = parser.parse_args()
    for line in missing_studies(given):
        rng = np.random.default_rng(line["seed"])
        frame, truth = simulated(given.kind, given.records, rng)
        plain = {
            how: without_privacy(study_of(given.kind, given.records, None, how), frame)
            for how in MISSING
        }
        line |= {"truth": np.round(truth, 5).tolist(), "others": ["indicator"]}
        line |= {"control": interval(plain["impute"])}
        line |= {"indicator": interval(plain["indicator"])}
        if not given.without_privacy:
            private = study_of(given.kind, given.records, given.epsilon, "impute")
            result = cb.run(private, frame)
            theta = np.asarray(result.dataset["theta"])
            names = list(result.dataset["parameter"].values)
            chosen = theta.reshape(-1, theta.shape[-1])[
                :, [names.index(n) for n in NAMES]
            ]
            line["private"] = interval(chosen)
            line["held"] = held_share(plain["impute"], line["private"])
            line["flags"] = [flag["code"] for flag in result.record["flags"]]
        write(given.rows, line)
    add_up(lines(given.rows), NAMES)


if __name__ == "__main__":
    main()
