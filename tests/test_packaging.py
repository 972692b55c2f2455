"""What is installed: light to import, complete, and the same by every door."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from cipherbayes import __version__
from conftest import LOGISTIC, logistic_frame

ROOT = Path(__file__).resolve().parents[1]
HEAVY = (
    "arviz", "arviz_stats", "dp_accounting", "jax", "matplotlib", "nvflare", "opendp",
    "pandas", "pyarrow", "scipy", "tenseal", "xarray",
)  # fmt: skip


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "statement", ["import cipherbayes", "import cipherbayes.cli.main"]
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement: str) -> None:
    shown = f"{statement}; import sys; print(sorted(set({HEAVY}) & set(sys.modules)))"
    done = python("-c", shown)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_a_run_loads_nothing_that_only_some_runs_need() -> None:
    later = (*HEAVY, "scipy.interpolate", "scipy.optimize", "scipy.stats", "sklearn")
    needed = {"pyarrow", "scipy", "tenseal"}
    shown = (
        "import cipherbayes.results.run, sys; "
        f"print(sorted(set({later}) & set(sys.modules)))"
    )
    done = python("-c", shown)
    assert done.stdout.strip() == str(sorted(needed)), done.stderr


@pytest.mark.slow
def test_noise_is_drawn_without_loading_what_its_library_can_do_besides() -> None:
    shown = (
        "from cipherbayes.privacy import noise; noise._sampler(2.0); import sys; "
        "print(sorted({'polars', 'pandas', 'sklearn'} & set(sys.modules)))"
    )
    done = python("-c", shown)
    assert done.stdout.strip() == "[]", done.stderr


def test_python_dash_m_is_the_command() -> None:
    done = python("-m", "cipherbayes", "--version")
    assert done.stdout.strip() == f"cipherbayes {__version__}"


def test_the_shell_can_complete_commands() -> None:
    done = python("-m", "cipherbayes", "--help")
    assert "--install-completion" in done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # What an earlier build left there would be in the wheel too.
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    done = python(
        "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
        "--disable-pip-version-check", "--wheel-dir", str(folder), str(ROOT),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_a_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Its own files and no other; what it depends on is lent by this environment."""
    venv.create(tmp_path / "venv", with_pip=False)
    (home,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home)
    (tmp_path / "lent").mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(("cipherbayes", "__editable__")):
            (tmp_path / "lent" / each.name).symlink_to(each)
    (home / "lent.pth").write_text(str(tmp_path / "lent"), encoding="utf-8")
    logistic_frame(200).to_csv(tmp_path / "all.csv", index=False)
    quick = "[inference]\nrounds = 50\nchains = 1\n"
    sites = '[sites]\nall = { data = "all.csv" }\n'
    (tmp_path / "study.toml").write_text(LOGISTIC + quick + sites, encoding="utf-8")
    inside = str(tmp_path / "venv" / "bin" / "python")
    alone = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}

    def command(*words: str) -> str:
        done = subprocess.run(
            [inside, "-P", "-m", "cipherbayes", *words],
            capture_output=True, text=True, check=False, cwd=tmp_path, env=alone,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert command("--version").strip() == f"cipherbayes {__version__}"
    command("run", "study.toml", "--out", "out")
    assert (tmp_path / "out" / "report.html").is_file()
    where = subprocess.run(
        [inside, "-P", "-c", "import cipherbayes; print(cipherbayes.__file__)"],
        capture_output=True, text=True, check=True, cwd=tmp_path, env=alone,
    ).stdout  # fmt: skip
    assert Path(where.strip()).is_relative_to(home)


@pytest.mark.slow
def test_a_wheel_holds_the_whole_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for pattern in ("*.py", "*.css", "py.typed")
        for path in (source / "cipherbayes").rglob(pattern)
    }
    assert wanted <= inside
    assert not [name for name in inside if name.startswith("tests")]


@pytest.mark.slow
def test_a_hospitals_wheel_holds_no_research_code(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        rooms = {name.split("/")[1] for name in archive.namelist() if "/" in name}
        tops = {name.split("/")[0] for name in archive.namelist()}
        code = b"".join(
            archive.read(name) for name in archive.namelist() if name.endswith(".py")
        )
    assert tops == {"cipherbayes", f"cipherbayes-{__version__}.dist-info"}
    assert not rooms & {"research", "reproduce", "paper", "bench", "datasets"}
    assert b"cipherbayes_research" not in code


def test_no_file_that_is_shipped_names_a_path_outside_the_repository() -> None:
    outside = re.compile(r"\.\./(\.\./)*shared|parents\[\d\] / \"shared\"")
    for source in (ROOT / "src", ROOT / "research" / "src"):
        for path in source.rglob("*"):
            if path.suffix in (".py", ".c", ".css", ".toml", ".md"):
                assert not outside.search(path.read_text(encoding="utf-8")), path


# -- versions ----------------------------------------------------------------

HEADING = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


def test_the_changelog_knows_the_version() -> None:
    """A release is its newest heading, dated; what is in the making is above that."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (first, none), *released = HEADING.findall(changelog)
    assert (first, none) == ("Unreleased", "")
    assert all(date for _, date in released)
    versions = [Version(name) for name, _ in released]
    assert versions == sorted(versions, reverse=True)
    unreleased = changelog.split("## [")[1].partition("]")[2].strip()
    here = Version(__version__)
    if here.is_devrelease:
        assert here > versions[0]
        assert unreleased.startswith(f"{here.base_version} in the making")
    else:
        assert here == versions[0]
        assert unreleased == ""


LIGHT = {"annotated_doc", "cipherbayes", "cipherbayes_research"}
LIGHT |= {"rich", "shellingham", "typer"}


def test_the_command_line_imports_what_it_prints_with_and_no_more() -> None:
    """Numbers, tables and cryptography come with the command that needs them."""
    script = (
        "import sys, cipherbayes.cli.main; "
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    found = python("-c", script).stdout.split()
    others = {name for name in found if not name.startswith("_")}
    assert others - set(sys.stdlib_module_names) <= LIGHT
