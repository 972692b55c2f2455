"""A simulated cohort, from facts known before FLchain, on which settings are chosen.

No row of FLchain is read here. Facts: mortality doubles every eight years of age
(Gompertz) from 0.4 % a year at 50, and is a third higher in men; free light chains of
healthy adults lie within 0.33 to 1.94 (κ) and 0.57 to 2.63 mg/dL (λ; Katzmann et al.
2002); creatinine is about 1 mg/dL; 3 % of people over 50 have MGUS (Kyle et al. 2006).
What free light chains and creatinine do to mortality is what such a study asks: their
effects differ from cohort to cohort, N(0.3, 0.5²) for a half-range.

``python -m cipherbayes_research.paper.flchain_population`` chooses the settings again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
import pyarrow as pa

from cipherbayes.models.metrics import c_index
from cipherbayes.typing import Floats
from cipherbayes_research.paper import flchain
from cipherbayes_research.paper.fitting import (
    Averaging,
    prepared_rows,
    simulate_averaged,
)

COHORTS, TRAINING, TEST = 8, 6299, 1575
CLIPS, STEPS = (0.5, 1.0, 2.0), (0.5, 1.0, 2.0, 4.0)
SCALES, ROUNDS = (0.25, 0.5, 1.0), (10, 20, 50)


def grid() -> Iterator[flchain.Setting]:
    """All settings that are compared."""
    for values in product(CLIPS, STEPS, SCALES, ROUNDS):
        yield flchain.Setting(*values)


def cohort(count: int, seed: int) -> pa.Table:
    """Rows with FLchain's columns."""
    rng = np.random.default_rng([seed, 2002])
    ages = np.arange(50.0, 101.0)
    alive = np.exp(-0.004 * 8.0 / math.log(2.0) * (2.0 ** ((ages - 50.0) / 8.0) - 1.0))
    age = rng.choice(ages, count, p=alive / alive.sum())
    man = rng.random(count) < 0.48
    shared, own = rng.standard_normal(count), rng.standard_normal((3, count))
    kappa = 0.80 * np.exp(0.44 * (0.9 * shared + 0.44 * own[0]))
    lambda_ = 1.22 * np.exp(0.38 * (0.9 * shared + 0.44 * own[1]))
    creatinine = np.exp(0.25 * own[2])
    total = (kappa + lambda_).argsort().argsort()
    group = total * 10 // count + 1
    effects = rng.normal(0.3, 0.5, 4)
    half = (
        np.log(kappa / 0.80) / math.log(8.0),
        np.log(lambda_ / 1.22) / math.log(8.0),
        (group - 5.5) / 4.5,
        np.log(creatinine) / math.log(4.0),
    )
    yearly = 0.004 * 2.0 ** ((age - 50.0) / 8.0) * np.where(man, 1.35, 1.0)
    hazard = yearly / 365.25 * np.exp(effects @ np.array(half))
    dies = _gompertz(rng.exponential(size=count), hazard)
    ends = rng.uniform(3650.0, 5000.0, count)
    return pa.table(
        {
            "age": age,
            "sex": np.where(man, "M", "F"),
            "kappa": kappa,
            "lambda": lambda_,
            "flc.grp": group,
            "creatinine": np.where(rng.random(count) < 0.2, np.nan, creatinine),
            "mgus": (rng.random(count) < 0.03).astype(np.int64),
            "futime": np.maximum(np.minimum(dies, ends), 0.5),
            "death": (dies <= ends).astype(np.int64),
        }
    )


def _gompertz(cumulative: Floats, hazard: Floats) -> Floats:
    """Days until the cumulative hazard, growing twofold in eight years, is reached."""
    rate = math.log(2.0) / (8.0 * 365.25)
    return np.asarray(np.log1p(cumulative * rate / hazard) / rate)


def mean_c_index(epsilon: float) -> dict[flchain.Setting, float]:
    """Test C-index of every setting, mean over the cohorts."""
    study = flchain.certified_study(0.0, records=TRAINING)
    start = flchain.prior_mean(study)
    found: dict[flchain.Setting, list[float]] = {setting: [] for setting in grid()}
    for seed in range(COHORTS):
        x, known = prepared_rows(study, cohort(TRAINING + TEST, seed))
        time, event = known["time"], known["event"]
        train, test = slice(0, TRAINING), slice(TRAINING, None)
        score = partial(_score, time[train], event[train])
        for number, (setting, values) in enumerate(found.items()):
            plain = Averaging(
                setting.clip, setting.step, setting.prior_scale**-2, setting.rounds
            )
            theta = simulate_averaged(
                x[train],
                score,
                start,
                plain,
                epsilon=epsilon,
                seed=1000 * seed + number,
            )
            found_index = c_index(time[test], event[test], x[test] @ theta)
            values.append(found_index or 0.5)
    return {setting: float(np.mean(values)) for setting, values in found.items()}


def _score(time: Floats, event: Floats, eta: Floats) -> Floats:
    return np.asarray(event - time * np.exp(eta))


def main() -> None:
    """Print the best setting of each budget."""
    for epsilon in flchain.SETTINGS:
        means = mean_c_index(epsilon)
        best = max(means, key=lambda setting: means[setting])
        print(f"{epsilon:g}: {best}  C-index {means[best]:.4f}")


if __name__ == "__main__":
    main()
