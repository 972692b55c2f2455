"""Structured logs: one JSON object a line, in files that only their owner reads.

Parties report what they did, what they refused and why, and never a data value.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

PARTY_LOG = "party.log"
MOST_BYTES = 10_000_000
KEPT = 5


class JsonLines(logging.Formatter):
    """One JSON object a line: time, party, level, message."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        entry = {
            "time": moment.isoformat(timespec="milliseconds"),
            "party": record.name.removeprefix("cipherbayes."),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        return json.dumps(entry, ensure_ascii=False)


class PrivateLog(RotatingFileHandler):
    """A log 0600 that keeps five older ones of ten megabytes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MOST_BYTES, backupCount=KEPT, encoding="utf-8")
        self.setFormatter(JsonLines())

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self.baseFilename, flags, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8")


def keep_party_log(kit: Path) -> Callable[[], None]:
    """Keep what this process's party reports in its kit; call the answer to stop.

    A disk that takes no log keeps nobody from answering.
    """
    logger = logging.getLogger("cipherbayes")
    try:
        handler = PrivateLog(kit / PARTY_LOG)
    except OSError:
        logger.warning("the log %s cannot be written", kit / PARTY_LOG)
        return lambda: None
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def stop() -> None:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()

    return stop
