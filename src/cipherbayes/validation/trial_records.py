"""Records whose truth is known: the rows of a table with simulated outcomes.

Rows are taken as they are (drawn with replacement where more are asked for), and
outcomes are simulated from a stated truth. Beside them stands the posterior of the same
rows and outcomes without privacy, as the normal around its mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import open_table
from cipherbayes.data.windows import LEAST_BINARY
from cipherbayes.inference.target import Target
from cipherbayes.models import Design, Model
from cipherbayes.models.prior import EFFECTS, Prior
from cipherbayes.study.protocol_rules import CURATED_DEFAULT, FEDERATED_DEFAULT
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats
from cipherbayes.validation.outcome_draws import OutcomeDraw, trial_draws
from cipherbayes.validation.public_columns import Columns

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
        model=trial_draws()[ground.kind].model_table(OUTCOME, HALF_RANGE),
        features=columns.features(wider),
        privacy={"epsilon": ground.epsilon, "records": ground.rows},
        preparation={"method": ground.method} if ground.method else {},
        sites={name: {} for name in sites},
    )


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


def _outcome(
    ground: Ground, model: Model, design: Design, x: Floats, rng: np.random.Generator
) -> tuple[Floats, dict[str, Floats]]:
    """A truth on standardised columns, and outcomes with the wanted share of events.

    The constant (of a baseline in intervals, all of them) is moved until the share is
    right, with the same random numbers.
    """
    draw = trial_draws()[ground.kind]
    effects = rng.normal(0.0, TRUTHS[ground.truth], design.width)
    effects[: 0 if design.intercept is None else 1] = 0.0
    truth = draw.truth(effects, HALF_RANGE, rng)
    seed = int(rng.integers(2**31))
    if draw.share_of is None:
        return truth, _drawn(draw, truth, x, seed)
    share = OUTCOME[draw.share_of]
    constants = list(model.constants(design))
    wanted, low, high = EVENTS[ground.events], -15.0, 15.0
    start = truth[constants]
    for _ in range(40):
        middle = 0.5 * (low + high)
        truth[constants] = start + middle
        outcome = _drawn(draw, truth, x, seed)
        seen = outcome[share]
        low, high = (middle, high) if seen.mean() < wanted else (low, middle)
    return truth, outcome


def _drawn(draw: OutcomeDraw, truth: Floats, x: Floats, seed: int) -> dict[str, Floats]:
    """Outcomes of standardised rows, by column."""
    width, rng = len(x), np.random.default_rng(seed)
    found = draw.growing_outcome(truth[:width] @ x, truth[width:], rng)
    return {
        OUTCOME[role]: draw.as_in_a_table(values, role, HALF_RANGE)
        for role, values in found.items()
        if role in OUTCOME
    }


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
