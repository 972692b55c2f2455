"""Invented tables of a study that differ in one record, and questions to tell them by.

Nothing here is read from a site: records are drawn from what the study says in
public (ranges, levels, the kind of outcome), so an audit releases nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cipherbayes.data.features import level_name
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.errors import StudyError
from cipherbayes.models import Model
from cipherbayes.models.outcomes import OutcomeRange
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site, slots_of
from cipherbayes.typing import Floats, Integers

SIZES = (4, 5, 8, 9, 64, 65, 512, 513, 1024, 1025)
"""Numbers of records at which loops, registers and compiled programs change."""

SHARES = (1.0, 0.7, 0.5, 0.35)
"""How far from the middle of its range a canary's numbers are: a record beyond the
clipping norm is weighted down, so the one that counts most is not the longest."""

CANARIES = 4 * len(SHARES)
"""Records that are tried."""

Column = list[Any]


ROWS_OF_A_PERSON = 3
"""Rows that each invented person has."""


@dataclass(frozen=True)
class Neighbours:
    """A table, and the same table without one record."""

    present: PreparedTable
    absent: PreparedTable

    def slope(self, model: Model, place: int) -> Floats:
        """A record's gradient at zero; the record in question stands first.

        It has the direction of the design row, and in a network of the outputs of the
        last hidden layer: whatever the linear predictor is linear in.
        """
        block = next(iter(self.present.blocks()))
        gradients = model.gradients(
            np.zeros(len(model.parameters(block.design))), block
        )
        return gradients.matrix()[:, place]


def neighbours(
    study: Study, rows: int, canary: int, *, seed: int = 0, alike: bool = False
) -> Neighbours:
    """Two neighbouring tables of ``rows`` and ``rows - 1`` invented records.

    The record in question is the first, so that all others change their place. Where a
    record is a person, it has three rows, all alike.

    Parameters
    ----------
    canary
        Which of the extreme records, from 0 to ``CANARIES`` - 1.
    alike
        Whether all other records are copies of one: what goes wrong for it, goes
        wrong for all of them at the same question.
    """
    person = _person(study)
    own = 1 if person is None else ROWS_OF_A_PERSON
    columns = invented_columns(study, max(rows, own + 1), np.random.default_rng(seed))
    for name, values in columns.items():
        if alike and name != person:
            values[:] = [values[-1]] * len(values)
    for name, extreme in _extremes(study, canary).items():
        columns[name][:own] = [extreme] * own
    table = pa.table(columns)
    site = next(iter(study.sites), "site")
    return Neighbours(
        open_site(study, site, table), open_site(study, site, table.slice(own))
    )


def invented_columns(
    study: Study, rows: int, rng: np.random.Generator
) -> dict[str, Column]:
    """Records that fit the study, a tenth of the numbers at the ends of their range.

    A third of the values that a study would draw are missing.
    """
    columns: dict[str, Column] = {}
    for name, feature in study.features.items():
        if feature.levels is not None:
            codes = rng.integers(len(feature.levels), size=rows)
            columns[name] = [level_name(feature.levels[code]) for code in codes]
            continue
        values = rng.uniform(*feature.ends, rows)
        ends = rng.choice(feature.ends, rows)
        columns[name] = np.where(rng.random(rows) < 0.1, ends, values).tolist()
    for name, feature in study.features.items():
        if feature.imputed:
            gaps = rng.random(rows) < 1.0 / 3.0
            columns[name] = [
                None if gap else value
                for gap, value in zip(gaps, columns[name], strict=True)
            ]
    for name, possible in _outcome_ranges(study.model).items():
        columns[name] = possible.made_up(rows, rng).tolist()
    if (person := _person(study)) is not None:
        columns[person] = [f"{k // ROWS_OF_A_PERSON}" for k in range(rows)]
    return columns


def _person(study: Study) -> str | None:
    """The column that names a person, where all rows of one are one record."""
    return None if study.privacy is None else study.privacy.person


def questions(
    plan: StudyPlan, phase: Phase, near: Neighbours
) -> Iterator[tuple[str, Question]]:
    """Questions of a phase at which a record might count for more than it may.

    Each with a name: zero, an ordinary place, the ends of what is allowed, weights that
    cancel each other on the canary's row or on the last one, numbers too small to be
    normal; each with the smallest and the largest scales that any total could amount
    to. A preparatory phase is asked about these scales alone.
    """
    if plan.question_size(phase) == 1:
        for scales, seen in _scales(plan, phase):
            yield f"a count{scales}", Question(np.zeros(1), seen)
        return
    rng = np.random.default_rng(1)
    farthest = plan.farthest_theta
    signs = np.where(np.arange(farthest.size) % 2, -1.0, 1.0)
    canary, other = (_own_slope(plan.study, near, place) for place in (0, -1))
    mixed = farthest * rng.uniform(0.5, 1.0, farthest.size)
    places = {
        "zero": np.zeros(farthest.size),
        "ordinary": rng.normal(size=farthest.size),
        "as far as allowed": farthest.copy(),
        "far, signs in turn": farthest * signs,
        "cancelling on the canary": _cancelling(mixed, canary),
        "cancelling on the others": _cancelling(mixed * signs, other),
        "cancelling, near": _cancelling(rng.uniform(1.0, 2.0, farthest.size), canary),
        "denormal": signs * 1e-310,
    }
    for scales, seen in _scales(plan, phase):
        for name, theta in places.items():
            # A phase that averages over several is asked about copies of one.
            copies = plan.question_size(phase) // theta.size
            yield f"{name}{scales}", Question(np.tile(theta, copies), seen)


def _own_slope(study: Study, near: Neighbours, place: int) -> Floats:
    """A record's slope, among the parameters of all sites where these may differ."""
    slope, slots = near.slope(study.model, place), slots_of(study)
    return slope if slots is None else slots.spread(next(iter(study.sites)), slope)


