"""The checks of what a result says in words: flags, cautions and warnings.

All of them follow from totals and draws, word by word. Where another machine drew, a
number near its limit may be on the other side of it, so that a sampler's own flags may
differ as far as :class:`~cipherbayes.inference.flags.Leeway` says, and no farther.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from cipherbayes.inference.diagnostics import rhat
from cipherbayes.inference.flags import Flag, FlagRecord, Leeway
from cipherbayes.inference.noise_aware.drawn_flags import LARGEST_RHAT, NOT_MIXED
from cipherbayes.inference.noise_aware.flags import prior_of_ranges
from cipherbayes.protocols.plan import Plan
from cipherbayes.results.from_private_run import (
    FRAME_LEDGER,
    NOT_SCORED,
    cautions_of,
    stopped_after,
)
from cipherbayes.study.schema import Study
from cipherbayes.typing import JsonObject
from cipherbayes.validation.verify.comparing import ROUNDING
from cipherbayes.validation.verify.draws_checks import FileDraws
from cipherbayes.validation.verify.fields import FIELDS, fields_differ, listed
from cipherbayes.validation.verify.findings import Findings
from cipherbayes.validation.verify.replaying import Replayed
from cipherbayes.validation.verify.sampled_draws import MIXING

TOLD_RHAT = re.compile(r"R-hat ([0-9]{1,4}\.[0-9]{2});")
"""The one number in the words of a flag that another sampling tells otherwise."""
ROUNDED_RHAT = 0.01


def check_flags(
    findings: Findings,
    study: Study,
    found: FileDraws,
    numbers: JsonObject,
    record: JsonObject,
    remade: JsonObject,
) -> None:
    """That flags and cautions are those due; a sampler's own depend on its draws.

    ``numbers`` are made of the file's draws, ``remade`` of those made here.
    """
    differs = fields_differ(FIELDS["flags"], record, numbers, ROUNDING)
    if differs is None or found.likeness != "sampled":
        if differs is None and (only_one := _only_one_has(numbers, remade)):
            findings.unknown("flags", only_one)
            return
        findings.judge(
            "flags", differs, "flags and cautions follow from the totals and the draws"
        )
        return
    if flags_of(record) is None:
        findings.fails("flags", "flags or cautions have another form")
        return
    names = [row["name"] for row in numbers["posterior"]]
    largest = _largest_rhat(found)
    unmixed = any(row["name"] == NOT_MIXED for row in flags_of(record) or [])
    if largest > LARGEST_RHAT + ROUNDED_RHAT and not unmixed:
        findings.fails("flags", f"the flag {NOT_MIXED} of the file's own draws is gone")
        return
    more: list[JsonObject] = []
    fewer: list[JsonObject] = []
    for field, caution in (("flags", False), ("cautions", True)):
        said, implied = record[field], numbers[field]
        here = [
            leeway
            for leeway in _of_study(study, found.draws.leeways)
            if leeway.flag.caution == caution
        ]
        failure = _beyond(said, implied, here, names, largest)
        if failure is not None:
            findings.fails("flags", failure)
            return
        more += _without(said, implied)
        fewer += _without(implied, said)
    if not more and not fewer:
        findings.fails("flags", "flags and cautions are in another order, or twice")
        return
    only_one = _only_one_has(numbers, remade)
    findings.unknown(
        "flags",
        "so near a limit that another machine's may differ; only in result.json: "
        f"{_named(more)}; only in what is computed here: {_named(fewer)}"
        + (f"; {only_one}" if only_one else ""),
    )


def _only_one_has(numbers: JsonObject, remade: JsonObject) -> str:
    """Flags of tests that the file's draws pass and those made here do not, or the
    other way round: what such a flag says is in numbers, so they are told by name."""
    theirs, ours = (
        {
            (row["name"], tuple(row["parameters"]), row["unusable"]): row
            for row in flags_of(each) or []
        }
        for each in (numbers, remade)
    )
    if theirs.keys() == ours.keys():
        return ""
    more, fewer = (
        [row for key, row in one.items() if key not in other]
        for one, other in ((theirs, ours), (ours, theirs))
    )
    return (
        "so near a limit that it hangs on the draws; only of the file's draws: "
        f"{_named(more)}; only of those made here: {_named(fewer)}"
    )


def _of_study(study: Study, leeways: tuple[Leeway, ...]) -> list[Leeway]:
    """As a result of this study words them."""
    if not study.prior_is_of_ranges:
        return list(leeways)
    worded = prior_of_ranges([leeway.flag for leeway in leeways])
    return [
        Leeway(flag, leeway.sure, leeway.needed, leeway.told)
        for flag, leeway in zip(worded, leeways, strict=True)
    ]


def _beyond(
    said: list[JsonObject],
    implied: list[JsonObject],
    leeways: list[Leeway],
    names: list[str],
    largest: float,
) -> str | None:
    """The first flag that no sampling of this posterior raises, or leaves out."""
    left = list(leeways)
    gone = _without(implied, said)
    for row in _without(implied, gone):  # said as it is here
        left = _without_first(left, [each for each in left if _is_of(row, each)])
    for row in _without(said, implied):
        fitting = [each for each in left if _fits(row, each, names, largest)]
        if not fitting:
            return f"does not follow: {row['name'][:80]} ({row['message'][:160]})"
        left = _without_first(left, fitting)
    for row in gone:
        own = [each for each in leeways if _is_of(row, each)]
        if not own or (own[0] in left and own[0].needed):
            return f"was left out: {row['name'][:80]} ({row['message'][:160]})"
    return None


def _without_first(leeways: list[Leeway], found: list[Leeway]) -> list[Leeway]:
    """These but the first of those found, if there is any."""
    return [each for each in leeways if each not in found[:1]]


def _is_of(row: JsonObject, leeway: Leeway) -> bool:
    flag = leeway.flag
    return bool(row["name"] == flag.code and row.get("unusable") is flag.unusable)


def _fits(row: JsonObject, leeway: Leeway, names: list[str], largest: float) -> bool:
    """Whether it is what this release writes, about parameters that it may be about."""
    about = row.get("parameters")
    if not isinstance(about, list) or not all(name in names for name in about):
        return False
    places = tuple(names.index(name) for name in about)
    flag = leeway.flag
    if not set(leeway.sure) <= set(places) <= set(flag.parameters):
        return False
    if flag.parameters and not places:
        return False
    due = _record(flag, places, names)
    if not leeway.told:
        return row == due
    told = TOLD_RHAT.search(row["message"])
    if told is None:
        return False
    # At least that of the file's own draws, among which the server's were more.
    least = max(largest - ROUNDED_RHAT, LARGEST_RHAT)
    most = 1.0 + MIXING * (_rhat_of(due) - 1.0)
    if not least <= float(told[1]) <= most:
        return False
    words = {
        key: TOLD_RHAT.sub(told[0], text)
        for key, text in (("text", due["text"]), ("message", due["message"]))
    }
    return row == {**due, **words}


def _record(flag: Flag, places: tuple[int, ...], names: list[str]) -> FlagRecord:
    worded = Flag(flag.code, flag.message, flag.unusable, places, flag.caution)
    return worded.as_record(names)


def _rhat_of(due: FlagRecord) -> float:
    told = TOLD_RHAT.search(due["message"])
    return 1.0 if told is None else float(told[1])


def _largest_rhat(found: FileDraws) -> float:
    """R-hat of the file's draws, whichever variable it is largest of."""
    draws = found.draws
    every = [draws.theta]
    if draws.sites is not None:
        every.append(draws.sites.between)
    each = rhat(np.concatenate(every, axis=2))
    return float(np.nanmax(each)) if np.isfinite(each).any() else 1.0


