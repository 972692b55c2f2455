"""The research distribution: beside the product, never inside it."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import cipherbayes
import cipherbayes_research
from cipherbayes.cli import main
from cipherbayes.errors import CipherbayesError

ROOT = Path(__file__).resolve().parents[2]
RESEARCH = tomllib.loads((ROOT / "research" / "pyproject.toml").read_text())["project"]
COMMANDS = RESEARCH["entry-points"]["cipherbayes.commands"]
SHIPPED = ("src", "research", "examples", "docs", "notebooks")
WRITTEN = (".py", ".c", ".md", ".toml", ".ipynb", ".css", ".typed")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """A program with no command but those that a test adds."""
    made = typer.Typer(pretty_exceptions_enable=False)
    made.callback()(lambda: None)
    monkeypatch.setattr(main, "app", made)
    return made


def refusal(app: typer.Typer, *words: str) -> str:
    """The error that a command line ends in."""
    outcome = CliRunner().invoke(app, words)
    assert isinstance(outcome.exception, CipherbayesError), outcome.output
    return str(outcome.exception)


def shipped() -> Iterator[Path]:
    yield ROOT / "Makefile"
    for folder in SHIPPED:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in WRITTEN and ".egg-info" not in str(path):
                yield path


# -- what is installed -----------------------------------------------------


def test_its_version_is_the_products() -> None:
    assert cipherbayes_research.__version__ == cipherbayes.__version__


def test_it_depends_on_the_product_of_its_own_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stated: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", stated.update)
    monkeypatch.chdir(ROOT / "research")
    runpy.run_path("setup.py")
    assert stated == {"install_requires": [f"cipherbayes=={cipherbayes.__version__}"]}
    assert "dependencies" in RESEARCH["dynamic"]


def test_the_installed_commands_are_those_of_its_pyproject() -> None:
    installed = {
        extra.name: extra.value
        for extra in entry_points(group="cipherbayes.commands")
        if extra.module.startswith("cipherbayes_research")
    }
    if not installed:
        pytest.skip("cipherbayes-research is on the path but not installed")
    assert installed == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_each_entry_point_is_a_function_that_the_program_takes(
    name: str, app: typer.Typer
) -> None:
    main._add_extra(EntryPoint(name, COMMANDS[name], "cipherbayes.commands"))
    outcome = CliRunner().invoke(app, [name, "--help"])
    assert outcome.exit_code == 0, outcome.output
    assert (EntryPoint(name, COMMANDS[name], "").load().__doc__ or "")[:20] in (
        outcome.output
    )


def test_the_product_knows_by_name_which_commands_are_researchs() -> None:
    assert sorted(main.RESEARCH) == sorted(COMMANDS)


def test_commands_of_research_load_nothing_heavy() -> None:
    modules = ", ".join(value.partition(":")[0] for value in COMMANDS.values())
    heavy = ("arviz", "jax", "matplotlib", "pandas", "pyarrow", "scipy", "sksurv",
             "tenseal")  # fmt: skip
    script = (
        f"import sys, {modules}; print(sorted(set({heavy}) & set(sys.modules)), end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]"


# -- what happens without it, or with a broken one -------------------------


@pytest.mark.slow
def test_without_research_its_commands_say_what_to_install() -> None:
    """A process that finds no entry points, as where only the product is."""
    script = (
        "import importlib.metadata as m, sys\n"
        "m.entry_points = lambda **_: m.EntryPoints()\n"
        "from cipherbayes.cli.main import main\n"
        "sys.argv = ['cipherbayes', *sys.argv[1:]]\n"
        "main()"
    )

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    shown = typed("--help")
    listed = {line.strip("│ ").partition(" ")[0] for line in shown.stdout.splitlines()}
    assert "run" in listed
    assert not listed & set(COMMANDS)
    for words in (("data", "flchain", "--sites", "5"), ("bench", "--help")):
        done = typed(*words)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: {words[0]}: ")
        assert "cipherbayes-research" in line
        assert "pip install" in line


@pytest.mark.parametrize("what", ["no_such_package.commands:data", "json:no_such_name"])
def test_a_broken_package_costs_its_own_command_only(
    what: str, app: typer.Typer
) -> None:
    app.command("other")(lambda: typer.echo("works"))
    main._add_extra(EntryPoint("broken", what, "cipherbayes.commands"))
    assert what.partition(":")[0] in refusal(app, "broken", "--any", "words")
    assert CliRunner().invoke(app, ["other"]).output == "works\n"
    assert "broken" not in CliRunner().invoke(app, ["--help"]).output


# -- what is in the source -------------------------------------------------


@pytest.mark.slow
def test_the_product_imports_nothing_of_research() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
            names.append(getattr(node, "module", None) or "")
            assert not [name for name in names if "cipherbayes_research" in name], path


def test_no_file_that_is_shipped_names_a_place_beside_the_repository() -> None:
    for path in shipped():
        text = path.read_text(encoding="utf-8")
        assert "../shared" not in text, path
        assert '"shared"' not in text, path
        assert str(ROOT) not in text, path
