"""What is installed: light to import, complete, and the same by every door."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cipherbayes import __version__

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


def test_python_dash_m_is_the_command() -> None:
    done = python("-m", "cipherbayes", "--version")
    assert done.stdout.strip() == f"cipherbayes {__version__}"


def test_the_shell_can_complete_commands() -> None:
    done = python("-m", "cipherbayes", "--help")
    assert "--install-completion" in done.stdout


@pytest.mark.slow
def test_a_wheel_holds_the_whole_package(tmp_path: Path) -> None:
    done = python(
        "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
        "--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(ROOT),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
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
