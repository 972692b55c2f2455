"""A run as a FLARE job: two class names, the run's id, the study. No code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cipherbayes.engine.flare.hardening import ALLOWED_CLASSES
from cipherbayes.engine.flare.kits import CSP
from cipherbayes.errors import StudyError
from cipherbayes.protocols.plan import plan_study
from cipherbayes.study.schema import Study
from cipherbayes.typing import JsonObject

_STUDY = "study.toml"


def write_job(folder: Path, study: Study, run: str) -> Path:
    """Lay out the job that runs a study; its folder."""
    study = study.without_paths()
    controller, executor = ALLOWED_CLASSES
    job = folder / study.name
    config = job / "app" / "config"
    config.mkdir(parents=True)
    clients = [CSP, *sorted(study.sites)]
    _write(
        job / "meta.json",
        {
            "name": study.name,
            "resource_spec": {},
            "deploy_map": {"app": ["server", *clients]},
            # Fewer are enough where the study allows for lost sites.
            "min_clients": 1 + plan_study(study).minimum_roster,
            "mandatory_clients": [CSP],
        },
    )
    _write(
        config / "config_fed_server.json",
        {
            "format_version": 2,
            "workflows": [{"id": "run", "path": controller, "args": {"run": run}}],
        },
    )
    party = {"path": executor, "args": {"run": run}}
    _write(
        config / "config_fed_client.json",
        {"format_version": 2, "executors": [{"tasks": ["none"], "executor": party}]},
    )
    (config / _STUDY).write_text(study.to_toml(), encoding="utf-8")
    return job


def job_study(workspace: Any, job: str) -> Study:
    """The study of a job that has arrived."""
    study = Study.load(Path(workspace.get_app_config_dir(job)) / _STUDY)
    if not study.rules.federated:
        raise StudyError("is a pooled study", where=f"study '{study.name}'")
    return study


def _write(path: Path, content: JsonObject) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
