"""`cipherbayes verify`: whoever has the signed totals need not believe the server."""

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
from parties import small_study, write_tables

import cipherbayes as cb
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.errors import RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.messages import DecryptReply, RunManifest, decode, encode
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.protocols.transcripts import (
    FILE,
    Transcript,
    TranscriptHead,
    keep_transcript,
    written,
)
from cipherbayes.report.page import write_report
from cipherbayes.results.result import Result
from cipherbayes.results.run import run
from cipherbayes.validation.verify import Findings, verify
from cipherbayes.validation.verify.comparing import difference, draws_differ
from finished_runs import FinishedRuns, runs
from terminal import cipherbayes

__all__ = ["runs"]

ROUNDS = 6


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest run of three sites, with a sampler that makes intervals."""
    home = tmp_path_factory.mktemp("verify")
    study = small_study(
        privacy={"randomness": "secure"},
        inference={"method": "psgld", "rounds": ROUNDS},
        evaluation={"holdout": 0.2, "holdout_is_public": True},
    )
    run(write_tables(home, study), out=home / "out")
    return home / "out"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy that a malicious server may change."""
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def states(findings: Findings, check: str) -> set[str]:
    return {finding.state for finding in findings if finding.check == check}


# -- honest runs -----------------------------------------------------------


def test_an_honest_run_is_found_to_be_what_the_totals_imply(finished: Path) -> None:
    findings = verify(finished)
    assert findings.failed == []
    for check in (
        "study", "roster", "rounds", "totals", "sites in each total", "range",
        "theta", "ledger of a", "certificate", "parties", "posterior", "numbers",
    ):  # fmt: skip
        assert states(findings, check) == {"holds"}, check
    said = {finding.check: finding.said for finding in findings}
    assert "bit for bit" in said["posterior"]
    assert "asked at the θ" in said["ledger of b"]


def test_what_cannot_be_seen_is_never_said_to_hold(finished: Path) -> None:
    findings = verify(finished)
    for check in ("decryption", "noise", "scores", "cost"):
        assert states(findings, check) == {"not checked"}, check
    words = " ".join(finding.said for finding in findings).lower()
    assert "verified" not in words


def test_the_command_says_a_line_for_each_check(finished: Path) -> None:
    done = cipherbayes("verify", finished)
    assert done.returncode == 0
    assert "the CSP signed each of the 6 totals" in done.stdout
    assert "that the CSP decrypted honestly" in done.stdout
    found = json.loads(cipherbayes("verify", finished, "--json", "--exact").stdout)
    assert found["failed"] == 0
    assert found["not_checked"] > 0
    assert {"check", "state", "said"} == set(found["checks"][0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "federated",
        "point",
        "insecure",
        "pooled",
        "survival",
        "encrypted",
        "printed",
    ],
)
def test_a_run_of_any_shape_can_be_computed_again(
    runs: FinishedRuns, name: str
) -> None:
    findings = verify(runs[name], exact=True)
    assert findings.failed == []
    assert states(findings, "posterior") == {"holds"}
    assert states(findings, "certificate") == {"holds"}
    assert states(findings, "theta") == {"holds"}


def test_of_a_pooled_run_it_says_that_one_party_holds_all(runs: FinishedRuns) -> None:
    findings = verify(runs["pooled"])
    assert states(findings, "signatures") == {"not checked"}
    assert states(findings, "totals") == set()
    assert "one party held all tables" in " ".join(f.said for f in findings)


def test_a_run_without_privacy_has_nothing_to_verify(runs: FinishedRuns) -> None:
    with pytest.raises(RunError, match="no private run"):
        verify(runs["open"])


def test_a_folder_without_a_transcript_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no transcript"):
        verify(tmp_path)


def test_a_run_that_lost_a_site_is_computed_with_the_noise_really_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cipherbayes.engine.in_process import LocalSite

    study = write_tables(
        tmp_path,
        small_study(
            privacy={"dropouts": 1, "colluders": 1},
            inference={"method": "psgld", "rounds": 4},
        ),
    )
    honest, asked = LocalSite.answer, []

    def mute(self: Any) -> bytes | None:
        if self._site._name == "c":
            asked.append(1)
            if len(asked) > 2:
                return None
        return honest(self)

    monkeypatch.setattr(LocalSite, "answer", mute)
    run(study, out=tmp_path / "out")
    findings = verify(tmp_path / "out")
    assert findings.failed == []
    said = {finding.check: finding.said for finding in findings}
    assert "2 to 3 sites" in said["sites in each total"]


