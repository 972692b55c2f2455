"""Coverage of private intervals on real covariates, with ranges too wide.

Covariates are those of public tables, outcomes are simulated from stated truths, so
that the truth is known. Every study is one ``cb.run`` with default settings (pooled);
the control is the non-private posterior of the same outcomes, with the same prior per
standard deviation, as the normal around its mode. Tables with fewer rows than asked for
are drawn from with replacement.

    python research/benchmarks/real_tables.py --half report --out report.jsonl
    python research/benchmarks/real_tables.py --summary report.jsonl

Constants of :mod:`cipherbayes.data.windows` were chosen on made-up columns and on the
tables of the half ``tune``; numbers that are reported come from the half ``report``.
PhysioNet is left out unless ``--physionet set-a.tar.gz`` is given.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

import cipherbayes as cb
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.models import Design
from cipherbayes.models.prior import EFFECTS, WIDE

HALVES = {
    "tune": ("flchain", "gbsg2", "breast"),
    "report": ("whas500", "rossi", "diabetes", "physionet"),
}
HORIZON = 10.0
TRUTHS = {"clinical": 0.4, "prior": EFFECTS}


def table_named(name: str, physionet: Path | None) -> pd.DataFrame:
    """Covariates of a public table: numbers and texts, none missing."""
    if name == "flchain":
        from sksurv.datasets import load_flchain

        frame = load_flchain()[0][["age", "sex", "kappa", "lambda", "creatinine"]]
        return frame.assign(creatinine=frame["creatinine"].fillna(1.0))
    if name == "gbsg2":
        from sksurv.datasets import load_gbsg2

        return load_gbsg2()[0]
    if name == "whas500":
        from sksurv.datasets import load_whas500

        columns = ["age", "bmi", "diasbp", "sysbp", "hr", "gender", "afb", "chf", "sho"]
        return load_whas500()[0][columns]
    if name == "rossi":
        from lifelines.datasets import load_rossi

        frame = load_rossi().drop(columns=["week", "arrest"])
        texts = ["fin", "race", "wexp", "mar", "paro"]
        return frame.astype(dict.fromkeys(texts, str))
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        frame = load_diabetes(as_frame=True, scaled=False).data
        return frame[["age", "sex", "bmi", "bp", "s3", "s5", "s6"]].astype({"sex": str})
    if name == "breast":
        from sklearn.datasets import load_breast_cancer

        frame = load_breast_cancer(as_frame=True).data
        return frame.iloc[:, [0, 1, 4, 7, 8, 14, 19]]
    assert name == "physionet"
    assert physionet is not None
    from cipherbayes_research.datasets.physionet2012 import load_physionet2012

    frame = load_physionet2012(physionet, missing="keep").to_pandas()
    wanted = ["Age", "GCS_last", "BUN_last", "Urine_last", "HR_last", "HCO3_last"]
    return frame[wanted].dropna()


def drawn(frame: pd.DataFrame, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """As many rows, with replacement where there are fewer."""
    places = rng.choice(len(frame), rows, replace=len(frame) < rows)
    chosen = frame.iloc[places].reset_index(drop=True)
    chosen.columns = [str(c).replace(" ", "_") for c in chosen.columns]
    return chosen


def features_of(frame: pd.DataFrame, width: float) -> dict[str, dict[str, Any]]:
    """Ranges as a code book has them, so many times too wide."""
    features: dict[str, dict[str, Any]] = {}
    for name, column in frame.items():
        if column.dtype.kind not in "fi":
            features[str(name)] = {"levels": sorted(map(str, column.unique()))}
            continue
        values = column.to_numpy(float)
        skewed = values.min() > 0.0 and pd.Series(values).skew() > 1.5
        f = np.log if skewed else np.asarray
        low, high = np.quantile(f(values), [0.001, 0.999])
        centre, half = (low + high) / 2.0, 1.1 * width * (high - low) / 2.0
        ends = centre - half, centre + half
        if skewed:
            ends = (math.exp(max(ends[0], -300.0)), math.exp(min(ends[1], 300.0)))
        features[str(name)] = {"low": ends[0], "high": ends[1]}
        if skewed:
            features[str(name)]["transform"] = "log"
    return features


def design_of(frame: pd.DataFrame, features: dict[str, Any]) -> pd.DataFrame:
    """Columns on which effects are linear, in the user's units."""
    columns: dict[str, Any] = {}
    for name, feature in features.items():
        if "levels" in feature:
            for level in feature["levels"][1:]:
                columns[f"{name}[{level}]"] = (frame[name].astype(str) == level) * 1.0
            continue
        values = frame[name].to_numpy(float)
        logged = feature.get("transform") == "log"
        columns[name] = np.log(values) if logged else values
    return pd.DataFrame(columns)


