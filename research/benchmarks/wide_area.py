"""A study over FLARE with a wide-area network between the parties.

    python research/benchmarks/wide_area.py [--delay MS ...] [--loss SHARE] [--rounds T]

Every site and the CSP has a network namespace of its own, with one line to that of the
server: so many milliseconds there and back, 10 Mbit/s in each direction, and a share of
all packets lost. The lines are pairs of TUN devices, and one process carries packets
between the two ends of each, later, slower or not at all: TCP, TLS and FLARE are the
real ones. It needs root, ``ip`` and ``/dev/net/tun``; no packet leaves the namespaces
that are made here.

A round is two exchanges, one after the other: the server asks all sites, then the CSP.
No protocol with these parties takes less than

    rounds × 2 × round trip + bytes of the slowest line of each exchange / bandwidth,

the ``bound``: nothing is computed, nothing is lost, and nobody has to find out how much
a line can carry. ``rounds_s`` is from the end of the first round to that of the last,
against the bound of as many rounds; ``submit_s`` is all that somebody waits for, the
start of FLARE's job at every party included.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import signal
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flare_machines import Machines
from flare_round import SITES, make_study
from flare_sites import JOIN_SECONDS, own_state, round_seconds

HUB = "10.213.0.1"
BANDWIDTH = 10e6
"""Bits in a second, in each direction of a line."""
MOST_WAITING = 2**20
"""Bytes that wait for a line at most; what comes then is lost."""
PACKET = 1500

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Line:
    """What a line is like: seconds there and back, bits in a second, share lost."""

    round_trip: float
    bandwidth: float
    loss: float


class Direction:
    """One direction of a line: packets wait their turn, travel, and may get lost."""

    def __init__(self, line: Line, out: int) -> None:
        self._line = line
        self._free = 0.0
        self.out = out

    def arrival(self, size: int, now: float) -> float | None:
        """When a packet that is sent now arrives; None if it is lost."""
        line = self._line
        starts = max(now, self._free)
        if (starts - now) * line.bandwidth > 8 * MOST_WAITING:
            return None
        self._free = starts + 8 * size / line.bandwidth
        if random.random() < line.loss:
            return None
        return self._free + line.round_trip / 2.0


def carry(ends: list[tuple[int, int]], line: Line) -> None:
    """Carry packets between the two devices of every line, for ever."""
    with suppress(OSError):  # as exactly as the machine's load allows
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    directions = {
        come: Direction(line, go) for a, b in ends for come, go in ((a, b), (b, a))
    }
    travelling: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        wait = None if not travelling else max(travelling[0][0] - time.monotonic(), 0.0)
        ready, _, _ = select.select(list(directions), [], [], wait)
        now = time.monotonic()
        for come in ready:
            packet = os.read(come, 2 * PACKET)
            arrives = directions[come].arrival(len(packet), now)
            if arrives is not None:
                count += 1
                heapq.heappush(
                    travelling, (arrives, count, directions[come].out, packet)
                )
        while travelling and travelling[0][0] <= time.monotonic():
            _, _, out, packet = heapq.heappop(travelling)
            with suppress(OSError):  # a device that is not up yet
                os.write(out, packet)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def tun(name: str) -> int:
    """A new TUN device; its packets are read from and written to what comes back."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    flags = struct.pack("16sH14x", name.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, flags)
    return device


