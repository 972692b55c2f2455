"""Many simulated studies: in processes, each kept in a file as soon as it is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from cipherbayes.errors import RunError
from cipherbayes.typing import JsonObject, Progress

Task = TypeVar("Task")
Found = TypeVar("Found")


def replicated(
    work: Callable[[Task], Found],
    tasks: Mapping[str, Task],
    *,
    results: Path | None,
    to_line: Callable[[Task, Found], JsonObject],
    from_line: Callable[[Mapping[str, Any]], tuple[str, Found]],
    processes: int,
    progress: Progress | None = None,
) -> dict[str, Found]:
    """What every task gives, by its key.

    Parameters
    ----------
    work
        A function of a module: other processes import it.
    tasks
        By a key that says all that a task depends on.
    results
        A file of one line a task, to which new ones are added; what it already holds
        is not computed again.
    to_line, from_line
        What a line holds, and the key and the finding of one.
    progress
        Called with (tasks done, tasks in all).
    """
    known = _read(results, from_line)
    if results is not None:
        _require_writable(results)
    missing = [key for key in tasks if key not in known]
    done = len(tasks) - len(missing)
    found = _computed(work, [tasks[key] for key in missing], processes)
    for key, each in zip(missing, found, strict=True):
        known[key] = each
        done += 1
        if results is not None:
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(to_line(tasks[key], each)) + "\n")
        if progress is not None:
            progress(done, len(tasks))
    return {key: known[key] for key in tasks}


def _computed(
    work: Callable[[Task], Found], tasks: Sequence[Task], processes: int
) -> Iterator[Found]:
    if processes <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, tasks)


def _require_writable(results: Path) -> None:
    """Before hours of work, not after the first study."""
    try:
        results.open("a", encoding="utf-8").close()
    except OSError as error:
        raise RunError(
            f"results cannot be written ({error.strerror})",
            where=str(results),
            remedy="name a file in a folder that exists and is yours",
        ) from None


def _read(
    results: Path | None, from_line: Callable[[Mapping[str, Any]], tuple[str, Found]]
) -> dict[str, Found]:
    if results is None or not results.exists():
        return {}
    known = {}
    for number, line in enumerate(results.read_text(encoding="utf-8").splitlines()):
        try:
            key, found = from_line(json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise RunError(
                "a line is not a replicate's result",
                where=f"{results}, line {number + 1}",
                remedy="remove the line, or name another results file",
            ) from None
        known[key] = found
    return known
