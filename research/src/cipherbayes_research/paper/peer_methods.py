"""What ``peers`` compares with: DP-SGD and diffprivlib's logistic regression.

Both get the prepared rows of our own study. Their noise comes from seeded or the
libraries' own generators: here it measures accuracy and protects nobody.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import expit

from cipherbayes.errors import RunError
from cipherbayes.privacy.accountant import calibrate_noise
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class DpSgd:
    """Settings of DP-SGD: norm bound, step, epochs and expected batch."""

    clip: float
    step: float
    epochs: int
    batch: int = 320


@lru_cache
def _multiplier(epsilon: float, delta: float, rounds: int, rate: float) -> float:
    return calibrate_noise(epsilon, delta, rounds, rate)


def fit_dp_sgd(
    x: Floats,
    y: Floats,
    start: Floats,
    settings: DpSgd,
    *,
    epsilon: float,
    delta: float,
    seed: int,
) -> Floats:
    """DP-SGD as Opacus does it; the last iterate.

    Poisson batches of rate q, θ ← θ + η/(qN) (Σ clip_C(g_i) + σC z), σ from the PLD
    accountant for add/remove of a record. Abadi et al. (2016); Yousefpour et al.
    (2021).
    """
    count = y.size
    rate = settings.batch / count
    rounds = round(settings.epochs / rate)
    sigma = _multiplier(epsilon, delta, rounds, rate)
    rng = np.random.default_rng(seed)
    norms = np.linalg.norm(x, axis=1)
    theta = start.copy()
    for _ in range(rounds):
        rows = np.flatnonzero(rng.random(count) < rate)
        part = x[rows]
        residual = y[rows] - expit(part @ theta)
        lengths = np.abs(residual) * norms[rows]
        residual *= np.minimum(1.0, settings.clip / np.maximum(lengths, 1e-12))
        noise = sigma * settings.clip * rng.standard_normal(theta.size)
        theta = theta + settings.step / settings.batch * (part.T @ residual + noise)
    return theta


def fit_diffprivlib(
    x: Floats, y: Floats, *, epsilon: float, strength: float, norm: float, seed: int
) -> Floats:
    """diffprivlib's objective perturbation (Chaudhuri, Monteleoni and Sarwate 2011).

    Calls the function that its ``LogisticRegression.fit`` calls: the class itself
    cannot be made with scikit-learn 1.8 and later, whose base class has lost an
    argument. Pure ε-DP; the last coefficient is the intercept's.
    """
    path = _diffprivlib_path()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coefficients, _, _ = path(
            x,
            y,
            epsilon=epsilon,
            data_norm=norm,
            Cs=[strength],
            fit_intercept=True,
            max_iter=1000,
            random_state=seed,
            check_input=False,
        )
    return np.asarray(coefficients[0])


@lru_cache
def _diffprivlib_path() -> Any:
    try:
        import sklearn.tree._tree as tree

        # Names that scikit-learn dropped and diffprivlib's forests import.
        for name, value in (("DOUBLE", np.float64), ("DTYPE", np.float32)):
            if not hasattr(tree, name):
                setattr(tree, name, value)
        from diffprivlib.models.logistic_regression import _logistic_regression_path
    except ImportError:
        raise RunError(
            "the peers need diffprivlib and scikit-learn",
            where="peers",
            remedy="pip install 'cipherbayes-research[peers]'",
        ) from None
    return _logistic_regression_path
