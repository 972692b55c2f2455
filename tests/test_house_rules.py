"""Rules of the house that no other tool knows, each shown to find what breaks it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from cipherbayes.models.registry import registered
from scopes import scoped, stands_for

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "cipherbayes"
SHIPPED = (SOURCE, ROOT / "research" / "src" / "cipherbayes_research")
Rule = Callable[[ast.Module], Iterator[ast.AST]]


@cache
def modules() -> dict[Path, str]:
    """Every module that is shipped."""
    return {
        path: path.read_text(encoding="utf-8")
        for folder in SHIPPED
        for path in sorted(folder.rglob("*.py"))
    }


def broken(rule: Rule, inside: Path, words: str) -> list[str]:
    """Where modules of a folder that have a word of the rule break it."""
    return [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for path, text in modules().items()
        if path.is_relative_to(inside) and re.search(words, text)
        for node in rule(ast.parse(text))
    ]


# -- records have types -------------------------------------------------------


def untyped(tree: ast.Module) -> Iterator[ast.AST]:
    """A dict of str and Any, by whatever name; ``JsonObject`` is for open JSON."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)):
            continue
        of = [ast.unparse(each).split(".")[-1] for each in node.slice.elts]
        kind = ast.unparse(node.value).split(".")[-1]
        tables = ("dict", "defaultdict", "mutablemapping")
        if kind.lower() in tables and of == ["str", "Any"]:
            yield node


def test_a_record_has_a_type_and_open_json_one_name() -> None:
    typing = (SOURCE / "typing.py").relative_to(ROOT)
    places = broken(untyped, SOURCE, r"\bAny\b")
    assert [place for place in places if not place.startswith(f"{typing}:")] == []


@pytest.mark.parametrize(
    "line",
    [
        "x: dict[str, Any]",
        "x: dict[str, typing.Any] = {}",
        "def f() -> typing.Dict[str, Any]: ...",
        "Record = list[dict[str, Any]]",
    ],
)
def test_a_record_without_a_type_would_be_found(line: str) -> None:
    assert list(untyped(ast.parse(line)))


# -- nothing outside the package ---------------------------------------------

MACHINE = re.compile(r"^(/(usr|home|root|work|opt|mnt|var|tmp|srv|Users)\b|[A-Z]:\\)")
EXAMPLES = ("/usr/bin/env", "/srv/cipherbayes/")
"""In the service files that kits come with, for somebody else's machine."""


def outside(tree: ast.Module) -> Iterator[ast.AST]:
    """Paths of one machine, and paths up from a module's own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text not in EXAMPLES and (MACHINE.match(text) or text[:3] == "../"):
                yield node
        own = isinstance(node, ast.Name) and node.id == "__file__"
        if own or (isinstance(node, ast.Attribute) and node.attr == "parents"):
            yield node


def test_nothing_that_is_shipped_knows_a_path_outside_its_package() -> None:
    words = r"\"/|'/|\.\./|\bparents\b|__file__|:\\"
    assert [
        place for folder in SHIPPED for place in broken(outside, folder, words)
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        'open("/home/someone/table.csv")',
        'Path("/work/data")',
        'Path("../shared/design.md")',
        'Path(__file__).parent.parent / "shared"',
        'here.parents[2] / "shared"',
    ],
)
def test_such_a_path_would_be_found(line: str) -> None:
    assert list(outside(ast.parse(line)))


# -- parties are plain objects ------------------------------------------------

WORLD = {
    *("socket", "socketserver", "ssl", "http", "urllib", "requests", "selectors"),
    *("threading", "concurrent", "multiprocessing", "asyncio", "subprocess", "signal"),
    *("time", "datetime", "sched", "random"),
}
"""Networks, threads, processes and clocks; and randomness that nobody vetted."""


def worldly(tree: ast.Module) -> Iterator[ast.AST]:
    """Imports by which a party would do more than answer a message."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        else:
            continue
        if any(name.split(".")[0] in WORLD for name in names):
            yield node