def test_a_run_that_stopped_early_verifies_and_says_who_alone_can_tell(
    tmp_path: Path,
) -> None:
    study = write_tables(
        tmp_path, small_study(inference={"method": "psgld", "rounds": 6})
    )

    def lower(done: int, total: int) -> None:
        """An owner lowers a budget meanwhile."""
        Ledger.read(tmp_path / "a.csv.ledger").set_budget(1.5)

    run(study, out=tmp_path / "out", progress=lower)
    findings = verify(tmp_path / "out")
    assert findings.failed == []
    said = {finding.check: finding.said for finding in findings}
    assert "it stopped there" in said["rounds"]


# -- a site's own copy -----------------------------------------------------


def test_every_site_gets_the_transcript(finished: Path) -> None:
    given = (finished / FILE).read_bytes()
    for site in ("a", "b", "c"):
        copy = finished / "sites" / site / FILE
        assert copy.read_bytes() == given
        assert copy.stat().st_mode & 0o077 == 0


def as_kit(finished: Path, home: Path) -> Path:
    """A site's own copy, laid out as in its kit: its study, its pins, no result."""
    runs = home / "kit" / "runs" / "run"
    runs.mkdir(parents=True)
    shutil.copy(finished / "sites" / "a" / FILE, runs / FILE)
    study = cb.Study.load(finished / "study.toml")
    (runs / "study").write_text(study.fingerprint())
    (home / "kit" / "studies").mkdir()
    shutil.copy(
        finished / "study.toml", home / "kit/studies" / f"{study.fingerprint()}.toml"
    )
    pinned = json.loads((finished / "run.json").read_text())["pinned"]
    content = json.dumps({"version": 1, "parties": pinned})
    (home / "kit" / "roster.json").write_text(content)
    return runs


def test_a_site_verifies_with_its_own_copy_study_and_pins(
    finished: Path, tmp_path: Path
) -> None:
    copy = as_kit(finished, tmp_path)
    alone = verify(copy)
    assert alone.failed == []
    assert states(alone, "result") == {"not checked"}
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("result.json", "posterior.nc"):
        shutil.copy(finished / name, shared / name)
    compared = verify(copy, result=shared)
    assert compared.failed == []
    assert states(compared, "posterior") == {"holds"}


def test_a_result_without_pins_says_so_and_takes_yours(
    finished: Path, tmp_path: Path
) -> None:
    copy = as_kit(finished, tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in ("result.json", "posterior.nc", "study.toml", FILE):
        shutil.copy(finished / name, shared / name)
    assert states(verify(shared), "identities") == {"not checked"}
    pinned = verify(shared, roster=copy.parent.parent / "roster.json")
    assert pinned.failed == []
    assert states(pinned, "identities") == set()


def test_a_site_does_not_agree_to_a_transcript_without_its_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cipherbayes.protocols.server import Server

    honest = Server.transcript

    def shortened(self: Server[Any]) -> bytes:
        told = Transcript.from_bytes(honest(self))
        return written(told.head, [encode(total) for total in told.totals[:-2]])

    monkeypatch.setattr(Server, "transcript", shortened)
    run(write_tables(tmp_path, small_study()), out=tmp_path / "out")
    assert "4 rounds were answered, the transcript tells of 2" in caplog.text


# -- a server that changes a number ----------------------------------------


def change_record(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "result.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


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
    keep_transcript(folder, written(head, [encode(total) for total in totals]))


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


TAMPERING: list[tuple[Callable[[Path], None], str, str]] = [
    (another_mean, "numbers", "mean"),
    (another_effect, "numbers", "estimate"),
    (another_epsilon, "certificate", "privacy.epsilon is 0.5"),
    (another_covering, "certificate", "privacy.covers"),
    (another_noise, "certificate", "privacy.noise_multiplier"),
    (another_party, "parties", "parties.csp"),
    (other_draws, "posterior", "not those that the totals give"),
    (other_names, "posterior", "other names"),
    (other_theta, "theta", "θ is another"),
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


@pytest.mark.parametrize("said", [1e-15, -5.9e-13, 0.0])
def test_numbers_in_small_units_are_compared_by_their_own_size(said: float) -> None:
    assert difference(said, 5.9e-13, "sd") is not None
    assert difference(5.9e-13 * (1.0 + 1e-9), 5.9e-13, "sd") is None


def test_draws_that_are_judged_do_not_set_their_own_margin() -> None:
    """Sorted within a chain they seem to be few, and anything seems to be near."""
    rng = np.random.default_rng(1)
    implied = rng.normal(size=(4, 400, 2))
    forged = np.sort(implied, axis=1) + np.array([0.5, 0.0])
    found, same, _ = draws_differ(forged, implied, sampled=True, tail=0.05)
    assert found is not None
    assert not same
