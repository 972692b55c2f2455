"""Ledgers to ask, questions to ask them, and copies of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cipherbayes.privacy.accountant import calibrate_noise
from cipherbayes.privacy.events import Event, GaussianSum
from cipherbayes.privacy.ledger import Ledger

DELTA = 1e-5
ROUNDS = 20
SIGMA = calibrate_noise(1.0, DELTA, ROUNDS)


def opened(path: Path, epsilon: float = 1.0) -> Ledger:
    return Ledger.open(path, dataset="north.csv", epsilon=epsilon, delta=DELTA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "north.ledger"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    ledger = opened(path)
    yield ledger
    ledger.close()


def ask(
    ledger: Ledger,
    round: int = 0,
    *,
    run: bytes = b"run",
    site: str = "north",
    purpose: str = "gradient",
    study: bytes = b"study",
    question: bytes = b"theta",
    event: Event | None = None,
    compute: Callable[[], bytes] | None = None,
) -> bytes:
    return ledger.release(
        run=run,
        site=site,
        round=round,
        purpose=purpose,
        study=study,
        question=question,
        event=event or GaussianSum(SIGMA),
        compute=compute or (lambda: os.urandom(16)),
    )


def never() -> bytes:
    raise AssertionError("a second answer was computed")


def backup(path: Path, place: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, place.parent / file.name.replace(path.name, place.name))


def restore(place: Path, path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    backup(place, path)
