"""A server that changes a number is found out by `cipherbayes verify`."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from verified_runs import ROUNDS, change_record, finished, folder, states

import cipherbayes as cb
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.protocols.messages import DecryptReply, RunManifest, decode, encode
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.protocols.transcripts import (
    FILE,
    Transcript,
    TranscriptHead,
    keep_transcript,
    transcript_bytes,
)
from cipherbayes.report.page import write_report
from cipherbayes.results.result import Result
from cipherbayes.validation.verify import verify
from finished_runs import FinishedRuns, runs
from terminal import cipherbayes

__all__ = ["finished", "folder", "runs"]


def another_mean(folder: Path) -> None:
    """A coefficient's mean, in result.json alone."""

    def change(record: dict[str, Any]) -> None:
        record["posterior"][1]["mean"] += 0.1

    change_record(folder, change)


def another_epsilon(folder: Path) -> None:
    change_record(folder, lambda record: record["privacy"].update(epsilon=0.5))


def another_covering(folder: Path) -> None:
    """Held-out rows are said to be protected too."""

    def change(record: dict[str, Any]) -> None:
        record["privacy"]["covers"] = "every row"

    change_record(folder, change)


def certified_after_all(folder: Path) -> None:
    """Noise from a seed, called certified."""

    def change(record: dict[str, Any]) -> None:
        record["privacy"].update(certified=True, holds_against=["everybody"])

    change_record(folder, change)


def another_noise(folder: Path) -> None:
    change_record(folder, lambda record: record["privacy"].update(noise_multiplier=9.0))


