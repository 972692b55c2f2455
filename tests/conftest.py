"""Shared fixtures: simulated tables, small studies, and the real data if present."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings

# No example is late: a machine that does other things too may take any time for it.
settings.register_profile(
    "cipherbayes",
    max_examples=50,  # new ones in every run
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# For `make check`; `make test` has more examples of a property.
settings.register_profile("quick", settings.get_profile("cipherbayes"), max_examples=10)
settings.load_profile("cipherbayes")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

STATE = "CIPHERBAYES_STATE"


def pytest_configure(config: pytest.Config) -> None:
    """Keys, marks and register of the tests: never those of whoever runs them.

    In memory where possible, and temporary folders beside those of the tests: parties
    wait for the disk at every round.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    config.stash[_STATE] = tempfile.mkdtemp(prefix="cipherbayes-state-", dir=memory)
    os.environ[STATE] = config.stash[_STATE]
    base = config.getoption("basetemp")
    if base:
        os.environ["TMPDIR"] = str(Path(base).absolute().parent)
        tempfile.tempdir = None  # read again


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_STATE], ignore_errors=True)


_STATE = pytest.StashKey[str]()


# -- two workers -------------------------------------------------------------

FINISHED_RUNS = (
    "tests/cli/test_watch.py",
    "tests/report/test_report_browser.py",
    "tests/report/test_report_page.py",
    "tests/report/test_report_reading.py",
    "tests/validation/test_verify.py",
    "tests/validation/test_verify_tampering.py",
)
"""Modules that share the runs of finished_runs.py: one worker makes them for all."""

PAPER_CLAIMS = (
    "tests/cli/test_private.py",
    "tests/protocols/as_printed/test_paper_claim.py",
    "tests/research/test_reproduce_command.py",
)
"""Modules that ask for the honest ε of the same settings, five seconds each."""

FIRST = (
    "tests/flare/test_flare_run.py",
    *FINISHED_RUNS,
    *PAPER_CLAIMS,
    "tests/test_docs_run.py",
    "tests/test_notebooks.py",
    "tests/research/test_reproduce_experiments.py",
)
"""Modules that take longest, or wait for other programs: none is left for the end."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BySharedWork(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            shared = (group for group in (FINISHED_RUNS, PAPER_CLAIMS) if file in group)
            return next(shared, (file,))[0]

    return BySharedWork(config, log)


NEEDED = {"slow": {"browser", "machines", "wheel"}, "realdata": {"physionet_archive"}}
"""What a test must be marked as, by fixtures that it uses."""


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Marks are checked where fixtures tell; under xdist long modules come first."""
    for item in items:
        for mark, fixtures in NEEDED.items():
            if fixtures & set(getattr(item, "fixturenames", ())) and not (
                item.get_closest_marker(mark) or item.get_closest_marker("torture")
            ):
                raise pytest.UsageError(f"{item.nodeid} is not marked as {mark}")
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        first = {config.rootpath / name: place for place, name in enumerate(FIRST)}
        items.sort(
            key=lambda item: (
                first.get(item.path, len(first)),
                item.path not in slow,
            )
        )


def pytest_collection_finish() -> None:
    """What is imported by now stays: collections of garbage need not look at it."""
    gc.collect()
    gc.freeze()


def needs(module: str) -> pytest.MarkDecorator:
    """Skips where a library is not installed, without importing it to find out."""
    missing = find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed")


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
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at no figure which the number of draws would change."""
    from cipherbayes.inference.noise_aware import Effort

    effort = Effort(warm_up=60, kept=100, doublings=1)
    monkeypatch.setattr(Effort, "for_dimension", lambda dimension: effort)


@pytest.fixture
def study_folder(tmp_path: Path) -> Path:
    """A folder with study.toml and two sites' tables."""
    logistic_frame(seed=1).to_csv(tmp_path / "north.csv", index=False)
    logistic_frame(seed=2).to_csv(tmp_path / "south.csv", index=False)
    sites = '[sites]\nnorth = { data = "north.csv" }\nsouth = { data = "south.csv" }\n'
    (tmp_path / "study.toml").write_text(LOGISTIC + sites, encoding="utf-8")
    return tmp_path
