"""``cipherbayes calibrate`` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cipherbayes.cli.main import app
from cipherbayes.validation import calibration


@pytest.mark.slow
def test_rows_have_the_documented_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = (calibration.Cell("logistic", 800, 3, 1.0),)
    monkeypatch.setattr(calibration, "quick_grid", lambda: small)
    results = str(tmp_path / "r.jsonl")
    arguments = ["calibrate", "--quick", "--replicates", "2", "--results", results]
    shown = CliRunner().invoke(app, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    row = json.loads(shown.stdout)["rows"][0]
    wanted = [
        "model",
        "n",
        "d",
        "epsilon",
        "coverage",
        "se",
        "plain_coverage",
        "width_ratio",
        "replicates",
    ]
    assert set(wanted) <= set(row)
    table = CliRunner().invoke(app, arguments)
    assert "logistic" in table.output
