"""A cut between two hosts: named within seconds, and nothing is released twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from parties import small_study, trajectory, write_tables

from cipherbayes.errors import RunError
from cipherbayes.results.run import run

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from flare_machines import Machines, free_port

pytestmark = pytest.mark.torture
ROUNDS = 150
HERE, THERE = "10.213.7.1", "10.213.7.2"
RELAY = Path(__file__).with_name("relay.py")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Cable:
    """Another host with an address of its own, and the one cable to it."""

    def __init__(self) -> None:
        self.host = f"cipherbayes{os.getpid()}"
        self.near, self.far = f"cb{os.getpid()}a", f"cb{os.getpid()}b"
        ip("netns", "add", self.host)
        ip("link", "add", self.near, "type", "veth", "peer", "name", self.far)
        ip("link", "set", self.far, "netns", self.host)
        ip("addr", "add", f"{HERE}/30", "dev", self.near)
        ip("link", "set", self.near, "up")
        for words in (
            ("addr", "add", f"{THERE}/30", "dev", self.far),
            ("link", "set", self.far, "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", self.host, *words)

    @property
    def prefix(self) -> tuple[str, ...]:
        """What runs a program on the other host."""
        return ("ip", "netns", "exec", self.host)

    def cut(self) -> None:
        ip("link", "set", self.near, "down")

    def mend(self) -> None:
        ip("link", "set", self.near, "up")

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.host], check=False)
        subprocess.run(
            ["ip", "link", "del", self.near], check=False, capture_output=True
        )


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        subprocess.run(["apt-get", "install", "-y", "iproute2"], check=False)
    if shutil.which("ip") is None:
        pytest.skip("iproute2 cannot be installed here")
    try:
        made = Cable()
    except subprocess.CalledProcessError:
        pytest.skip("network namespaces are not permitted here")
    try:
        yield made
    finally:
        made.remove()


@contextmanager
def relayed(cable: Cable, port: int) -> Iterator[None]:
    """The server's port, on the other host's loopback: all bytes cross the cable."""
    between = str(free_port())
    words = [sys.executable, str(RELAY)]
    relays = [
        subprocess.Popen([*words, HERE, between, "127.0.0.1", str(port)]),
        subprocess.Popen(
            [*cable.prefix, *words, "127.0.0.1", str(port), HERE, between]
        ),
    ]
    try:
        yield
    finally:
        for relay in relays:
            relay.kill()
            relay.wait()


def test_a_cut_cable_is_noticed_and_after_it_is_mended_the_run_ends_alike(
    cable: Cable, tmp_path: Path
) -> None:
    study = small_study(("a", "b", "c"), inference={"rounds": ROUNDS})
    machines = Machines(tmp_path, write_tables(tmp_path / "tables", study))
    out, cut = tmp_path / "out", 0.0

    def strike(done: int, rounds: int) -> None:
        nonlocal cut
        if done and not cut:
            cable.cut()
            cut = time.monotonic()

    with relayed(cable, machines.port):
        machines.start("server", "csp", "a", "c")
        machines.start("b", prefix=cable.prefix)
        try:
            machines.wait_for()
            with pytest.raises(RunError, match=r"\bb\b"):
                machines.submit(out, strike)
            assert cut
            assert time.monotonic() - cut < 30.0
            before = machines.thetas(out)
            assert 0 < len(before) < ROUNDS
            cable.mend()
            machines.submit(out, wait=120.0)
        finally:
            machines.stop()
    thetas = machines.thetas(out)
    assert thetas[: len(before)] == before
    assert machines.released() == {name: list(range(ROUNDS)) for name in "abc"}
    run(write_tables(tmp_path / "again", study), out=tmp_path / "alone")
    assert thetas == trajectory(tmp_path / "alone")
