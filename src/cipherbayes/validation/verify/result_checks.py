"""The checks of a result: certificate, parties, warnings, draws and numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cipherbayes.inference.chains import Draws
from cipherbayes.protocols.certificate import no_budget
from cipherbayes.protocols.plan import Plan
from cipherbayes.results.checking import check_fit
from cipherbayes.results.from_draws import assemble
from cipherbayes.results.from_private_run import cautions_of
from cipherbayes.results.posterior_file import read_posterior
from cipherbayes.results.result_folder import FORMAT
from cipherbayes.typing import Floats, JsonObject
from cipherbayes.validation.verify.comparing import (
    difference,
    draws_differ,
)
from cipherbayes.validation.verify.evidence import RunEvidence
from cipherbayes.validation.verify.findings import Findings
from cipherbayes.validation.verify.replaying import Replayed

HEADINGS = ("version", "study", "study_hash", "protocol", "model", "method", "sites")
NUMBERS = (
    "rounds",
    "interval",
    "posterior",
    "effects",
    "baseline",
    "moments",
    "column_models",
)


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
    try:
        text = (evidence.result / "result.json").read_text(encoding="utf-8")
        record = json.loads(text)
        if not isinstance(record, dict) or record.get("version") != FORMAT:
            raise ValueError
    except (OSError, ValueError, RecursionError):
        findings.fails("result", "result.json cannot be read, or has another version")
        return
    implied: Mapping[str, Any] = plan.protocol.certificate(plan, replayed.rounds)
    findings.judge(
        "certificate",
        difference(record.get("privacy"), implied, "privacy"),
        f"ε = {implied['epsilon']:.6g} ({implied['spent']:.6g} spent) at δ = "
        f"{implied['delta']:g}, certified: {str(implied['certified']).lower()}, and "
        "whom it covers and holds against, follow from the rounds released",
    )
    _who(findings, evidence, plan, record)
    _warnings(findings, cautions_of(plan), record)
    _posterior(findings, evidence.result, plan, replayed, record, exact=exact)
    if plan.study.evaluation is None and record.get("metrics"):
        findings.fails("scores", "there are scores, and the study holds out no rows")
    if record.get("metrics") and not plan.study.checks_privately:
        findings.unknown(
            "scores", "scores on held-out rows: they need the rows, which are not here"
        )


def _who(
    findings: Findings, evidence: RunEvidence, plan: Plan, record: JsonObject
) -> None:
    """Run, key and identities, as result.json names them."""
    transcript = evidence.transcript
    if transcript.pooled:
        return
    manifest = transcript.manifest
    told = record.get("parties")
    said = {
        "run": record.get("run"),
        "encryption": record.get("encryption"),
        "parties": {
            str(party.get("name")): party.get("identity")
            for party in (told if isinstance(told, list) else [])
            if isinstance(party, dict)
        },
    }
    implied = {
        "run": transcript.head.run.hex(),
        "encryption": {"parameters": plan.scheme, "key": manifest.key_id.hex()},
        "parties": {
            "server": None,
            **{n: evidence.pinned[n].id for n in ("csp", *plan.study.sites)},
        },
    }
    findings.judge(
        "parties",
        difference(said, implied, "result.json"),
        "result.json names this run, its encryption key and the parties' keys",
    )


def _warnings(findings: Findings, due: list[str], record: JsonObject) -> None:
    """That nothing which must be said was left out."""
    told = record.get("warnings")
    missing = [t for t in due if not isinstance(told, list) or t not in told]
    if missing:
        findings.fails("warnings", f"a warning was left out: {missing[0]}")


def _posterior(
    findings: Findings,
    result: Path,
    plan: Plan,
    replayed: Replayed,
    record: JsonObject,
    *,
    exact: bool,
) -> None:
    """The draws, and every number in result.json that is made of them."""
    if replayed.draws is None:
        findings.fails("posterior", "the rounds told here do not suffice for a result")
        return
    opened = _opened(result / "posterior.nc", record.get("posterior_sha256"))
    if opened is None:
        findings.fails(
            "posterior", "posterior.nc is missing, damaged, or not the file named"
        )
        return
    prepared, user, labels = opened
    study, ours = plan.study, replayed.draws
    found, same, alike = draws_differ(
        prepared,
        ours.theta,
        sampled=study.inference_method.samples_at_the_end,
        tail=(1.0 - study.inference.interval) / 2.0,
    )
    if found is None and exact and not same:
        found = f"the draws are not the same bit for bit ({alike})"
    findings.judge(
        "posterior", found, f"the draws in posterior.nc follow from the totals, {alike}"
    )
    if found is not None:
        return
    theirs = replace(
        ours, theta=prepared, step_size=np.full(prepared.shape[:2], np.nan)
    )
    implied = _assembled(plan, replayed, theirs)
    scaled = np.asarray(implied.posterior["posterior"].to_dataset()["theta"])
    if scaled.shape != user.shape or not np.allclose(scaled, user, rtol=1e-9, atol=0.0):
        findings.fails("posterior", "the draws on your units are not those prepared")
    if labels != _labels(implied.posterior):
        findings.fails("posterior", "the draws' parameters have other names")
    numbers = json.loads(json.dumps(implied.record))
    names = [*HEADINGS, *NUMBERS, *(["flags", "cautions"] if same else [])]
    differing = [difference(record.get(n), numbers.get(n), n) for n in names]
    findings.judge(
        "numbers",
        next((text for text in differing if text is not None), None),
        "every number of the posterior in result.json is made of these draws",
    )
    if same:
        _warnings(findings, numbers["warnings"], record)
        _after_the_posterior(findings, plan, numbers, record)
    else:
        findings.unknown("flags", "flags and warnings depend on every bit of the draws")


def _after_the_posterior(
    findings: Findings, plan: Plan, numbers: JsonObject, record: JsonObject
) -> None:
    """Scores of protected rows and characteristics, which are made of totals too."""
    for check_name, key, made in (
        ("scores", "metrics", plan.study.checks_privately),
        ("characteristics", "describe", plan.study.describe is not None),
    ):
        if made:
            findings.judge(
                check_name,
                difference(record.get(key), numbers.get(key), key),
                f"every number of '{key}' in result.json is made of the totals",
            )


def _assembled(plan: Plan, replayed: Replayed, draws: Draws) -> Any:
    return assemble(
        plan.study,
        draws,
        privacy=no_budget(),
        metrics={},
        warnings=[],
        moments=replayed.moments,
        column_models=replayed.column_models,
        range_ends=replayed.range_ends,
        checked=check_fit(plan, draws, replayed.moments, replayed.closing),
    )


def _labels(tree: Any) -> list[list[str]]:
    """The parameters' names on both scales."""
    return [
        [str(name) for name in tree[group].to_dataset()["parameter"].values]
        for group in ("prepared", "posterior")
    ]


def _opened(
    path: Path, digest: object
) -> tuple[Floats, Floats, list[list[str]]] | None:
    """Draws on the prepared scale and on the user's units, and their names."""
    try:
        # First: HDF5 takes its time over a damaged file.
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return None
        tree = read_posterior(path)
        return (
            np.array(tree["prepared"].to_dataset()["theta"], dtype=np.float64),
            np.array(tree["posterior"].to_dataset()["theta"], dtype=np.float64),
            _labels(tree),
        )
    # The file is a stranger's: HDF5 and xarray fail in their own ways.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None
