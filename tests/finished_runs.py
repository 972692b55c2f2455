"""Small finished runs that tests of the report and of watching share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.inference.noise_aware import Effort
from conftest import logistic_frame, survival_frame

LOGISTIC = """
[study]
name = "{name}"
[model]
kind = "logistic"
outcome = "death"
[features]
age = {{ low = 18, high = 100 }}
sex = {{ levels = ["F", "M"] }}
"""
PRIVATE = "[privacy]\nepsilon = 3.0\ndelta = 1e-6\nrecords = 1500\n"
ENCRYPTED = 'protocol = "encrypted-update"\n'
SITES = """
[sites]
north = { data = "north.csv" }
south = { data = "south.csv" }
east = { data = "east.csv" }
"""
STUDIES = {
    "federated": LOGISTIC
    + PRIVATE
    + "[evaluation]\nholdout = 0.25\nholdout_is_public = true\n"
    + SITES,
    "insecure": LOGISTIC
    + PRIVATE
    + 'randomness = "insecure-repeatable"\n'
    + '[inference]\nmethod = "averaged"\nrounds = 20\n'
    + SITES,
    "point": LOGISTIC
    + PRIVATE
    + '[inference]\nmethod = "averaged"\nrounds = 20\n'
    + SITES,
    "open": LOGISTIC
    + "[inference]\nrounds = 300\nchains = 2\n[evaluation]\nholdout = 0.25\n"
    + SITES,
    "psgld": LOGISTIC
    + PRIVATE
    + '[inference]\nmethod = "psgld"\nrounds = 60\n'
    + "[evaluation]\nholdout = 0.25\nholdout_is_public = true\n"
    + SITES,
    "pooled": LOGISTIC.replace("[model]", 'protocol = "pooled"\n[model]')
    + PRIVATE
    + '[inference]\nmethod = "psgld"\nrounds = 20\n'
    + SITES,
    "encrypted": LOGISTIC.replace("[model]", ENCRYPTED + 'circuit = "fast"\n[model]')
    + PRIVATE
    + "[inference]\nrounds = 3\n"
    + SITES,
    "printed": LOGISTIC.replace("[model]", ENCRYPTED + 'noise = "as-printed"\n[model]')
    + PRIVATE
    + "[preparation]\nintercept = 0\n[paper]\nscale = 5.0\nlipschitz = 1.0\n"
    + "gamma = 0.99\nbatch = 750\nepochs = 1\n"
    + SITES,
    "survival": """
[study]
name = "survival"
[model]
kind = "exponential"
time = "time"
event = "event"
horizon = 1500.0
[features]
age = {{ low = 18, high = 100 }}
[preparation]
method = "public-bounds"
[privacy]
epsilon = 3.0
delta = 1e-6
records = 1200
[sites]
one = {{ data = "one.csv" }}
two = {{ data = "two.csv" }}
""",
    # All that a page can hold: curves, groups, sites that differ, checks, Table 1.
    "hospitals": """
[study]
name = "hospitals"
[model]
kind = "logistic"
formula = "death ~ rcs(age, 3) * sex + `cold ischaemia [h]` + ward"
[features]
age = {{ low = 18, high = 100 }}
sex = {{ levels = ["F", "M"] }}
"cold ischaemia [h]" = {{ low = 0, high = 60, missing = 18, indicator = true }}
ward = {{ levels = ["intensive care", "cardiology", "emergency department"] }}
[hierarchy]
intercept = true
[describe]
by = ["site", "ward"]
[evaluation]
holdout = 0.2
[privacy]
epsilon = 8.0
delta = 1e-6
records = 2500
[sites]
bergen = {{ data = "bergen.csv" }}
edinburgh-royal = {{ data = "edinburgh-royal.csv" }}
leeds = {{ data = "leeds.csv" }}
lyon-sud = {{ data = "lyon-sud.csv" }}
st_mary = {{ data = "st_mary.csv" }}
""",
    "odd names": """
[model]
kind = "logistic"
outcome = "death"
[features]
"<b>age</b>" = {{ low = 18, high = 100 }}
[inference]
rounds = 100
chains = 1
[sites]
odd = {{ data = "odd.csv" }}
""",
}
FEW = Effort(chains=2, warm_up=30, kept=40, doublings=0)
"""What a page, or a test of what is made of draws, needs of a sampler."""


class FinishedRuns:
    """Runs by name, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Path:
        home = self._folder / name.replace(" ", "-")
        if not home.exists():
            home.mkdir()
            for seed, site in enumerate(("north", "south", "east")):
                logistic_frame(500, seed=seed).to_csv(home / f"{site}.csv", index=False)
            for seed, site in enumerate(("one", "two")):
                survival_frame(600, seed=seed).to_csv(home / f"{site}.csv", index=False)
            odd = logistic_frame(200).rename(columns={"age": "<b>age</b>"})
            odd.to_csv(home / "odd.csv", index=False)
            if name == "hospitals":
                _write_hospitals(home)
            text = STUDIES[name].replace("{name}", home.name)
            text = text.replace("{{", "{").replace("}}", "}")
            (home / "study.toml").write_text(text, encoding="utf-8")
            with pytest.MonkeyPatch.context() as patched:
                if name == "hospitals":  # a page needs no good posterior
                    patched.setattr(Effort, "for_dimension", lambda _: FEW)
                cb.run(cb.Study.load(home / "study.toml"), out=home / "out")
        return home / "out"


def _write_hospitals(home: Path) -> None:
    wards = ["intensive care", "cardiology", "emergency department"]
    for seed, site in enumerate(
        ("bergen", "edinburgh-royal", "leeds", "lyon-sud", "st_mary")
    ):
        rng = np.random.default_rng(seed)
        frame = logistic_frame(500, seed=seed).assign(ward=rng.choice(wards, 500))
        hours = rng.gamma(6.0, 3.0, 500)
        frame["cold ischaemia [h]"] = np.where(rng.random(500) < 0.1, np.nan, hours)
        frame.to_csv(home / f"{site}.csv", index=False)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> FinishedRuns:
    """The same folder for every module that imports this."""
    folder = tmp_path_factory.getbasetemp() / "finished-runs"
    folder.mkdir(exist_ok=True)
    return FinishedRuns(folder)
