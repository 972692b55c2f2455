"""The page on loopback, for as long as a block lasts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from cipherbayes.errors import RunError
from cipherbayes.report.live.live_page import WAITING, page
from cipherbayes.report.live.snapshot import Snapshot, Watcher

HOST = "127.0.0.1"


@contextmanager
def following(folder: Path) -> Iterator[str]:
    """Serve a run that is about to be laid out in a folder."""
    found: list[Watcher] = []

    def look() -> Snapshot | None:
        if not found:
            if not (folder / "run.json").is_file():
                return None
            found.append(Watcher.open(folder))
        return found[0].look()

    with serving(look) as address:
        yield address


@contextmanager
def serving(look: Callable[[], Snapshot | None], port: int = 0) -> Iterator[str]:
    """Serve the page on loopback for the length of a block; its address.

    Parameters
    ----------
    look
        Where the run stands; None before it has begun.
    """
    names: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        """GET / and GET /state.json, by this machine's own name only."""

        server_version = "cipherbayes"
        sys_version = ""

        def do_GET(self) -> None:
            if self.headers.get("Host") not in names:
                self._answer(403, "text/plain", "ask for this page on loopback")
                return
            if self.path not in ("/", "/state.json"):
                self._answer(404, "text/plain", "no such page")
                return
            seen = look()
            if self.path == "/":
                self._answer(200, "text/html", WAITING if seen is None else page(seen))
            else:
                document = json.dumps(None if seen is None else seen.document())
                self._answer(200, "application/json", document)

        def _answer(self, status: int, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("X-Frame-Options", "DENY")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing: the terminal belongs to the run."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as problem:
        raise RunError(
            f"cannot listen on port {port} ({problem.strerror})",
            where="--port",
            remedy="choose another, or leave it out",
        ) from None
    names += [f"{host}:{server.server_port}" for host in (HOST, "localhost")]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
