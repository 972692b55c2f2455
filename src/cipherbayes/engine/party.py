"""The process of one party: ``python -m cipherbayes.engine.party FOLDER NAME``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from cipherbayes.engine import pipes
from cipherbayes.engine.party_client import END, ROUND, TRANSCRIPT
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import CipherbayesError
from cipherbayes.protocols.csp import Csp
from cipherbayes.protocols.refusals import said_outside, told_inside
from cipherbayes.protocols.site import Site
from cipherbayes.protocols.transcripts import keep_transcript


class PartyEndpoint:
    """A party behind its verbs: a question in, an answer out.

    ``home`` is the party's own folder, where a site keeps the run's transcript.

    It belongs to the thread that calls it, whose CPU time since the run was joined is
    what the party has used in rounds: asking the clock in every round costs more.

    Parameters
    ----------
    tells_time
        Whether that time is told: between machines a site's depends on its rows.
    """

    def __init__(
        self, party: Site[Any] | Csp[Any], home: Path, *, tells_time: bool = True
    ) -> None:
        self._party = party
        self._home = home
        self._tells_time = tells_time
        self._joined = 0.0

    def respond(self, verb: bytes, body: bytes) -> bytes:
        """The answer to a question, whose verb says what the body is."""
        if verb == b"T":
            used = time.thread_time() - self._joined if self._tells_time else 0.0
            return repr(used).encode()
        answer = self._respond(verb, body)
        if verb != ROUND:
            self._joined = time.thread_time()
        return answer

    def rest(self) -> None:
        """Prepare the next answer while no question is waiting."""
        self._party.prepare()

    def _respond(self, verb: bytes, body: bytes) -> bytes:
        party = self._party
        if verb == ROUND:
            return party.handle(body)
        if verb == END:
            party.end()
            return b""
        if isinstance(party, Csp):
            if verb == b"O":
                return party.offer()
            party.join(body)
            return b""
        if verb == b"E":
            return party.enrol()
        if verb == TRANSCRIPT:
            # Kept before it is judged: what does not fit is evidence too.
            keep_transcript(self._home, body)
            party.conclude(body)
            return b""
        party.join(*pipes.two_parts(body))
        return b""


def serve(party: Site[Any] | Csp[Any], name: str, home: Path) -> None:
    """Answer questions until the other end closes.

    What went wrong is told here in full, and to the other end as
    :func:`~cipherbayes.protocols.refusals.said_outside` allows.
    """
    # Whatever else prints must not get between the messages.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    endpoint = PartyEndpoint(party, home)
    while (question := pipes.read(sys.stdin.buffer)) is not None:
        try:
            pipes.write(answers, b"=", endpoint.respond(*question))
        except Exception as error:
            print(f"error: {told_inside(error)}", file=sys.stderr)
            pipes.write(answers, b"!", said_outside(name, error).encode())
        try:
            endpoint.rest()
        except Exception as error:  # the next answer will find out by itself
            print(f"error: {told_inside(error)}", file=sys.stderr)


def main() -> None:
    """Open the party's part of a run's folder and serve it."""
    path, name = sys.argv[1:]
    try:
        folder = RunFolder.open(Path(path))
        party = folder.csp() if name == "csp" else folder.site(name)
    except CipherbayesError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    serve(party, name, folder.home(name))


if __name__ == "__main__":
    main()
