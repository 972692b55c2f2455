"""Finds code that depends on which protocol or method a study has.

A question can be asked in many ways: by a name, by a constant that holds a name, by a
class, by the descriptor itself, by what a folder exports. Names, classes and folders
are those of the registries, so whatever is registered next is looked for too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cipherbayes.protocols  # noqa: F401, registers them
from cipherbayes.inference.method import methods
from cipherbayes.study.protocol_rules import OWN_NOISE, protocols
from scopes import scoped, stands_for

SOURCE = Path(__file__).resolve().parents[1] / "src" / "cipherbayes"
PROTOCOLS, INFERENCE = Path("protocols"), Path("inference")

LOOKED_AT = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.alias, ast.Import, ast.ImportFrom),
    *(ast.Compare, ast.Match, ast.MatchValue, ast.Dict, ast.Subscript, ast.Call),
)
ASKED = frozenset({"rules", "inference_method", "protocol", "method"})
"""Attributes of a study that say which protocol or method it has."""
PROTOCOL_KNOWS = {PROTOCOLS / "as_printed": PROTOCOLS / "encrypted_update"}
"""The paper's own mode is an encrypted update without its defences, and says so."""
LOOK_UPS = frozenset({"protocol_of", "rules_of", "method_named"})
"""Functions that return a descriptor."""
OF_ALL = frozenset({"name", "noise", "__class__", "__name__", "__module__"})
"""Attributes that tell one descriptor from another."""
CHANGES = frozenset({"lower", "upper", "strip", "casefold", "replace", "split"})
"""Methods that give a name in other words."""
WAYS = frozenset(
    {"get", "pop", "setdefault", "startswith", "endswith", "removeprefix", "index"}
    | {"find", "count", "fullmatch", "match", "search", "__eq__", "__contains__"}
)
"""Methods by which one string is looked for in another, or in a table."""


@dataclass(frozen=True)
class Plan:
    """What is looked for, each with the places in which it may stand.

    Attributes
    ----------
    names
        Names of protocols, noises and methods, and of the descriptors' classes.
    classes
        Classes that a protocol's folder defines, and those of methods.
    constants
        Identifiers that hold a name, and the name, by the module that defines them.
    """

    names: Mapping[str, frozenset[Path]]
    classes: Mapping[str, frozenset[Path]]
    constants: Mapping[str, Mapping[str, str]]


def asking(plan: Plan, root: Path = SOURCE) -> Iterator[tuple[Path, int, str]]:
    """Module, line and kind of every question in a package, each of its modules read.

    Parameters
    ----------
    root
        The package's folder.
    """
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        for line, what in questions(_parse(path), place, plan):
            yield place, line, what


