"""What FLARE may do at a party: run our classes, and nothing else.

FLARE's own defaults let a project admin bring code, read files and restart hosts,
keep jobs in the shared temporary folder, and stream logs to the server. Each of
these is turned off in the files that the party itself holds, so that nobody else
can turn it on again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cipherbayes.typing import JsonObject

RESOURCES = "resources.json"
_JOB_STORE = "job_store"

ALLOWED_CLASSES = (
    "cipherbayes.results.flare_server.ResultController",
    "cipherbayes.engine.flare.executor.PartyExecutor",
)

_FORBIDDEN = {
    "clone_job": "none",
    "download_job": "none",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}
_NOTHING = {
    "submit_job": "none",
    "manage_job": "none",
    "app_command": "none",
    "view": "none",
    **_FORBIDDEN,
}


def authorization(*, server: bool) -> JsonObject:
    """Who may do what at a party; rights are named one by one, never ``any``.

    ``view`` at the server shows who is connected and how jobs ended. At a site or the
    CSP it would show FLARE's own collections of errors and statistics: nobody may.
    """
    return {
        "format_version": "1.0",
        "permissions": {
            "project_admin": {
                "submit_job": "any",
                "manage_job": "any",
                "app_command": "any" if server else "none",
                "view": "any" if server else "none",
                **_FORBIDDEN,
            },
            "org_admin": _NOTHING,
            "lead": _NOTHING,
            "member": _NOTHING,
        },
    }


_COMMUNICATION: JsonObject = {
    "allow_adhoc_conns": False,
    "backbone_conn_gen": 2,
    # A receiver keeps every message, and a thread for it, as long as its sender may
    # repeat it: 65 seconds if nothing is said, which is thousands of rounds' messages.
    # It must stay above the seconds after which a silent party is given up.
    "streaming_retry_wait": 2.0,
    "streaming_retry_timeout": 20.0,
    # Every message takes a buffer of this size with it until garbage is collected.
    "streaming_chunk_size": 2**17,
}
_HEARTBEAT_SECONDS = 30
_NO_GPU = "nvflare.app_common.resource_managers.passthrough_resource_manager"


def harden_party(kit: Path) -> None:
    """Rewrite the local settings of a server's or client's kit."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text("utf-8"))
    server = "servers" in resources
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = list(ALLOWED_CLASSES)
    resources["components"] = _components(resources["components"])
    if server:
        resources.pop("snapshot_persistor", None)
        resources["servers"][0].pop("download_job_url", None)
        resources["servers"][0]["heart_beat_timeout"] = _HEARTBEAT_SECONDS
    else:
        resources["allow_log_streaming"] = False
    for leftover in ("*.default", "*.sample"):
        for path in local.glob(leftover):
            if not path.name.startswith("log_config"):
                path.unlink()
    _write(local / RESOURCES, resources)
    _write(local / "authorization.json", authorization(server=server))
    _write(local / "comm_config.json", _COMMUNICATION)


def keep_jobs_in(kit: Path) -> None:
    """Have the server keep jobs in its own kit, wherever that folder is now.

    FLARE wants an absolute path, and its default is in the shared temporary folder.
    """
    path = kit / "local" / RESOURCES
    resources = json.loads(path.read_text("utf-8"))
    for component in resources["components"]:
        if component["id"] == _JOB_STORE:
            component["args"] = {"root_dir": str(kit.absolute() / "jobs")}
    _write(path, resources)


def without_jobs(resources: Any) -> Any:
    """Resources as they are wherever the server keeps its jobs."""
    if not isinstance(resources, dict):
        return resources
    components = resources.get("components")
    if not isinstance(components, list):
        return resources
    kept = [
        {**part, "args": None}
        if isinstance(part, dict) and part.get("id") == _JOB_STORE
        else part
        for part in components
    ]
    return {**resources, "components": kept}


def _components(components: list[JsonObject]) -> list[JsonObject]:
    """The system's components, without log streaming, jobs kept inside the kit."""
    kept = []
    for component in components:
        match component["id"]:
            case "site_log_streamer" | "log_receiver" | "resource_consumer":
                continue
            case "resource_manager":
                component["path"] = f"{_NO_GPU}.PassthroughResourceManager"
                component["args"] = {}
            case "job_manager":
                component["args"]["uri_root"] = "/"
            case "job_scheduler":
                # One run at a time, and no long pause before a second try.
                component["args"] = {"max_jobs": 1, "min_schedule_interval": 1.0}
        kept.append(component)
    return kept


def _write(path: Path, content: JsonObject) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
