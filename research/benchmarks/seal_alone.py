"""What the encrypted circuits cannot do without: ``python seal_alone.py``.

The time that a server's step spends inside SEAL's evaluator, of which key switches and
rescaling, and what it takes to read the messages' sum into SEAL and the output out of
it; with the server's whole time beside it. All circuits turn by turn, 184 parameters,
two sites, CPU time, medians; the server's step of ``literal`` is the unit.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from cipherbayes.crypto.ckks.scheme import CkksScheme
from cipherbayes_research.benchmarks.circuits import CircuitRace

ROUNDS, WARM_UP = 24, 4
SWITCHING = ("relinearize_inplace", "rotate_vector", "rescale_to_next_inplace")
PARTS = ("server", "evaluator", "switching", "in and out")


class Stopwatch:
    """CPU milliseconds by name, summed over one step."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def timed(self, function: Callable[..., Any], *names: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            started = time.process_time()
            found = function(*args)
            taken = 1000.0 * (time.process_time() - started)
            for name in names:
                self.spent[name] += taken
            return found

        return call


class TimedEvaluator:
    """SEAL's evaluator with a stopwatch on every call."""

    def __init__(self, evaluator: Any, watch: Stopwatch) -> None:
        self._evaluator, self._watch = evaluator, watch

    def __getattr__(self, name: str) -> Callable[..., Any]:
        names = ("evaluator", "switching") if name in SWITCHING else ("evaluator",)
        return self._watch.timed(getattr(self._evaluator, name), *names)


def main() -> None:
    race, watch = CircuitRace(184, 2), Stopwatch()
    rows: dict[tuple[str, str], list[float]] = defaultdict(list)
    for lane in race.lanes.values():
        evaluator: Any = lane.evaluator
        timed = TimedEvaluator(evaluator._arithmetic._evaluator, watch)
        evaluator._arithmetic._evaluator = timed
        if hasattr(evaluator, "_evaluator"):
            evaluator._evaluator = timed

    def measure(name: str, work: Callable[[], Any]) -> Any:
        circuit, _, step = name.partition(" ")
        if step != "server":
            return work()
        watch.spent.clear()
        found = watch.timed(work, "server")()
        for part in PARTS:
            rows[circuit, part].append(watch.spent[part])
        return found

    load, read = CkksScheme.load, CkksScheme.coefficients
    with (
        patch.object(CkksScheme, "load", _method(watch, load)),
        patch.object(CkksScheme, "coefficients", _method(watch, read)),
    ):
        for _ in range(ROUNDS):
            race.round(measure)
    middle = {key: statistics.median(each[WARM_UP:]) for key, each in rows.items()}
    unit = middle["literal", "server"]
    for circuit in race.lanes:
        taken = {part: middle[circuit, part] for part in PARTS}
        told = (f"{part} {ms:.1f} ms ({ms / unit:.4f})" for part, ms in taken.items())
        print(f"{circuit}: {', '.join(told)}")


def _method(watch: Stopwatch, function: Callable[..., Any]) -> Callable[..., Any]:
    timed = watch.timed(function, "in and out")
    return lambda self, *args: timed(self, *args)


if __name__ == "__main__":
    main()
