"""A kit's backup: keys, approvals and the ledger; no rows, no answers, no run.

What belongs to one run (its keys, what was answered in it) is erased when the run ends,
and so is in no copy. The state folder is in no copy either: it is what shows that a
ledger was put back from an old one.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from cipherbayes.engine.flare.kits import Kit
from cipherbayes.engine.flare.site_settings import site_settings
from cipherbayes.engine.local_settings import ledger_path
from cipherbayes.errors import RunError
from cipherbayes.privacy.ledger_backup import copy_ledger, restore_ledger
from cipherbayes.storage.folders import make_folder, require_new_folder

LEDGER = "ledger.copy"
REMARK = "# before the restore:"
"""Begins what has become of the budget in a site.toml that was put back."""
_FOLDERS = ("startup", "local", "studies", "identities", "service")
_FILES = ("*.json", "*.toml", "README.md", "*.sql")
_KEYS = ("identity.key", "heads.sqlite")


def back_up(kit: Kit, out: Path) -> None:
    """Copy what a party needs to be itself again into a new folder, 0700.

    Formal guarantees
    -----------------
    The copy of a ledger has every charge and no answer
    (:func:`~cipherbayes.privacy.ledger_backup.copy_ledger`). Keys of runs, rows of
    queries and the state folder are not copied.

    Edge cases
    ----------
    It holds the party's private keys: keep it as you keep them.
    """
    require_new_folder(out, remedy="choose another folder")
    make_folder(out)
    out.chmod(0o700)
    _copy(kit.path, out)
    if kit.role == "site":
        ledger = ledger_path(site_settings(kit.path))
        if ledger.exists():
            copy_ledger(ledger, out / LEDGER)


def put_back(backup: Path, folder: Path) -> bool:
    """Make a kit again where it was lost; whether its ledger's budget could be kept.

    Formal guarantees
    -----------------
    The ledger comes back before the kit can start, as
    :func:`~cipherbayes.privacy.ledger_backup.restore_ledger` says: what was spent stays
    spent, and unless this is shown to be the newest copy nothing is left; a budget in
    ``site.toml``, which every run would set again, is then a remark. So it is where
    the backup has no ledger and none is here: runs may have followed it.
    """
    kit = Kit.open(backup)
    require_new_folder(folder, remedy="give the folder that was lost, or another one")
    make_folder(folder)
    folder.chmod(0o700)
    kept = True
    try:
        if kit.role == "site":
            shutil.copy2(backup / "site.toml", folder / "site.toml")
            ledger = ledger_path(site_settings(folder))
            if not ledger.exists():
                # A copy from before the first run says nothing of what came after.
                copy = backup / LEDGER
                kept = copy.exists() and restore_ledger(copy, ledger)
        _copy(backup, folder)
        if not kept:
            _take_back_budget(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return kept


def _take_back_budget(folder: Path) -> None:
    """Make the budget in site.toml a remark: its owner is to decide it anew."""
    path = folder / "site.toml"
    text = path.read_text(encoding="utf-8")
    line = re.compile(r"^\s*[\"']?budget[\"']?\s*=", re.MULTILINE)
    text, count = line.subn(f"{REMARK} budget =", text)
    if not count:
        text = f"{REMARK} no budget\n{text}"
    path.write_text(text, encoding="utf-8")
    if site_settings(folder)["budget"] is not None:
        raise RunError(
            "has a budget that was given before the loss",
            where=str(path),
            remedy="remove it from the backup's site.toml, and restore again",
        )


def _copy(source: Path, out: Path) -> None:
    """Copy the lasting part of a kit."""
    try:
        for name in _FOLDERS:
            if (source / name).is_dir():
                shutil.copytree(source / name, out / name, dirs_exist_ok=True)
        for pattern in _FILES:
            for path in source.glob(pattern):
                shutil.copy2(path, out / path.name)
        (out / "keys").mkdir(exist_ok=True, mode=0o700)
        for name in _KEYS:
            if (source / "keys" / name).exists():
                _copy_file(source / "keys" / name, out / "keys" / name)
    except OSError as error:
        raise RunError(
            f"cannot be copied ({error.strerror})",
            where=str(source),
            remedy="check the disk and its permissions",
        ) from None


def _copy_file(source: Path, out: Path) -> None:
    """A key as it is; a database as it is at one moment."""
    if source.suffix != ".sqlite":
        shutil.copy2(source, out)
        return
    out.touch(mode=0o600)
    with (
        closing(sqlite3.connect(source)) as database,
        closing(sqlite3.connect(out)) as copy,
    ):
        database.backup(copy)