def test_parties_open_no_sockets_start_no_threads_and_read_no_clock() -> None:
    assert broken(worldly, SOURCE / "protocols", "import") == []


@pytest.mark.parametrize(
    "line",
    [
        "import socket",
        "from threading import Thread",
        "def f():\n    from time import monotonic",
        "import concurrent.futures",
        "from datetime import datetime",
    ],
)
def test_such_a_party_would_be_found(line: str) -> None:
    assert list(worldly(ast.parse(line)))


# -- a model is asked, not named ----------------------------------------------


def kinds_asked(tree: ast.Module) -> Iterator[ast.AST]:
    """Comparisons of a kind with a name, tables by kind, and classes of models."""
    classes = set(_model_classes(tree))
    for node, aliases in scoped(tree, _is_a_kind):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            asks = any(_is_a_kind(side, aliases) for side in sides)
            by_name = asks and any(_kinds(side) for side in sides)
            if by_name or any(_refers(side, classes) for side in sides):
                yield node
        elif isinstance(node, ast.MatchClass):
            if _refers(node.cls, classes):
                yield node
        elif isinstance(node, ast.MatchValue):
            if _kinds(node.value):
                yield node
        elif isinstance(node, ast.Dict):
            keys = [key for key in node.keys if key is not None]
            several = len([key for key in keys if _kinds(key)]) > 1
            if several or any(_refers(key, classes) for key in keys):
                yield node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "isinstance",
            "issubclass",
        ):
            asked = re.findall(r"\w+", ast.unparse(node.args[1]))
            if classes & set(asked):
                yield node


def _model_classes(tree: ast.Module) -> Iterator[str]:
    """Names of models' classes, also those that a module gives them."""
    classes = {model.__name__ for model in registered.values()}
    yield from classes
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and node.name in classes and node.asname:
            yield node.asname


def _refers(node: ast.expr, classes: set[str]) -> bool:
    """Whether an expression is one of these classes, its name, or several."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_refers(each, classes) for each in node.elts)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in classes
    return ast.unparse(node).split(".")[-1] in classes


def _is_a_kind(node: ast.expr, aliases: frozenset[str]) -> bool:
    """Whether an expression is a kind, or a name that one was assigned to."""
    if stands_for(node, aliases):
        return True
    if isinstance(node, ast.Name):
        return node.id == "kind"
    if isinstance(node, ast.NamedExpr):
        return _is_a_kind(node.value, aliases)
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "kind"
    return isinstance(node, ast.Attribute) and node.attr == "kind"


def _kinds(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_kinds(each) for each in node.elts)
    return isinstance(node, ast.Constant) and node.value in registered


def test_nothing_but_a_model_asks_for_its_kind() -> None:
    words = "|".join([*registered, *(model.__name__ for model in registered.values())])
    places = broken(kinds_asked, SOURCE, words)
    own = "src/cipherbayes/models/"
    assert [place for place in places if not place.startswith(own)] == []


@pytest.mark.parametrize(
    "line",
    [
        'if study.model.kind == "logistic": pass',
        'if kind in ("poisson", "linear"): pass',
        'name = study.model.kind\nif name == "logistic": pass',
        'if (name := ground["kind"]) in ("poisson", "linear"): pass',
        'match kind:\n    case "weibull":\n        pass',
        'words = {"logistic": 1, "linear": 2}',
        "if isinstance(model, models.Piecewise): pass",
        "if type(model) is Piecewise: pass",
        "if type(model) in (models.Piecewise, Weibull): pass",
        'if type(model).__name__ == "Piecewise": pass',
        "from cipherbayes.models import Piecewise as P\nif type(model) is P: pass",
        "match model:\n    case models.Piecewise():\n        pass",
        "words = {Piecewise: 1}",
        "class A:\n    def f(self):\n        self.k = model.kind\n"
        "    def g(self):\n        return self.k == 'logistic'",
    ],
)
def test_such_a_kind_would_be_found(line: str) -> None:
    assert list(kinds_asked(ast.parse(line)))
