"""How the cost of an iteration grows: with d, K, the rows of a site, and the rounds.

Every point is one setting in which one quantity differs from the base; all protocols
of a point are measured turn by turn, CPU time, medians. A site's time is its whole
work: gradient pass, noise and cryptography.
"""

from __future__ import annotations

import statistics

from cipherbayes_research.benchmarks.circuits import STEADY, CircuitRace
from cipherbayes_research.benchmarks.iteration import WARM_UP, Clock, bench_iteration
from cipherbayes_research.benchmarks.measurements import Costs, Growth, GrowthRow

DIMENSION, SITES, ROWS = 184, 2, 10_000
DIMENSIONS = (23, DIMENSION, 736, 2944)
SITE_COUNTS = (SITES, 5, 16)
ROW_COUNTS = (1_000, ROWS, 100_000)
ROUNDS = 5
PROTOCOLS = ("secure-sum", "fast", "hardened")
_CIRCUITS = ("fast", "hardened")


def run_scaling() -> Growth:
    """The table: a row for each quantity, value and protocol."""
    settings = [("d", d, (d, SITES, ROWS)) for d in DIMENSIONS]
    settings += [("sites", k, (DIMENSION, k, ROWS)) for k in SITE_COUNTS]
    settings += [("rows", n, (DIMENSION, SITES, n)) for n in ROW_COUNTS]
    measured = {where: _point(*where) for where in {where for *_, where in settings}}
    rows: list[GrowthRow] = [
        {"quantity": quantity, "value": value, **costs}
        for quantity, value, where in settings
        for costs in measured[where]
    ]
    return {
        "base": {"d": DIMENSION, "sites": SITES, "rows": ROWS},
        "rows": rows + _over_rounds(),
    }


def _point(dimension: int, sites: int, rows: int) -> list[Costs]:
    """The costs of every protocol in one setting, in its first rounds."""
    race = CircuitRace(dimension, sites, _CIRCUITS, rounds_before=0)
    variants = bench_iteration(dimension, sites, rows, ROUNDS, race)["variants"]
    plain = variants["plaintext"]["site_ms"]
    costs: list[Costs] = []
    for name in PROTOCOLS:
        row = variants[name]
        site = row.get("site_ms", plain + row["encrypt_ms"])
        costs.append(
            {
                "protocol": name,
                "site_ms": site,
                "server_ms": row["server_ms"],
                "csp_ms": row["decrypt_ms"],
                "iteration_ms": sites * site + row["server_ms"] + row["decrypt_ms"],
                "message_bytes": row["message_bytes"],
            }
        )
    return costs


def _over_rounds() -> list[GrowthRow]:
    """The server's and the CSP's time early in a run and after hundreds of rounds."""
    early, late = Clock(), Clock()
    for clock, before in ((early, 0), (late, STEADY)):
        race = CircuitRace(DIMENSION, SITES, _CIRCUITS, rounds_before=before)
        for _ in range(ROUNDS + WARM_UP):
            race.round(clock.call)
    whole = Clock()
    bench_iteration(DIMENSION, SITES, 1_000, STEADY + ROUNDS, clock=whole)
    rows: list[GrowthRow] = []
    for value, clock in ((1, early), (STEADY + 1, late)):
        part = slice(WARM_UP, WARM_UP + ROUNDS) if value == 1 else slice(-ROUNDS, None)
        for name in PROTOCOLS:
            if name == "secure-sum":
                server, csp = (
                    statistics.median(whole.spent[who][part])
                    for who in ("server", "csp")
                )
            else:
                server, csp = (
                    clock.median(f"{name} server"),
                    clock.median(f"{name} csp"),
                )
            rows.append(
                {
                    "quantity": "round",
                    "value": value,
                    "protocol": name,
                    "server_ms": server,
                    "csp_ms": csp,
                }
            )
    return rows