def enter(namespace: str) -> None:
    """Move this thread, and what it starts from now on, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as place:
        if libc.setns(place.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace was entered")


class Network:
    """Namespaces for a server and for each other party, with lines between them."""

    def __init__(self, parties: tuple[str, ...], line: Line, congestion: str) -> None:
        tag = f"cb{os.getpid()}"
        self._hub = f"{tag}-hub"
        self._homes = {
            name: f"{tag}-{number}" for number, name in enumerate(parties, 1)
        }
        for place in (self._hub, *self._homes.values()):
            ip("netns", "add", place)
            setting = f"net.ipv4.tcp_congestion_control={congestion}"
            ip("netns", "exec", place, "sysctl", "-q", "-w", setting)
            ip("-n", place, "link", "set", "lo", "up")
        ip("-n", self._hub, "addr", "add", f"{HUB}/32", "dev", "lo")
        ends = []
        for number, home in enumerate(self._homes.values(), 1):
            near, far = f"{tag}n{number}", f"{tag}f{number}"
            ends.append((tun(near), tun(far)))
            for device, place, own, other in (
                (near, self._hub, 1, 2),
                (far, home, 2, 1),
            ):
                address = f"10.213.{number}.{own}", f"10.213.{number}.{other}"
                ip("link", "set", device, "netns", place)
                ip(
                    "-n",
                    place,
                    "addr",
                    "add",
                    address[0],
                    "peer",
                    address[1],
                    "dev",
                    device,
                )
                ip("-n", place, "link", "set", device, "up")
            ip("-n", home, "route", "add", f"{HUB}/32", "dev", far)
        self._carrier = os.fork()
        if self._carrier == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            try:
                carry(ends, line)
            finally:
                os._exit(1)
        for pair in ends:
            for end in pair:
                os.close(end)

    def prefix(self, party: str) -> tuple[str, ...]:
        """What runs a program where a party lives."""
        return ("ip", "netns", "exec", self._homes[party])

    def move_to_server(self) -> None:
        """Have this process, and the server that it starts, live at the hub."""
        enter(self._hub)

    def remove(self) -> None:
        os.kill(self._carrier, signal.SIGKILL)
        os.waitpid(self._carrier, 0)
        for place in (self._hub, *self._homes.values()):
            subprocess.run(["ip", "netns", "del", place], check=False)


@contextmanager
def network(parties: tuple[str, ...], line: Line, congestion: str) -> Iterator[Network]:
    """A network that is there while the block runs."""
    made = Network(parties, line, congestion)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        yield made
    finally:
        ctypes.CDLL(None).setns(home, _CLONE_NEWNET)
        os.close(home)
        made.remove()


def bound(line: Line, sent: dict[str, int], rounds: int) -> float:
    """Seconds that as many rounds take at least; ``sent`` is of all rounds.

    Of the server's bytes the CSP's question is what all sites sent, in one message.
    """
    from_sites = sum(sent[name] for name in SITES)
    question = (sent["server"] - from_sites) / len(SITES)
    slowest = question + max(sent[name] for name in SITES)
    to_csp = from_sites + sent["csp"]
    return rounds * 2.0 * line.round_trip + 8.0 * (slowest + to_csp) / line.bandwidth


def measure(
    folder: Path, line: Line, congestion: str, rounds: int, parameters: int
) -> dict[str, Any]:
    """One study over such lines."""
    study = make_study(folder, rounds, parameters, 200)
    with network(("csp", *SITES), line, congestion) as made:
        made.move_to_server()
        machines = Machines(folder, study, host=HUB)
        try:
            machines.start("server")
            machines.wait_for_server(JOIN_SECONDS)
            for name in ("csp", *SITES):
                machines.start(name, prefix=made.prefix(name))
            machines.wait_for(seconds=JOIN_SECONDS)
            began = time.perf_counter()
            result = machines.submit(folder / "out")
            submitted = time.perf_counter() - began
            each = round_seconds(machines, folder / "out")
        finally:
            machines.stop()
    done = result.record["rounds"]
    sent = {party["name"]: party["bytes"] for party in result.record["parties"]}
    least = bound(line, sent, done) * len(each) / done
    return {
        **described(line, congestion),
        "rounds": done,
        "parameters": parameters,
        "bound_s": least,
        "rounds_s": sum(each),
        "over_bound": sum(each) / least,
        "median_over_bound": statistics.median(each) * len(each) / least,
        "submit_s": submitted,
        "load": os.getloadavg()[0],
    }


def described(line: Line, congestion: str) -> dict[str, Any]:
    """What a row says of its lines."""
    return {
        "round_trip_ms": 1e3 * line.round_trip,
        "loss": line.loss,
        "congestion": congestion,
    }


def line_options(description: str, congestion: str) -> argparse.ArgumentParser:
    """A parser that asks which lines to measure."""
    reader = argparse.ArgumentParser(description=description)
    reader.add_argument("--delay", type=float, nargs="+", default=[20.0, 100.0, 200.0])
    reader.add_argument("--loss", type=float, nargs="+", default=[0.0, 0.01])
    reader.add_argument("--rounds", type=int, default=60)
    words = "TCP's, as cubic or bbr."
    reader.add_argument("--congestion", default=congestion, help=words)
    return reader


def stated_lines(given: argparse.Namespace) -> Iterator[Line]:
    """The lines that were asked for, one after the other."""
    for loss in given.loss:
        for delay in given.delay:
            yield Line(delay / 1e3, BANDWIDTH, loss)


def main() -> None:
    reader = line_options(__doc__.splitlines()[0], congestion="cubic")
    reader.add_argument("--parameters", type=int, default=12)
    given = reader.parse_args()
    for line in stated_lines(given):
        with tempfile.TemporaryDirectory() as folder, own_state(folder):
            row = measure(
                Path(folder), line, given.congestion, given.rounds, given.parameters
            )
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
