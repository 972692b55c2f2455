"""A study that checks and describes itself, and a run of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import cipherbayes as cb
from conftest import logistic_frame

ROWS = 3000
STUDY = """
[study]
name = "{name}"
protocol = "{protocol}"
[model]
kind = "logistic"
outcome = "death"
[features]
age = {{ low = 18, high = 100 }}
sex = {{ levels = ["F", "M"] }}
[privacy]
epsilon = 8.0
records = 6000
{unit}
[inference]
method = "{method}"
[evaluation]
holdout = 0.3
[describe]
by = ["site"]
share = 0.1
[sites]
north = {{ data = "north.csv" }}
south = {{ data = "south.csv" }}
"""


def write(folder: Path, protocol: str, method: str, name: str = "checked") -> Path:
    for seed, site in enumerate(("north", "south")):
        frame = logistic_frame(ROWS, seed).assign(patient=np.arange(ROWS))
        frame.to_csv(folder / f"{site}.csv", index=False)
    path = folder / f"{name}.toml"
    unit = 'unit = "patient"' if method == "noise-aware" else ""
    said = STUDY.format(name=name, protocol=protocol, method=method, unit=unit)
    path.write_text(said)
    return path


def run_of(folder: Path, method: str) -> Path:
    """The folder, with a federated run of such a study in it."""
    study = cb.Study.load(write(folder, "secure-sum", method))
    cb.run(study, out=folder / "out")
    return folder
