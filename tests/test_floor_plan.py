"""The floor plan: nothing asks which protocol or method a study has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "cipherbayes"
COMPARED = re.compile(r"\b(protocol|method)\s*(==|!=|in\b|not in\b)\s*[\"'({\[]")
NAMED = re.compile(r"\bas_printed\b")
PLANS = re.compile(r"isinstance\([^)]*\b(Encrypted|Printed|SecureSum)Plan\b")
TOP = {"__init__.py", "__main__.py", "errors.py", "typing.py", "version.py"}


def outside(*rooms: str) -> list[Path]:
    inside = [SOURCE / room for room in rooms]
    return [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if not any(path.is_relative_to(room) for room in inside)
    ]


def found(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]


def test_nothing_compares_protocols_or_methods_outside_their_folders() -> None:
    folders = [p.parent for p in SOURCE.glob("protocols/*/protocol.py")]
    assert len(folders) >= 4
    rooms = ["inference", *(str(f.relative_to(SOURCE)) for f in folders)]
    assert found(COMPARED, outside(*rooms)) == []


@pytest.mark.parametrize("pattern", [NAMED, PLANS])
def test_no_protocol_is_known_by_name_outside_its_folder(
    pattern: re.Pattern[str],
) -> None:
    folders = [p.parent for p in SOURCE.glob("protocols/*/protocol.py")]
    rooms = [str(folder.relative_to(SOURCE)) for folder in folders]
    assert found(pattern, outside(*rooms)) == []


def test_the_patterns_find_what_they_are_meant_to() -> None:
    for line in (
        'if study.protocol == "pooled":',
        'study.inference.method != "psgld"',
        'if study.method in ("psgld", "averaged"):',
    ):
        assert COMPARED.search(line)
    assert NAMED.search("if study.as_printed:")
    assert PLANS.search("assert isinstance(plan, EncryptedPlan)")


def test_every_module_is_in_a_room() -> None:
    assert {path.name for path in SOURCE.glob("*.py")} == TOP
