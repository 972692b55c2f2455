"""What the toy methods and protocols have in common: a study file, typed commands."""

from __future__ import annotations

from pathlib import Path

from conftest import LOGISTIC, logistic_frame
from terminal import cipherbayes


def write_study(
    folder: Path,
    sections: str,
    protocol: str = "secure-sum",
    engine: str = "in-process",
) -> Path:
    """A private study file of two sites, with further sections, and their tables."""
    for seed, name in enumerate(("north", "south")):
        logistic_frame(300, seed=seed).to_csv(folder / f"{name}.csv", index=False)
    text = (
        LOGISTIC.replace(
            "[model]", f'protocol = "{protocol}"\nengine = "{engine}"\n[model]'
        )
        + sections
        + "[privacy]\nepsilon = 3.0\nrecords = 600\n"
        + '[sites]\nnorth = { data = "north.csv" }\nsouth = { data = "south.csv" }\n'
    )
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def command(*words: object) -> str:
    """What a command that succeeds prints."""
    done = cipherbayes(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout
