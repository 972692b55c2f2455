"""A finished run to verify, and copies of it to tamper with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from parties import small_study, write_tables

from cipherbayes.results.run import run
from cipherbayes.validation.verify import Findings

ROUNDS = 6


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest run of three sites, with a sampler that makes intervals."""
    home = tmp_path_factory.mktemp("verify")
    study = small_study(
        privacy={"randomness": "secure"},
        inference={"method": "psgld", "rounds": ROUNDS},
        evaluation={"holdout": 0.2, "holdout_is_public": True},
    )
    run(write_tables(home, study), out=home / "out")
    return home / "out"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy that a malicious server may change."""
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def states(findings: Findings, check: str) -> set[str]:
    return {finding.state for finding in findings if finding.check == check}
