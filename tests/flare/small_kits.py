"""Kits of a small study, made once and copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from parties import small_study

from cipherbayes.study.schema import Study

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.provisioning import Deployment, deploy

SITES = ("a", "b")
RUN = "00" * 16


def made(folder: Path, study: Study | None = None) -> dict[str, Kit]:
    study = study or small_study(SITES)
    kits = deploy(Deployment(study, "localhost", 8002), folder / "kits")
    return {name: Kit.open(path) for name, path in kits.items()}


@pytest.fixture(scope="session")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kit]:
    return made(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def fresh(kits: dict[str, Kit], tmp_path: Path) -> dict[str, Kit]:
    """Copies: making certificates takes a while."""
    shutil.copytree(kits["server"].path.parent, tmp_path / "kits")
    return {name: Kit.open(tmp_path / "kits" / name) for name in kits}


def local(kit: Kit, name: str) -> dict[str, Any]:
    return json.loads((kit.path / "local" / name).read_text())  # type: ignore[no-any-return]


def pinned(kits: dict[str, Kit]) -> dict[str, Kit]:
    names = ("csp", *SITES)
    for name in names:
        kits[name].enrol()
    files = [kits[name].path / "identity.json" for name in names]
    for name in (*names, "server"):
        kits[name].pin(files)
    return approved(kits)


def approved(kits: dict[str, Kit], study: Study | None = None) -> dict[str, Kit]:
    for name in ("csp", "server", *SITES):
        kits[name].approve(study or small_study(SITES), insecure=True)
    return kits
