"""Refreshes tables and pictures of *The paper, reproduced* from finished cells.

    python -m cipherbayes_research.paper.page reproduced docs/the-paper-reproduced.md

A table of the page stands below a comment ``<!-- table: NAME -->`` and is replaced as
a whole; ``pictures/NAME.svg`` beside the page are drawn again. Sentences around them
are not touched: read them again after refreshing the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cipherbayes.errors import RunError
from cipherbayes_research.paper.cells import Cell, Outcome
from cipherbayes_research.paper.constants import TASKS
from cipherbayes_research.paper.density import KINDS
from cipherbayes_research.paper.experiment import (
    NAMES,
    experiment,
    finished_cells,
    reproduce,
)
from cipherbayes_research.paper.mortality import grouped
from cipherbayes_research.paper.priors import PRIORS
from cipherbayes_research.paper.ranked_columns import CHOICE
from cipherbayes_research.paper.report import difference
from cipherbayes_research.paper.sites import SITES
from cipherbayes_research.paper.splits import SPLITS

Table = Sequence[Sequence[str]]
BUDGETS, CLAIMS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0), (0.01, 0.1, 1.0, 10.0)
AIMS = {0.1: 0.79, 0.3: 0.805, 1.0: 0.817, 3.0: 0.829, 10.0: 0.832}
KNOWN = {0.01: 0.52, 0.1: 0.62, 1.0: 0.71, 10.0: 0.79}
NOT_RUN = "not run"


class Finished:
    """The finished cells of every experiment in a folder."""

    def __init__(self, out: Path) -> None:
        self.results = {name: finished_cells(name, out) for name in NAMES}
        self._groups = {name: grouped(found) for name, found in self.results.items()}

    def outcomes(self, name: str, head: Cell) -> list[Outcome]:
        """One for each finished split."""
        return list(self._groups[name].get(head, {}).values())

    def mean(self, name: str, head: Cell, metric: str = "auc") -> str:
        """Mean (sd), and the number of splits where it is not ten."""
        values = [outcome[metric] for outcome in self.outcomes(name, head)]
        if not values:
            return NOT_RUN
        text = f"{np.mean(values):.3f}"
        if len(values) > 1:
            text += f" ({np.std(values, ddof=1):.3f})"
        return text if len(values) == SPLITS else f"{text}, {len(values)} of {SPLITS}"

    def by_split(self, name: str, head: Cell, metric: str = "auc") -> dict[int, float]:
        """A metric of each finished split."""
        return {k: o[metric] for k, o in self._groups[name].get(head, {}).items()}

    def noise(self, name: str, head: Cell) -> str:
        """Standard error that the privacy noise alone gives to the mean AUC."""
        runs = [outcome.get("draws", []) for outcome in self.outcomes(name, head)]
        if not runs or min(map(len, runs)) < 2:
            return NOT_RUN
        variance = sum(np.var(each, ddof=1) / len(each) for each in runs)
        return f"± {np.sqrt(variance) / len(runs):.4f}"

    def honest(self, name: str, sites: int, claim: float) -> str:
        """What the accountant gives for a claim."""
        found = self.outcomes(name, Cell("honest", 0, sites, claim))
        return _number(found[0]["epsilon"]) if found else NOT_RUN


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def _state(done: Finished) -> Table:
    rows = [["name", "fits of this page"]]
    for name in NAMES:
        count, total = len(done.results[name]), len(experiment(name).cells(False))
        words = "all" if count == total else f"{count} of {total}"
        rows.append([f"`{name}`", words])
    return rows


def _logistic(done: Finished) -> Table:
    rows = [
        [
            "certified ε",
            "aim",
            "pooled, ranked",
            "of noise",
            "pooled, the map's",
            "of noise",
            "two sites, ranked",
            "five sites, ranked",
            "five sites, the map's",
        ]
    ]
    for e in BUDGETS:
        found = []
        for choice in (CHOICE, ""):
            pooled = Cell("private", 0, 1, e, choice)
            found += [done.mean("logistic", pooled), done.noise("logistic", pooled)]
        for k, choice in ((2, CHOICE), (5, CHOICE), (5, "")):
            over = Cell("secure-sum", 0, k, e, choice)
            found.append(done.mean("logistic", over))
        rows.append([f"{e:g}", f"{AIMS[e]:g}" if e in AIMS else "none", *found])
    return rows


def _gains(done: Finished) -> Table:
    rows = [["ε", "ranked less the map's"]]
    for e in AIMS:
        gap = difference(
            done.by_split("logistic", Cell("private", 0, 1, e, CHOICE)),
            done.by_split("logistic", Cell("private", 0, 1, e)),
            ("ranked", "the map's"),
            metric="auc",
        )
        text = f"{gap.mean:+.3f} ({gap.lower:+.3f} to {gap.upper:+.3f})" if gap else ""
        rows.append([f"{e:g}", text or NOT_RUN])
    return rows


def _encrypted(done: Finished) -> Table:
    rows = [["certified ε", "two sites", "five sites", "two sites, simulated",
             "five sites, simulated", "pooled"]]  # fmt: skip
    for e in BUDGETS[1:]:
        heads = [
            Cell(kind, 0, k, e, CHOICE)
            for kind in ("encrypted-update", "simulated-update")
            for k in (2, 5)
        ]
        heads.append(Cell("private", 0, 1, e, CHOICE))
        rows.append([f"{e:g}", *(done.mean("logistic", head) for head in heads)])
    return rows


def _printed(done: Finished, name: str, metric: str) -> list[list[str]]:
    rows = [["claimed ε", "pooled", "two sites", "five sites",
             "honest ε, up to two sites", "honest ε, five sites"]]  # fmt: skip
    for e in CLAIMS:
        heads = [Cell("printed-pooled", 0, 1, e)]
        heads += [Cell("printed-federated", 0, k, e) for k in (2, 5)]
        found = [done.mean(name, head, metric) for head in heads]
        spent = [done.honest(name, k, e) for k in (2, 5)]
        rows.append([f"{e:g}", *found, *spent])
    return rows


def _printed_logistic(done: Finished) -> Table:
    rows = _printed(done, "logistic", "auc")
    known = ["known", *(f"{KNOWN[e]:g}" for e in CLAIMS)]
    return [[*row[:4], word, *row[4:]] for row, word in zip(rows, known, strict=True)]


def _survival(done: Finished) -> Table:
    rows = [["certified ε", "C-index, pooled", "two sites", "five sites",
             "AUC, pooled", "two sites", "five sites"]]  # fmt: skip
    for e in BUDGETS:
        heads = [Cell("private", 0, 1, e)]
        heads += [Cell("secure-sum", 0, k, e) for k in (2, 5)]
        found = [
            done.mean("survival", head, metric)
            for metric in ("c_index", "auc")
            for head in heads
        ]
        rows.append([f"{e:g}", *found])
    return rows


def _density(done: Finished) -> Table:
    rows = [["setting", "honest ε", "data sets", "error of the mean", "sd of draws"]]
    spent = done.honest("density", 1, 1.0)
    for kind, (setting, sites) in KINDS.items():
        epsilon = 0.0 if kind in ("exact", "pooled") else 1.0
        found = done.outcomes("density", Cell(kind, 0, sites, epsilon))
        if not found:
            rows.append([setting, NOT_RUN, "0", NOT_RUN, NOT_RUN])
            continue
        errors = [np.subtract(each["mean"], each["exact"]) for each in found]
        error = np.mean([np.sqrt(np.mean(each**2)) for each in errors])
        spread = np.mean([each["sd"] for each in found])
        private = spent if kind.startswith("printed") else f"{epsilon:g}"
        honest = private if epsilon else "none"
        rows.append([setting, honest, f"{len(found)}", f"{error:.4f}", f"{spread:.4f}"])
    return rows


def _constants(done: Finished) -> Table:
    rows = [["task", "sites", "c", "honest ε", "of the first round"]]
    results = done.results["constants"]
    order = sorted(
        results, key=lambda c: (list(TASKS).index(c.kind), c.sites, -float(c.choice))
    )
    for cell in order:
        found = [_number(results[cell][what]) for what in ("all", "first")]
        rows.append([cell.kind, f"{cell.sites}", cell.choice, *found])
    return rows


def _sites(done: Finished) -> Table:
    rows = [["sites", "secure-sum, ranked", "as printed, claimed 1", "its honest ε"]]
    rows.append(["1", done.mean("sites", Cell("private", 0, 1, 1.0, CHOICE)), "", ""])
    for k in SITES:
        ours = done.mean("sites", Cell("secure-sum", 0, k, 1.0, CHOICE))
        theirs = done.mean("sites", Cell("printed-federated", 0, k, 1.0))
        rows.append([f"{k}", ours, theirs, done.honest("sites", k, 1.0)])
    return rows


def _imbalance(done: Finished) -> Table:
    rows = [["ε", "secure-sum, 1:1", "4:1", "as printed, 1:1", "4:1"]]
    for e in CLAIMS:
        heads = [Cell("secure-sum", 0, 2, e, c) for c in (CHOICE, f"{CHOICE} 4:1")]
        heads += [Cell("printed-federated", 0, 2, e, c) for c in ("", "4:1")]
        rows.append([f"{e:g}", *(done.mean("imbalance", head) for head in heads)])
    return rows


def _priors(done: Finished) -> Table:
    rows = [["prior", "ε = 1, certified", "no privacy"]]
    for prior in PRIORS:
        heads = [Cell("private", 0, 1, 1.0, prior), Cell("pooled", 0, 1, 0.0, prior)]
        rows.append([prior, *(done.mean("priors", head) for head in heads)])
    return rows


TABLES: dict[str, Callable[[Finished], Table]] = {
    "state": _state,
    "logistic": _logistic,
    "ranked gains": _gains,
    "encrypted-update": _encrypted,
    "logistic as printed": _printed_logistic,
    "survival": _survival,
    "survival as printed": lambda done: _printed(done, "survival", "c_index"),
    "density": _density,
    "constants": _constants,
    "sites": _sites,
    "imbalance": _imbalance,
    "priors": _priors,
}


def refreshed(text: str, done: Finished) -> str:
    """The page with its tables as the finished cells have them."""
    for name, make in TABLES.items():
        rows = list(make(done))
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|" + "---|" * len(rows[0]))
        place = re.compile(rf"(?<=<!-- table: {name} -->\n\n)(?:\|.*\n)*")
        count = len(place.findall(text))
        if count != 1:
            raise RunError(f"the page has {count} tables '{name}', not one")
        text = place.sub("\n".join(lines).replace("\\", r"\\") + "\n", text)
    return text


def main(out: Path, page: Path) -> None:
    """Write the page again, and the pictures of experiments that have any cell."""
    done = Finished(out)
    page.write_text(refreshed(page.read_text(encoding="utf-8"), done), encoding="utf-8")
    for name, results in done.results.items():
        if results:
            reproduce(name, out=out, finished=True)
            picture = (out / name / f"{name}.svg").read_bytes()
            (page.parent / "pictures" / f"{name}.svg").write_bytes(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
