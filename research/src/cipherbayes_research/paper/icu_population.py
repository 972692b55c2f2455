"""Simulated stays in intensive care, from what is published about such stays.

No stay of PhysioNet's is read here: settings of private studies are chosen on these
populations (:mod:`cipherbayes_research.paper.search_settings`). Facts and where
they are from:

- the risk of death: the points of SAPS II (Le Gall, Lemeshow and Saulnier 1993, JAMA
  270) and its formula, logit = a + 0.0737 s + 0.9971 ln(s + 1), here of the second of
  two days, with a such that 13 % die, as is usual;
- how ill stays are: a score of 38 in the median, quartiles 27 and 51, in MIMIC-II
  (Pirracchio et al. 2015, Lancet Respir Med 3: 24,508 stays; the challenge's come from
  the same hospital); here 40, 30 and 51;
- how well the score of the first day predicts death: AUC 0.78 there, 0.80 (Granholm et
  al. 2016, PLoS ONE 11), 0.86 (its authors); here 0.81 on average;
- the score transfers badly to other hospitals, and the same variables with new weights
  do much better (Pirracchio); many more variables add little (Johnson et al. 2013, Crit
  Care Med 41: ten suffice);
- normal values and the widths that severity scores look at: the public map.

Assumptions, since nothing better is public: values spread by about half of a
half-width; a stay has a level and wanders around it, so that two statistics of one
variable correlate by about 0.8; variables share a severity that gets better or worse,
and those of one organ a factor of their own; readings are as many, and as often
absent, as is customary for monitors, routine and special tests. What is not known
differs from population to population.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from cipherbayes.typing import Floats
from cipherbayes_research.datasets.physionet2012 import FEATURES, STATIC
from cipherbayes_research.paper.physionet import CORE, LINEAR, LOGARITHMIC, REACH

MORTALITY = 0.13
"""Deaths among stays in intensive care, as is usual."""

DRIFT, UNLISTED = 0.8, 1.5
"""How hospitals differ: the points of each variable are multiplied by e^N(0, DRIFT²),
and a half-width of a variable without points in the score is worth N(0, UNLISTED²)."""

SLOTS = 12
"""Four-hour slots of two days."""

Steps: TypeAlias = tuple[tuple[float, float], ...]
# fmt: off
BELOW: dict[str, Steps] = {
    "GCS": ((14, 5), (11, 7), (9, 13), (6, 26)), "HR": ((70, 2), (40, 11)),
    "SysABP": ((100, 5), (70, 13)), "Urine": ((42, 4), (21, 11)),
    "WBC": ((1, 12),), "K": ((3, 3),), "Na": ((125, 5),), "HCO3": ((20, 3), (15, 6)),
}
"""SAPS II: points below a value (urine in ml an hour)."""
ABOVE: dict[str, Steps] = {
    "Age": ((40, 7), (60, 12), (70, 15), (75, 16), (80, 18)),
    "HR": ((120, 4), (160, 7)), "SysABP": ((200, 2),), "Temp": ((39, 3),),
    "BUN": ((28, 6), (84, 10)), "WBC": ((20, 3),), "K": ((5, 3),), "Na": ((145, 1),),
    "Bilirubin": ((4, 4), (6, 9)),
}
"""Points from a value on."""
OXYGEN: Steps = ((1000, 6), (200, 9), (100, 11))
"""Points below a ratio of PaO2 to FiO2, for ventilated stays alone."""
LACTATE = 47 / 7
"""Points of a half-width: it has none in SAPS II, hence the mean of the other seven
core variables."""

ORGANS = (
    ("BUN", "Creatinine", "Urine", "K"), ("pH", "HCO3", "Lactate", "PaCO2"),
    ("ALT", "AST", "Bilirubin", "ALP"), ("PaO2", "SaO2", "FiO2"),
    ("SysABP", "DiasABP", "MAP", "NISysABP", "NIDiasABP", "NIMAP"),
    ("TroponinI", "TroponinT"), ("HCT", "Albumin", "Platelets"),
)
SPECIAL = ("ALP", "ALT", "AST", "Albumin", "Bilirubin", "Lactate")
SELDOM = ("Cholesterol", "TroponinI", "TroponinT")
BLOOD_GAS = ("pH", "PaCO2", "PaO2", "FiO2", "SaO2")
ARTERIAL = ("SysABP", "DiasABP", "MAP")
MONITORED = ("HR", "RespRate", "Temp", "GCS", "Urine", "NISysABP", "NIDiasABP", "NIMAP")
# fmt: on
WORSE = {name.partition("_")[0]: sign for name, sign in CORE.items()} | {
    "SysABP": -1,
    "NISysABP": -1,
    "MAP": -1,
    "NIMAP": -1,
    "PaO2": -1,
    "FiO2": 1,
}  # fmt: skip
"""Which way severity moves a variable; the others go either way."""

SERIES = tuple(
    dict.fromkeys(name.partition("_")[0] for name in FEATURES[: -len(STATIC)])
)


@dataclass(frozen=True, eq=False)
class Population:
    """Stays of one hospital.

    Attributes
    ----------
    z
        A row for each stay, in half-widths within ±1.5, 0 where there is no reading;
        columns as :data:`cipherbayes_research.datasets.physionet2012.FEATURES`.
    deaths
        1 for a death.
    score
        SAPS II of the first day, as published.
    """

    z: Floats
    deaths: Floats
    score: Floats


def population(stays: int, seed: int) -> Population:
    """Stays that differ from those of another seed in law, too."""
    rng = np.random.default_rng([seed, 1993])
    severity = rng.standard_normal(stays)
    values = _courses(rng, severity)
    static = {
        "Age": np.clip(rng.normal(0.0, 0.7, stays), -2.0, 1.2),
        "Gender": np.where(rng.random(stays) < 0.55, 1.0, -1.0),
        "Height": rng.normal(0.0, 0.5, stays),
        "ICUType": (rng.integers(1, 5, stays) - 2.5) / 1.5,
    }
    ventilated = rng.random(stays) < expit(severity)
    # Chronic disease and the kind of admission: points that no column has.
    unseen = rng.choice([0.0, 6.0, 8.0], stays) + 9.0 * (rng.random(stays) < 0.1)
    known = values | {"Age": static["Age"][:, None]}
    days = slice(0, SLOTS // 2), slice(SLOTS // 2, SLOTS)
    score = unseen + sum(_points(known, ventilated, days[0]).values())
    here = _points(known, ventilated, days[1])
    levels = {name: value[:, days[1]].mean(axis=1) for name, value in values.items()}
    chance = _chances(rng, unseen, here, levels | static)
    deaths = (rng.random(stays) < chance).astype(np.float64)
    columns = [_statistics(rng, name, values[name], severity) for name in SERIES]
    z = np.column_stack([*columns, *(static[name] for name in STATIC)])
    return Population(np.clip(z, -REACH, REACH), deaths, score)


def _courses(rng: np.random.Generator, severity: Floats) -> dict[str, Floats]:
    """Every series in half-widths, a value for each slot."""
    change = 0.5 * rng.standard_normal((severity.size, 1))
    course = severity[:, None] + change * np.linspace(-1.0, 1.0, SLOTS)
    course /= course.std()
    values = {name: _series(rng, name, course) for name in SERIES}
    _share_factors(rng, values)
    spreads = {name: rng.uniform(0.4, 0.7) for name in SERIES}
    centres = {name: rng.normal(0.0, 0.2) for name in SERIES}
    values = {n: centres[n] + spreads[n] * value for n, value in values.items()}
    values["GCS"] = np.minimum(values["GCS"], (15.0 - 13.0) / 6.0)
    return values


def _chances(
    rng: np.random.Generator,
    unseen: Floats,
    points: dict[str, Floats],
    levels: dict[str, Floats],
) -> Floats:
    """Death of each stay, by this hospital's own version of the score."""
    weighted = (np.exp(rng.normal(0.0, DRIFT)) * each for each in points.values())
    total = unseen + sum(weighted)
    for name, level in levels.items():
        if name == "Lactate":
            total += np.exp(rng.normal(0.0, DRIFT)) * LACTATE * level
        elif name not in BELOW and name not in ABOVE:
            total += rng.normal(0.0, UNLISTED) * level
    total = np.maximum(total, 0.0)
    risk = 0.0737 * total + 0.9971 * np.log1p(total)
    a = brentq(lambda a: expit(a + risk).mean() - MORTALITY, -50.0, 50.0)
    return np.asarray(expit(a + risk))


