"""Do the intervals hold? Coverage on simulated studies, and ranks of the samplers.

Every replicate draws a truth from the prior, records from the truth and noise for
the releases, runs the rounds and the posterior, and asks how many 90 % intervals
hold their parameter. Replicate r of a cell has a seed of its own, so an interrupted
calibration goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
from scipy.stats import chisquare, norm

from cipherbayes.inference.chains import sample
from cipherbayes.inference.noise_aware import Effort, sample_posterior
from cipherbayes.inference.settings import Inference
from cipherbayes.inference.target import Target
from cipherbayes.typing import Floats, JsonObject, Progress
from cipherbayes.validation.outcome_draws import draws
from cipherbayes.validation.replicates import replicated
from cipherbayes.validation.simulation import Simulated, release_rounds, simulate

MODELS = ("logistic", "exponential", "weibull")
"""Kinds of the full grid; all others have a cell or two."""
INTERVAL = 0.9
RECORDS, DIMENSIONS, EPSILONS = (3_200, 8_000, 100_000), (7, 10, 40), (0.3, 1.0, 3.0)
EFFORT = Effort(chains=4, warm_up=80, kept=120, doublings=1)
"""Less than a study gets: many studies matter more here than many draws of each."""
WIDE_DIMENSION = 184
USUAL_DIMENSION = 10
"""Up to which the prior is standard normal. With more parameters its variance is less
in proportion, such that all effects together vary as with ten: with a standard normal
prior of 40 effects hazards would differ by factors of thousands."""


@dataclass(frozen=True)
class Cell:
    """One setting of the grid.

    Attributes
    ----------
    stress
        Empty, or what is done to the study: ``rare``, ``rare-columns``,
        ``alike-columns``, ``separable``, ``twice-the-prior``, ``strong-effects``,
        ``clip-5x``, ``clip-0.2x`` or ``tiny-epsilon``.
    """

    model: str
    n: int
    d: int
    epsilon: float
    stress: str = ""

    @property
    def key(self) -> str:
        return f"{self.model} {self.n} {self.d} {self.epsilon:g} {self.stress}".strip()

    @property
    def prior_scale(self) -> float:
        if self.stress == "strong-effects":
            return 1.0
        return min(1.0, math.sqrt(USUAL_DIMENSION / self.d))


@dataclass(frozen=True)
class Replicate:
    """Share of intervals that held, mean width ratio, and flags of one study.

    Attributes
    ----------
    plain_coverage
        The same share of the posterior without privacy: by chance the records of a few
        studies lie better or worse than of many, and both posteriors with them.
    """

    coverage: float
    plain_coverage: float
    width_ratio: float
    flags: tuple[str, ...]
    unusable: bool


def grid() -> tuple[Cell, ...]:
    """Every model, N, d and ε."""
    settings = product(MODELS, RECORDS, DIMENSIONS, EPSILONS)
    return tuple(Cell(*each) for each in settings)


def quick_grid() -> tuple[Cell, ...]:
    """A cell for each model and ε, of few records where noise is most."""
    sizes = ((3_200, 0.3), (3_200, 1.0), (8_000, 3.0))
    return tuple(
        Cell(kind, count, USUAL_DIMENSION, epsilon)
        for kind in MODELS
        for count, epsilon in sizes
    )


def wide_grid() -> tuple[Cell, ...]:
    """So many parameters that their correlations are not drawn but estimated."""
    kinds, epsilons = ("logistic", "exponential"), (1.0, 3.0)
    settings = product(kinds, (20_000, 100_000), (WIDE_DIMENSION,), epsilons)
    return tuple(Cell(*each) for each in settings)


def other_grid() -> tuple[Cell, ...]:
    """The other models that have this posterior."""
    others = [name for name in draws() if name not in MODELS]
    settings = product(others, (8_000,), (10,), (1.0, 3.0))
    return tuple(Cell(*each) for each in settings)


def stress_grid() -> tuple[Cell, ...]:
    """What may go wrong: the intervals must stay honest, or be flagged."""
    logistic = (
        "separable",
        "rare",
        "rare-columns",
        "alike-columns",
        "twice-the-prior",
        "clip-5x",
        "clip-0.2x",
    )
    exponential = ("rare", "alike-columns", "twice-the-prior")
    return (
        *(Cell("logistic", 8_000, 10, 1.0, name) for name in logistic),
        *(Cell("exponential", 8_000, 7, 1.0, name) for name in exponential),
        *(Cell(kind, 8_000, 40, 1.0, "strong-effects") for kind in MODELS),
        Cell("logistic", 8_000, 10, 0.03, "tiny-epsilon"),
    )


def replicate(cell: Cell, number: int) -> Replicate:
    """One simulated study of a cell."""
    words = [ord(letter) for letter in cell.key]
    rng = np.random.default_rng([number, len(words), *words])
    study = simulate(
        cell.model,
        cell.n,
        cell.d,
        rng,
        prior_scale=cell.prior_scale,
        truth_scale=2.0 if cell.stress == "twice-the-prior" else 1.0,
        intercept=-5.0 if cell.stress == "rare" else None,
        separable=cell.stress == "separable",
        rare_levels=cell.stress == "rare-columns",
        alike=cell.stress == "alike-columns",
    )
    factor = {"clip-5x": 5.0, "clip-0.2x": 0.2}.get(cell.stress, 1.0)
    clip = factor * study.clip
    recursion, state = release_rounds(study, cell.epsilon, rng, clip)
    posterior = sample_posterior(recursion, state, seed=number, effort=EFFORT)
    draws = posterior.draws.theta.reshape(-1, cell.d)
    tail = 0.5 * (1.0 - INTERVAL)
    low, high = np.quantile(draws, [tail, 1.0 - tail], axis=0)
    held = (low <= study.truth) & (study.truth <= high)
    mode, sd = _plain(study)
    plainly = np.abs(study.truth - mode) <= norm.isf(tail) * sd
    return Replicate(
        float(held.mean()),
        float(plainly.mean()),
        float((draws.std(axis=0) / sd).mean()),
        tuple(flag.code for flag in posterior.flags),
        any(flag.unusable for flag in posterior.flags),
    )


class CellRow(TypedDict):
    """What all simulated studies of a cell say, as ``calibrate --json`` prints it."""

    model: str
    n: int
    d: int
    epsilon: float
    coverage: float
    se: float
    plain_coverage: float
    width_ratio: float
    replicates: int
    flagged: float
    flags: list[str]
    stress: NotRequired[str]


class RankRow(TypedDict):
    """Ranks of the truth among the draws of a sampler, in ten bins."""

    model: str
    sampler: str
    histogram: list[int]
    p_value: float
    studies: int


def calibrate(
    cells: Sequence[Cell],
    replicates: int,
    *,
    results: Path | None = None,
    processes: int = 2,
    progress: Progress | None = None,
) -> list[CellRow]:
    """Coverage and width of every cell.

    Parameters
    ----------
    replicates
        Simulated studies a cell.
    results
        A file of one line a replicate, to which new ones are added; what it already
        holds is not computed again.
    processes
        Worker processes.
    progress
        Called with (replicates done, replicates in all).
    """
    wanted = [(cell, r) for r in range(replicates) for cell in cells]
    known = replicated(
        _work,
        {_key(*task): task for task in wanted},
        results=results,
        to_line=_to_line,
        from_line=_from_line,
        processes=processes,
        progress=progress,
    )
    return [
        summarise_cell(cell, [known[_key(cell, r)] for r in range(replicates)])
        for cell in cells
    ]


def summarise_cell(cell: Cell, found: Sequence[Replicate]) -> CellRow:
    """One row: the standard error is over studies, whose parameters are not
    independent; the width ratio is the median over studies."""
    coverage = np.array([each.coverage for each in found])
    row: CellRow = {
        "model": cell.model,
        "n": cell.n,
        "d": cell.d,
        "epsilon": cell.epsilon,
        "coverage": float(coverage.mean()),
        "se": float(coverage.std(ddof=1) / np.sqrt(len(found)))
        if len(found) > 1
        else float("nan"),
        "plain_coverage": float(np.mean([each.plain_coverage for each in found])),
        "width_ratio": float(np.median([each.width_ratio for each in found])),
        "replicates": len(found),
        "flagged": float(np.mean([each.unusable for each in found])),
        "flags": sorted({code for each in found for code in each.flags}),
    }
    if cell.stress:
        row["stress"] = cell.stress
    return row


def ranks(
    kind: str, preconditioner: str, studies: int, *, draws: int = 99, seed: int = 0
) -> Floats:
    """Ranks of the truth among thinned non-private draws, shape ``(studies, d)``.

    Uniform on 0..``draws`` if the sampler is right (Talts, Betancourt, Simpson,
    Vehtari and Gelman 2018, Validating Bayesian inference algorithms with
    simulation-based calibration).
    """
    found = []
    for number in range(studies):
        rng = np.random.default_rng([seed, number])
        study = simulate(kind, 400, 4, rng)
        target = Target(study.model, study.prior, [study.table])
        settings = Inference.model_validate(
            {
                "preconditioner": preconditioner,
                "chains": 1,
                "rounds": 4 * (draws + 1) * 4,
                "seed": number,
            }
        )
        theta = sample(target, settings, lambda _done, _all: None).theta[0]
        kept = theta[np.linspace(0, len(theta) - 1, draws).astype(int)]
        found.append((kept < study.truth).sum(axis=0))
    return np.array(found, dtype=np.float64)


def rank_histograms(studies: int) -> list[RankRow]:
    """Ranks in ten bins, with the p-value of a χ² test that they are uniform."""
    rows: list[RankRow] = []
    for kind, sampler in product(("logistic", "exponential"), ("fisher", "rmsprop")):
        # One parameter a study: those of one posterior are not independent.
        ranked = ranks(kind, sampler, studies)[:, 0]
        counts = np.histogram(ranked, bins=10, range=(0.0, 100.0))[0]
        rows.append(
            {
                "model": kind,
                "sampler": sampler,
                "histogram": [int(each) for each in counts],
                "p_value": float(chisquare(counts).pvalue),
                "studies": studies,
            }
        )
    return rows


def _plain(study: Simulated) -> tuple[Floats, Floats]:
    """The posterior's mode without privacy, and its sd from the curvature there."""
    target = Target(study.model, study.prior, [study.table])
    mode = target.mode()
    return mode, np.sqrt(np.diag(np.linalg.inv(target.curvature(mode))))


def _work(task: tuple[Cell, int]) -> Replicate:
    return replicate(*task)


def _key(cell: Cell, number: int) -> str:
    return f"{cell.key}#{number}"


def _to_line(task: tuple[Cell, int], found: Replicate) -> JsonObject:
    return {"cell": task[0].key, "replicate": task[1], **asdict(found)}


def _from_line(entry: Mapping[str, Any]) -> tuple[str, Replicate]:
    return f"{entry['cell']}#{entry['replicate']}", Replicate(
        float(entry["coverage"]),
        float(entry["plain_coverage"]),
        float(entry["width_ratio"]),
        tuple(entry["flags"]),
        bool(entry["unusable"]),
    )
