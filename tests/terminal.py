"""The command line inside the test's own process: one import for all tests."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from cipherbayes.cli.main import main


@dataclass(frozen=True)
class Outcome:
    returncode: int
    stdout: str
    stderr: str


def cipherbayes(*words: object, cwd: Path | None = None) -> Outcome:
    """Run ``cipherbayes WORDS`` in a folder and catch all that a person would see."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = Path.cwd()
    with (
        mock.patch.object(sys, "argv", ["cipherbayes", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            os.chdir(cwd or before)
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            os.chdir(before)
    return Outcome(code, out.getvalue(), err.getvalue())
