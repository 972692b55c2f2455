"""The floor plan: nothing asks which protocol or method a study has."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cipherbayes.inference import method as inference_methods
from cipherbayes.study.protocol_rules import ProtocolRules, register, unregister
from conftest import FIRST
from floor_plan import PROTOCOLS, SOURCE, asking, current, questions

TOP = {
    "__init__.py",
    "__main__.py",
    "errors.py",
    "processes.py",
    "typing.py",
    "version.py",
}
FOLDERS = [path.parent for path in sorted(SOURCE.glob("protocols/*/protocol.py"))]
PAGE = Path("report/page.py")
RESEARCH = SOURCE.parents[1] / "research" / "src" / "cipherbayes_research"
IMPORTERS = frozenset({"import_module", "__import__", "resolve_name"})
"""Functions that import what a string names, which import-linter does not see."""

BY_NAME = {
    # What the package exports, and its rooms, are imported when asked for.
    "cipherbayes/__init__.py": {"_HOMES[name]", "f'cipherbayes.{name}'"},
    # Compiled loops: there may be no compiler.
    "cipherbayes/models/kernels.py": {"'cipherbayes._kernels'"},
    "cipherbayes/inference/noise_aware/compiled.py": {
        "'cipherbayes.inference.noise_aware._loops'"
    },
    # The folders of the room.
    "cipherbayes/protocols/__init__.py": {"_found.name"},
    # Drivers of databases.
    "cipherbayes/data/omop/__init__.py": {"driver"},
    "cipherbayes/data/databases/database.py": {"module"},
    # Experiments, each when asked for.
    "cipherbayes_research/paper/experiment.py": {
        "f'cipherbayes_research.paper.{name}'"
    },
}
"""Imports by a string that is or may be of a module of ours, and why."""

EXCEPTIONS = {
    # Both list the mechanisms that are audited without a study, one by its old name.
    "cli/audit.py": {"names as-printed", "asks by a constant or a descriptor"},
    "validation/mechanisms.py": {"names as-printed"},
    # The protocols of studies that name none; and fields that belong to another one
    # than the study's are refused by all others.
    "study/protocol_rules.py": {
        "names secure-sum",
        "names pooled",
        "asks by a constant or a descriptor",
    },
    # A way to prepare columns, which fingerprints know by this word.
    "study/sections.py": {"names as-printed"},
}
"""What may stand outside its own folder, and why."""


def found() -> dict[str, set[str]]:
    """Questions by the module that asks them."""
    asked: dict[str, set[str]] = {}
    for place, line, what in asking(current()):
        known = EXCEPTIONS.get(place.as_posix(), set())
        where = "" if what in known else f":{line}"
        asked.setdefault(f"{place.as_posix()}{where}", set()).add(what)
    return asked


def test_nothing_asks_which_protocol_or_method_there_is() -> None:
    assert len(FOLDERS) >= 4
    assert found() == EXCEPTIONS


def test_no_module_outside_names_the_papers_own_mode() -> None:
    pattern = re.compile(r"\bas_printed\b")
    folder = SOURCE / "protocols" / "as_printed"
    named = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.is_relative_to(folder) and pattern.search(path.read_text())
    ]
    assert named == []


SOURCES = "source_modules"
DEFAULTS = "from cipherbayes.study.protocol_rules import CURATED_DEFAULT"
METHODS = "from cipherbayes.inference.methods import PRIVATE_DEFAULT"


@pytest.mark.parametrize(
    "lines",
    [
        'if study.protocol == "pooled": pass',
        'if "pooled" == study.protocol: pass',
        'if study.rules.name != "secure-sum": pass',
        'if study.method in ("psgld", "averaged"): pass',
        'if record["protocol"] == "pooled": pass',
        'words = {"pooled": "one place", "secure-sum": "sums"}',
        'words.get("pooled")',
        'if study.study.noise == "as-printed": pass',
        'match study.protocol:\n    case "pooled":\n        pass',
        'match study.protocol:\n    case name if name[0] == "p":\n        pass',
        # A name in the words of a refusal is a fact about a protocol.
        "raise ValueError('use protocol = \"pooled\"')",
        'raise ValueError("messages are audited of secure-sum studies")',
        'raise ValueError(f"{study.name} needs the noise-aware method")',
        # What the study has, by another name.
        "p = study.study.protocol\nif p == other: pass",
        "p, q = study.study.protocol, 1\nif p != other: pass",
        "p: str = study.protocol\nq = p.upper()\nif q in others: pass",
        "if (p := study.method) and p == other: pass",
        "rules = study.rules\nif rules.name == other: pass",
        "rules = protocol_of(study)\nif rules is other: pass",
        "p = stated or study.protocol\nwords[p]",
        "p = study.protocol\nwords.get(p)",
        "p = study.protocol\ndef f():\n    return p == other",
        "def f():\n    p = study.protocol\n    return [1 for q in x if q == p]",
        "f = lambda: f'{study.protocol}' == other",
        "getattr(self, f'_words_of_{study.protocol}')",
        "hasattr(self, 'words_of_' + study.protocol)",
        "if getattr(study, 'protocol') == other: pass",
        "class A:\n"
        "    def f(self):\n        self.p = study.protocol\n"
        "    def g(self):\n        return self.p == other",
        "class A:\n"
        "    def g(self):\n        return self.q == other\n"
        "    def f(self):\n        self.q = self.p\n"
        "    def h(self):\n        p = study.protocol\n        self.p = p",
        # Constants.
        'POOLED = "pooled"\nif study.protocol == POOLED: pass',
        'ONE, TWO = "pooled", "psgld"',
        f"{DEFAULTS}\nif study.protocol == CURATED_DEFAULT: pass",
        f"{DEFAULTS} as OTHER\nif name == OTHER: pass",
        f"{METHODS}\nif name in (PRIVATE_DEFAULT, 'x'): pass",
        f"{METHODS}\nwords = {{PRIVATE_DEFAULT: 1}}",
        f"{METHODS}\nwords[PRIVATE_DEFAULT]",
        f"{METHODS}\nmatch name:\n    case methods.PRIVATE_DEFAULT:\n        pass",
        "from cipherbayes.inference import methods\n"
        "if name == methods.PRIVATE_DEFAULT: pass",
        # Parts of a name.
        'if study.protocol.startswith("pooled"): pass',
        'if study.protocol.startswith("poo"): pass',
        'if study.protocol in "pooled together": pass',
        'if re.match("poo", study.protocol): pass',
        "words[study.protocol]",
        "if study.protocol[0] == first: pass",
        "if study.protocol.upper() == other: pass",
        "if len(study.method) == 8: pass",
        'if record["protocol"] == other: pass',
        'if record.get("protocol") == other: pass',
        'p = record.get("protocol", "")\nif p != other: pass',
        "if study.rules.__class__.__name__ == other: pass",
        # Classes.
        "if isinstance(plan, EncryptedPlan): pass",
        "if isinstance(rules, (SecureSum, Pooled)): pass",
        "if isinstance(plan, module.EncryptedPlan): pass",
        "if type(plan) is EncryptedPlan: pass",
        "if issubclass(type(plan), EncryptedPlan): pass",
        'if type(plan).__name__ == "EncryptedPlan": pass',
        "if isinstance(study.inference_method, ChainMethod): pass",
        "match plan:\n    case EncryptedPlan():\n        pass",
        # Descriptors and folders.
        "from cipherbayes.protocols.pooled import PROTOCOL",
        "from cipherbayes.protocols import encrypted_update",
        "import cipherbayes.protocols.encrypted_update",
        'import_module("cipherbayes.protocols.pooled")',
        "if study.rules is PROTOCOL: pass",
        "if protocol_of(study) is other: pass",
        "if type(study.rules) is other: pass",
        "if study.inference_method == other: pass",
    ],
)
def test_such_a_question_would_be_found(lines: str, tmp_path: Path) -> None:
    path = tmp_path / PAGE
    path.parent.mkdir()
    path.write_text(lines, encoding="utf-8")
    assert {place for place, _, _ in asking(current(), tmp_path)} == {PAGE}


@pytest.mark.parametrize(
    ("place", "lines"),
    [
        ("protocols/pooled/protocol.py", 'if study.protocol == "secure-sum": pass'),
        ("protocols/pooled/protocol.py", "if isinstance(plan, SecureSumPlan): pass"),
        (
            "protocols/pooled/curator.py",
            "from cipherbayes.protocols.secure_sum.plan import SecureSumPlan",
        ),
        (
            "protocols/encrypted_update/plan.py",
            "from cipherbayes.protocols.as_printed.plan import UNIT",
        ),
        ("protocols/forecast.py", 'if plan.study.protocol == "pooled": pass'),
        ("inference/chains.py", 'if settings.method == "averaged": pass'),
        ("inference/averaged.py", 'if settings.method == "psgld": pass'),
        ("inference/noise_aware/posterior.py", "if type(method) is ChainMethod: pass"),
    ],
)
def test_rooms_and_folders_do_not_ask_for_each_other(place: str, lines: str) -> None:
    assert list(questions(ast.parse(lines), Path(place), current()))


@pytest.mark.parametrize(
    ("place", "lines"),
    [
        ("protocols/pooled/protocol.py", 'name = "pooled"'),
        ("protocols/pooled/protocol.py", "if study.protocol != self.name: pass"),
        ("inference/methods.py", "register(ChainMethod())"),
        ("inference/noise_aware/flags.py", '"""Of the "noise-aware" method."""'),
        ("report/page.py", "if study.rules.federated: pass"),
        ("report/page.py", "if study.study.protocol is None: pass"),
        ("report/page.py", "p = study.protocol\nif p is None: pass"),
        ("report/page.py", "def f():\n    p = study.method\nif p == 1: pass"),
        ("report/page.py", "p = study.method\ndef f(p):\n    return p == 1"),
        ("report/page.py", "rules = study.rules\nif rules.federated: pass"),
        ("report/page.py", 'if record.get("protocol") is None: pass'),
        ("report/page.py", "print(f'{study.protocol}', getattr(self, name))"),
        (
            "report/page.py",
            "class A:\n    def f(self):\n        self.p = study.protocol\n"
            "class B:\n    def f(self):\n        return self.p == other",
        ),
        ("report/page.py", 'words = "rows are pooled and averaged"'),
        ("report/page.py", 'if study.preparation.method == "public-bounds": pass'),
    ],
)
def test_what_asks_nothing_is_not_found(place: str, lines: str) -> None:
    assert list(questions(ast.parse(lines), Path(place), current())) == []


class Whispered(ProtocolRules):
    """Registered by one test."""

    name = "whispered"


@pytest.fixture
def _whispering() -> Iterator[None]:
    protocol = Whispered()
    register(protocol)
    yield
    unregister(protocol)


@pytest.mark.usefixtures("_whispering")
def test_whatever_is_registered_next_is_looked_for_too() -> None:
    for line in ('name == "whispered"', "isinstance(rules, Whispered)"):
        assert list(questions(ast.parse(line), PAGE, current()))


def test_every_method_has_its_module_and_every_protocol_its_folder() -> None:
    """So that what is exempt is where it is thought to be."""
    assert {home for homes in current().classes.values() for home in homes} >= {
        folder.relative_to(SOURCE) for folder in FOLDERS
    }
    for method in inference_methods.methods():
        module = SOURCE / "inference" / method.name.replace("-", "_")
        assert module.is_dir() or module.with_suffix(".py").is_file()


def test_import_contracts_name_every_room_and_every_protocol() -> None:
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    settings = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]
    contracts = settings["importlinter"]["contracts"]
    folders = {f"cipherbayes.protocols.{folder.name}" for folder in FOLDERS}
    assert folders == {
        f"cipherbayes.{PROTOCOLS}.{path.parent.name}"
        for path in SOURCE.glob("protocols/*/__init__.py")
    }
    rooms = {f"cipherbayes.{p.parent.name}" for p in SOURCE.glob("*/__init__.py")}
    (protected,) = (c for c in contracts if c["type"] == "protected")
    (independent,) = (c for c in contracts if c["type"] == "independence")
    (top,) = (c for c in contracts if "cipherbayes.typing" in c.get(SOURCES, ()))
    assert set(protected["protected_modules"]) == folders
    assert set(independent["modules"]) == folders
    assert set(top["forbidden_modules"]) == rooms


def test_every_module_is_in_a_room() -> None:
    assert {path.name for path in SOURCE.glob("*.py")} == TOP


def unnamed(root: Path) -> set[Path]:
    """Folders with modules that are no packages: import-linter passes them by."""
    folders = {path.parent for path in root.rglob("*.py")}
    return {folder for folder in folders if not (folder / "__init__.py").is_file()}


def test_every_folder_with_modules_is_a_package(tmp_path: Path) -> None:
    assert unnamed(SOURCE) | unnamed(RESEARCH) == set()
    (tmp_path / "room" / "corner").mkdir(parents=True)
    for name in ("__init__.py", "room/__init__.py", "room/corner/module.py"):
        (tmp_path / name).touch()
    assert unnamed(tmp_path) == {tmp_path / "room" / "corner"}


def by_name(tree: ast.Module) -> Iterator[str]:
    """Strings of imports by a string, but for those of other distributions."""
    nodes = list(ast.walk(tree))
    importers = IMPORTERS | {
        node.asname
        for node in nodes
        if isinstance(node, ast.alias) and node.name in IMPORTERS and node.asname
    }
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        if ast.unparse(node.func).split(".")[-1] not in importers:
            continue
        given = [*node.args, *(each.value for each in node.keywords)]
        text = given[0].value if isinstance(given[0], ast.Constant) else "."
        if re.match(r"\.|cipherbayes", str(text)):
            yield ast.unparse(given[0])


def test_modules_are_imported_by_a_string_only_where_they_must() -> None:
    importer = re.compile("|".join(IMPORTERS))
    found = {
        path.relative_to(root.parent).as_posix(): set(by_name(ast.parse(text)))
        for root in (SOURCE, RESEARCH)
        for path in sorted(root.rglob("*.py"))
        if importer.search(text := path.read_text(encoding="utf-8"))
    }
    assert {place: strings for place, strings in found.items() if strings} == BY_NAME


@pytest.mark.parametrize(
    "lines",
    [
        'import_module("cipherbayes.cli.main")',
        'importlib.import_module(name="cipherbayes.report")',
        'import_module(".cli", "cipherbayes")',
        'import_module(f"cipherbayes.{name}")',
        "import_module(name)",
        '__import__("cipherbayes.cli")',
        'pkgutil.resolve_name("cipherbayes.cli:main")',
        'from importlib import import_module as load\nload("cipherbayes.cli")',
    ],
)
def test_such_an_import_would_be_found(lines: str) -> None:
    assert list(by_name(ast.parse(lines)))


def test_an_import_of_another_distribution_is_not_found() -> None:
    assert list(by_name(ast.parse('importlib.import_module("duckdb")'))) == []


def test_modules_that_the_tests_put_first_exist() -> None:
    root = Path(__file__).resolve().parents[1]
    assert [name for name in FIRST if not (root / name).is_file()] == []
