"""Competing causes: cumulative incidences from one study for each cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cipherbayes.errors import RunError
from cipherbayes.models.rows import Rows
from cipherbayes.models.survival import cause_of, horizon_of
from cipherbayes.results.predictions import PREDICTIVE_DRAWS
from cipherbayes.results.result import Result
from cipherbayes.typing import Floats

FEW_ROWS = 4
STEPS = 200
"""Steps in which the time up to the last one asked for is gone through."""


def cumulative_incidence(
    results: Mapping[str, Result],
    table: Any,
    times: Sequence[float],
    *,
    seed: int = 1,
) -> dict[str, dict[str, Floats]]:
    """Probability of an event of each cause by given times, for each row of a table.

    The likelihood of competing causes is a product of one factor for each cause, with
    the other causes censored; so a study of each (``cause`` of a survival model) is all
    there is to fit, and posteriors are independent where priors are. With S the
    product of the causes' exp(-Λ_k),

        F_k(t) = ∫ S(u) dΛ_k(u), u from 0 to t,

    in short steps in which hazards keep their proportions (Prentice et al. 1978,
    Biometrics 34).

    Parameters
    ----------
    results
        Name of each cause -> its result; all causes, or the others count as censoring
        that could have been avoided.
    table
        A path or a frame with the features of all the studies.
    times
        In the user's unit, rising, none beyond the horizon of a study.

    Returns
    -------
    dict
        For each cause ``mean``, ``lower`` and ``upper``, of shape ``(rows, times)``;
        and ``none``, the probability of no event yet.
    """
    at = np.asarray(times, dtype=float)
    if len(results) < 2:
        raise RunError(
            "needs the results of two or more causes",
            where="cumulative_incidence",
            remedy="with one cause, predict gives survival",
        )
    if at.ndim != 1 or at.size == 0 or not np.all(np.diff(at, prepend=0.0) > 0.0):
        raise RunError("times must rise and be positive", where="cumulative_incidence")
    for name, result in results.items():
        if not result.study.model.predicts_over_time:
            raise RunError(
                f"the study of '{name}' has no survival times",
                where="cumulative_incidence",
                remedy="give results of survival models",
            )
    _require_other_causes(results)
    _require_horizon(results, float(at[-1]))
    # All the steps, and the times that are asked for among them.
    grid = np.unique(np.concatenate([np.linspace(0.0, at[-1], STEPS + 1), at]))
    asked = np.searchsorted(grid, at)
    draws = _reordered(results, np.random.default_rng(seed))
    blocks = [_in_small_blocks(result.rows_of(table)) for result in results.values()]
    parts = [
        _incidences(results, draws, rows, grid)[..., asked]
        for rows in zip(*blocks, strict=True)
    ]
    whole = np.concatenate(parts, axis=2)
    spread = all(result.has_intervals for result in results.values())
    first = next(iter(results.values()))
    tail = (1.0 - first.study.inference.interval) / 2.0
    summary: dict[str, dict[str, Floats]] = {}
    for k, name in enumerate([*results, "none"]):
        mean = lower = upper = whole[k].mean(axis=0)
        if spread:
            lower, upper = np.quantile(whole[k], [tail, 1.0 - tail], axis=0)
        summary[name] = {"mean": mean, "lower": lower, "upper": upper}
    return summary


def _require_other_causes(results: Mapping[str, Result]) -> None:
    """Refuse an event that two of the studies count."""
    seen: dict[str, dict[Any, str]] = {}
    for name, result in results.items():
        model = result.study.model
        cause = cause_of(model)
        others = seen.setdefault(model.outcome_columns()["event"], {})
        # Without a cause a study counts every event of its column.
        twin = others.get(cause, others.get(None))
        if cause is None and others:
            twin = next(iter(others.values()))
        if twin is not None:
            raise RunError(
                f"the studies of '{twin}' and '{name}' model the same events",
                where="cumulative_incidence",
                remedy="give each cause once, with a study of its own (model.cause)",
            )
        others[cause] = name


def _require_horizon(results: Mapping[str, Result], last: float) -> None:
    for name, result in results.items():
        horizon = horizon_of(result.study.model)
        if horizon is not None and last > horizon:
            raise RunError(
                f"times go beyond the horizon of the study of '{name}'",
                where="cumulative_incidence",
                remedy="ask for times up to the shortest horizon",
            )


def _in_small_blocks(blocks: Iterator[Rows]) -> Iterator[Rows]:
    """Few rows at a time: there are many draws and steps of each."""
    for block in blocks:
        for start in range(0, block.count, FEW_ROWS):
            part = slice(start, start + FEW_ROWS)
            yield Rows(block.design, block.x[:, part], {}, block.squared_norms[part])


def _reordered(
    results: Mapping[str, Result], rng: np.random.Generator
) -> dict[str, Floats]:
    """As many draws of each result, in an order of their own."""
    found = {name: result.draws() for name, result in results.items()}
    count = min(PREDICTIVE_DRAWS, *(len(draws) for draws in found.values()))
    return {
        name: draws[rng.choice(len(draws), count, replace=False)]
        for name, draws in found.items()
    }


def _incidences(
    results: Mapping[str, Result],
    draws: Mapping[str, Floats],
    rows: Sequence[Rows],
    grid: Floats,
) -> Floats:
    """F_k of each cause and S, shape ``(causes + 1, draws, rows, steps)``."""
    hazards = []
    for (name, result), own in zip(results.items(), rows, strict=True):
        survival = result.study.model.predict(draws[name], own, grid)
        hazards.append(-np.log(np.maximum(survival, 1e-300)))
    steps = np.diff(np.stack(hazards), axis=-1, prepend=0.0)
    total = steps.sum(axis=0)
    before = np.exp(-(np.cumsum(total, axis=-1) - total))
    share = steps / np.where(total > 0.0, total, 1.0)
    incidence = np.cumsum(before * -np.expm1(-total) * share, axis=-1)
    none = 1.0 - incidence.sum(axis=0, keepdims=True)
    return np.concatenate([incidence, none])
