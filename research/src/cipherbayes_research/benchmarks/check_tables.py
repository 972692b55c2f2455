"""The tables that checks of predictions are measured on, by name.

Priors of the checks were chosen on the tables of :data:`TUNING`; what is reported comes
from those of :data:`REPORTED` and from PhysioNet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from cipherbayes.typing import Floats
from cipherbayes_research.benchmarks.check_populations import (
    Population,
    copies,
    count,
    invented_binary,
    invented_count,
    invented_number,
    invented_survival,
    number,
    real_binary,
    real_survival,
)
from cipherbayes_research.benchmarks.misfitted_populations import (
    bent_effect,
    detection_limits,
    either_side,
    far_out,
    heavy_tails,
    illnesses,
    misfitted_binary,
    misfitted_survival,
    plain,
    skewed_value,
    three_signs,
    troponin,
    two_binary,
    wards,
    zero_inflated,
)


def _dummies(frame: pd.DataFrame) -> pd.DataFrame:
    found: pd.DataFrame = pd.get_dummies(frame, drop_first=True).astype(float)
    return found.fillna(found.median())


def _sksurv(kind: str, name: str, horizon: float, fitted_on: int) -> Population:
    from sksurv import datasets

    x, y = getattr(datasets, f"load_{name}")()
    event, time = (y[field].astype(np.float64) for field in y.dtype.names)
    if name == "flchain":
        x = x.drop(columns=["chapter", "flc.grp"])
        time = np.maximum(time, 1.0)
    return real_survival(kind, _dummies(x), time / horizon, event, fitted_on)


def _lifelines(kind: str, name: str, horizon: float, fitted_on: int) -> Population:
    from lifelines import datasets

    frame = getattr(datasets, f"load_{name}")()
    time, event = {"rossi": ("week", "arrest"), "kidney_transplant": ("time", "death")}[
        name
    ]
    seen = np.maximum(frame[time].to_numpy().astype(np.float64), 0.5) / horizon
    died = frame[event].to_numpy().astype(np.float64)
    return real_survival(
        kind, frame.drop(columns=[time, event]).astype(float), seen, died, fitted_on
    )


def _lung() -> Population:
    from lifelines.datasets import load_lung

    frame = load_lung().astype(float)
    frame = frame.fillna(frame.median())
    time, died = frame.pop("time") / 700.0, frame.pop("status")
    return real_survival("weibull", frame, time.to_numpy(), died.to_numpy(), 90)


def _governments() -> Population:
    """How long governments last (Cheibub, Gandhi and Vreeland 2010)."""
    from lifelines.datasets import load_dd

    frame = load_dd()
    x = _dummies(frame[["un_continent_name", "democracy", "regime", "start_year"]])
    time = frame["duration"].to_numpy().astype(np.float64) / 12.0
    ended = frame["observed"].to_numpy().astype(np.float64)
    return real_survival("exponential", x, time, ended, 400)


def _fair() -> Population:
    from statsmodels.datasets import fair

    frame = fair.load_pandas().data
    y = (frame["affairs"] > 0.0).to_numpy().astype(np.float64)
    return real_binary(frame.drop(columns="affairs"), y, 400)


def _breast() -> Population:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True)
    y = data.target.to_numpy().astype(np.float64)
    return real_binary(data.data.iloc[:, [1, 4, 8, 9, 11]], y, 150)


def _physionet(archive: Path) -> Population:
    from cipherbayes_research.datasets.physionet2012 import OUTCOME, load_physionet2012

    frame = load_physionet2012(archive, missing="mean").to_pandas()
    wanted = ["Age", "GCS_last", "BUN_last", "Urine_last", "HR_last", "HCO3_last"]
    y = frame[OUTCOME].to_numpy().astype(np.float64)
    return real_binary(frame[wanted], y, 800)


def _rossi() -> Population:
    from lifelines.datasets import load_rossi

    frame = load_rossi()
    y = frame["arrest"].to_numpy().astype(np.float64)
    return real_binary(frame.drop(columns=["week", "arrest"]), y, 150)


def _whas500_year() -> Population:
    from sksurv.datasets import load_whas500

    x, y = load_whas500()
    died = (y["fstat"] & (y["lenfol"] <= 365.0)).astype(np.float64)
    return real_binary(_dummies(x), died, 150)


def _diabetes() -> Population:
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import LinearRegression

    data = load_diabetes(as_frame=True)
    y = (data.target.to_numpy() - 150.0) / 40.0
    model = LinearRegression().fit(data.data.iloc[:150], y[:150])
    return number(np.clip(model.predict(data.data), -5.0, 5.0), y)


def _kappa() -> Population:
    """Free light chains by age, sex and creatinine: a number with a long tail."""
    from sklearn.linear_model import LinearRegression
    from sksurv.datasets import load_flchain

    frame, _ = load_flchain()
    x = _dummies(frame[["age", "sex", "creatinine"]])
    y = np.log(frame["kappa"].to_numpy().astype(np.float64))
    place = np.random.default_rng(0).permutation(y.size)
    first, rest = place[:1000], place[1000:]
    y = (y - y[first].mean()) / y[first].std()
    model = LinearRegression().fit(x.iloc[first], y[first])
    return number(np.clip(model.predict(x.iloc[rest]), -5.0, 5.0), y[rest])


def _visits() -> Population:
    """Visits to a doctor (RAND health insurance experiment)."""
    from sklearn.linear_model import PoissonRegressor
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    y = frame.pop("mdvis").to_numpy().astype(np.float64)
    z = (frame - frame.mean()) / frame.std()
    place = np.random.default_rng(0).permutation(y.size)
    first, rest = place[:2000], place[2000:]
    mean = PoissonRegressor(alpha=0.01).fit(z.iloc[first], y[first]).predict(z)
    excess = (y[first] - mean[first]) ** 2 - y[first]
    dispersion = float(excess.sum() / (mean[first] ** 2).sum())
    return count(mean[rest], y[rest], dispersion)


def _counted(frame: pd.DataFrame, y: Floats, fitted_on: int) -> Population:
    """A real column of counts, predicted by a regression on the first rows."""
    from sklearn.linear_model import PoissonRegressor

    z = (frame - frame.mean()) / frame.std()
    place = np.random.default_rng(0).permutation(y.size)
    first, rest = place[:fitted_on], place[fitted_on:]
    mean = PoissonRegressor(alpha=0.1).fit(z.iloc[first], y[first]).predict(z)
    excess = (y[first] - mean[first]) ** 2 - y[first]
    dispersion = max(float(excess.sum() / (mean[first] ** 2).sum()), 0.01)
    rows, score = copies(np.log(mean[rest]))
    return count(np.exp(score), y[rest][rows], dispersion)


def _convictions() -> Population:
    """Earlier convictions of released prisoners (Rossi)."""
    from lifelines.datasets import load_rossi

    frame = load_rossi().drop(columns=["week", "arrest"]).astype(float)
    return _counted(frame, frame.pop("prio").to_numpy(), 150)


def _nodes() -> Population:
    """Positive lymph nodes (GBSG2)."""
    from sksurv.datasets import load_gbsg2

    frame = _dummies(load_gbsg2()[0])
    return _counted(frame, frame.pop("pnodes").to_numpy(), 250)


def _stay() -> Population:
    """Days in hospital (WHAS500)."""
    from sksurv.datasets import load_whas500

    frame = _dummies(load_whas500()[0])
    return _counted(frame, frame.pop("los").to_numpy(), 200)


Maker = Callable[[np.random.Generator], Population]

TUNING: dict[str, Maker] = {
    "calibrated": partial(invented_binary, "calibrated"),
    "two groups": partial(invented_binary, "two groups"),
    "breast": lambda rng: _breast(),
    "whas500 in a year": lambda rng: _whas500_year(),
    "exponential": partial(invented_survival, "exponential"),
    "gbsg2": lambda rng: _sksurv("weibull", "gbsg2", 1825.0, 200),
    "whas500": lambda rng: _sksurv("piecewise", "whas500", 1460.0, 150),
    "veterans": lambda rng: _sksurv("exponential", "veterans_lung_cancer", 300.0, 50),
    "lung": lambda rng: _lung(),
    "governments": lambda rng: _governments(),
    "normal": partial(invented_number, "normal"),
    "poisson": partial(invented_count, "poisson"),
    "skewed errors": partial(invented_number, "skewed"),
    "diabetes": lambda rng: _diabetes(),
    "overdispersed": partial(invented_count, "overdispersed"),
    "abrupt counts": partial(invented_count, "abrupt"),
    "edge of counts": partial(invented_count, "edge"),
    "counts of two": partial(invented_count, "two groups"),
    "stay": lambda rng: _stay(),
    "two binary": partial(misfitted_binary, two_binary, 0.25),
    "zero inflated": partial(misfitted_binary, zero_inflated, 0.2),
    "far out": partial(misfitted_binary, far_out, 0.25),
    "bent effect": partial(misfitted_binary, bent_effect, 0.3),
    "rare": partial(misfitted_binary, skewed_value, 0.04),
    "plain": partial(misfitted_binary, plain, 0.3),
    "illnesses": partial(misfitted_binary, illnesses, 0.15),
    "detection limits": partial(misfitted_binary, detection_limits, 0.35),
    "lumpy survival": partial(misfitted_survival, two_binary, 0.3),
    "zeros in survival": partial(misfitted_survival, zero_inflated, 0.25),
    "rare events": partial(misfitted_survival, skewed_value, 0.04),
}
REPORTED: dict[str, Maker] = {
    "narrow": partial(invented_binary, "narrow"),
    "skewed": partial(invented_binary, "skewed"),
    "bent": partial(invented_binary, "bent"),
    "rossi": lambda rng: _rossi(),
    "fair": lambda rng: _fair(),
    "weibull": partial(invented_survival, "weibull"),
    "piecewise": partial(invented_survival, "piecewise"),
    "flchain": lambda rng: _sksurv("exponential", "flchain", 3650.0, 1000),
    "aids": lambda rng: _sksurv("exponential", "aids", 300.0, 400),
    "rossi arrests": lambda rng: _lifelines("exponential", "rossi", 52.0, 150),
    "kidney": lambda rng: _lifelines("weibull", "kidney_transplant", 2555.0, 300),
    "heavy tails": partial(invented_number, "heavy tails"),
    "uneven": partial(invented_number, "uneven"),
    "kappa": lambda rng: _kappa(),
    "shrunk counts": partial(invented_count, "shrunk"),
    "too many": partial(invented_count, "too many"),
    "visits": lambda rng: _visits(),
    "convictions": lambda rng: _convictions(),
    "nodes": lambda rng: _nodes(),
    "wards": partial(misfitted_binary, wards, 0.2),
    "troponin": partial(misfitted_binary, troponin, 0.12),
    "tails of a value": partial(misfitted_binary, heavy_tails, 0.35),
    "either side": partial(misfitted_binary, either_side, 0.25),
    "three signs": partial(misfitted_binary, three_signs, 0.04),
    "wards over time": partial(misfitted_survival, wards, 0.3),
    "troponin over time": partial(misfitted_survival, troponin, 0.15),
    "rare over time": partial(misfitted_survival, three_signs, 0.04),
}


def population(name: str, seed: int, physionet: Path | None) -> Population:
    """The table of a name."""
    if name == "physionet":
        if physionet is None:
            raise ValueError("physionet needs the archive of the challenge")
        return _physionet(physionet)
    return (TUNING | REPORTED)[name](np.random.default_rng(seed))
