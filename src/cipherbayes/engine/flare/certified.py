"""Who is speaking: the certificate's name, checked where a message arrives.

Once per job the server hands every party a fresh key, end to end encrypted to the
party's certificate and signed with the server's own (FLARE's ``secure=True``: a
receiver verifies under the certificate whose common name belongs to the cell that the
message claims to come from). FLARE also accepts messages that nobody signed, and
leaves it to the handler whom to listen to; the filter here closes both for that one
topic. After it, every question and answer carries a MAC under that key: as sure as a
signature between two parties, and some thousand times faster.
"""

from __future__ import annotations

import logging
from typing import Any

from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    StreamHeaderKey,
)

log = logging.getLogger("cipherbayes.flare")

GREETING = "cipherbayes.greeting"
TOPIC = "cipherbayes"
"""Questions that travel as streams."""
WHOLE = "cipherbayes.whole"
"""Questions that travel, like their answers, in one piece."""
_SIGNED = "cipherbayes.signed"


def greetings_only_from(cell: Any, caller: str) -> None:
    """Let a job's cell take greetings from one caller only, and only signed ones.

    Parameters
    ----------
    cell
        The FLARE cell of this job's process.
    caller
        Name of the caller's cell: ``server.JOB``.

    Formal guarantees
    -----------------
    A greeting that reaches its handler was encrypted to this party and signed by the
    key of the certificate whose name is the caller's. Names inside messages decide
    nothing.
    """

    def note(message: Message) -> None:
        # Before decryption: afterwards a message that never was signed looks alike.
        headers = message.headers
        signed = headers.get(MessageHeaderKey.SECURE) and headers.get(
            MessageHeaderKey.ENCRYPTED
        )
        message.set_prop(_SIGNED, bool(signed))

    def judge(message: Message) -> Message | None:
        channel = message.get_header(StreamHeaderKey.CHANNEL)
        topic = message.get_header(StreamHeaderKey.TOPIC)
        if (channel, topic) != (CellChannel.AUX_COMMUNICATION, GREETING):
            return None
        origin = message.get_header(MessageHeaderKey.ORIGIN)
        if message.get_prop(_SIGNED) and origin == caller:
            return None
        log.warning("refused a greeting of %s", origin)
        return Message()

    def refuse(message: Message) -> Message:
        # FLARE hands on what comes in one piece as well, past the filters of streams.
        log.warning("refused a greeting that is no stream")
        return Message()

    core = cell.core_cell
    core.add_incoming_request_filter(CellChannel.AUX_COMMUNICATION, GREETING, refuse)
    core.add_incoming_filter(STREAM_CHANNEL, STREAM_DATA_TOPIC, note)
    core.add_incoming_request_filter(STREAM_CHANNEL, STREAM_DATA_TOPIC, judge)
