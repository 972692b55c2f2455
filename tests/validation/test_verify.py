"""`cipherbayes verify`: whoever has the signed totals need not believe the server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import small_study, write_tables
from verified_runs import change_record, finished, states

import cipherbayes as cb
from cipherbayes.errors import RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.messages import encode
from cipherbayes.protocols.transcripts import FILE, Transcript, transcript_bytes
from cipherbayes.results.run import run
from cipherbayes.validation.verify import verify
from cipherbayes.validation.verify.comparing import difference
from cipherbayes.validation.verify.sampled_draws import draws_differ
from finished_runs import FinishedRuns, runs
from terminal import cipherbayes

__all__ = ["finished", "runs"]

# -- honest runs -----------------------------------------------------------


def test_an_honest_run_is_found_to_be_what_the_totals_imply(finished: Path) -> None:
    findings = verify(finished)
    assert findings.failed == []
    study = cb.Study.load(finished / "study.toml")
    assert findings.study_hash == study.fingerprint()
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


def without_the_reason(record: dict[str, Any]) -> None:
    told = record["warnings"]
    record["warnings"] = [text for text in told if not text.startswith("stopped")]


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
    assert "as the server told it: stopped after" in " ".join(
        finding.said for finding in findings.unchecked
    )
    change_record(tmp_path / "out", without_the_reason)
    failed = verify(tmp_path / "out").failed
    assert "stopped after" in " ".join(f.said for f in failed if f.check == "warnings")


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
        return transcript_bytes(
            told.head, [encode(total) for total in told.totals[:-2]]
        )

    monkeypatch.setattr(Server, "transcript", shortened)
    run(write_tables(tmp_path, small_study()), out=tmp_path / "out")
    assert "4 rounds were answered, the transcript tells of 2" in caplog.text


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
