"""Intervals of other private regressions on the same records, at the same (ε, δ).

    python research/benchmarks/private_regressions.py TABLES/aids.csv ... --rows FILE
        [--studies 4]

All methods see the same simulated records of a public table (N = 4,000, one place),
spend the same μ under the same neighbour relation and have the same prior. The others
are given exact means and standard deviations of the columns, which ours pays for. Of
twelve settings (six for logistic: bounds of rows and outcomes, split of the budget)
the one counts that is best on the very studies reported, which flatters them.

Linear: the noised sufficient statistics of Bernstein and Sheldon (2019, Differentially
private Bayesian linear regression), S̃ = X'X, z̃ = X'y and t̃ = y'y with noise. S is the
nearest positive definite matrix to S̃, not drawn, as Alparslan, Yıldırım and Birbil
(2023, Differentially private distributed Bayesian linear regression with MCMC) propose,
z̃ | θ, σ² ~ N(S θ, σ² S + s_z² I), and t̃ − 2θ'z̃ + θ'Sθ tells σ². A Gibbs sampler draws
both.

Logistic: the noise-aware posterior of moments of Kulkarni, Jälkö, Koskela, Kaski and
Honkela (2021, Differentially private Bayesian inference for generalized linear models):
the same two statistics, of y in ±1, whose mean given θ is that of normal columns. They
expand the log-likelihood in Chebyshev polynomials; here the mean of y x is exact for
normal columns (Stein's lemma), which is no worse, and S is again as found.

Both: noisy gradient descent, that is DP-SGD with all records in every step, with the
sandwich intervals of Avella-Medina, Bradshaw and Loh (2023, Differentially private
inference via noisy optimization): a quarter of μ² each for the Hessian M and the
variance Q of clipped gradients, and M⁻¹ (Q / N + noise) M⁻¹ around the mean of the last
half of the steps, with the noise of those. Eight settings (clip, steps, step size), the
best of which counts. It has no prior.

*Equal coverage* stretches every interval of a method by one factor such that nine of
ten hold their truth: the width that the method would have if it were right.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import expit

from cipherbayes.models.prior import EFFECTS, WIDE
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.typing import Floats
from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.trial_records import (
    HALF_RANGE,
    OUTCOME,
    Ground,
    Records,
    simulated,
)
from cipherbayes.validation.trials import trial
from coverage_rows import lines

ROWS, SETTINGS = 4_000, tuple(product((1.0, 1.5), (0.6, 1.0), (0.25, 0.5, 0.75)))
"""Rows of a study, and the settings that are tried: the bound of a row's norm over
√(1 + columns), that of an outcome over its range, and the budget's share for X'y."""
DRAWS, DISCARDED, THINNED = 1_000, 400, 4
Setting = tuple[float, float, float]
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
TYPICAL_RESIDUAL = 0.2
"""Residual sd of a simulated number over half its public range."""
DESCENTS = tuple(product((1.0, 2.0), (30, 100), (0.3, 1.0)))
LEAST = 1e-3
"""Least eigenvalue of S / N."""


@dataclass(frozen=True)
class Statistics:
    """Noised X'X, X'y and y'y, with the sds of the noise of the last two."""

    s: Floats
    z: Floats
    t: float
    noise: float
    noise_of_t: float
    count: int


def released(
    x: Floats,
    y: Floats,
    bounds: tuple[float, float],
    mu: float,
    share: float,
    seed: int,
) -> Statistics:
    """Noised X'X, X'y and y'y of rows and outcomes within ``bounds``, C and B.

    A record moves X'X by C² (Frobenius norm), X'y by C B and y'y by B². The last has a
    tenth of μ², ``share`` of the rest is for X'y.
    """
    rng = np.random.default_rng(seed)
    row, outcome = bounds
    noise = row * outcome / (mu * math.sqrt(0.9 * share))
    spread = row**2 / (mu * math.sqrt(0.9 * (1.0 - share)))
    last = outcome**2 / (mu * math.sqrt(0.1))
    d = len(x)
    white = np.triu(rng.standard_normal((d, d)), 1) / math.sqrt(2.0)
    error = white + white.T + np.diag(rng.standard_normal(d))
    values, vectors = np.linalg.eigh(x @ x.T + spread * error)
    values = np.maximum(values, LEAST * x.shape[1])
    s = (vectors * values) @ vectors.T
    z = x @ y + noise * rng.standard_normal(d)
    t = float(y @ y) + last * float(rng.standard_normal())
    return Statistics(s, z, t, noise, last, x.shape[1])


