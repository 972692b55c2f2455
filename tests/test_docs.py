"""What README.md and docs/ say exists, and what they print is so."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import typer

import cipherbayes as cb
from cipherbayes.cli.main import app
from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS
from cipherbayes.models.metrics import binary_metrics, survival_metrics
from cipherbayes.protocols.plan import plan_study
from conftest import logistic_frame
from terminal import cipherbayes

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]

pages = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def fenced(page: Path, language: str) -> list[str]:
    """Blocks of a language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def without_fences(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def inline_code(page: Path) -> list[str]:
    return [
        code.replace("\n", " ")
        for code in re.findall(r"`([^`]+)`", without_fences(page))
    ]


def typed(page: Path) -> Iterator[list[str]]:
    """Words of each command line in a console block."""
    for block in fenced(page, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                yield shlex.split(line[2:], comments=True)


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    kept = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", kept)


def anchors(page: Path) -> set[str]:
    return {
        slug(h) for h in re.findall(r"^#+ (.+)$", without_fences(page), re.MULTILINE)
    }


@lru_cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.fixture(scope="module")
def every_test() -> set[str]:
    return set().union(*map(functions_of, (ROOT / "tests").rglob("test_*.py")))


# -- commands --------------------------------------------------------------


@pages
def test_every_command_line_is_one_that_the_program_takes(page: Path) -> None:
    for program, *words in typed(page):
        if program == "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), words
            continue
        if program == "python":
            assert (ROOT / words[0]).is_file(), words
            continue
        assert program == "cipherbayes", program
        # Parses the words, types and choices included, and runs nothing.
        COMMANDS[words[0]].make_context(words[0], words[1:])


@pages
def test_every_command_named_in_passing_exists_with_its_options(page: Path) -> None:
    for code in inline_code(page):
        program, *words = shlex.split(code) if code.startswith("cipherbayes ") else [""]
        if not program:
            continue
        command = COMMANDS[words[0]]
        options = {name for each in command.params for name in each.opts}
        asked = {word for word in words if word.startswith("--")}
        assert asked <= options, code
        if asked:
            command.make_context(words[0], words[1:])


@pages
def test_every_example_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"examples/[\w.-]+\.toml", text):
        assert (ROOT / name).is_file(), name


@pytest.mark.slow
def test_the_plan_in_the_docs_is_the_plan_of_the_example() -> None:
    page = ROOT / "docs" / "privacy.md"
    (block,) = (b for b in fenced(page, "console") if "cipherbayes plan" in b)
    printed = cipherbayes("plan", ROOT / "examples" / "flchain.toml").stdout
    said = [
        line for line in block.splitlines() if line.startswith(("releases", "epsilon"))
    ]
    assert len(said) == 2
    for line in said:
        for part in line.split(", ..., "):
            assert part in printed


# -- links, tests ----------------------------------------------------------


@pages
def test_every_relative_link_resolves(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.is_file(), target
        if page.parent.name == "docs":
            assert page.parent in linked.parents, f"{target}: outside the site"
        if anchor:
            assert anchor in anchors(linked), target


@pages
def test_every_test_named_exists(page: Path, every_test: set[str]) -> None:
    text = page.read_text(encoding="utf-8")
    for name, function in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", text):
        path = ROOT / name
        assert path.is_file(), name
        assert not function or function in functions_of(path), function
    for code in inline_code(page):
        if re.fullmatch(r"test_\w+", code):
            assert code in every_test, code


@pages
def test_every_module_named_exists(page: Path) -> None:
    sources = {"cipherbayes": "src", "cipherbayes_research": "research/src"}
    for code in inline_code(page):
        for name in re.findall(r"\bcipherbayes(?:_research)?\.[a-z_.]+\b", code):
            if name == "cipherbayes.commands":  # a group of entry points
                continue
            here = ROOT / sources[name.partition(".")[0]] / name.replace(".", "/")
            assert here.is_dir() or here.with_suffix(".py").is_file(), name


def test_the_site_has_every_page() -> None:
    menu = re.findall(
        r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )
    assert sorted(menu) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_floors_of_the_architecture_page_are_the_ones_that_lint_checks() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rule = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    (shown,) = fenced(ROOT / "docs" / "architecture.md", "text")
    assert shown.splitlines() == rule


def test_every_room_and_module_of_the_architecture_page_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", text, re.MULTILINE)
    source = ROOT / "src" / "cipherbayes"
    assert {room for room, _ in rooms} == {
        path.parent.name for path in source.glob("*/__init__.py")
    }
    for room, modules in rooms:
        for name in re.findall(r"`(\w+)`", modules):
            here = source / room / name
            assert here.is_dir() or here.with_suffix(".py").is_file(), f"{room}/{name}"


# -- blocks ----------------------------------------------------------------


@pages
def test_every_study_shown_is_a_study(page: Path) -> None:
    for block in fenced(page, "toml"):
        if block.startswith(("[study]", "[model]")):
            study = cb.Study.model_validate(tomllib.loads(block))
            if study.private:
                plan_study(study)


@pages
def test_every_python_block_compiles(page: Path) -> None:
    for block in fenced(page, "python"):
        compile(block, page.name, "exec")


PAPER = fenced(ROOT / "docs" / "where-the-paper-is-wrong.md", "python")


@pytest.mark.parametrize("number", range(len(PAPER)))
def test_what_is_said_against_the_paper_is_so(number: int) -> None:
    assert "assert" in PAPER[number]
    exec(compile(PAPER[number], f"block {number}", "exec"), {})


# -- tables ----------------------------------------------------------------


def test_the_parameter_table_is_the_programs() -> None:
    text = (ROOT / "docs" / "secure-sum.md").read_text(encoding="utf-8")
    rows = [
        re.sub(r"[`,]", "", line)
        for line in re.findall(r"^\| `bfv.*", text, re.MULTILINE)
    ]
    shortest = {
        (p.ring, p.limb_bits): p
        for p in reversed(PARAMETER_SETS.values())
        if p.word_bits >= 44
    }
    expected = [
        f"| {p.id} | {p.ring} | {p.modulus_bits} | {p.limb_bits} | {p.max_summands} "
        f"| {p.payload_bytes(184)} | {p.payload_bytes(10_000)} |"
        for p in reversed(shortest.values())
    ]
    assert rows == expected


def test_every_field_of_a_result_is_described() -> None:
    study = cb.Study.model_validate(
        {
            "model": {"kind": "logistic", "outcome": "death"},
            "features": {"age": {"low": 18, "high": 100}},
            "inference": {"chains": 1, "rounds": 20},
        }
    )
    result = cb.run(study, {"all": logistic_frame(50)})
    described = inline_code(ROOT / "docs" / "result.md")
    wanted = {*result.record, *result.summary()[0], *result.record["timing"]}
    wanted |= {*result.record["bytes"], *result.posterior.children}
    times = np.arange(1.0, 9.0)
    wanted |= {
        *binary_metrics((times > 4) * 1.0, times / 9),  # type: ignore[arg-type]
        *survival_metrics(times, (times > 2) * 1.0, times),  # type: ignore[arg-type]
    }
    assert wanted <= set(described)


def test_every_field_of_a_certificate_is_described() -> None:
    study = cb.Study.load(ROOT / "examples" / "flchain.toml")
    described = set(inline_code(ROOT / "docs" / "privacy.md"))
    plan = plan_study(study)
    assert set(plan.protocol.certificate(plan, 0)) <= described
