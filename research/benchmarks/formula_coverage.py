"""How often intervals of curves and interactions hold the truth, under privacy.

Each study draws effects from the prior of its own formula, so that 90 % intervals
should hold the truth in 90 of 100 studies. Outcomes are binary, counts with more spread
than Poisson's over an exposure (dispersion 0.2 to 1.5), or of four ordered classes.
Usage:

    python research/benchmarks/formula_coverage.py --kind ordinal --studies 40
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd

import cipherbayes as cb
from cipherbayes.results.made_up import MadeUp
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats

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
}  # fmt: skip


def study_of(
    kind: str, records: int, epsilon: float, protocol: str = "pooled"
) -> Study:
    """The study that is simulated."""
    return Study(
        study={"protocol": protocol},
        model=MODELS[kind],
        features={
            "age": {"low": 18, "high": 110},
            "sex": {"levels": ["F", "M"]},
            "diabetes": {"levels": ["no", "yes"]},
            "creatinine": {"low": 0.05, "high": 20},
        },
        privacy={"epsilon": epsilon, "delta": 1e-6, "records": records},
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

    frame["y"] = outcomes(kind, eta(frame), frame, rng)
    truth = eta(RECORDS)
    return frame, truth[1:] - truth[0]


def outcomes(
    kind: str, eta: Floats, frame: pd.DataFrame, rng: np.random.Generator
) -> Floats:
    """What the model says of records with these linear predictors."""
    if kind == "negative-binomial":
        frame["years"] = rng.uniform(0.5, 3.0, len(frame))
        spread = rng.uniform(0.2, 1.5)
        rate = rng.gamma(1.0 / spread, spread * np.exp(eta - 0.5) * frame["years"])
        return np.asarray(rng.poisson(rate), dtype=np.float64)
    if kind == "ordinal":
        latent = eta + rng.logistic(size=len(frame))
        cuts = np.array([-1.0, 0.3, 1.5]) + 0.3 * rng.standard_normal()
        return np.searchsorted(cuts, latent).astype(float)
    chance = 1.0 / (1.0 + np.exp(1.0 - eta))
    return (rng.random(len(frame)) < chance).astype(float)


def main() -> None:
    """Run the studies and print coverage and width of every contrast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(MODELS), default="logistic")
    parser.add_argument("--studies", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=240.0)
    given = parser.parse_args()
    study = study_of(given.kind, given.records, given.epsilon)
    held, widths = [], []
    started = time.monotonic()
    for seed in range(given.first, given.first + given.studies):
        if time.monotonic() - started > given.seconds:
            break
        rng = np.random.default_rng(seed)
        frame, truth = simulated(given.kind, given.records, rng)
        result = cb.run(study, frame)
        columns = MadeUp(result.study, None).in_user_units(RECORDS.to_dict("records"))
        user = np.asarray(result.dataset["theta"])
        user = user.reshape(-1, user.shape[-1])[:, : len(columns)]
        changes = user @ (columns[:, 1:] - columns[:, :1])
        low, high = np.quantile(changes, [0.05, 0.95], axis=0)
        held.append((low <= truth) & (truth <= high))
        widths.append(high - low)
    print(
        f"{given.kind}: {len(held)} studies, N = {given.records}, "
        f"epsilon = {given.epsilon:g}"
    )
    shares, wide = np.mean(held, axis=0), np.median(widths, axis=0)
    for name, share, width in zip(NAMES, shares, wide, strict=True):
        print(f"{name:<18} coverage {share:.2f}, width {width:.2f}")
    error = np.std(np.mean(held, axis=1), ddof=1) / np.sqrt(len(held))
    print(f"{'all':<18} coverage {np.mean(held):.3f} ± {error:.3f}")


if __name__ == "__main__":
    main()
