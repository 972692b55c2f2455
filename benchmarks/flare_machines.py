"""All parties of a study as FLARE programs on this machine, with certificates."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.provisioning import Deployment, deploy
from cipherbayes.engine.flare.starting import command, start
from cipherbayes.engine.flare.submitting import submit
from cipherbayes.result import Result
from cipherbayes.study import Study


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Machines:
    """Kits that are enrolled and pinned, and their running programs.

    Parameters
    ----------
    folder
        Where the kits go.
    study
        What they are for; every site has its table's path in the study.
    """

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder = folder
        self.study = study
        self.port = free_port()
        made = deploy(Deployment(study, "localhost", self.port), folder / "kits")
        self.kits = {name: Kit.open(path) for name, path in made.items()}
        self.parties = ("server", "csp", *study.sites)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name, site in study.sites.items():
            self.tell(name, data=site.data, ledger=f"{name}.ledger")
        files = []
        for name in ("csp", *study.sites):
            self.kits[name].enrol()
            files.append(self.kits[name].path / "identity.json")
        for name in self.parties:
            self.kits[name].pin(files)

    def tell(self, site: str, **settings: Any) -> None:
        """Write a site's own settings."""
        lines = [
            f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
            for key, value in settings.items()
        ]
        (self.kits[site].path / "site.toml").write_text("\n".join(lines) + "\n")

    def start(
        self, *names: str, path: Path | None = None, prefix: Sequence[str] = ()
    ) -> None:
        """Start parties; all that do not run yet where none is named.

        Parameters
        ----------
        path
            Only for a benchmark: where its own classes can be imported from.
        prefix
            Words before the party's command, which say where it runs.
        """
        for name in names or self.parties:
            if name in self.running:
                continue
            kit = self.kits[name]
            if path is None and not prefix:
                self.running[name] = start(kit, log=kit.path / "out.log")
                continue
            more = {} if path is None else {"PYTHONPATH": str(path)}
            with (kit.path / "out.log").open("ab") as log:
                self.running[name] = subprocess.Popen(
                    [*prefix, *command(kit)],
                    cwd=kit.path,
                    env={**os.environ, **more},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def wait_for(self, *names: str, seconds: float = 40.0) -> None:
        """Wait until parties have joined the server."""
        deadline = time.monotonic() + seconds
        log = self.kits["server"].path / "log.txt"
        wanted = names or self.parties[1:]
        while time.monotonic() < deadline:
            text = log.read_text(errors="replace") if log.exists() else ""
            if all(f"New client {name}@" in text for name in wanted):
                return
            time.sleep(0.1)
        raise TimeoutError(f"not joined: {wanted}")

    def job_process(self, name: str) -> int:
        """Process id of a party's part in the running job."""
        daemon = self.running[name].pid
        children: list[str] = []
        for task in Path(f"/proc/{daemon}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                children += (task / "children").read_text().split()
        return int(children[0])

    def kill(self, name: str) -> None:
        """Kill -9 a party: its program, and its part in a running job."""
        with contextlib.suppress(OSError, IndexError):
            os.kill(self.job_process(name), signal.SIGKILL)
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def submit(
        self,
        out: Path,
        progress: Any = lambda done, rounds: None,
        *,
        wait: float = 0.0,
    ) -> Result:
        """Run the study, or go on with it."""
        return submit(self.study, self.kits["admin"], out, progress, wait=wait)

    def ledgers(self) -> Mapping[str, Path]:
        """Where each site keeps its ledger."""
        return {n: self.kits[n].path / f"{n}.ledger" for n in self.study.sites}

    def checkpoint(self) -> Path:
        """The server's memory of the only run."""
        (path,) = (self.kits["server"].path / "runs").glob("*/checkpoint.sqlite")
        return path

    def stop(self) -> None:
        """End every program that was started here."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()
