"""The folder of a result: ``result.json`` (stable and versioned), ``posterior.nc``
(draws in ArviZ's layout) and ``study.toml`` (the study, defaults filled in).

``result.json`` is written last and in one move: a folder without it is no result.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cipherbayes.errors import RunError
from cipherbayes.results.record import ResultRecord
from cipherbayes.storage.folders import PARTIAL_POSTERIOR, make_folder
from cipherbayes.storage.posterior_file import read_posterior, write_posterior
from cipherbayes.storage.posterior_form import ForeignFileError
from cipherbayes.study.schema import Study

if TYPE_CHECKING:
    import xarray as xr

FORMAT = 1
"""Version of ``result.json``."""

UNREADABLE = (
    *(OSError, ValueError, KeyError, RecursionError),
    *(TypeError, AttributeError, RuntimeError),
)
"""What JSON and xarray raise for files that are damaged or no result's."""


def write_result(
    folder: Path, study: Study, posterior: xr.DataTree, record: ResultRecord
) -> None:
    """Write the folder; ``result.json`` comes last, in one move."""
    make_folder(folder)
    partial = folder / PARTIAL_POSTERIOR
    write_posterior(partial, posterior)
    digest = hashlib.sha256(partial.read_bytes()).hexdigest()
    os.replace(partial, folder / "posterior.nc")
    _replace(folder / "study.toml", study.without_paths().to_toml())
    content = {**record, "posterior_sha256": digest}
    text = json.dumps(content, indent=2, allow_nan=False)
    _replace(folder / "result.json", text + "\n")


def read_result(folder: Path) -> tuple[Study, xr.DataTree, ResultRecord]:
    """Study, draws and record of a folder that a run has written."""
    try:
        record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("version") != FORMAT:
            raise RunError(
                "result.json has a version that this cipherbayes does not read",
                where=str(folder),
                remedy="read it with the cipherbayes that wrote it",
            )
        study = Study.load(folder / "study.toml")
        digest = record.pop("posterior_sha256", None)
        draws = read_posterior(folder / "posterior.nc", digest)
        return study, draws, cast(ResultRecord, record)
    except (FileNotFoundError, NotADirectoryError):
        if (folder / "run.json").exists():
            raise RunError(
                "holds a run that is not finished",
                where=str(folder),
                remedy=f"go on with it: cipherbayes resume {folder}",
            ) from None
        raise RunError(
            "holds no finished run",
            where=str(folder),
            remedy="give the folder that `cipherbayes run --out` wrote",
        ) from None
    except ForeignFileError as error:
        raise RunError(
            str(error),
            where=str(folder),
            remedy="ask whoever ran the study for the folder again, or run it again",
        ) from None
    except UNREADABLE:
        raise RunError(
            "the result's files cannot be read",
            where=str(folder),
            remedy="run the study again into a new folder",
        ) from None


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
