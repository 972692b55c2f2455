"""Disks that fill up, memory that runs out, clocks that jump: in processes apart."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cipherbayes.results.run
from cipherbayes.errors import CipherbayesError
from cipherbayes.study.schema import Study

REFUSED, BROKE = 3, 4
"""Exit codes: an error of this package, in one line; anything else."""


def continued(study: Study, out: Path) -> None:
    """Begin a run, or go on with it."""
    if (out / "run.json").exists():
        cipherbayes.results.run.resume(out)
    else:
        cipherbayes.results.run.run(study, out=out)


def apart(work: Callable[[], object]) -> int:
    """Do something in a process of its own; its exit code, or minus its signal."""
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        return os.waitstatus_to_exitcode(status)
    code = BROKE
    try:
        work()
        code = 0
    except CipherbayesError:
        code = REFUSED
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.__stderr__)
    finally:
        os._exit(code)


def with_files_below(size: int, study: Study, out: Path) -> int:
    """A run in which no file may grow beyond ``size`` bytes."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        continued(study, out)

    return apart(work)


_STARVED = """
import resource, sys
from pathlib import Path
import cipherbayes.results.run, opendp.measurements
from cipherbayes.study.schema import Study
study = Study.model_validate_json(sys.argv[1])
out, size = Path(sys.argv[2]), int(sys.argv[3])
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + size
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
if (out / "run.json").exists():
    cipherbayes.results.run.resume(out)
else:
    cipherbayes.results.run.run(study, out=out)
"""


def with_memory_left(size: int, study: Study, out: Path) -> int:
    """A run that may take ``size`` bytes more memory than its modules take."""
    command = [sys.executable, "-c", _STARVED, study.model_dump_json(), str(out)]
    try:
        ended = subprocess.run([*command, str(size)], capture_output=True, timeout=120)
    except subprocess.TimeoutExpired:  # a library that waits for memory: killed
        return -signal.SIGKILL
    return ended.returncode


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of a few kilobytes, and a way to change its options.

    Raises
    ------
    PermissionError
        If this user may not mount one.
    """
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True).returncode:
        raise PermissionError("cannot mount")
    try:
        yield lambda options: subprocess.run(  # type: ignore[misc]
            ["mount", "-o", f"remount,{options}", str(path)], check=True
        )
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
