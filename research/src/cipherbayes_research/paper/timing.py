"""Table 1: operations and seconds of an iteration, by party.

Every variant does the same round, turn by turn in one process, CPU time, medians:
K sites encrypt, the server evaluates, the CSP decrypts. The paper's own circuit is
``literal``. Operations of the CKKS circuits are counted while they run.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cipherbayes.typing import Integers
from cipherbayes_research.paper.cells import Cell, Outcome, Results, Sources
from cipherbayes_research.paper.experiment import Experiment
from cipherbayes_research.paper.pictures import COLOURS, panels
from cipherbayes_research.paper.report import Report, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Table 1: operations and time of an iteration"


@dataclass(frozen=True)
class Task:
    """A task of the paper's table.

    Attributes
    ----------
    dimension
        Parameters d.
    iterations
        T' = ⌊NT/τ⌋.
    seconds
        By the number of sites, the paper's seconds of all iterations: sites, server,
        CSP.
    """

    dimension: int
    iterations: int
    seconds: dict[int, tuple[float, float, float]]


TASKS = {
    "density estimation": Task(2, 1000, {2: (34.4, 252.0, 1.0)}),
    "logistic regression": Task(
        184, 5000, {2: (420.0, 2046.0, 9.4), 5: (936.0, 2190.0, 10.4)}
    ),
    "survival analysis": Task(
        7, 9842, {2: (852.0, 4026.0, 17.3), 5: (1716.0, 4182.0, 17.7)}
    ),
}

CIRCUITS = ("literal", "fast", "hardened")
WINDOW, SLOTS, WARM_UP = 219, 8192, 3
UNIT = 2.0**-20
PARTS = ("sites", "server", "CSP")


@dataclass
class Variant:
    """One way to do a round, with its keys made.

    Attributes
    ----------
    keys_s
        CPU seconds of key generation.
    encrypt, evaluate, decrypt
        What a site, the server and the CSP do, each given the round's number.
    fill
        Brings the state to that of a round, as if the rounds before had been run.
    counts
        Operations of the server since they were last cleared.
    message_bytes
        Size of a site's last message.
    """

    keys_s: float
    encrypt: Callable[[Integers, int], Any]
    evaluate: Callable[[list[Any], int], Any]
    decrypt: Callable[[Any, int], Any]
    fill: Callable[[int], None] = lambda start: None
    counts: Counter[str] = field(default_factory=Counter)
    message_bytes: int = 0


def cells(quick: bool) -> list[Cell]:
    """Each task and number of sites, from the round on that fills the window; quick:
    logistic regression with two sites, from the first round on."""
    rounds = "1+6" if quick else f"{WINDOW + 1}+20"
    return [
        Cell(task, sites=k, choice=rounds)
        for task in TASKS
        for k in TASKS[task].seconds
        if not quick or (task, k) == ("logistic regression", 2)
    ]


def theory(dimension: int, iteration: int) -> dict[str, int]:
    """The paper's counts for one iteration of the server, min(t, 219) in its window."""
    packed = SLOTS // dimension
    return {
        "HM": 9,
        "SM": 8 + math.ceil(min(iteration, WINDOW) / packed),
        "Rot": min(
            math.ceil(math.log2(max(iteration, 2))), 8, math.ceil(math.log2(packed))
        ),
    }


