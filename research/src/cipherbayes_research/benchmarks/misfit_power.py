"""How often a misfit is found that is there, and one that is not.

Tables are invented, fitted without noise (mode, and the normal distribution around it
with the curvature there), and their held-out rows checked with noise as a study checks
them. What the noise of a private fit adds to its posterior would make flags rarer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import expit

import cipherbayes as cb
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.models.base import Model
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.rounds import Closing
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.checking import scores_of
from cipherbayes.results.fit_numbers import fit_record
from cipherbayes.results.record import PrivateMetrics
from cipherbayes.study.tables import open_site, preparation_of, split_site
from cipherbayes.typing import Floats

SITES = ("north", "south", "west")
KINDS = (
    "right",
    "curved age",
    "sites differ",
    "level off",
    "right hazards",
    "changing hazards",
    "changing hazards of sex",
    "rising hazards",
)
THERE = {
    "curved age": {("age", "even")},
    "sites differ": {("site", "even")},
    "level off": {("all", "even")},
    "changing hazards": {("age", "over time"), ("risk", "over time")},
    "changing hazards of sex": {("sex", "over time"), ("risk", "over time")},
    "rising hazards": {("all", "over time")},
}
"""Misfits, by feature and kind of test, of which at least one should be found."""


def invented(kind: str, rows: int, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    """A table for each site; age from 20 to 90, sex, and an outcome."""
    tables = {}
    for number, site in enumerate(SITES):
        count = rows // len(SITES)
        age, sex = rng.uniform(20.0, 90.0, count), rng.choice(["F", "M"], count)
        z = (age - 55.0) / 20.0
        line = -1.0 + 0.7 * z + 0.4 * (sex == "M")
        if kind == "curved age":
            line = -1.6 + 0.3 * z + 0.6 * z**2 + 0.4 * (sex == "M")
        elif kind == "sites differ":
            line = line + (-0.6, 0.0, 0.6)[number]
        frame = pd.DataFrame({"age": age, "sex": sex})
        if "hazards" in kind:
            change = {
                "changing hazards": 0.6 * z,
                "changing hazards of sex": 0.5 * (sex == "M"),
                "rising hazards": np.full(count, -0.25),
            }.get(kind, np.zeros(count))
            early, late = np.exp(line + change), np.exp(line - change)
            unit = rng.exponential(size=count)
            first = unit / early
            time = np.where(first <= 0.5, first, 0.5 + (unit - 0.5 * early) / late)
            censored = rng.uniform(0.3, 1.5, count)
            frame["time"] = np.minimum(time, censored)
            frame["died"] = (time <= censored).astype(int)
        else:
            frame["died"] = (rng.random(count) < expit(line)).astype(int)
        tables[site] = frame
    return tables


def flagged(
    kind: str, epsilon: float, rows: int, rng: np.random.Generator
) -> list[tuple[str, str]]:
    """What one repetition called a misfit: by which feature, and of what kind."""
    model: Any = cb.models.Logistic(outcome="died")
    if "hazards" in kind:
        model = cb.models.Exponential(time="time", event="died", horizon=1.0)
    study = cb.Study(
        study={"protocol": "pooled"},
        model=model,
        features={"age": {"low": 18, "high": 95}, "sex": {"levels": ["F", "M"]}},
        preparation={"method": "public-bounds"},
        privacy={"epsilon": epsilon, "records": rows},
        evaluation={"holdout": 0.25},
        sites={site: {} for site in SITES},
    )
    plan = plan_releases(study)
    asked = {each.purpose: each for each in plan.closing}
    phase, scoring = asked["residuals"], asked["check"]
    assert phase.cells is not None
    parts = {
        site: split_site(study, site, open_site(study, site, table))
        for site, table in invented(kind, rows, rng).items()
    }
    theta, covariance = fitted(study.model, [train for train, _ in parts.values()])
    if kind == "level off":
        theta[0] += 0.3
    sites = [Contributions.of_site(study, site, *part) for site, part in parts.items()]

    def released(asked: Phase, about: Floats) -> Closing:
        total = sum(site.total(asked, Question(about)) for site in sites)
        noise = asked.sums.noise_sd(1)
        return Closing(total + rng.normal(0.0, noise, asked.dimension), noise)

    draws = rng.multivariate_normal(theta, covariance, 400)
    design = preparation_of(study).design
    scores: PrivateMetrics = {}
    if "hazards" in kind:
        assert scoring.check is not None
        about = plan.closing_question(scoring, draws)
        counted, expected = released(scoring, about), 0.25 * rows
        scores = scores_of(scoring.check, counted, draws, design, 0.05, expected)
    found = fit_record(
        phase.cells, released(phase, theta), draws, design, None, plan.study, scores
    )
    return [(row["by"], row["what"]) for row in found if row["misfit"]]


def fitted(model: Model, tables: list[PreparedTable]) -> tuple[Floats, Floats]:
    """The mode of the likelihood, and the inverse of its curvature."""
    blocks = [block for table in tables for block in table.blocks()]
    size = len(model.parameters(blocks[0].design))

    def slope(theta: Floats) -> Floats:
        parts = [model.gradient_sum(theta, block) for block in blocks]
        return -np.asarray(sum(parts))

    def loss(theta: Floats) -> float:
        parts = [model.log_likelihood(theta, block).sum() for block in blocks]
        return -float(sum(parts))

    mode = minimize(loss, np.zeros(size), jac=slope, method="BFGS").x
    steps = 1e-4 * np.eye(size)
    curvature = np.array([slope(mode + s) - slope(mode - s) for s in steps]) / 2e-4
    covariance = np.linalg.inv(0.5 * (curvature + curvature.T))
    return np.asarray(mode), np.asarray(covariance, dtype=np.float64)


def power(
    kind: str, epsilon: float, rows: int, repetitions: int, seed: int
) -> tuple[float, float]:
    """Share of repetitions that found what is there, and that found anything else.

    Kinds, rows and ε have random numbers of their own.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), rows, round(1000 * epsilon)])
    there = THERE.get(kind, set())
    found = [flagged(kind, epsilon, rows, rng) for _ in range(repetitions)]
    right = np.mean([any(flag in there for flag in each) for each in found])
    wrong = np.mean([any(flag not in there for flag in each) for each in found])
    return float(right), float(wrong)