def _scales(plan: StudyPlan, phase: Phase) -> Iterator[tuple[str, Floats | None]]:
    """Scales that a coalition of server and CSP could claim were released."""
    earlier = plan.before(phase)
    claims: dict[str, list[Integers]] = {
        name: [
            np.full(each.dimension, size * each.bound, dtype=np.int64)
            for each in earlier
        ]
        for name, size in (("smallest", -1), ("largest", 1))
    }
    claims["first bins"] = [_in_first_bins(each) for each in earlier]
    # After means and deviations may stand models of columns with missing values.
    learnt = sum(each.models.length for each in earlier if each.models is not None)
    for name, totals in claims.items():
        seen = plan.scales(phase, plan.facts(totals))
        if seen is None:  # no earlier round tells any
            yield "", None
            return
        yield f", {name} scales", seen
        moments, models = np.split(seen, [seen.size - learnt])
    ordinary = np.repeat([0.0, 0.5], moments.size // 2)
    yield ", ordinary scales", np.concatenate([ordinary, models])


def _in_first_bins(phase: Phase) -> Integers:
    """Totals as of a table whose values are all in the first bin of their columns."""
    values = np.zeros(phase.dimension, dtype=np.int64)
    if phase.numbers is not None and phase.purpose != "scales":
        values[:: phase.numbers.bins] = phase.bound
    return values


def _cancelling(theta: Floats, slope: Floats) -> Floats:
    """θ moved so that a record's linear predictor is nothing but rounding errors."""
    norm = float(slope @ slope)
    if norm == 0.0:
        return theta
    # Where the slope is zero the predictor is not linear: left at zero.
    theta = np.where(slope == 0.0, 0.0, theta)
    moved = theta - slope * (theta @ slope) / norm
    # Halved until it is no longer than before, so that it still cancels.
    excess = float(np.abs(moved).max() / np.abs(theta[theta != 0.0]).min())
    return np.asarray(moved * 2.0 ** -max(math.ceil(math.log2(excess)), 0))


def _extremes(study: Study, canary: int) -> dict[str, float | str]:
    """An extreme record: features towards one end, the outcome at one of its own."""
    high, late, share = bool(canary & 1), bool(canary & 2), SHARES[canary // 4]
    record: dict[str, float | str] = {}
    for name, feature in study.features.items():
        if feature.levels is not None:
            record[name] = level_name(feature.levels[-1 if high else 0])
        else:
            least, most = feature.ends
            middle = least + (most - least) / 2.0
            end = most if high else least
            record[name] = end if share == 1.0 else middle + share * (end - middle)
    for name, possible in _outcome_ranges(study.model).items():
        record[name] = possible.extremes[late]
    return record


def _outcome_ranges(model: Model) -> dict[str, OutcomeRange]:
    """What each outcome column of a study may hold, by the user's name for it."""
    ranges, found = model.outcome_ranges, {}
    for role, name in model.outcome_columns().items():
        if role not in ranges:
            raise StudyError(
                f"a model of kind '{model.kind}' does not say what its outcome "
                f"'{role}' may hold, so no rows can be made up",
                where="audit",
                remedy="add this role to the model's outcome_ranges",
            )
        found[name] = ranges[role]
    return found