def linear(
    x: Floats, y: Floats, scale: Floats, mu: float, setting: Setting, seed: int
) -> Floats:
    """Draws of the coefficients; a row that is too long is shortened with its outcome,
    which leaves the line as it is."""
    row, outcome = setting[0] * math.sqrt(len(x)), setting[1]
    y = np.clip(y, -outcome, outcome)
    short = np.minimum(1.0, row / np.linalg.norm(x, axis=0))
    seen = released(short * x, short * y, (row, outcome), mu, setting[2], seed)
    rng = np.random.default_rng([seed, 1])
    # Shortened rows have less residual variance in y'y: what is left of n, publicly
    # unknown, is given to the method.
    n = float((short**2).sum())

    def log_density(log_variance: float, residual: float, blurred: float) -> float:
        variance = math.exp(log_variance)
        spread = 2.0 * n * variance**2 + blurred
        away = residual - n * variance
        # The prior of log σ is N(0, 1), as ours.
        prior = -0.125 * log_variance**2
        return -0.5 * (away**2 / spread + math.log(spread)) + prior

    here, kept = math.log(0.05), []
    for step in range(DRAWS + DISCARDED):
        noisy = math.exp(here) * seen.s + seen.noise**2 * np.eye(len(x))
        weight = np.linalg.solve(noisy, seen.s).T
        precision = weight @ seen.s + np.diag(scale**-2.0)
        mean = np.linalg.solve(precision, weight @ seen.z)
        lower = np.linalg.cholesky(precision)
        theta = mean + np.linalg.solve(lower.T, rng.standard_normal(len(x)))
        residual = float(seen.t - 2.0 * theta @ seen.z + theta @ seen.s @ theta)
        blurred = seen.noise_of_t**2 + 4.0 * float(theta @ theta) * seen.noise**2
        there = here + 0.3 * rng.standard_normal()
        gain = log_density(there, residual, blurred)
        if math.log(rng.random()) < gain - log_density(here, residual, blurred):
            here = there
        if step >= DISCARDED:
            kept.append(theta)
    return np.array(kept)


def logistic(
    x: Floats,
    y: Floats,
    scale: Floats,
    mu: float,
    setting: tuple[float, ...],
    seed: int,
) -> Floats:
    """Draws of the coefficients, the constant first; rows that are too long are
    shortened. Its second setting, the bound of an outcome, means nothing: y is ±1."""
    row = setting[0] * math.sqrt(len(x))
    most = math.sqrt(row**2 - 1.0)
    length = np.linalg.norm(x[1:], axis=0)
    x = np.vstack([x[:1], x[1:] * np.minimum(1.0, most / np.maximum(length, 1e-9))])
    seen = released(x, 2.0 * y - 1.0, (row, 1.0), mu, setting[2], seed)
    rng = np.random.default_rng([seed, 1])
    n, mean = seen.count, seen.s[0, 1:] / seen.s[0, 0]
    spread = seen.s[1:, 1:] / n - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(spread)
    spread = (vectors * np.maximum(values, LEAST)) @ vectors.T
    # y is ±1, so what varies is xx' less the square of the mean; xx' is no less.
    inverse = np.linalg.inv(seen.s + seen.noise**2 * np.eye(len(x)))

    def log_density(theta: Floats) -> float:
        pushed = spread @ theta[1:]
        sd = math.sqrt(max(float(theta[1:] @ pushed), 1e-12))
        chance = expit(theta[0] + mean @ theta[1:] + sd * NODES)
        weights = WEIGHTS / WEIGHTS.sum()
        level = float(weights @ (2.0 * chance - 1.0))
        slope = float(weights @ (2.0 * chance * (1.0 - chance)))
        expected = n * np.concatenate([[level], level * mean + slope * pushed])
        away = seen.z - expected
        return float(-0.5 * away @ inverse @ away - 0.5 * ((theta / scale) ** 2).sum())

    # Adaptive Metropolis (Haario, Saksman and Tamminen 2001).
    d = len(x)
    here = np.zeros(d)
    kept: list[Floats] = []
    now = log_density(here)
    root: Floats = 0.05 * np.eye(d)
    for step in range(THINNED * (DRAWS + DISCARDED)):
        if step in (500, 1_000, 1_500):
            spread_seen = np.cov(np.array(kept[-400:]).T) + 1e-8 * np.eye(d)
            root = np.asarray(2.38 / math.sqrt(d) * np.linalg.cholesky(spread_seen))
        there = here + root @ rng.standard_normal(d)
        new = log_density(there)
        if math.log(rng.random()) < new - now:
            here, now = there, new
        kept.append(here)
    return np.array(kept[THINNED * DISCARDED :: THINNED])