def simulated(
    kind: str, x: np.ndarray, beta: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Outcomes of standardised rows, two in five with the event."""
    eta = x @ beta[1:] + beta[0]
    if kind == "logistic":
        return {"y": (rng.random(len(x)) < 1.0 / (1.0 + np.exp(-eta))) * 1.0}
    life = rng.exponential(size=len(x)) * HORIZON / np.exp(eta)
    end = rng.uniform(0.3, 1.0, len(x)) * HORIZON
    return {"time": np.minimum(life, end), "event": (life <= end) * 1.0}


def model_of(kind: str) -> Any:
    if kind == "logistic":
        return cb.models.Logistic(outcome="y")
    return cb.models.Exponential(time="time", event="event", horizon=HORIZON)


def control(kind: str, x: np.ndarray, outcome: dict[str, np.ndarray]) -> Any:
    """Mode and standard deviations without privacy, on standardised columns."""
    model = model_of(kind)
    width = x.shape[1] + 1
    names = ("intercept", *(f"c{j}" for j in range(width - 1)))
    design = Design(names, np.zeros(width), np.ones(width), 1.0)
    roles = model.prepare_outcome(
        {r: outcome[c] for r, c in model.outcome_columns().items()}
    )
    full = np.vstack([np.ones(len(x)), x.T])
    table = PreparedTable.from_arrays(design, full, roles)
    precision = 1.0 / np.array([WIDE, *[EFFECTS] * (width - 1)]) ** 2
    (rows,) = list(table.blocks()) if len(x) <= 16384 else (None,)

    def slope(theta: np.ndarray) -> np.ndarray:
        score = model.gradients(theta, rows).score
        return np.asarray(precision * theta - rows.x @ score)  # type: ignore[union-attr]

    def loss(theta: np.ndarray) -> float:
        likelihood = float(model.log_likelihood(theta, rows).sum())
        return 0.5 * float(precision @ theta**2) - likelihood

    found = minimize(loss, np.zeros(width), jac=slope, method="BFGS")
    steps = 1e-4 * np.eye(width)
    hessian = np.stack(
        [(slope(found.x + s) - slope(found.x - s)) / 2e-4 for s in steps]
    )
    return found.x, np.sqrt(np.diag(np.linalg.inv(0.5 * (hessian + hessian.T))))


def one(
    name: str, kind: str, truth: str, arguments: argparse.Namespace, seed: int
) -> list[dict[str, Any]]:
    """All widths of one table, truth and set of outcomes."""
    rng = np.random.default_rng([seed, sum(map(ord, name + kind + truth))])
    frame = drawn(table_named(name, arguments.physionet), arguments.rows, rng)
    raw = design_of(frame, features_of(frame, 1.0))
    keep = raw.columns[raw.std() > 0]
    raw = raw[keep]
    centre, spread = raw.mean().to_numpy(), raw.std().to_numpy()
    x = (raw.to_numpy() - centre) / spread
    beta = np.array([-0.5, *rng.normal(0.0, TRUTHS[truth], x.shape[1])])
    outcome = simulated(kind, x, beta, rng)
    mode, sds = control(kind, x, outcome)
    plain = np.abs(mode - beta)[1:] <= 1.645 * sds[1:]
    found = []
    for method, width in arguments.arms:
        study = cb.Study(
            study={"protocol": "pooled"},
            model=model_of(kind),
            features=features_of(frame, width),
            privacy={"epsilon": arguments.epsilon, "records": arguments.rows},
            preparation={} if method == "default" else {"method": method},
            sites={"all": {}},
        )
        start = time.perf_counter()
        result = cb.run(study, {"all": frame.assign(**outcome)})
        by_name = {p["name"]: p for p in result.record["posterior"]}
        rows = [by_name[c] for c in raw.columns]
        lower = np.array([r["lower"] for r in rows]) * spread
        upper = np.array([r["upper"] for r in rows]) * spread
        held = (lower <= beta[1:]) & (beta[1:] <= upper)
        flags = result.record["flags"]
        scales = result.record["moments"]
        ratio = None
        if scales is not None and len(scales) == 2 * len(raw.columns):
            half = [
                study.features[c].affine()[1] if c in study.features else 1.0
                for c in raw.columns
            ]
            ratio = (np.array(scales)[len(half) :] * half / spread).tolist()
        found.append(
            {
                "table": name, "kind": kind, "truth": truth, "seed": seed,
                "method": study.preparation_method, "width": width,
                "epsilon": arguments.epsilon, "rows": arguments.rows,
                "held": held.tolist(), "plain": plain.tolist(),
                "ratio": ((upper - lower) / (3.29 * sds[1:])).tolist(),
                "flags": sorted({f["code"] for f in flags}),
                "unusable": any(f["unusable"] for f in flags),
                "scales": ratio, "seconds": time.perf_counter() - start,
            }
        )  # fmt: skip
    return found


def summarised(path: Path) -> None:
    """Coverage, paired difference and width of each group, errors over studies."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        key = row["truth"], row["epsilon"], row["method"], row["width"]
        groups[key].append(row)
        groups[(row["truth"], row["epsilon"], row["method"], row["table"])].append(row)
    print("| truths | ε | method | width or table | private | control | difference |"
          " width | unusable | studies |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for key, rows in sorted(groups.items(), key=str):
        private = np.array([np.mean(r["held"]) for r in rows])
        plain = np.array([np.mean(r["plain"]) for r in rows])
        error = math.sqrt(max(len(rows), 1))
        apart = private - plain
        width = np.median([np.median(r["ratio"]) for r in rows])
        print(
            f"| {key[0]} | {key[1]:g} | {key[2]} | {key[3]} | {private.mean():.3f} ± "
            f"{private.std() / error:.3f} | {plain.mean():.3f} | {apart.mean():+.3f} ± "
            f"{apart.std() / error:.3f} | {width:.2f} | "
            f"{sum(r['unusable'] for r in rows)} | {len(rows)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=HALVES, default="report")
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--kinds", nargs="*", default=["logistic", "exponential"])
    parser.add_argument("--truths", nargs="*", default=["clinical"])
    parser.add_argument("--widths", nargs="*", type=float, default=[1, 3, 10, 30])
    parser.add_argument("--also", nargs="*", default=["public-bounds:1"])
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, nargs=2, default=[0, 4])
    parser.add_argument("--physionet", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summary", type=Path)
    arguments = parser.parse_args()
    if arguments.summary is not None:
        summarised(arguments.summary)
        return
    arguments.arms = [("default", w) for w in arguments.widths]
    for text in arguments.also:
        method, _, width = text.partition(":")
        arguments.arms.append((method, float(width or 1)))
    tables = arguments.tables or [
        t for t in HALVES[arguments.half] if t != "physionet" or arguments.physionet
    ]
    for seed in range(*arguments.seeds):
        for name in tables:
            for kind in arguments.kinds:
                for truth in arguments.truths:
                    for row in one(name, kind, truth, arguments, seed):
                        line = json.dumps(row)
                        print(line[:160], flush=True)
                        if arguments.out is not None:
                            with arguments.out.open("a") as file:
                                file.write(line + "\n")


if __name__ == "__main__":
    main()
