"""What a folder holds for a verification, and whose word each part is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.errors import CipherbayesError, RunError
from cipherbayes.protocols.stores import checkpoint_file
from cipherbayes.protocols.transcripts import Transcript
from cipherbayes.study.schema import Study
from cipherbayes.typing import JsonObject

MANIFEST = "the transcript itself"
FOLDER = "the folder itself"


@dataclass(frozen=True)
class RunEvidence:
    """All that is compared.

    Attributes
    ----------
    study
        The study, in words where it comes from.
    pinned, pinned_by
        Everybody's public key, and who says so.
    result
        Folder with ``result.json``; None where there is none to compare.
    checkpoint
        The server's memory, where it is here.
    ledgers
        Ledger of each site whose folder is here.
    """

    transcript: Transcript
    study: Study
    study_from: str
    pinned: Mapping[str, Identity]
    pinned_by: str
    result: Path | None
    checkpoint: Path | None
    ledgers: Mapping[str, Path]

    @classmethod
    def gather(
        cls,
        folder: Path,
        *,
        study: Path | None,
        roster: Path | None,
        result: Path | None,
    ) -> RunEvidence:
        """Look through a run's folder, a result, or a site's own copy.

        Parameters
        ----------
        study, roster, result
            Given by whoever verifies: their own study file, their own ``roster.json``
            and the folder of the result to compare.
        """
        if not folder.is_dir():
            raise RunError("no such folder", where=str(folder), remedy="check the path")
        kit = folder.absolute().parent.parent
        at_kit = (
            folder.absolute().parent.name == "runs" and (kit / "roster.json").exists()
        )
        _refuse_open_run(folder)
        transcript = Transcript.load(folder)
        if study is None:
            study = _study_file(folder, kit if at_kit else None)
        if roster is None and at_kit:
            roster = kit / "roster.json"
        pinned, pinned_by = _pinned(folder, roster, transcript)
        if result is None and (folder / "result.json").exists():
            result = folder
        checkpoint = checkpoint_file(folder)
        return cls(
            transcript=transcript,
            study=Study.load(study),
            study_from=str(study),
            pinned=pinned,
            pinned_by=pinned_by,
            result=result,
            checkpoint=checkpoint if checkpoint.exists() else None,
            ledgers=_kit_ledger(kit) if at_kit else _ledgers(folder),
        )


def _refuse_open_run(folder: Path) -> None:
    """A run without privacy has no rounds that anybody signed."""
    record = _json(folder / "result.json")
    privacy = record.get("privacy")
    if isinstance(privacy, dict) and privacy.get("epsilon", 0.0) is None:
        raise RunError(
            "is no private run: no total was released that could be checked",
            where=str(folder),
            remedy="run the study again and compare, if you have the tables",
        )


def _study_file(folder: Path, kit: Path | None) -> Path:
    """The study that the party here approved, or the one beside the result."""
    if kit is not None:
        try:
            fingerprint = (folder / "study").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            fingerprint = ""
        approved = kit / "studies" / f"{fingerprint}.toml"
        if fingerprint and approved.exists():
            return approved
    return folder / "study.toml"


def _pinned(
    folder: Path, roster: Path | None, transcript: Transcript
) -> tuple[dict[str, Identity], str]:
    """Everybody's key: pinned by this party, by the run's folder, or by nobody."""
    if transcript.pooled:
        return {}, ""
    place, key = (roster, "parties") if roster else (folder / "run.json", "pinned")
    if place.exists():
        try:
            found = json.loads(place.read_text(encoding="utf-8"))[key]
            keys = {n: Identity.from_hex(i) for n, i in found.items()}
            return keys, str(place) if roster else FOLDER
        except (
            OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
        ):  # fmt: skip
            raise RunError(
                "cannot be read", where=str(place), remedy="give a roster.json"
            ) from None
        except CipherbayesError as error:
            raise RunError(error.what, where=str(place)) from None
    if roster is not None:
        raise RunError("no such file", where=str(place), remedy="check the path")
    manifest = transcript.manifest
    named = {m.site: Identity(m.identity) for m in manifest.roster}
    return {**named, "csp": Identity(manifest.csp)}, MANIFEST


def _ledgers(folder: Path) -> dict[str, Path]:
    found = {}
    for local in sorted((folder / "sites").glob("*/site.json")):
        ledger = _json(local).get("ledger")
        if isinstance(ledger, str) and Path(ledger).is_file():
            found[local.parent.name] = Path(ledger)
    return found


def _kit_ledger(kit: Path) -> dict[str, Path]:
    """A site's own ledger, beside its own copy."""
    from cipherbayes.engine.flare.kits import Kit

    try:
        mine = Kit.open(kit).require("site")
        ledger = Path(mine.settings()["ledger"])
    except CipherbayesError:
        return {}
    return {mine.name: ledger} if ledger.is_file() else {}


def _json(path: Path) -> JsonObject:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
