"""A posterior in the language of the field: ratios, baseline and median survival.

Everything here is a function of the draws and of the public study alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cipherbayes.data.features import Feature, level_name
from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.rows import Rows
from cipherbayes.models.survival import SurvivalCurves, cause_of
from cipherbayes.models.transforms import transform_named
from cipherbayes.results.record import Baseline, EffectRow, MedianRow, MedianSurvival
from cipherbayes.typing import Floats

Features = Mapping[str, Feature]


def effects(
    model: Model,
    features: Features,
    design: Design,
    user: Floats,
    tail: float | None,
) -> list[EffectRow]:
    """One entry a column: what a step of the feature does, in the model's measure.

    exp(b step) is an odds, hazard or rate ratio, b step a difference; ``estimate`` is
    the median over the draws, so that the effect of a step back is its inverse.

    Parameters
    ----------
    user
        Draws on the user's own units, parameters on the last axis.
    tail
        Probability outside either end of the interval; None where there is none.
    """
    if model.measure is None:
        return []
    flat = user.reshape(-1, user.shape[-1])
    column = {name: j for j, name in enumerate(design.names)}
    entries: list[EffectRow] = []
    for name, per, step in _steps(features):
        values = model.effect(step * flat[:, column[name]])
        found = median_row(values, tail)
        entries.append(
            {
                "name": name,
                "measure": model.measure,
                "estimate": found["estimate"],
                "lower": found["lower"],
                "upper": found["upper"],
                "per": per,
            }
        )
    return entries


def step_words(effect: EffectRow) -> str:
    """The step of an effect in words, with its feature where ``per`` does not say."""
    level, compared, _ = effect["per"].partition(" against ")
    feature = effect["name"].removesuffix(f"[{level}]")
    return f"{feature}: {effect['per']}" if compared else effect["per"]


def baseline(
    model: Model,
    reference: Mapping[str, Any],
    rows: Rows,
    draws: Floats,
    tail: float | None,
) -> Baseline | None:
    """Survival of the reference record; None for a model without curves.

    Parameters
    ----------
    reference, rows
        The record in the user's units, and as it is prepared.
    draws
        Draws on the prepared scale, shape ``(s, d)``.
    """
    if not isinstance(model, SurvivalCurves):
        return None
    times = model.reference_times()
    curve = model.predict(draws, rows, times)[:, 0, :]
    found: Baseline = {
        "at": dict(reference),
        "survival": [
            {"time": float(t), **median_row(curve[:, k], tail)}
            for k, t in enumerate(times)
        ],
        "median": median_survival(model.median(draws, rows)[:, 0], tail),
    }
    cause = cause_of(model)
    if cause is not None:
        found["cause"] = cause
    return found


def median_survival(times: Floats, tail: float | None) -> MedianSurvival:
    """The median survival time over the draws; null where it is not reached by the
    horizon, which ``not_reached`` gives the probability of."""
    never = float(np.mean(np.isinf(times)))
    return {**median_row(times, tail), "not_reached": never}


def held_by_prior(
    names: tuple[str, ...], draws: Floats, mean: Floats, scale: Floats
) -> list[str]:
    """Parameters that only the prior keeps from growing without bound.

    Far from the prior mean (two scales) although still half as wide as the prior: a
    likelihood that grows without end, as under perfect separation or without events in
    a group, or a prior that is too narrow.

    Parameters
    ----------
    draws
        On the prepared scale, shape ``(s, d)``.
    mean, scale
        Of the prior.
    """
    far = np.abs(draws.mean(axis=0) - mean) > 2.0 * scale
    wide = draws.std(axis=0) > 0.5 * scale
    return [name for name, held in zip(names, far & wide, strict=True) if held]


def median_row(values: Floats, tail: float | None) -> MedianRow:
    """Median and interval; order statistics, as an infinite value has no mean."""
    if tail is None:
        middle = np.quantile(values, 0.5, method="inverted_cdf")
        points: list[float | None] = [float(middle), None, None]
    else:
        quantiles = [0.5, tail, 1.0 - tail]
        found = np.quantile(values, quantiles, method="inverted_cdf")
        points = [float(value) for value in found]
    estimate, lower, upper = (
        point if point is not None and math.isfinite(point) else None
        for point in points
    )
    return {"estimate": estimate, "lower": lower, "upper": upper}


def _fitting_step(feature: Feature) -> float | None:
    """A power of ten for a number whose whole public range is shorter than a unit."""
    if feature.transform or feature.low is None or feature.high is None:
        return None
    width = feature.high - feature.low
    return None if width >= 1.0 else 10.0 ** math.floor(math.log10(width / 2.0))


def _steps(features: Features) -> Iterator[tuple[str, str, float]]:
    """Column, what its step is called, and the size of the step."""
    for name, feature in features.items():
        if feature.levels is None:
            transform = transform_named(feature.transform)
            words, step = transform.step, transform.step_size
            per = feature.per or _fitting_step(feature)
            if per is not None:
                words, step = f"{per:g} units of {{}}", per
            yield name, words.format(name), step
        else:
            first, *others = map(level_name, feature.levels)
            for level in others:
                yield f"{name}[{level}]", f"{level} against {first}", 1.0
        if feature.indicator:
            stand_in = level_name(feature.stand_in)
            yield f"{name}[missing]", f"missing against {stand_in}", 1.0
