"""Records whose truth is known: the rows of a table with simulated outcomes.

Rows are taken as they are (drawn with replacement where more are asked for), and
outcomes are simulated from a stated truth. Beside them stands the posterior of the same
rows and outcomes without privacy, as the normal around its mode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
from scipy.stats import poisson

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import open_table
from cipherbayes.data.windows import LEAST_BINARY
from cipherbayes.inference.target import Target
from cipherbayes.models import Design, Model
from cipherbayes.models.prior import EFFECTS, Prior
from cipherbayes.study.protocol_rules import CURATED_DEFAULT, FEDERATED_DEFAULT
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats, JsonObject
from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.simulation import INTERVALS, survival_times

KINDS = (
    "logistic",
    "exponential",
    "weibull",
    "piecewise",
    "gompertz",
    "poisson",
    "linear",
)
CLINICAL = 0.4
"""Standard deviation of effects for a standard deviation of a column: odds or hazard
ratios mostly between 1/2 and 2."""
TRUTHS = {"clinical": CLINICAL, "prior": EFFECTS}
EVENTS = {"usual": 0.4, "rare": 0.05}
"""Share of records with the event; of counts, their mean."""
TAIL = 0.05
"""Probability beyond each end of a 90 % interval."""
HALF_RANGE = 5.0
"""Half of the public range of a simulated number, whose residual sd is one."""
OUTCOME = {
    "y": "simulated outcome",
    "time": "simulated time",
    "event": "simulated event",
}
DRAWS = 4_000
"""Draws from the posterior without privacy."""


@dataclass(frozen=True)
class Ground:
    """What is simulated on a table.

    Attributes
    ----------
    kind
        Of the model.
    rows
        Records of a study.
    epsilon
        Its ε.
    wider
        How many times the public ranges are too wide.
    truth
        ``clinical`` or ``prior``: how large effects are.
    events
        ``usual`` or ``rare``.
    sites
        1: all rows in one place; else ``secure-sum`` over so many sites.
    method
        Of preparation; the default where empty.
    """

    kind: str
    rows: int = 4_000
    epsilon: float = 1.0
    wider: float = 1.0
    truth: str = "clinical"
    events: str = "usual"
    sites: int = 1
    method: str = ""

    def key(self, table: str, number: int) -> str:
        """The key of one study in a file of results."""
        return f"{table} {' '.join(map(str, asdict(self).values()))} #{number}"


@dataclass(frozen=True)
class Records:
    """Rows of a table with simulated outcomes.

    Attributes
    ----------
    frame
        As a site would have them.
    study
        With ranges that are not too wide.
    design, x
        Columns standardised by exact scales, and their design.
    outcome
        By column.
    truth, want
        What was simulated, on standardised columns and on the user's scale.
    low, high
        Ends of the 90 % intervals without privacy, on the user's scale.
    """

    frame: pa.Table
    study: Study
    design: Design
    x: Floats
    outcome: Mapping[str, Floats]
    truth: Floats
    want: Floats
    low: Floats
    high: Floats

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(self.study.model.parameters(self.design))


def simulated(columns: Columns, ground: Ground, number: int) -> Records:
    """Study ``number`` of a table: its rows, truth and outcomes follow from it."""
    words = [ord(c) for c in f"{columns.name} {ground.kind} {ground.truth}"]
    rng = np.random.default_rng([number, len(words), *words])
    frame = columns.drawn(ground.rows, rng)
    study = study_on(columns, ground, wider=1.0)
    design, x = _standardised(study, frame)
    truth, outcome = _outcome(ground, study.model, design, x, rng)
    for name, values in outcome.items():
        frame = frame.append_column(name, pa.array(values))
    want = study.model.to_user_scale(truth, design)
    ends = _without_privacy(study, design, x, outcome, rng)
    return Records(frame, study, design, x, outcome, truth, want, *ends)


def study_on(columns: Columns, ground: Ground, *, wider: float) -> Study:
    """The study that a ground states, on public ranges so many times too wide."""
    sites = [f"s{k}" for k in range(ground.sites)]
    return Study(
        study={"protocol": CURATED_DEFAULT if ground.sites == 1 else FEDERATED_DEFAULT},
        model=_model(ground.kind),
        features=columns.features(wider),
        privacy={"epsilon": ground.epsilon, "records": ground.rows},
        preparation={"method": ground.method} if ground.method else {},
        sites={name: {} for name in sites},
    )


def _model(kind: str) -> JsonObject:
    if kind in ("logistic", "poisson"):
        return {"kind": kind, "outcome": OUTCOME["y"]}
    if kind == "linear":
        ends = {"low": -HALF_RANGE, "high": HALF_RANGE}
        return {"kind": kind, "outcome": OUTCOME["y"], **ends}
    known = {"time": OUTCOME["time"], "event": OUTCOME["event"], "horizon": 1.0}
    more = {"intervals": INTERVALS} if kind == "piecewise" else {}
    return {"kind": kind, **known, **more}


def _standardised(study: Study, frame: pa.Table) -> tuple[Design, Floats]:
    """Columns as exact scales would have them, and their design."""
    prepared = PreparedTable.for_prediction(open_table(frame), preparation_of(study))
    x = np.concatenate([block.x for block in prepared.blocks()], axis=1)
    design = prepared.design
    first = 0 if design.intercept is None else 1
    centre, scale = np.zeros(design.width), np.ones(design.width)
    centre[first:] = x[first:].mean(axis=1)
    scale[first:] = np.maximum(x[first:].std(axis=1), 1e-9)
    levels = [j for j, name in enumerate(design.names) if name.endswith("]")]
    scale[levels] = np.maximum(scale[levels], LEAST_BINARY)
    x = (x - centre[:, None]) / scale[:, None]
    moved = design.centre + design.half_width * centre
    return Design(
        design.names, moved, design.half_width * scale, design.intercept
    ), np.ascontiguousarray(x)


def _truth(ground: Ground, design: Design, rng: np.random.Generator) -> Floats:
    """Effects, then what else the model has; constants are zero as yet."""
    first = 0 if design.intercept is None else 1
    effects = rng.normal(0.0, TRUTHS[ground.truth], design.width)
    effects[:first] = 0.0
    if ground.kind == "linear":
        # Of an outcome that its public range maps to [-1, 1]; last the log of its sd.
        return np.append(effects / HALF_RANGE, -math.log(HALF_RANGE))
    more = {
        "weibull": rng.normal(0.0, 0.3, 1),
        "gompertz": rng.normal(0.0, 1.0, 1),
        "piecewise": rng.normal(0.0, 0.5, INTERVALS),
    }
    return np.append(effects, more.get(ground.kind, np.zeros(0)))


def _outcome(
    ground: Ground, model: Model, design: Design, x: Floats, rng: np.random.Generator
) -> tuple[Floats, dict[str, Floats]]:
    """A truth on standardised columns, and outcomes with the wanted share of events.

    The constant (of a baseline in intervals, all of them) is moved until the share is
    right, with the same random numbers.
    """
    truth = _truth(ground, design, rng)
    seed = int(rng.integers(2**31))
    if ground.kind == "linear":
        return truth, _drawn(ground.kind, truth, x, np.random.default_rng(seed))
    constants = list(model.constants(design))
    wanted, low, high = EVENTS[ground.events], -15.0, 15.0
    start = truth[constants]
    for _ in range(40):
        middle = 0.5 * (low + high)
        truth[constants] = start + middle
        outcome = _drawn(ground.kind, truth, x, np.random.default_rng(seed))
        seen = outcome[OUTCOME["event" if "time" in model.roles else "y"]]
        low, high = (middle, high) if seen.mean() < wanted else (low, middle)
    return truth, outcome


def _drawn(
    kind: str, truth: Floats, x: Floats, rng: np.random.Generator
) -> dict[str, Floats]:
    """Outcomes of standardised rows, by column."""
    eta = truth[: len(x)] @ x
    if kind == "logistic":
        chance = 0.5 * (1.0 + np.tanh(0.5 * eta))
        return {OUTCOME["y"]: (rng.random(eta.size) < chance).astype(np.float64)}
    if kind == "poisson":
        # Inverse cumulative probabilities: counts then grow with the constant.
        chance = rng.random(eta.size)
        return {OUTCOME["y"]: poisson.ppf(chance, np.exp(np.clip(eta, -30.0, 10.0)))}
    if kind == "linear":
        noise = math.exp(truth[-1]) * rng.standard_normal(eta.size)
        return {OUTCOME["y"]: HALF_RANGE * (eta + noise)}
    time, event = survival_times(kind, eta, truth, rng)
    return {OUTCOME["time"]: np.maximum(time, 1e-9), OUTCOME["event"]: event}


def _without_privacy(
    study: Study,
    design: Design,
    x: Floats,
    outcome: Mapping[str, Floats],
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Ends of the 90 % intervals without privacy, on the user's scale."""
    model = study.model
    raw = {
        role: outcome.get(column, np.zeros(x.shape[1]))
        for role, column in model.outcome_columns().items()
    }
    table = PreparedTable.from_arrays(design, x, model.prepare_outcome(raw))
    resolved = model.prior_of(Prior().filled_in(standardised=True), design)
    target = Target(model, resolved, [table])
    mode = target.mode()
    root = np.linalg.cholesky(np.linalg.inv(target.curvature(mode)))
    draws = mode + rng.standard_normal((DRAWS, mode.size)) @ root.T
    low, high = np.quantile(
        model.to_user_scale(draws, design), [TAIL, 1.0 - TAIL], axis=0
    )
    return low, high
