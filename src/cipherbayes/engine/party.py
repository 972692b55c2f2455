"""The process of one party: ``python -m cipherbayes.engine.party FOLDER NAME``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from cipherbayes.engine import pipes
from cipherbayes.engine.assembly import RunFolder
from cipherbayes.errors import CipherbayesError
from cipherbayes.protocol.csp import Csp
from cipherbayes.protocol.site import Site


def serve(party: Site | Csp) -> None:
    """Answer questions until the other end closes."""
    # Whatever else prints must not get between the messages.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    seconds = 0.0
    while (question := pipes.read(sys.stdin.buffer)) is not None:
        verb, body = question
        try:
            if verb == b"T":
                answer = repr(seconds).encode()
            else:
                started = time.process_time()
                answer = _respond(party, verb, body)
                seconds += time.process_time() - started if verb == b"H" else 0.0
            pipes.write(answers, b"=", answer)
        except CipherbayesError as error:
            pipes.write(answers, b"!", str(error).encode())


def _respond(party: Site | Csp, verb: bytes, body: bytes) -> bytes:
    if verb == b"H":
        return party.handle(body)
    if isinstance(party, Csp):
        if verb == b"O":
            return party.offer()
        party.join(body)
        return b""
    if verb == b"E":
        return party.enrol()
    party.join(*pipes.two(body))
    return b""


def main() -> None:
    """Open the party's part of a run's folder and serve it."""
    path, name = sys.argv[1:]
    try:
        folder = RunFolder.open(Path(path))
        party = folder.csp() if name == "csp" else folder.site(name)
    except CipherbayesError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    serve(party)


if __name__ == "__main__":
    main()
