"""The floor plan: nothing asks which protocol or method a study has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import FIRST

SOURCE = Path(__file__).resolve().parents[1] / "src" / "cipherbayes"
TOP = {"__init__.py", "__main__.py", "errors.py", "typing.py", "version.py"}
FOLDERS = [path.parent for path in sorted(SOURCE.glob("protocols/*/protocol.py"))]
NAMES = {
    *("secure-sum", "encrypted-update", "pooled", "as-printed"),
    *("noise-aware", "psgld", "averaged", "multilevel"),
}
CLASSES = {
    *("SecureSum", "EncryptedUpdate", "Pooled", "AsPrinted"),
    *("SecureSumPlan", "EncryptedPlan", "PrintedPlan"),
    *("NoiseAwareMethod", "ChainMethod", "AveragedMethod"),
    "MultilevelMethod",
}


def asks(tree: ast.AST) -> Iterator[ast.AST]:
    """Places that depend on which protocol or method there is.

    Comparisons with a name, cases of a match, tables by name, and what an object is
    an instance of.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(NAMES & set(_strings(side)) for side in sides):
                yield node
        elif isinstance(node, ast.MatchValue):
            if NAMES & set(_strings(node.value)):
                yield node
        elif isinstance(node, ast.Dict):
            if any(NAMES & set(_strings(key)) for key in node.keys if key is not None):
                yield node
        elif isinstance(node, ast.Subscript):
            typed = isinstance(node.value, ast.Name) and node.value.id == "Literal"
            if not typed and NAMES & set(_strings(node.slice)):
                yield node
        elif isinstance(node, ast.Call) and _asked_by_call(node):
            yield node


def _asked_by_call(node: ast.Call) -> bool:
    function = node.func
    if isinstance(function, ast.Name) and function.id == "isinstance":
        kinds = ast.walk(node.args[1])
        return any(isinstance(n, ast.Name) and n.id in CLASSES for n in kinds)
    got = isinstance(function, ast.Attribute) and function.attr == "get"
    return got and any(NAMES & set(_strings(argument)) for argument in node.args)


def _strings(node: ast.AST) -> Iterator[str]:
    """A string, or those of a tuple, list or set."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for element in node.elts:
            yield from _strings(element)


AUDITS = Path("validation/mechanisms.py")
"""The mechanisms that are audited without a study; one is called like a protocol."""


def outside() -> list[Path]:
    inside = [SOURCE / "inference", *FOLDERS]
    return [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if not any(path.is_relative_to(room) for room in inside)
    ]


def test_nothing_asks_which_protocol_or_method_there_is() -> None:
    assert len(FOLDERS) >= 4
    texts = {path: path.read_text(encoding="utf-8") for path in outside()}
    named = re.compile("|".join(map(re.escape, NAMES | CLASSES)))
    found = [
        f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
        for path, text in texts.items()
        if named.search(text) and path.relative_to(SOURCE) != AUDITS
        for node in asks(ast.parse(text))
    ]
    assert found == []


def test_no_module_outside_names_the_papers_own_mode() -> None:
    pattern = re.compile(r"\bas_printed\b")
    folder = SOURCE / "protocols" / "as_printed"
    named = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.is_relative_to(folder) and pattern.search(path.read_text())
    ]
    assert named == []


@pytest.mark.parametrize(
    "line",
    [
        'if study.protocol == "pooled": pass',
        'if "pooled" == study.protocol: pass',
        'if study.rules.name != "secure-sum": pass',
        'if study.method in ("psgld", "averaged"): pass',
        'if record["protocol"] == "pooled": pass',
        'words = {"pooled": "one place", "secure-sum": "sums"}',
        'words.get("pooled")',
        "if isinstance(plan, EncryptedPlan): pass",
        "if isinstance(rules, (SecureSum, Pooled)): pass",
        'if study.study.noise == "as-printed": pass',
        'match study.protocol:\n    case "pooled":\n        pass',
    ],
)
def test_such_a_question_would_be_found(line: str) -> None:
    assert list(asks(ast.parse(line)))


def test_every_module_is_in_a_room() -> None:
    assert {path.name for path in SOURCE.glob("*.py")} == TOP


def test_modules_that_the_tests_put_first_exist() -> None:
    root = Path(__file__).resolve().parents[1]
    assert [name for name in FIRST if not (root / name).is_file()] == []
