"""The checks of result.json: which fields it has, and every number in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cipherbayes.inference.chains import Draws
from cipherbayes.protocols.certificate import no_budget
from cipherbayes.protocols.plan import Plan
from cipherbayes.results.checking import check_fit
from cipherbayes.results.from_draws import assemble
from cipherbayes.results.from_private_run import cautions_of
from cipherbayes.results.record import Bytes, ResultRecord, Timing
from cipherbayes.results.result import Result
from cipherbayes.results.result_folder import FORMAT
from cipherbayes.storage.posterior_form import VERSION
from cipherbayes.typing import JsonObject
from cipherbayes.validation.verify.comparing import ELSEWHERE, ROUNDING, difference
from cipherbayes.validation.verify.draws_checks import (
    Likeness,
    check_draws,
)
from cipherbayes.validation.verify.evidence import RunEvidence
from cipherbayes.validation.verify.fields import FIELDS, fields_differ, listed
from cipherbayes.validation.verify.findings import Findings
from cipherbayes.validation.verify.replaying import Replayed
from cipherbayes.validation.verify.warning_checks import (
    check_flags,
    check_warnings,
    left_out,
)

ONLY_TOLD = ("seconds", "bytes")
"""What a party says of itself."""
INFLUENCE = 0.1
"""Posterior standard deviations by which a site's influence may differ where draws do
by Monte Carlo errors: it is computed at the median of their τ."""


def check_result(
    findings: Findings,
    evidence: RunEvidence,
    plan: Plan,
    replayed: Replayed,
    *,
    exact: bool,
) -> None:
    """Compare result.json and posterior.nc with what the totals imply."""
    if evidence.result is None:
        findings.unknown(
            "result", "there is no result.json here to compare: give one with --result"
        )
        return
    record = _read(findings, evidence.result)
    if record is None:
        return
    _fields(findings, record)
    implied: Mapping[str, Any] = plan.protocol.certificate(plan, replayed.rounds)
    findings.judge(
        "certificate",
        difference(record.get("privacy"), implied, "privacy"),
        f"ε = {implied['epsilon']:.6g} ({implied['spent']:.6g} spent) at δ = "
        f"{implied['delta']:g}, certified: {str(implied['certified']).lower()}, and "
        "whom it covers and holds against, follow from the rounds released",
    )
    _who(findings, evidence, plan, record)
    _posterior(findings, evidence.result, plan, replayed, record, exact=exact)
    _told(findings, record)


# -- what kind of file it is -----------------------------------------------


class _TwiceError(ValueError):
    """A key that an object has twice: readers differ in which of them they take."""


def _read(findings: Findings, folder: Path) -> JsonObject | None:
    try:
        text = (folder / "result.json").read_text(encoding="utf-8")
        record = json.loads(text, object_pairs_hook=_once, parse_constant=_refused)
        if not isinstance(record, dict) or record.get("version") != FORMAT:
            raise ValueError
        return record
    except _TwiceError as error:
        findings.fails("result", f"result.json has a key twice: {error}")
    except (OSError, ValueError, RecursionError):
        findings.fails("result", "result.json cannot be read, or has another version")
    return None


def _once(pairs: list[tuple[str, Any]]) -> JsonObject:
    found: JsonObject = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key[:80])
        found[key] = value
    return found


def _refused(constant: str) -> None:
    """No run writes NaN or an infinity."""
    raise ValueError(constant)


def _fields(findings: Findings, record: JsonObject) -> None:
    """That a result has no fields but those that are looked at below."""
    for name in sorted(set(record) - set(ResultRecord.__annotations__)):
        findings.fails("fields", f"{name[:80]} does not belong there")


def _who(
    findings: Findings, evidence: RunEvidence, plan: Plan, record: JsonObject
) -> None:
    """Run, key and identities, as result.json names them."""
    transcript, told = evidence.transcript, record.get("parties")
    parties = [_without_cost(row) for row in told] if isinstance(told, list) else told
    said = {n: record[n] for n in FIELDS["parties"] if n in record}
    said |= {"parties": parties}
    implied: JsonObject = {"run": None, "encryption": None, "parties": []}
    if not transcript.pooled:
        keys = {n: evidence.pinned[n].id for n in ("csp", *plan.study.sites)}
        implied = {
            "run": transcript.head.run.hex(),
            "encryption": {
                "parameters": plan.scheme,
                "key": transcript.manifest.key_id.hex(),
            },
            "parties": [
                {"name": name, "identity": keys.get(name)}
                for name in ("csp", "server", *sorted(plan.study.sites))
            ],
        }
    findings.judge(
        "parties",
        difference(said, implied, "result.json"),
        "result.json names no run, key or party: there were none"
        if transcript.pooled
        else "result.json names this run, its encryption key and the parties' keys",
    )


def _without_cost(row: Any) -> Any:
    """A party without the numbers that it told of itself."""
    if not isinstance(row, dict):
        return row
    return {n: v for n, v in row.items() if n not in ONLY_TOLD or not _is_number(v)}


def _told(findings: Findings, record: JsonObject) -> None:
    """Say what nothing here can tell to be true, if it is at least such a thing."""
    for name, kind in (("timing", Timing), ("bytes", Bytes)):
        said = record.get(name)
        if (
            not isinstance(said, dict)
            or set(said) != set(kind.__annotations__)
            or not all(map(_is_number, said.values()))
        ):
            findings.fails("cost", f"{name} is not the numbers that a run writes")
    findings.unknown(
        "cost",
        "seconds and bytes, as the parties told them (timing, bytes, and those of "
        "each entry of parties)",
    )
    release = record.get("cipherbayes")
    if not isinstance(release, str) or VERSION.fullmatch(release) is None:
        findings.fails("release", "cipherbayes is no version of a release")
        return
    findings.unknown("release", f"that release {release} wrote it, as it says")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- what the totals and the draws imply -----------------------------------


def _posterior(
    findings: Findings,
    result: Path,
    plan: Plan,
    replayed: Replayed,
    record: JsonObject,
    *,
    exact: bool,
) -> None:
    """The draws, and every field of result.json that is made of them or of totals."""
    if replayed.draws is None:
        findings.fails("posterior", "the rounds told here do not suffice for a result")
        return

    def implied_by(draws: Draws) -> Result:
        return _assembled(plan, replayed, draws)

    ours = replayed.draws
    found = check_draws(
        findings,
        result / "posterior.nc",
        record,
        plan.study,
        ours,
        implied_by=implied_by,
        exact=exact,
    )
    if found is None:
        _without_draws(findings, plan, _json(implied_by(ours)), record)
        return
    numbers, likeness = _json(found.result), found.likeness
    within = ROUNDING if likeness == "same" else ELSEWHERE
    _of_totals(findings, plan, numbers, record, within)
    findings.judge(
        "numbers",
        _numbers_differ(record, numbers, likeness, within),
        "every number of the posterior in result.json is made of these draws: "
        f"{listed(n for n in FIELDS['numbers'] if n in numbers)}",
    )
    _scores(findings, plan, numbers, record, within)
    remade = _json(implied_by(ours)) if likeness == "sampled" else numbers
    check_flags(findings, plan.study, found, numbers, record, remade)
    check_warnings(findings, plan, replayed, numbers, record)


def _json(result: Result) -> JsonObject:
    found: JsonObject = json.loads(json.dumps(result.record))
    return found


def _numbers_differ(
    record: JsonObject, numbers: JsonObject, likeness: Likeness, within: float
) -> str | None:
    (said, shifts), (implied, due) = map(_without_influence, (record, numbers))
    roughly = INFLUENCE if likeness == "sampled" else within
    found = difference(shifts, due, "hierarchy.influence", within=roughly)
    return found or fields_differ(FIELDS["numbers"], said, implied, within)


def _without_influence(record: JsonObject) -> tuple[JsonObject, Any]:
    """A result without the influence of sites, and that influence."""
    sites = record.get("hierarchy")
    if not isinstance(sites, dict):
        return record, None
    rest = {name: value for name, value in sites.items() if name != "influence"}
    return record | {"hierarchy": rest}, sites.get("influence")


def _of_totals(
    findings: Findings,
    plan: Plan,
    numbers: JsonObject,
    record: JsonObject,
    within: float,
) -> None:
    """What is made of the study and of totals, whatever the draws are."""
    findings.judge(
        "headings",
        fields_differ(FIELDS["headings"], record, numbers, ROUNDING),
        "result.json says which study, model, method, sites and rounds these are",
    )
    findings.judge(
        "scales",
        fields_differ(FIELDS["scales"], record, numbers, ROUNDING),
        "the reference record and what was released of columns follow from the totals",
    )
    found = fields_differ(FIELDS["characteristics"], record, numbers, within)
    if found is not None or plan.study.describe is not None:
        findings.judge(
            "characteristics",
            found,
            "every number of 'describe' in result.json is made of the totals",
        )


def _without_draws(
    findings: Findings, plan: Plan, numbers: JsonObject, record: JsonObject
) -> None:
    """What can be said where posterior.nc is not what the totals give."""
    # Another machine may have made the totals' numbers too: nothing shows it did not.
    _of_totals(findings, plan, numbers, record, ELSEWHERE)
    left_out(findings, cautions_of(plan), record)
    for check in ("numbers", "scores", "flags", "warnings"):
        findings.unknown(
            check, f"{listed(FIELDS[check])}: they are made of draws that differ"
        )


def _scores(
    findings: Findings,
    plan: Plan,
    numbers: JsonObject,
    record: JsonObject,
    within: float,
) -> None:
    """Scores of held-out rows: made of totals and of draws where they are protected."""
    said = record.get("metrics")
    if plan.study.checks_privately:
        findings.judge(
            "scores",
            fields_differ(FIELDS["scores"], record, numbers, within),
            "every number of 'metrics' in result.json is made of the totals",
        )
    elif not isinstance(said, dict) or "private" in said:
        findings.fails("scores", "metrics are not scores of rows that are public")
    elif plan.study.evaluation is None and said:
        findings.fails("scores", "there are scores, and the study holds out no rows")
    elif said:
        findings.unknown(
            "scores",
            "scores on held-out rows need the rows, which are not here: metrics "
            f"({listed(said)})",
        )


def _assembled(plan: Plan, replayed: Replayed, draws: Draws) -> Result:
    return assemble(
        plan.study,
        draws,
        privacy=no_budget(),
        metrics={},
        warnings=cautions_of(plan),
        moments=replayed.moments,
        column_models=replayed.column_models,
        range_ends=replayed.range_ends,
        checked=check_fit(plan, draws, replayed.moments, replayed.closing),
    )