def _series(rng: np.random.Generator, name: str, course: Floats) -> Floats:
    """Level, severity and wandering of one variable, of variance one."""
    share = rng.uniform(0.5, 0.8) * WORSE.get(name, rng.choice((-1.0, 1.0)))
    if name not in WORSE:
        share *= 0.5
    level = rng.standard_normal((len(course), 1))
    wander = rng.standard_normal(course.shape)
    for slot in range(1, SLOTS):
        wander[:, slot] = 0.7 * wander[:, slot - 1] + np.sqrt(0.51) * wander[:, slot]
    own = np.sqrt(0.5) * level + np.sqrt(0.5) * wander
    return np.asarray(share * course + np.sqrt(1.0 - share**2) * own)


def _share_factors(rng: np.random.Generator, values: dict[str, Floats]) -> None:
    """Correlation of 0.5 within an organ, its sign either way."""
    for organ in ORGANS:
        common = rng.standard_normal((len(values[organ[0]]), 1))
        for name in organ:
            sign = WORSE.get(name, rng.choice((-1.0, 1.0)))
            values[name] = np.sqrt(0.5) * (values[name] + sign * common)


def _raw(name: str, z: Floats) -> Floats:
    if name in LINEAR:
        centre, half = LINEAR[name]
        return np.asarray(centre + half * z)
    centre, factor = LOGARITHMIC[name]
    return np.asarray(centre * factor**z)


