"""``cipherbayes audit``: attack the promise with a canary."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from cipherbayes.cli.console import console


class Mechanism(StrEnum):
    """What can be audited."""

    gaussian_sum = "gaussian-sum"
    poisson_gaussian_sum = "poisson-gaussian-sum"
    in_gradient = "in-gradient"
    as_printed = "as-printed"


# The paper's own claim is refuted at the small ε that it allows itself.
CLAIMS = {
    Mechanism.gaussian_sum: 1.0,
    Mechanism.poisson_gaussian_sum: 1.0,
    Mechanism.in_gradient: 1.0,
    Mechanism.as_printed: 0.01,
}


def audit(
    mechanism: Annotated[
        Mechanism | None,
        typer.Option(help="Which mechanism.", show_default="each of them"),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="The claim.", show_default="1, as-printed 0.01"),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ of the claim.")] = 1e-5,
    runs: Annotated[
        int, typer.Option(min=16, help="Runs, half with canary.")
    ] = 200_000,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Insert a canary record, run a mechanism many times, bound its ε from below.

    A bound above the claim refutes it; a bound below does not prove it. With --json
    and no --mechanism the object is that of gaussian-sum, and "others" has the rest.
    """
    from cipherbayes.privacy.audit import audit as run_audit

    chosen = list(Mechanism) if mechanism is None else [mechanism]
    results = [
        run_audit(each.value, epsilon=epsilon or CLAIMS[each], delta=delta, runs=runs)
        for each in chosen
    ]
    if as_json:
        first, *others = (result.to_dict() for result in results)
        document: dict[str, object] = dict(first)
        if mechanism is None:
            document["others"] = others
        typer.echo(json.dumps(document, indent=2))
        return
    table = Table(title=f"canary audit, {results[0].confidence:.0%} lower bounds")
    for heading in ("mechanism", "claimed ε", "δ", "ε at least", "runs", "verdict"):
        table.add_column(heading)
    for result in results:
        verdict = "REFUTED, not certified" if result.refuted else "not refuted"
        table.add_row(
            result.mechanism,
            f"{result.claimed_epsilon:g}",
            f"{result.delta:g}",
            f"{result.lower_bound:.3f}",
            f"{result.runs:,}",
            verdict,
        )
    console.print(table)