@cache
def _texts() -> dict[Path, str]:
    """Every module of the package."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in paths}


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def current() -> Plan:
    """What is registered now."""
    names: dict[str, set[Path]] = {}
    classes: dict[str, set[Path]] = {}
    for protocol in protocols():
        home = _home(protocol)
        for name in {protocol.name, protocol.noise} - {OWN_NOISE}:
            names.setdefault(name, set()).add(home)
        classes.setdefault(type(protocol).__name__, set()).add(home)
        for path in sorted((SOURCE / home).glob("*.py")):
            for node in _parse(path).body:
                if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                    classes.setdefault(node.name, set()).add(home)
    for method in methods():
        own = INFERENCE / method.name.replace("-", "_")
        homes = {INFERENCE / "methods.py", own, own.with_suffix(".py")}
        names.setdefault(method.name, set()).update(homes)
        classes.setdefault(type(method).__name__, set()).update(homes)
    quoted = re.compile(rf"""["']({"|".join(map(re.escape, names))})["']""")
    constants = {
        module_of(path): {
            w: n for w, n in _constants(list(ast.walk(_parse(path)))) if n in names
        }
        for path, text in _texts().items()
        if quoted.search(text)
    }
    return Plan(
        {name: frozenset(homes) for name, homes in names.items()},
        {name: frozenset(homes) for name, homes in classes.items()},
        {module: held for module, held in constants.items() if held},
    )


def _home(descriptor: object) -> Path:
    """The folder of a protocol, from the root of the package."""
    parts = type(descriptor).__module__.split(".")
    inside = parts[:2] == ["cipherbayes", "protocols"] and len(parts) > 3
    return PROTOCOLS / parts[2] if inside else Path("elsewhere") / parts[0]


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _constants(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Identifiers to which strings are assigned, and the strings."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _bound(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _bound(node.target, node.value)


def _bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _bound(one, other)
    elif isinstance(target, ast.Name):
        for text in _strings(value):
            yield target.id, text


def questions(tree: ast.Module, place: Path, plan: Plan) -> Iterator[tuple[int, str]]:
    """Line and kind of everything in a module that depends on a protocol or method.

    Parameters
    ----------
    place
        The module's path in the package: what is at home there may stand there.
    """

    at_home = [home for home in PROTOCOL_KNOWS if place.is_relative_to(home)]
    known = {PROTOCOL_KNOWS[home] for home in at_home}

    def foreign(homes: frozenset[Path]) -> bool:
        own = any(place.is_relative_to(home) for home in homes)
        return not own and not known & homes

    names = {name for name, homes in plan.names.items() if foreign(homes)}
    classes = {name for name, homes in plan.classes.items() if foreign(homes)}
    folders = {
        home.name
        for homes in plan.names.values()
        for home in homes
        if home.parent == PROTOCOLS and foreign(frozenset({home}))
    }
    nodes = list(ast.walk(tree))
    held = _held(nodes, plan, names)
    own = place.parent.parent == PROTOCOLS
    docstrings = set(_docstrings(nodes))
    for node, aliases in scoped(tree, _asked):
        if not isinstance(node, LOOKED_AT):
            continue
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and node not in docstrings:
            for name in sorted(_named(str(node.value), names, classes, folders)):
                yield line, f"names {name}"
        for name in _referred(node):
            if name in classes:
                yield line, f"refers to {name}"
        if folders & set(_imported(node)):
            yield line, "imports a protocol's folder"
        if _compares(node, held, aliases) and not (own and _compares_itself(node)):
            yield line, "asks by a constant or a descriptor"


def _held(nodes: Sequence[ast.AST], plan: Plan, names: set[str]) -> set[str]:
    """Identifiers that hold a name here: assigned, imported or of a module."""
    found = {identifier for identifier, text in _constants(nodes) if text in names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            known = plan.constants.get(node.module, {})
            found |= {
                each.asname or each.name
                for each in node.names
                if known.get(each.name) in names
            }
    # An attribute may be of any module that was imported.
    for module in _modules(nodes):
        held = plan.constants.get(module, {})
        found |= {identifier for identifier, name in held.items() if name in names}
    return found


def _modules(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _docstrings(nodes: Sequence[ast.AST]) -> Iterator[ast.Constant]:
    """Strings that stand alone: of modules, classes, functions and constants."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _named(
    text: str, names: set[str], classes: set[str], folders: set[str]
) -> Iterator[str]:
    """What a string names: alone, in quotes, or as a word that is no other word."""
    if text in classes:
        yield text
    for name in (name for name in names if name in text):
        word = re.escape(name)
        quoted = rf"""["'‘“]{word}["'’”]"""
        alone = rf"(?<![\w-]){word}(?![\w-])" if "-" in name else quoted
        if text == name or re.search(alone, text) or re.search(quoted, text):
            yield name
    for folder in folders if "protocols." in text else ():
        if re.search(rf"protocols\.{folder}\b", text):
            yield folder


def _referred(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.alias):
        yield node.name


def _imported(node: ast.AST) -> Iterator[str]:
    """Folders of the room of protocols that an import names."""
    room = "cipherbayes.protocols."
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        found = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return
    for name in found:
        if name.startswith(room):
            yield name.removeprefix(room).split(".")[0]


def _compares(node: ast.AST, held: set[str], aliases: frozenset[str]) -> bool:
    """Whether a constant with a name, or what a study has, is compared or looked up."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(s, ast.Constant) and s.value is None for s in sides):
            return False
        return any(_asked(s, aliases) or _holds(s, held) for s in sides)
    if isinstance(node, ast.Match):
        return _asked(node.subject, aliases)
    if isinstance(node, ast.MatchValue):
        return _holds(node.value, held)
    if isinstance(node, ast.Dict):
        return any(key is not None and _holds(key, held) for key in node.keys)
    if isinstance(node, ast.Subscript):
        return _holds(node.slice, held) or _asked(node.slice, aliases)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        by_name = node.func.id in ("getattr", "hasattr", "setattr")
        return by_name and any(_asked(each, aliases) for each in node.args[1:2])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in WAYS:
            return False
        return _asked(node.func.value, aliases) or any(
            _asked(each, aliases) or _holds(each, held) for each in node.args
        )
    return False


def _compares_itself(node: ast.AST) -> bool:
    """Whether a descriptor asks if it is the study's own."""
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
    return any(ast.unparse(side) in ("self", "self.name") for side in sides)


def _asked(node: ast.expr, aliases: frozenset[str]) -> bool:
    """Whether an expression is a study's protocol or method, its descriptor, or a part
    of one of them; or a name that one was assigned to."""
    if stands_for(node, aliases):
        return True
    if isinstance(node, ast.NamedExpr | ast.FormattedValue):
        return _asked(node.value, aliases)
    if isinstance(node, ast.IfExp):
        return _asked(node.body, aliases) or _asked(node.orelse, aliases)
    if isinstance(node, ast.BoolOp | ast.JoinedStr):
        return any(_asked(each, aliases) for each in node.values)
    if isinstance(node, ast.BinOp):
        return _asked(node.left, aliases) or _asked(node.right, aliases)
    if isinstance(node, ast.Attribute):
        if ast.unparse(node).endswith("preparation.method"):
            return False  # of columns
        part = node.attr in OF_ALL and _asked(node.value, aliases)
        return node.attr in ASKED or part
    if isinstance(node, ast.Subscript):  # also of a record
        return _is_key(node.slice) or _asked(node.value, aliases)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        made = node.func.id in ("type", "len", "str", "repr", "id", "hash")
        asked = made and any(_asked(each, aliases) for each in node.args)
        read = node.func.id == "getattr" and any(map(_is_key, node.args[1:2]))
        return node.func.id in LOOK_UPS or asked or read
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("get", "pop") and any(map(_is_key, node.args[:1])):
            return True
        return node.func.attr in CHANGES and _asked(node.func.value, aliases)
    return False


def _is_key(node: ast.expr) -> bool:
    """Whether this is the key by which a record has its protocol or method."""
    return isinstance(node, ast.Constant) and node.value in ("protocol", "method")


def _holds(node: ast.expr, held: set[str]) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_holds(each, held) for each in node.elts)
    if isinstance(node, ast.Name):
        return node.id in held
    return isinstance(node, ast.Attribute) and node.attr in held


def _strings(node: ast.AST) -> Iterator[str]:
    """A string, or those of a tuple, list or set."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for element in node.elts:
            yield from _strings(element)
