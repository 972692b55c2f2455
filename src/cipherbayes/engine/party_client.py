"""Parties at the far end of a connection: each question is a verb and bytes.

The verbs are those of :class:`~cipherbayes.engine.party.PartyEndpoint`. What carries
them (pipes, a network) implements the methods of :class:`PartyConnection`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

ROUND = b"H"
"""The question of a round."""
END = b"F"
"""Not a question: the run is over."""
TRANSCRIPT = b"V"
"""The run's transcript, when it has ended."""


class PartyConnection(ABC):
    """A way to carry questions to one party."""

    @abstractmethod
    def send(self, verb: bytes, *parts: bytes) -> None:
        """Send a question; a lost party shows when its answer is read."""

    @abstractmethod
    def receive(self) -> bytes | None:
        """The answer, or None if the party is lost."""

    @abstractmethod
    def call(self, verb: bytes, *parts: bytes) -> bytes:
        """Ask and wait; a party that is lost is an error."""

    @abstractmethod
    def close(self) -> None:
        """Hang up."""


class SiteConnection(PartyConnection):
    """A site at the far end."""

    def enrol(self) -> bytes:
        return self.call(b"E")

    def join(self, manifest: bytes, offer: bytes) -> None:
        self.call(b"J", manifest, offer)

    def ask(self, request: bytes) -> None:
        self.send(ROUND, request)

    def answer(self) -> bytes | None:
        return self.receive()

    def seconds(self) -> float:
        self.send(b"T")
        answer = self.receive()
        return 0.0 if answer is None else float(answer.decode())

    def conclude(self, transcript: bytes) -> None:
        self.send(TRANSCRIPT, transcript)
        self.receive()

    def end(self) -> None:
        self.send(END)
        self.receive()


class CspConnection(PartyConnection):
    """The CSP at the far end."""

    def offer(self) -> bytes:
        return self.call(b"O")

    def join(self, manifest: bytes) -> None:
        self.call(b"J", manifest)

    def decrypt(self, request: bytes) -> bytes:
        return self.call(ROUND, request)

    def seconds(self) -> float:
        return float(self.call(b"T").decode())

    def end(self) -> None:
        self.send(END)
        self.receive()
