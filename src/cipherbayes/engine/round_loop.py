"""The loop that every engine runs: ask the sites, ask the CSP, go on.

An engine is a way to reach parties. What a round is, is the protocol's business:
the loop only carries bytes between :class:`~cipherbayes.protocols.server.Server`
and the channels, and does not look into them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from cipherbayes.errors import CipherbayesError, LostPartyError
from cipherbayes.protocols.server import Server
from cipherbayes.typing import Progress

log = logging.getLogger("cipherbayes.server")

Each = Callable[[Callable[[Callable[[], Any]], Any], Sequence[Callable[[], Any]]], Any]
"""``map``, or one that calls several functions at the same time."""


class SiteChannel(Protocol):
    """A way to reach a site; every method is a question and its answer."""

    def enrol(self) -> bytes:
        """The site's enrolment."""

    def join(self, manifest: bytes, offer: bytes) -> None:
        """Hand over the run's manifest and public key."""

    def ask(self, request: bytes) -> None:
        """Send a request; its answer is read with :meth:`answer`."""

    def answer(self) -> bytes | None:
        """The answer to the last request, None if the site is lost."""

    def seconds(self) -> float:
        """CPU time the party has used in rounds."""

    def conclude(self, transcript: bytes) -> None:
        """Hand over the run's transcript, to keep and to check."""

    def end(self) -> None:
        """Say that the run is over, where nobody else does."""


class CspChannel(Protocol):
    """A way to reach the CSP."""

    def offer(self) -> bytes:
        """The run's public key."""

    def join(self, manifest: bytes) -> None:
        """Hand over the run's manifest."""

    def decrypt(self, request: bytes) -> bytes:
        """The total of a round, or a refusal."""

    def seconds(self) -> float:
        """CPU time the party has used in rounds."""

    def end(self) -> None:
        """Say that the run is over, where nobody else does."""


@dataclass
class Traffic:
    """Bytes and seconds that a run took.

    Attributes
    ----------
    sent
        Bytes that each party has sent, the server and the CSP by these names.
    """

    site_bytes: int = 0
    total_bytes: int = 0
    site_messages: int = 0
    server_seconds: float = 0.0
    site_seconds: dict[str, float] = field(default_factory=dict)
    csp_seconds: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)

    def count(self, party: str, size: int) -> None:
        """Add a message that a party sent."""
        self.sent[party] = self.sent.get(party, 0) + size
        self.total_bytes += size


def drive(
    server: Server[Any],
    sites: Mapping[str, SiteChannel],
    csp: CspChannel,
    *,
    rounds: int,
    progress: Progress,
    each: Each = map,
) -> Traffic:
    """Convene a run and take it through its rounds.

    All sites of a round are asked before the first answer is read, so that sites
    in processes of their own work at the same time. Where the checkpoint holds every
    round nobody is asked for anything: the parties may have erased their keys.

    Parameters
    ----------
    each
        How all parties are asked before the first round and after the last: one after
        the other, or at the same time where they are far away.
    """
    traffic = Traffic()
    if server.finished:
        return traffic
    enrolling = [partial(_or_lost, site.enrol) for site in sites.values()]
    offer, *enrolled = _asked(each, [csp.offer, *enrolling])
    manifest = server.convene(_of_those_left(server, enrolled), offer)
    joining = [
        partial(_or_lost, partial(sites[name].join, manifest, offer))
        for name in server.present
    ]
    _, *joined = _asked(each, [partial(csp.join, manifest), *joining])
    # Who is lost only now has no answer in the first round.
    _of_those_left(server, joined)
    while not server.finished:
        started = time.thread_time()
        names, request = server.request()
        traffic.server_seconds += time.thread_time() - started
        for name in names:
            sites[name].ask(request)
        started = time.thread_time()
        server.prepare()
        traffic.server_seconds += time.thread_time() - started
        answers = {}
        for name in names:
            answers[name] = sites[name].answer()
            started = time.thread_time()
            server.verify(name, answers[name])
            traffic.server_seconds += time.thread_time() - started
        traffic.count("server", len(request) * len(names))
        for name, given in answers.items():
            if given is not None:
                traffic.count(name, len(given))
                traffic.site_bytes += len(given)
        started = time.thread_time()
        question = server.collect(answers)
        traffic.server_seconds += time.thread_time() - started
        if question is None:
            continue
        # A round may take several exchanges: it counts once.
        traffic.site_messages += len(names)
        answer = csp.decrypt(question)
        started = time.thread_time()
        server.accept(answer)
        traffic.server_seconds += time.thread_time() - started
        traffic.count("server", len(question))
        traffic.count("csp", len(answer))
        progress(server.rounds_done, rounds)
    parties = [csp, *sites.values()]
    traffic.csp_seconds, *spent = _asked(each, [party.seconds for party in parties])
    traffic.site_seconds = dict(zip(sites, spent, strict=True))
    transcript = server.transcript()
    present = {name: sites[name] for name in server.present}
    _asked(each, [partial(_conclude, *item, transcript) for item in present.items()])
    if server.stopped is None:
        _asked(each, [partial(_end, party) for party in (*present.values(), csp)])
    return traffic


def _asked(each: Each, questions: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers to some questions, each to another party."""
    answers: Iterable[Any] = each(lambda question: question(), questions)
    return list(answers)


def _or_lost(question: Callable[[], Any]) -> Any:
    """The answer to a question, or the error if its party is lost."""
    try:
        return question()
    except LostPartyError as error:
        return error


def _of_those_left(server: Server[Any], answers: list[Any]) -> list[Any]:
    """The answers of the sites that are not lost, if the study can do without those
    that are."""
    lost = [each for each in answers if isinstance(each, LostPartyError)]
    if lost and len(lost) > server.spare:
        raise lost[0]
    for error in lost:
        log.warning("%s", error.what)
    return [each for each in answers if not isinstance(each, LostPartyError)]


def _end(party: SiteChannel | CspChannel) -> None:
    """Tell a party that the run is over; who cannot be told keeps what it has."""
    try:
        party.end()
    except CipherbayesError as error:
        log.warning("a party was not told that the run is over: %s", error.what)


def _conclude(name: str, site: SiteChannel, transcript: bytes) -> None:
    """Send the transcript to a site that can still be reached."""
    try:
        site.conclude(transcript)
    except CipherbayesError as error:
        log.warning("site %s does not agree to the transcript: %s", name, error)
