"""The server of a FLARE job: drives the rounds and puts their result together."""

from __future__ import annotations

from pathlib import Path

from cipherbayes.engine.flare.controller import RoundsController
from cipherbayes.engine.local import Finished
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.results.from_private_run import NOT_SCORED, assemble_private


class ResultController(RoundsController):
    """The server party of a job, as FLARE loads it."""

    def save_result(
        self, folder: RunFolder, finished: Finished, started: float, out: Path
    ) -> None:
        result = assemble_private(folder, finished, started, {})
        if folder.study.evaluation is not None and not folder.study.checks_privately:
            result.record["warnings"].append(NOT_SCORED)
        result.save(out)
