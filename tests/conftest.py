"""Shared fixtures: simulated tables, small studies, and the real data if present."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

STATE = "CIPHERBAYES_STATE"


def pytest_configure(config: pytest.Config) -> None:
    """Keys, marks and register of the tests: never those of whoever runs them."""
    config.stash[_STATE] = tempfile.mkdtemp(prefix="cipherbayes-state-")
    os.environ[STATE] = config.stash[_STATE]


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_STATE], ignore_errors=True)


_STATE = pytest.StashKey[str]()


def another_owner() -> None:
    """Forget which tables were seen: those to come are another hospital's."""
    shutil.rmtree(Path(os.environ[STATE]) / "tables", ignore_errors=True)


@pytest.fixture(autouse=True)
def _a_new_owner() -> None:
    """Tests use the same simulated tables again and again."""
    another_owner()


@pytest.fixture(scope="session")
def physionet_archive() -> Path:
    """The challenge's training set A, which is not part of the project."""
    path = SHARED / "physionet2012" / "set-a.tar.gz"
    if not path.exists():
        pytest.skip("PhysioNet 2012 is not beside the project")
    return path


def logistic_frame(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Rows of a known logistic model in a clinic's own units."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(20, 90, n)
    sex = rng.choice(["F", "M"], n)
    eta = -1.0 + 0.04 * (age - 55) + 0.5 * (sex == "M")
    death = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    return pd.DataFrame({"age": age, "sex": sex, "death": death})


def survival_frame(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Rows of a known exponential survival model, times in days."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(20, 90, n)
    time = rng.exponential(1000 * np.exp(-0.03 * (age - 55)))
    event = (time < 1500).astype(int)
    time = np.minimum(time, 1500.0) + 1e-3
    return pd.DataFrame({"age": age, "time": time, "event": event})


LOGISTIC = """
[study]
name = "small"
[model]
kind = "logistic"
outcome = "death"
[features]
age = { low = 18, high = 100 }
sex = { levels = ["F", "M"] }
"""


@pytest.fixture
def study_folder(tmp_path: Path) -> Path:
    """A folder with study.toml and two sites' tables."""
    logistic_frame(seed=1).to_csv(tmp_path / "north.csv", index=False)
    logistic_frame(seed=2).to_csv(tmp_path / "south.csv", index=False)
    sites = '[sites]\nnorth = { data = "north.csv" }\nsouth = { data = "south.csv" }\n'
    (tmp_path / "study.toml").write_text(LOGISTIC + sites, encoding="utf-8")
    return tmp_path
