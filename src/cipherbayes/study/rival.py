"""An earlier fit that a study's predictions are compared with, row by row.

A study file names the folder of a finished run. What is read from there, all of it
published with that run, becomes part of the study: how it prepared its columns, the
scales it released, and some draws of its posterior. Parties agree on it as on the rest
of the study, and no site needs the folder.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, field_validator

from cipherbayes.storage.posterior_file import read_posterior
from cipherbayes.storage.posterior_form import ForeignFileError
from cipherbayes.typing import JsonObject

RIVAL_DRAWS = 32
"""Draws whose mean likelihood is an earlier fit's prediction."""
FARTHEST = 1e7
KEPT = ("model", "features", "preparation", "privacy", "evaluation")
"""What of the earlier study tells how its predictions are made, and for which rows."""


class Rival(BaseModel):
    """``[evaluation] against``: an earlier fit of the same outcome.

    Attributes
    ----------
    name, study_hash
        Of the earlier study.
    study
        The parts of its file that say how it predicts.
    scales
        Means, then standard deviations, that it released; None for public ranges.
    draws
        Some of its posterior, on the scale of its design matrix.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    study_hash: str
    study: JsonObject
    scales: tuple[float, ...] | None = None
    draws: tuple[tuple[float, ...], ...]

    @field_validator("draws")
    @classmethod
    def _usable(cls, draws: tuple[tuple[float, ...], ...]) -> Any:
        if not 1 <= len(draws) <= RIVAL_DRAWS or len({len(d) for d in draws}) != 1:
            raise ValueError(f"needs 1 to {RIVAL_DRAWS} draws of one length")
        # Also false for what is not a number.
        if not np.all(np.abs(np.array(draws)) <= FARTHEST):
            raise ValueError("has draws that no posterior has")
        return draws


def read_rival(folder: str | Path) -> JsonObject:
    """What a study needs of a finished run, as plain values.

    Raises
    ------
    ValueError
        Where the folder holds no run that can be compared with.
    """
    folder = Path(folder)
    try:
        record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        text = (folder / "study.toml").read_text(encoding="utf-8")
        study = tomllib.loads(text)
        name, study_hash = str(record["study"]), str(record["study_hash"])
        scales = record["moments"]
        tree = read_posterior(folder / "posterior.nc", record.get("posterior_sha256"))
        theta = np.asarray(tree["prepared"]["theta"])
    except FileNotFoundError:
        raise ValueError(
            f"'{folder}' holds no finished run: give the folder that `cipherbayes run "
            "--out` wrote"
        ) from None
    except ForeignFileError as error:
        raise ValueError(f"the result in '{folder}' cannot be read: {error}") from None
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
    ):  # fmt: skip
        raise ValueError(f"the result in '{folder}' cannot be read") from None
    if "hierarchy" in study:
        raise ValueError(
            f"the run in '{folder}' lets sites differ: compare with one that does not, "
            "or let it be the later study"
        )
    if "against" in study.get("evaluation", {}):
        raise ValueError(
            f"the run in '{folder}' was itself compared with another: compare with "
            "that one, whose held-out rows both share"
        )
    flat = theta.reshape(-1, theta.shape[-1])
    spaced = np.linspace(0.0, len(flat) - 1.0, RIVAL_DRAWS).round()
    places = np.unique(spaced).astype(np.int64)
    found = {
        "name": name,
        "study_hash": study_hash,
        "study": {part: study[part] for part in KEPT if part in study},
        "draws": np.clip(flat[places], -FARTHEST, FARTHEST).tolist(),
    }
    return found if scales is None else {**found, "scales": scales}


def as_rival(value: Any) -> Any:
    """Read the earlier fit where a folder is given; leave anything else alone."""
    return read_rival(value) if isinstance(value, str | Path) else value