def compute(cell: Cell, sources: Sources) -> Outcome:
    """Median CPU milliseconds, key generation, message sizes and counts."""
    dimension = TASKS[cell.kind].dimension
    first, _, count = cell.choice.partition("+")
    start, rounds = int(first), int(count) + WARM_UP
    variants = {name: _ckks(name, dimension, cell.sites) for name in CIRCUITS}
    variants["secure-sum"] = _secure_sum(dimension, cell.sites)
    rng = np.random.default_rng(0)
    spent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for variant in variants.values():
        variant.fill(start)
    for t in range(start, start + rounds):
        h = np.clip(0.1 * rng.standard_normal(dimension), -0.5, 0.5)
        parts = np.rint(h / UNIT / cell.sites).astype(np.int64)
        for name, variant in variants.items():
            messages = [
                _timed(spent[name]["site"], variant.encrypt, parts, t)
                for _ in range(cell.sites)
            ]
            variant.counts.clear()
            output = _timed(spent[name]["server"], variant.evaluate, messages, t)
            _timed(spent[name]["CSP"], variant.decrypt, output, t)
            variant.message_bytes = len(messages[0].to_bytes())
    found: Outcome = {}
    for name, variant in variants.items():
        kept = {part: values[len(values) // rounds * WARM_UP :]
                for part, values in spent[name].items()}  # fmt: skip
        found[name] = {
            "sites": statistics.median(kept["site"]) * cell.sites,
            "server": statistics.median(kept["server"]),
            "CSP": statistics.median(kept["CSP"]),
            "keys_s": variant.keys_s,
            "bytes": variant.message_bytes,
            "counts": dict(variant.counts),
        }
    return found | {"iteration": start + rounds - 1}


def _timed(into: list[float], function: Callable[..., Any], *arguments: Any) -> Any:
    started = time.process_time()
    answer = function(*arguments)
    into.append(1000.0 * (time.process_time() - started))
    return answer


def _ckks(name: str, dimension: int, sites: int) -> Variant:
    from cipherbayes.crypto.ckks.circuit import Update
    from cipherbayes.crypto.ckks.circuits import make_circuit
    from cipherbayes.crypto.ckks.polynomial import minimax
    from cipherbayes.crypto.ckks.scheme import ckks_scheme
    from cipherbayes_research.paper.counting import CountingEvaluator

    circuit: Any = make_circuit(
        name, Update(dimension, sites, UNIT, minimax(0.01), drift=0.2)
    )
    started = time.process_time()
    keys = circuit.generate_keys()
    spent = time.process_time() - started
    counts: Counter[str] = Counter()
    counting = CountingEvaluator(ckks_scheme(circuit.parameters).evaluator, counts)
    encryptor = circuit.encryptor(keys.public)
    evaluator = circuit.evaluator(keys.evaluation, counting)
    drift = np.full(dimension, 0.1)

    def fill(start: int) -> None:
        """The state of round ``start``, as if every site had sent the same."""
        for t in range(circuit.window(start).start, start):
            message = encryptor.encrypt(np.full(dimension, 1000, dtype=np.int64), t)
            evaluator.absorb(t, [message] * sites)

    return Variant(
        spent,
        encryptor.encrypt,
        lambda messages, t: evaluator.step(t, messages, drift),
        lambda output, t: circuit.decrypt_exactly(keys.secret, output, t),
        fill,
        counts,
    )


def _secure_sum(dimension: int, sites: int) -> Variant:
    """BFV with the smallest set that holds the sums; additions only."""
    from cipherbayes.crypto.bfv.ciphertext import add
    from cipherbayes.crypto.bfv.keys import generate_keys
    from cipherbayes.crypto.bfv.parameters import choose

    bound = math.ceil(sites / UNIT)
    parameters = choose(bound, sites, dimension)
    started = time.process_time()
    keys = generate_keys(parameters)
    spent = time.process_time() - started
    return Variant(
        spent,
        lambda parts, t: keys.public.encrypt(parts),
        lambda messages, t: add(messages),
        lambda output, t: keys.secret.decrypt(output),
    )


def report(results: Results, quick: bool) -> Report:
    """Per iteration: the paper's seconds over its T' iterations, beside ours."""
    rows, notes = [], []
    for cell, outcome in sorted(results.items(), key=lambda item: item[0].sites):
        task = TASKS[cell.kind]
        theirs = dict(zip(PARTS, task.seconds[cell.sites], strict=True))
        counted = theory(task.dimension, outcome["iteration"])
        for name in (*CIRCUITS, "secure-sum"):
            found, setting = outcome[name], f"{cell.kind}, {name}"

            def row(
                metric: str,
                value: float,
                figure: float | None,
                setting: str = setting,
                sites: int = cell.sites,
            ) -> Row:
                return Row(setting, sites, None, False, metric, value, None, 0, figure)

            rows += [
                row(f"{part}, ms", found[part], 1000.0 * theirs[part] / task.iterations)
                for part in PARTS
            ]
            rows.append(row("key generation, s", found["keys_s"], 3.2))
            rows.append(row("message, bytes", found["bytes"], None))
            literal = outcome["literal"]["server"]
            rows.append(
                row("server, share of literal", found["server"] / literal, None)
            )
            if name in CIRCUITS:
                rows += [
                    row(
                        f"{operation} of the server",
                        found["counts"].get(operation, 0),
                        counted[operation] if name == "literal" else None,
                    )
                    for operation in counted
                ]
    notes = [
        "paper: seconds of all iterations over T' = ⌊NT/τ⌋, on its machine (3.0 GHz "
        "Xeon, SEAL 3.4 in C++); operations from its table; sites: all together",
        "K Enc and one Dec in every variant; secure-sum multiplies nothing",
        "CPU time, medians, variants turn by turn; only ratios carry over to another "
        "machine",
        "no encrypted precomputation is timed: public ranges need none",
    ]
    return Report("timing", TITLE, quick, rows, [], {}, notes)


def draw(shown: Report) -> Figure:
    """Bars of each party's time on a logarithmic axis."""
    figure, (axes,) = panels(1, height=5.0)
    rows = [row for row in shown.rows if row.metric == "server, ms"]
    names = [f"{row.setting}, K = {row.sites}" for row in rows]
    for number, part in enumerate(PARTS):
        values = [row.mean or 0.0 for row in shown.rows if row.metric == f"{part}, ms"]
        places = np.arange(len(names)) + 0.26 * (number - 1)
        axes.barh(
            places,
            values,
            0.24,
            label=part,
            color=COLOURS[number],
            hatch=("", "//", "..")[number],
            edgecolor="white",
        )
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("CPU ms an iteration")
    axes.legend(fontsize=7, frameon=False)
    return figure


EXPERIMENT = Experiment(TITLE, None, cells, compute, report, draw, parallel=False)