def _points(
    values: dict[str, Floats], ventilated: np.ndarray, day: slice
) -> dict[str, Floats]:
    """SAPS II of a day: points of each variable's worst value."""
    found: dict[str, Floats] = {}
    for name in dict.fromkeys((*BELOW, *ABOVE)):
        raw = _raw(name, values[name][:, day] if name != "Age" else values[name])
        points = np.zeros(raw.shape)
        for bound, worth in BELOW.get(name, ()):
            points[raw < bound] = worth
        for bound, worth in ABOVE.get(name, ()):
            points[raw >= bound] = worth
        found[name] = points.max(axis=1)
    inspired = np.clip(_raw("FiO2", values["FiO2"][:, day]), 0.21, 1.0)
    ratio = (_raw("PaO2", values["PaO2"][:, day]) / inspired).min(axis=1)
    oxygen = np.zeros(ratio.shape)
    for bound, worth in OXYGEN:
        oxygen[ratio < bound] = worth
    return found | {"oxygen": np.where(ventilated, oxygen, 0.0)}


def _statistics(
    rng: np.random.Generator, name: str, values: Floats, severity: Floats
) -> Floats:
    """Smallest, largest, mean, first and last reading; zeros without any.

    What is not routine is asked for more often when a stay is severe.
    """
    readings, absent = 4, 0.05
    if name in SELDOM:
        readings, absent = 1, 0.85
    elif name in SPECIAL:
        readings, absent = 2, 0.5
    elif name in BLOOD_GAS:
        readings, absent = 6, 0.3
    elif name in ARTERIAL:
        readings, absent = SLOTS, 0.3
    elif name in MONITORED:
        readings, absent = SLOTS, 0.05
    slots = np.linspace(0, SLOTS - 1, readings + 2).round().astype(int)[1:-1]
    if readings == SLOTS:
        slots = np.arange(SLOTS)
    seen = values[:, slots]
    statistics = np.column_stack(
        [seen.min(1), seen.max(1), seen.mean(1), seen[:, 0], seen[:, -1]]
    )
    chance = expit(np.log(1.0 / absent - 1.0) + 0.5 * severity)
    statistics[rng.random(len(values)) >= chance] = 0.0
    return statistics
