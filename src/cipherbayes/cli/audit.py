"""``cipherbayes audit``: attack the promise with a canary."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cipherbayes.cli.console import console
from cipherbayes.errors import PrivacyError

if TYPE_CHECKING:
    from cipherbayes.validation.canary import AuditResult
    from cipherbayes.validation.study_audit import StudyAudit


class Mechanism(StrEnum):
    """What can be audited without a study."""

    gaussian_sum = "gaussian-sum"
    poisson_gaussian_sum = "poisson-gaussian-sum"
    in_gradient = "in-gradient"
    paper = "as-printed"


# The paper's own claim is refuted at the small ε that it allows itself.
CLAIMS = {
    Mechanism.gaussian_sum: 1.0,
    Mechanism.poisson_gaussian_sum: 1.0,
    Mechanism.in_gradient: 1.0,
    Mechanism.paper: 0.01,
}

MECHANISM_RUNS, STUDY_RUNS = 200_000, 8_000


def audit(
    study: Annotated[
        Path | None,
        typer.Argument(
            help="A study, whose own releases are attacked.",
            show_default="none: the mechanisms by themselves",
        ),
    ] = None,
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
        int | None,
        typer.Option(
            min=16,
            help="Runs, half with canary.",
            show_default="200,000; of a study 8,000",
        ),
    ] = None,
    protocol: Annotated[
        bool,
        typer.Option(
            "--protocol", help="Also attack the study's parties by real messages."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Insert a canary record, run a mechanism many times, bound its ε from below.

    With a STUDY its own path is driven: invented tables that fit it, its model,
    preparation, bounds, grid and noise, at questions meant to make one record count
    for more than it may. No site's table is read, so nothing is spent.

    A bound above the claim refutes it; a bound below does not prove it. Ends with
    exit code 1 where a claim that a study certifies is refuted. With --json and no
    --mechanism the object is that of the first row, and "others" has the rest.
    """
    if study is not None:
        if mechanism is not None or epsilon is not None:
            raise PrivacyError(
                "a study has its own mechanism and claim",
                where="cipherbayes audit",
                remedy="leave --mechanism and --epsilon out, or leave the study out",
            )
        _audit_study(study, runs or STUDY_RUNS, protocol, as_json)
        return
    if protocol:
        raise PrivacyError(
            "there are no messages without a study",
            where="cipherbayes audit",
            remedy="name a study: cipherbayes audit STUDY --protocol",
        )
    from cipherbayes.validation.mechanisms import audit_mechanism

    chosen = list(Mechanism) if mechanism is None else [mechanism]
    results = [
        audit_mechanism(
            each.value,
            epsilon=epsilon or CLAIMS[each],
            delta=delta,
            runs=runs or MECHANISM_RUNS,
        )
        for each in chosen
    ]
    if as_json:
        first, *others = (result.to_dict() for result in results)
        document: dict[str, object] = dict(first)
        if mechanism is None:
            document["others"] = others
        typer.echo(json.dumps(document, indent=2))
        return
    _print(results)


def _audit_study(path: Path, runs: int, protocol: bool, as_json: bool) -> None:
    from cipherbayes.protocols.protocol import protocol_of
    from cipherbayes.study.schema import Study
    from cipherbayes.validation.protocol_audit import audit_protocol
    from cipherbayes.validation.study_audit import audit_study

    study = Study.load(path)
    if study.privacy is None:
        raise PrivacyError(
            "promises no privacy, so there is nothing to attack",
            where=str(path),
            remedy="add a [privacy] table",
        )
    audits = [audit_study(study, runs=runs)]
    if protocol:
        audits.append(audit_protocol(study))
    if as_json:
        first, *others = (_document(each) for each in audits)
        typer.echo(json.dumps({**first, "others": others}, indent=2))
    else:
        _print([each.result for each in audits])
        for each in audits:
            _print_shifts(each)
    if any(each.refuted for each in audits) and protocol_of(study).certifies:
        raise typer.Exit(1)


def _document(audit: StudyAudit) -> dict[str, object]:
    """The six keys of an audit, what was asked, and where the answers differed."""
    return {
        **audit.result.to_dict(),
        "refuted": audit.refuted,
        "phases": [
            {
                "purpose": shift.phase.purpose,
                "question": shift.name,
                "rows": shift.near.present.count,
                "share_of_sensitivity": shift.share,
            }
            for shift in audit.shifts
        ],
        "differences": list(audit.differences),
    }


def _print(results: list[AuditResult]) -> None:
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


def _print_shifts(audit: StudyAudit) -> None:
    if audit.shifts:
        worst = max(audit.shifts, key=lambda shift: shift.share)
        console.print(
            f"{audit.result.mechanism}: the canary moved a sum by at most "
            f"{worst.share:.4f} of the sensitivity "
            f"({worst.phase.purpose}, question '{worst.name}', "
            f"{worst.near.present.count} records)"
        )
    for difference in audit.differences:
        console.print(
            f"{audit.result.mechanism}: told apart by an answer: {difference}"
        )
