"""All parties of a study as FLARE programs on this machine, with certificates."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cipherbayes.engine.flare.certificates import read_requests
from cipherbayes.engine.flare.installing import install, request
from cipherbayes.engine.flare.kits import ADMIN, CSP, SERVER, Kit
from cipherbayes.engine.flare.provisioning import Deployment, deploy
from cipherbayes.engine.flare.starting import command, environment, start
from cipherbayes.engine.flare.submitting import submit
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.results.result import Result
from cipherbayes.study.schema import Study
from cipherbayes_research.datasets.forgetting import forget_public_table


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def own_folders(
    folder: Path, study: Study, host: str, port: int, requests: Path, sent: Path
) -> dict[str, Kit]:
    """Every party's own folder: keys made there, a kit from the lead installed.

    Parameters
    ----------
    folder
        Where the parties' folders go.
    requests, sent
        What the parties send to the lead, and what the lead sends back.
    """
    requests.mkdir(parents=True)
    for name in (SERVER, CSP, *study.sites):
        role = name if name in (SERVER, CSP) else "site"
        shutil.copy(request(folder / name, role, name), requests)
    given = deploy(Deployment(study, host, port), sent, read_requests(requests))
    for name in (SERVER, CSP, *study.sites):
        install(folder / name, given[name])
    kits = {name: Kit.open(folder / name) for name in (SERVER, CSP, *study.sites)}
    return {**kits, ADMIN: Kit.open(given[ADMIN])}


class Machines:
    """Kits that are installed and approved, and their running programs.

    Parameters
    ----------
    folder
        Where the kits go.
    study
        What they are for; every site has its table's path in the study.
    host
        Where the parties find the server.
    """

    def __init__(self, folder: Path, study: Study, host: str = "localhost") -> None:
        self.folder = folder
        self.study = study
        self.port = free_port()
        self.kits = own_folders(
            folder / "parties",
            study,
            host,
            self.port,
            folder / "requests",
            folder / "sent",
        )
        self.parties = ("server", "csp", *study.sites)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name, site in study.sites.items():
            self.tell(name, data=site.data, ledger=f"{name}.ledger")
        for name in self.parties:
            self.kits[name].approve(study, insecure=True)

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
                    env={**environment(), **more},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def joined(self, name: str) -> int:
        """How often a party has joined the server."""
        return self._server_said(f"New client {name}@")

    def wait_for_server(self, seconds: float) -> None:
        """Wait until the server is up: others give up if it takes long."""
        deadline = time.monotonic() + seconds
        while not self._server_said("Server started"):
            if time.monotonic() > deadline:
                raise TimeoutError("the server did not start")
            time.sleep(0.1)

    def _server_said(self, words: str) -> int:
        """How often something is in the server's log."""
        log = self.kits["server"].path / "log.txt"
        text = log.read_text(errors="replace") if log.exists() else ""
        return text.count(words)

    def wait_for(self, *names: str, seconds: float = 60.0, times: int = 1) -> None:
        """Wait until parties have joined the server, for the first time or again."""
        deadline = time.monotonic() + seconds
        wanted = names or self.parties[1:]
        while any(self.joined(name) < times for name in wanted):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not joined: {wanted}")
            time.sleep(0.1)

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
        submit(self.study, self.kits["admin"], out, progress, wait=wait)
        return Result.load(out)

    def new_ledgers(self, name: str) -> None:
        """Give every site an empty ledger, for a run of its own.

        The tables are simulated: that they had one before is forgotten.
        """
        for site, about in self.study.sites.items():
            forget_public_table(Path(about.data or ""))
            self.tell(site, data=about.data, ledger=f"{name}-{site}.ledger")

    def released(self) -> dict[str, list[int]]:
        """The rounds in each site's present ledger."""
        rounds = {}
        for name in self.study.sites:
            ledger = Ledger.read(Path(self.kits[name].settings()["ledger"]))
            rounds[name] = [entry.round for entry in ledger.entries()]
            ledger.close()
        return rounds

    def checkpoint(self, out: Path) -> Checkpoint:
        """The server's memory of the run that a folder belongs to."""
        run = json.loads((out / "submission.json").read_text())["run"]
        return Checkpoint(self.kits["server"].path / "runs" / run / "checkpoint.sqlite")

    def thetas(self, out: Path) -> list[bytes]:
        """θ after each round of the run that a folder belongs to."""
        kept = self.checkpoint(out)
        try:
            return [theta.tobytes() for theta in kept.trajectory()]
        finally:
            kept.close()

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