def descended(
    x: Floats,
    y: Floats,
    kind: str,
    mu: float,
    setting: tuple[float, int, float],
    seed: int,
) -> Floats:
    """Draws of a normal around the mean of the last steps, the sandwich its variance.

    ``setting`` is the clip over a typical gradient, the steps, and the step size over
    that of a Newton step for unrelated columns.
    """
    rng = np.random.default_rng([seed, 2])
    d, n = x.shape
    sd, curvature = (TYPICAL_RESIDUAL, 1.0) if kind == "linear" else (0.5, 0.25)
    clip, steps = setting[0] * sd * math.sqrt(d), setting[1]
    row = 1.5 * math.sqrt(d)
    x = x * np.minimum(1.0, row / np.linalg.norm(x, axis=0))
    sigma = clip * math.sqrt(2.0 * steps) / mu
    rate = setting[2] / curvature

    def gradients(theta: Floats) -> Floats:
        eta = theta @ x
        found = x * (y - (eta if kind == "linear" else expit(eta)))
        length = np.linalg.norm(found, axis=0)
        return np.asarray(found * np.minimum(1.0, clip / np.maximum(length, 1e-12)))

    def noised(matrix: Floats, bound: float) -> Floats:
        white = np.triu(rng.standard_normal((d, d)), 1) / math.sqrt(2.0)
        error = white + white.T + np.diag(rng.standard_normal(d))
        values, vectors = np.linalg.eigh(matrix + 2.0 * bound / mu * error)
        least = LEAST * n * bound / row**2
        return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)

    theta, last = np.zeros(d), []
    for step in range(steps):
        noise = sigma * rng.standard_normal(d)
        theta = theta + rate / n * (gradients(theta).sum(axis=1) + noise)
        if step >= steps // 2:
            last.append(theta)
    place = np.mean(last, axis=0)
    eta, own = place @ x, gradients(place)
    weights = np.ones(n) if kind == "linear" else expit(eta) * expit(-eta)
    slope = noised((x * weights) @ x.T, curvature * row**2)
    spread = noised(own @ own.T, clip**2) + sigma**2 / len(last) * np.eye(d)
    root = np.linalg.solve(slope, np.linalg.cholesky(spread))
    return np.asarray(place + rng.standard_normal((DRAWS, d)) @ root.T)


METHODS: dict[str, Callable[..., Floats]] = {"linear": linear, "logistic": logistic}


def others(records: Records, kind: str, mu: float, number: int) -> dict[str, Floats]:
    """(half width over that without privacy, truth's distance in half widths) of every
    column's effect, by setting."""
    y = records.outcome[OUTCOME["y"]]
    y = y / HALF_RANGE if kind == "linear" else y
    width = len(records.x)
    scale = np.full(width, EFFECTS)
    scale[0] = WIDE  # our priors
    want = records.want[1:width]
    plain = (records.high - records.low)[1:width]

    def held(draws: Floats) -> Floats:
        more = np.zeros((len(draws), records.truth.size - width))
        user = records.study.model.to_user_scale(
            np.hstack([draws, more]), records.design
        )
        low, high = np.quantile(user, [0.05, 0.95], axis=0)[:, 1:width]
        away = np.abs(2.0 * want - low - high) / (high - low)
        return np.array([(high - low) / plain, away])

    found = {}
    for setting in SETTINGS:
        if kind == "logistic" and setting[1] != 1.0:
            continue
        found[str(setting)] = held(
            METHODS[kind](records.x, y, scale, mu, setting, number)
        )
    for descent in DESCENTS:
        draws = descended(records.x, y, kind, mu, descent, number)
        found[f"descent {descent}"] = held(draws)
    return found


def tell(rows: list[dict[str, object]]) -> None:
    """Coverage, width, and width at equal coverage of every method."""
    for kind in METHODS:
        mine = [row for row in rows if row["kind"] == kind]
        if not mine:
            continue
        gathered: dict[str, list[Floats]] = {}
        for row in mine:
            for name, values in dict(row["found"]).items():  # type: ignore[call-overload]
                gathered.setdefault(name, []).append(np.array(values))
        told = {}
        for name, parts in gathered.items():
            ratio, away = np.concatenate(parts, axis=1)
            held = np.array([(part[1] <= 1.0).mean() for part in parts])
            width, stretch = float(np.median(ratio)), float(np.quantile(away, 0.9))
            error = held.std(ddof=1) / math.sqrt(held.size) if held.size > 1 else np.nan
            told[name] = (width * stretch, width, held.mean(), error)
        peers = [name for name in told if name != "ours"]
        descents = [name for name in peers if name.startswith("descent")]
        best = [
            min(some, key=lambda n: told[n][0])
            for some in ([name for name in peers if name not in descents], descents)
            if some
        ]
        for name in ("ours", *best):
            equal, width, share, error = told[name]
            print(
                f"{kind}, {name}: held {share:.3f} ± {error:.3f}, width {width:.2f}, "
                f"at equal coverage {equal:.2f} ({len(mine)} studies)"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--studies", type=int, default=4)
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    rows = lines(arguments.rows)
    known = {row["key"] for row in rows}
    tables = [Columns.read(path) for path in arguments.tables]
    for number, table, kind in product(range(arguments.studies), tables, METHODS):
        ground = Ground(kind, rows=ROWS, epsilon=arguments.epsilon)
        if (key := ground.key(table.name, number)) in known:
            continue
        records = simulated(table, ground, number)
        privacy = records.study.with_privacy().privacy
        found = others(records, kind, mu_for(privacy.epsilon, privacy.delta), number)
        own = trial(table, ground, number)
        found["ours"] = np.array([own.ratio, own.away])[:, 1 : len(records.x)]
        row = {
            "key": key,
            "kind": kind,
            "found": {name: values.tolist() for name, values in found.items()},
        }
        rows.append(row)
        with arguments.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    tell(rows)


if __name__ == "__main__":
    main()
