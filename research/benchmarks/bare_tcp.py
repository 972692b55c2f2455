"""What TCP alone takes over the lines of ``wide_area.py``, without FLARE or a protocol.

    python research/benchmarks/bare_tcp.py [--delay MS ...] [--loss SHARE ...]

The bytes of a round travel over one open connection to each of three sites and the CSP,
which answer at once; nobody computes anything. As root. ``over_bound`` is to the same
bound as in ``wide_area.py``, so what a study takes beyond this is the study's own.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

from flare_round import SITES
from wide_area import (
    HUB,
    Line,
    bound,
    described,
    line_options,
    network,
    stated_lines,
)

QUESTION, REPLY = 350, 8_640
"""Bytes of a question to a site or an answer of the CSP, and of a site's reply."""
TO_CSP = len(SITES) * REPLY + 200
WARM_UP = 3

PARTY = """
import socket, sys
asked, answered = int(sys.argv[3]), bytes(int(sys.argv[4]))
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
left = asked
while piece := line.recv(min(left, 65536)):
    left -= len(piece)
    if left == 0:
        line.sendall(answered)
        left = asked
"""


def read(line: socket.socket, size: int) -> None:
    while size:
        piece = line.recv(min(size, 65536))
        if not piece:
            raise ConnectionError("a party has gone")
        size -= len(piece)


def measure(line: Line, congestion: str, rounds: int) -> dict[str, Any]:
    """Rounds of bare exchanges over such lines."""
    sizes = {"csp": (TO_CSP, QUESTION), **dict.fromkeys(SITES, (QUESTION, REPLY))}
    lines: dict[str, socket.socket] = {}
    each = []
    with network(tuple(sizes), line, congestion) as made:
        made.move_to_server()
        with socket.create_server((HUB, 0)) as listener:
            listener.settimeout(30.0)
            address = HUB, str(listener.getsockname()[1])
            for name, size in sizes.items():
                words = (*address, *map(str, size))
                subprocess.Popen(
                    [*made.prefix(name), sys.executable, "-c", PARTY, *words]
                )
                lines[name], _ = listener.accept()
                lines[name].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds + WARM_UP):
            began = time.monotonic()
            for name in SITES:
                lines[name].sendall(bytes(QUESTION))
            for name in SITES:
                read(lines[name], REPLY)
            lines["csp"].sendall(bytes(TO_CSP))
            read(lines["csp"], QUESTION)
            each.append(time.monotonic() - began)
        for open_line in lines.values():
            open_line.close()  # which ends the party
        time.sleep(2.0 * line.round_trip + 0.5)
    sent = {
        "server": len(SITES) * QUESTION + TO_CSP,
        "csp": QUESTION,
        **dict.fromkeys(SITES, REPLY),
    }
    least = bound(line, sent, 1)
    taken = each[WARM_UP:]
    return {
        **described(line, congestion),
        "rounds": rounds,
        "bound_s": least,
        "round_s": statistics.mean(taken),
        "over_bound": statistics.mean(taken) / least,
        "median_over_bound": statistics.median(taken) / least,
    }


def main() -> None:
    given = line_options(__doc__.splitlines()[0], congestion="bbr").parse_args()
    for line in stated_lines(given):
        print(json.dumps(measure(line, given.congestion, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