def _without(rows: list[JsonObject], others: list[JsonObject]) -> list[JsonObject]:
    """Rows that are not among the others, as often as they are there."""
    left, found = list(others), []
    for row in rows:
        if row in left:
            left.remove(row)
        else:
            found.append(row)
    return found


def flags_of(record: JsonObject) -> list[JsonObject] | None:
    """All flags and cautions; None where they have another form."""
    found = [record.get(name) for name in FIELDS["flags"]]
    if not all(isinstance(each, list) for each in found):
        return None
    rows = [row for each in found for row in each or []]
    named = all(
        isinstance(row, dict)
        and isinstance(row.get("name"), str)
        and isinstance(row.get("message"), str)
        for row in rows
    )
    return rows if named else None


def _named(flags: list[JsonObject]) -> str:
    return listed(f"{flag['name']} ({flag['message'][:160]})" for flag in flags)


# -- warnings --------------------------------------------------------------


def check_warnings(
    findings: Findings,
    plan: Plan,
    replayed: Replayed,
    numbers: JsonObject,
    record: JsonObject,
) -> None:
    """That all which must be said is there, and nothing that does not follow."""
    told, flags = record.get("warnings"), flags_of(record)
    if not isinstance(told, list) or flags is None:
        findings.fails("warnings", "warnings, flags or cautions have another form")
        return
    always, raised = cautions_of(plan), flags_of(numbers) or []
    notes = numbers["warnings"][len(always) + len(raised) :]
    # Flags have a check of their own: here each is said to whoever reads warnings.
    due = [*always, *(flag["message"] for flag in flags), *notes]
    only_told = [text for text in told if _only_told(text, plan, replayed, record)]
    stopped = stopped_after(replayed.rounds)
    if replayed.rounds < plan.rounds and not any(
        text.startswith(stopped) for text in only_told
    ):
        due.append(stopped)
    left_out(findings, due, record)
    often = Counter([*due, *only_told])
    for text in told:
        often[str(text)] -= 1
        if text not in due and text not in only_told:
            findings.fails("warnings", f"does not follow: {str(text)[:200]}")
        elif often[text] < 0:
            findings.fails("warnings", f"is said too often: {text[:200]}")
    for text in only_told:
        findings.unknown("warnings", f"as the server told it: {text[:200]}")
    if "warnings" in {finding.check for finding in findings.failed}:
        return
    flagged = {finding.state for finding in findings if finding.check == "flags"}
    if "fails" in flagged:
        findings.unknown("warnings", "they repeat flags that fail")
    elif "not checked" in flagged or only_told:
        findings.holds(
            "warnings",
            "what must be said is, and besides only what is named as not checked",
        )
    else:
        findings.holds("warnings", "what must be said is, and nothing else")


def _only_told(text: Any, plan: Plan, replayed: Replayed, record: JsonObject) -> bool:
    """Whether a warning is one that only those who ran the rounds can know."""
    if not isinstance(text, str):
        return False
    if text.startswith(stopped_after(replayed.rounds)):
        return replayed.rounds < plan.rounds
    if text == NOT_SCORED:
        public = plan.study.evaluation is not None and not plan.study.checks_privately
        return public and not record.get("metrics")
    return text == FRAME_LEDGER


def left_out(findings: Findings, due: list[str], record: JsonObject) -> None:
    """That nothing which must be said was left out."""
    told = record.get("warnings")
    missing = [t for t in due if not isinstance(told, list) or t not in told]
    if missing:
        findings.fails("warnings", f"a warning was left out: {missing[0]}")
