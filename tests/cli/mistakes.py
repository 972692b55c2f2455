"""Mistakes to be made in a folder with a working study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from conftest import LOGISTIC, survival_frame
from terminal import cipherbayes

PRIVATE = "[privacy]\nepsilon = 1.0\ndelta = 1e-6\nrecords = 800\n"
SITES = '[sites]\nnorth = { data = "north.csv" }\nsouth = { data = "south.csv" }\n'
QUICK = "[inference]\nrounds = 50\nchains = 1\n"
SURVIVAL = (
    '[model]\nkind = "exponential"\ntime = "time"\nevent = "event"\nhorizon = 1500.0\n'
    "[features]\nage = { low = 18, high = 100 }\n"
)
CANARY = "31337"
"""In every row that is wrong; must never be in a message."""

Change = Callable[[Path], None]


@dataclass(frozen=True)
class Mistake:
    """What is typed, what is wrong, and what the line must say."""

    says: tuple[str, ...]
    words: tuple[str, ...] = ("run", "study.toml", "--out", "out")
    study: str | None = None
    change: Change | None = None


def column(name: str, value: object) -> Change:
    """A column of north's table with something else in it."""

    def change(folder: Path) -> None:
        frame = pd.read_csv(folder / "north.csv", dtype=object)
        frame.loc[3, name] = value
        frame.to_csv(folder / "north.csv", index=False)

    return change


def without(name: str) -> Change:
    def change(folder: Path) -> None:
        frame = pd.read_csv(folder / "north.csv")
        frame.drop(columns=name).to_csv(folder / "north.csv", index=False)

    return change


def file(name: str, text: str) -> Change:
    return lambda folder: put_text(folder / name, text)


def put_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def study(text: str) -> str:
    return LOGISTIC + text + QUICK + SITES


def replaced(old: str, new: str) -> str:
    text = study("")
    assert old in text
    return text.replace(old, new)


def modelled(model: str) -> str:
    """A study of another model over the same tables."""
    features = '[features]\nsex = { levels = ["F", "M"] }\n'
    return f"[model]\n{model}\n{features}{QUICK}{SITES}"


def encrypted(top: str, rest: str = "") -> str:
    head = f'protocol = "encrypted-update"\n{top}[model]'
    return LOGISTIC.replace("[model]", head) + PRIVATE + rest + SITES


PAPER = "[paper]\nscale = 35.0\nlipschitz = 1.0\ngamma = 0.99\nbatch = 80\nepochs = 1\n"
NORTH = "north.csv"
STUDY = "study.toml"


def put_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def all_dead(path: Path) -> None:
    pd.read_csv(path).assign(death=1).to_csv(path, index=False)


def survival_with(folder: Path, time: str) -> None:
    frame = survival_frame(50).astype(object)
    frame.loc[3, "time"] = time
    frame.to_csv(folder / "one.csv", index=False)


def finished_survival(folder: Path) -> None:
    """A finished survival study."""
    survival_frame(50).to_csv(folder / "one.csv", index=False)
    text = SURVIVAL + QUICK + '[sites]\none = { data = "one.csv" }\n'
    (folder / "survival.toml").write_text(text, encoding="utf-8")
    done = cipherbayes("run", "survival.toml", "--out", "out", cwd=folder)
    assert done.returncode == 0, done.stderr


def change_header(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1), encoding="utf-8")


def new_level(folder: Path) -> None:
    spend(folder)
    frame = pd.read_csv(folder / NORTH).assign(sex=f"x{CANARY}").head(2)
    frame.to_csv(folder / "new.csv", index=False)


def spend(folder: Path) -> None:
    done = cipherbayes("run", "study.toml", "--out", "before", cwd=folder)
    assert done.returncode == 0, done.stderr
