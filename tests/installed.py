"""Distributions as pip would leave them, each with one entry point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def install(folder: Path, group: str, name: str, code: str, value: str = "") -> None:
    """A distribution called as its entry point, with one module that is imported.

    Parameters
    ----------
    value
        What of the module the entry point names, as ``:object``.
    """
    module = f"{name.replace('-', '_')}_of_others"
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}-of-others\nVersion: 1.0\n",
        encoding="utf-8",
    )
    (about / "entry_points.txt").write_text(
        f"[{group}]\n{name} = {module}{value}\n", encoding="utf-8"
    )


def let_all_processes_find(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a folder before what this process and those that it starts import."""
    monkeypatch.syspath_prepend(folder)
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([str(folder), *filter(None, others)])
    monkeypatch.setenv("PYTHONPATH", path)