def another_party(folder: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["parties"][0]["identity"] = SigningKey.generate().identity.id

    change_record(folder, change)


def another_effect(folder: Path) -> None:
    change_record(folder, lambda record: record["effects"][0].update(estimate=2.0))


def no_warning(folder: Path) -> None:
    """Says nothing of noise that is drawn from a seed."""
    change_record(folder, lambda record: record.update(warnings=[]))


def other_draws(folder: Path) -> None:
    """Other draws, and every number in result.json made to fit them."""
    result = Result.load(folder)
    shifted = {
        name: result.posterior[name].to_dataset()
        + (0.0 if name == "sample_stats" else 0.05)
        for name in ("posterior", "prepared", "sample_stats")
    }
    path = folder / "posterior.nc"
    path.unlink()
    xr.DataTree.from_dict(shifted).to_netcdf(path, engine="h5netcdf")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def change(record: dict[str, Any]) -> None:
        record["posterior_sha256"] = digest
        for row in record["posterior"]:
            for key in ("mean", "lower", "upper"):
                if row[key] is not None:
                    row[key] += 0.05

    change_record(folder, change)


def other_names(folder: Path) -> None:
    """The same draws, under each other's names."""
    result = Result.load(folder)
    groups = {}
    for name in ("posterior", "prepared", "sample_stats"):
        data = result.posterior[name].to_dataset().load()
        if "parameter" in data.coords:
            names = list(data["parameter"].values[::-1])
            data = data.assign_coords(parameter=names)
        groups[name] = data
    path = folder / "posterior.nc"
    path.unlink()
    xr.DataTree.from_dict(groups).to_netcdf(path, engine="h5netcdf")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    change_record(folder, lambda record: record.update(posterior_sha256=digest))


def other_theta(folder: Path) -> None:
    """θ in the checkpoint, with a checksum that fits."""
    checkpoint = Checkpoint(folder / "server" / "checkpoint.sqlite")
    last = checkpoint.last_state()
    assert last is not None
    number, state = last
    checkpoint.keep_state(number, replace(state, theta=state.theta + 0.1))
    checkpoint.close()


def other_memory(folder: Path) -> None:
    """What a report tells the cost of privacy from."""
    checkpoint = Checkpoint(folder / "server" / "checkpoint.sqlite")
    last = checkpoint.last_state()
    assert last is not None
    number, state = last
    checkpoint.keep_state(number, replace(state, memory=2.0 * state.memory))
    checkpoint.close()


def a_lost_site(folder: Path) -> None:
    checkpoint = Checkpoint(folder / "server" / "checkpoint.sqlite")
    checkpoint.keep_lost(["a"], 2)
    checkpoint.close()


def another_study(folder: Path) -> None:
    path = folder / "study.toml"
    text = path.read_text()
    assert "epsilon = 3.0" in text
    path.write_text(text.replace("epsilon = 3.0", "epsilon = 2.0"))


def rewritten(
    folder: Path, change: Callable[[TranscriptHead, list[Any]], TranscriptHead]
) -> None:
    told = Transcript.load(folder)
    totals = list(told.totals)
    head = change(told.head, totals)
    keep_transcript(folder, transcript_bytes(head, [encode(total) for total in totals]))


def another_total(folder: Path) -> None:
    """A total with one number changed, under the CSP's old signature."""

    def change(head: TranscriptHead, totals: list[Any]) -> TranscriptHead:
        values = np.array(totals[2].values)
        values[0] += 1
        totals[2] = replace(totals[2], values=values)
        return head

    rewritten(folder, change)


def a_total_signed_by_the_server(folder: Path) -> None:
    def change(head: TranscriptHead, totals: list[Any]) -> TranscriptHead:
        old, mine = totals[2], SigningKey.generate()
        totals[2] = DecryptReply.signed(
            mine, round_id=old.round_id, values=np.array(old.values) + 1
        )
        return head

    rewritten(folder, change)


def everything_signed_by_the_server(folder: Path) -> None:
    """Another CSP in the manifest, and all totals signed by it."""

    def change(head: TranscriptHead, totals: list[Any]) -> TranscriptHead:
        mine = SigningKey.generate()
        for number, old in enumerate(totals):
            totals[number] = DecryptReply.signed(
                mine, round_id=old.round_id, values=np.array(old.values)
            )
        manifest = replace(decode(head.manifest, RunManifest), csp=mine.identity.raw)
        return replace(head, manifest=encode(manifest))

    rewritten(folder, change)


def a_missing_round(folder: Path) -> None:
    def change(head: TranscriptHead, totals: list[Any]) -> TranscriptHead:
        del totals[2]
        return head

    rewritten(folder, change)


def a_missing_end(folder: Path) -> None:
    """The last three rounds kept quiet, so that less seems to be spent."""

    def change(head: TranscriptHead, totals: list[Any]) -> TranscriptHead:
        del totals[-3:]
        return head

    rewritten(folder, change)


def rounds_in_another_order(folder: Path) -> None:
    def change(head: TranscriptHead, totals: list[Any]) -> TranscriptHead:
        totals[1], totals[2] = totals[2], totals[1]
        return head

    rewritten(folder, change)


def scores_of_no_rows(folder: Path) -> None:
    """Scores where the study holds out nothing."""
    change_record(folder, lambda record: record.update(metrics={"auc": 0.99}))


def scores_as_if_protected(folder: Path) -> None:
    """Scores of public rows, which are not computed again, as those that are."""
    change_record(folder, lambda record: record["metrics"].update(private=True))


def said_to_have_stopped(folder: Path) -> None:
    """A run with all of its rounds."""
    text = f"stopped after {ROUNDS} rounds: site a: asked to"
    change_record(folder, lambda record: record["warnings"].append(text))


def text_for_seconds(folder: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["parties"][0]["seconds"] = "as certified"

    change_record(folder, change)


TAMPERING: list[tuple[Callable[[Path], None], str, str]] = [
    (another_mean, "numbers", "mean"),
    (another_effect, "numbers", "estimate"),
    (another_epsilon, "certificate", "privacy.epsilon is 0.5"),
    (another_covering, "certificate", "privacy.covers"),
    (another_noise, "certificate", "privacy.noise_multiplier"),
    (another_party, "parties", "parties[csp]"),
    (text_for_seconds, "parties", "parties[csp].seconds does not belong"),
    (scores_as_if_protected, "scores", "not scores of rows that are public"),
    (said_to_have_stopped, "warnings", "does not follow: stopped after 6"),
    (other_draws, "posterior", "not those that the totals give"),
    (other_names, "posterior", "other names"),
    (other_theta, "theta", "θ is another"),
    (other_memory, "theta", "remembers in the server's checkpoint is another"),
    (a_lost_site, "sites in each total", "names other sites as lost"),
    (another_study, "study", "another study"),
    (another_total, "totals", "round 3: the CSP did not sign"),
    (a_total_signed_by_the_server, "totals", "round 3: the CSP did not sign"),
    (everything_signed_by_the_server, "roster", "another CSP"),
    (a_missing_round, "rounds", "missing or out of order"),
    (a_missing_end, "ledger of a", "6 rounds were answered"),
    (rounds_in_another_order, "rounds", "missing or out of order"),
]


@pytest.mark.parametrize(
    ("tamper", "check", "named"),
    TAMPERING,
    ids=[each[0].__name__ for each in TAMPERING],
)
def test_a_server_that_changes_a_number_is_found_out(
    folder: Path, tamper: Callable[[Path], None], check: str, named: str
) -> None:
    tamper(folder)
    findings = verify(folder)
    assert named in " ".join(f.said for f in findings.failed if f.check == check)


@pytest.mark.parametrize(
    ("tamper", "check"),
    [
        (certified_after_all, "certificate"),
        (no_warning, "warnings"),
        (scores_of_no_rows, "scores"),
    ],
)
def test_a_result_that_promises_nothing_cannot_be_dressed_up(
    runs: FinishedRuns, tmp_path: Path, tamper: Callable[[Path], None], check: str
) -> None:
    shutil.copytree(runs["insecure"], tmp_path / "out")
    tamper(tmp_path / "out")
    assert check in {f.check for f in verify(tmp_path / "out").failed}


@pytest.mark.parametrize("name", ["run", "encryption", "parties"])
def test_a_pooled_result_names_no_parties(
    runs: FinishedRuns, tmp_path: Path, name: str
) -> None:
    shutil.copytree(runs["pooled"], tmp_path / "out")
    assert verify(tmp_path / "out").failed == []
    change_record(tmp_path / "out", lambda record: record.update({name: ["signed"]}))
    assert "parties" in {f.check for f in verify(tmp_path / "out").failed}


def test_what_differs_ends_the_command_with_an_error(folder: Path) -> None:
    another_epsilon(folder)
    done = cipherbayes("verify", folder)
    assert done.returncode == 1
    assert "privacy.epsilon is 0.5, the totals give 3" in done.stdout
    assert "not the result of the signed totals" in done.stdout


@pytest.mark.parametrize(
    "tamper", [another_mean, another_epsilon, other_draws, a_missing_end]
)
def test_without_verify_a_tampering_server_goes_unnoticed(
    folder: Path, tamper: Callable[[Path], None]
) -> None:
    tamper(folder)
    assert Result.load(folder).record["version"] == 1
    write_report(folder)


@pytest.mark.slow
def test_small_changes_to_sampled_draws_are_found_bit_for_bit(
    runs: FinishedRuns, tmp_path: Path
) -> None:
    shutil.copytree(runs["federated"], tmp_path / "out")
    other_draws(tmp_path / "out")
    assert "posterior" in {f.check for f in verify(tmp_path / "out", exact=True).failed}


def test_damaged_transcripts_are_refused_in_words(folder: Path) -> None:
    data = (folder / FILE).read_bytes()
    for damaged in (b"", data[:-1], data + b"x", data[60:], b"cbay" * 40):
        (folder / FILE).write_bytes(damaged)
        with pytest.raises(cb.errors.CipherbayesError):
            verify(folder)


def test_verifying_reads_no_table_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a table was opened")

    for module in ("cipherbayes.study.tables", "cipherbayes.results.predictions"):
        monkeypatch.setattr(f"{module}.open_table", refuse)
    before = {p: p.read_bytes() for p in sorted(folder.rglob("*.json"))}
    checkpoint = folder / "server" / "checkpoint.sqlite"
    with sqlite3.connect(checkpoint) as database:
        rows = database.execute("SELECT COUNT(*) FROM facts").fetchone()
    verify(folder)
    with sqlite3.connect(checkpoint) as database:
        assert database.execute("SELECT COUNT(*) FROM facts").fetchone() == rows
    assert {p: p.read_bytes() for p in sorted(folder.rglob("*.json"))} == before


def test_keys_that_only_the_folder_names_are_not_said_to_be_pinned(
    finished: Path, tmp_path: Path
) -> None:
    """Whoever makes up a whole run makes up its run.json as well."""
    assert states(verify(finished), "identities") == {"not checked"}
    pinned = json.loads((finished / "run.json").read_text())["pinned"]
    roster = tmp_path / "roster.json"
    roster.write_text(json.dumps({"parties": pinned}))
    assert states(verify(finished, roster=roster), "identities") == set()
