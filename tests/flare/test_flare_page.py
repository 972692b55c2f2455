"""The page *Three hospitals*, typed as it stands by somebody new."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cipherbayes.privacy.ledger import Ledger

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

pytestmark = pytest.mark.torture
PAGE = Path(__file__).resolve().parents[2] / "docs" / "three-hospitals.md"


def block(language: str) -> str:
    """The first block of a language on the page."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_a_new_user_gets_from_an_empty_folder_to_a_posterior(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def typed(*words: str) -> None:
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]

    typed(sys.executable, "-c", block("python"))
    (tmp_path / "study.toml").write_text(block('toml title="study.toml"'))
    # A shell that stops at the first command that fails; FLARE's port is the page's.
    typed("bash", "-ec", block("bash").replace("; wait", "; wait || true"))
    record = json.loads((tmp_path / "result" / "result.json").read_text())
    assert record["privacy"]["certified"] is True
    assert record["privacy"]["epsilon"] == 1.0
    names = {each["name"]: each for each in record["posterior"]}
    assert any(each["lower"] > 0.0 for each in names.values())
    for site in ("north", "south", "west"):
        entries = list(Ledger.read(tmp_path / f"{site}.csv.ledger").entries())
        assert len(entries) == record["rounds"]
