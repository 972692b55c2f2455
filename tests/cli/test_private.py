"""plan, run, resume, ledger, keys, audit and bench at the terminal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cipherbayes.cli.console import score_in_words
from cipherbayes.engine.table_identity import open_table_ledger
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.results.record import MeanRow
from conftest import LOGISTIC, logistic_frame
from terminal import cipherbayes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PRIVATE = """
[privacy]
epsilon = 3.0
delta = 1e-6
records = 800
[preparation]
method = "public-bounds"
[inference]
method = "psgld"
rounds = 12
[sites]
north = { data = "north.csv" }
south = { data = "south.csv" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logistic_frame(seed=1).to_csv(tmp_path / "north.csv", index=False)
    logistic_frame(seed=2).to_csv(tmp_path / "south.csv", index=False)
    text = LOGISTIC.replace("[model]", 'protocol = "secure-sum"\n[model]') + PRIVATE
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    return tmp_path


def change(folder: Path, old: str, new: str) -> None:
    path = folder / "study.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# -- plan ------------------------------------------------------------------


def test_plan_reads_no_data_and_keeps_its_contract(folder: Path) -> None:
    (folder / "north.csv").unlink()
    (folder / "south.csv").unlink()
    done = cipherbayes("plan", "study.toml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    for key in (
        "rounds", "noise_multiplier", "epsilon", "delta", "certified", "paper_claim",
        "parameters", "bytes_per_round_site", "warnings",
    ):  # fmt: skip
        assert key in plan
    assert plan["rounds"] == 12
    assert plan["certified"] is True
    assert plan["paper_claim"] is None
    assert 2.99 < plan["epsilon"] <= 3.0
    assert plan["parameters"]["security_bits"] >= 128
    growth = list(plan["epsilon_after"].values())
    assert growth == sorted(growth)


def test_plan_predicts_the_size_of_the_messages(folder: Path) -> None:
    plan = json.loads(cipherbayes("plan", "study.toml", "--json", cwd=folder).stdout)
    done = cipherbayes("run", "study.toml", "--out", "out", "--json", cwd=folder)
    sent = json.loads(done.stdout)["bytes"]["per_round_site"]
    assert plan["bytes_per_round_site"] == pytest.approx(sent, rel=0.01)


def test_plan_fits_one_screen_and_says_what_matters(folder: Path) -> None:
    shown = cipherbayes("plan", "study.toml", cwd=folder).stdout
    assert len(shown.splitlines()) <= 24
    for word in ("epsilon", "noise", "outlook", "encryption", "traffic", "colluders"):
        assert word in shown


def test_plan_warns_when_noise_drowns_the_signal_and_says_what_would_do(
    folder: Path,
) -> None:
    change(folder, "epsilon = 3.0", "epsilon = 0.02")
    plan = json.loads(cipherbayes("plan", "study.toml", "--json", cwd=folder).stdout)
    (drowned,) = [w for w in plan["warnings"] if "drown" in w]
    assert "N = " in drowned
    assert "epsilon = " in drowned


def test_plan_warns_of_a_delta_that_is_not_small(folder: Path) -> None:
    change(folder, "delta = 1e-6", "delta = 1e-3")
    plan = json.loads(cipherbayes("plan", "study.toml", "--json", cwd=folder).stdout)
    assert any("1/N" in warning for warning in plan["warnings"])


def test_plan_says_what_one_site_or_two_cannot_have(folder: Path) -> None:
    shown = cipherbayes("plan", "study.toml", cwd=folder).stdout
    assert "two sites" in shown
    change(folder, 'south = { data = "south.csv" }', "")
    shown = cipherbayes("plan", "study.toml", cwd=folder).stdout
    assert "one site" in shown
    assert "pooled" in shown


def test_plan_tells_its_noise_in_plain_words(folder: Path) -> None:
    chains = cipherbayes("plan", "study.toml", cwd=folder).stdout
    change(folder, 'method = "psgld"\nrounds = 12', 'method = "noise-aware"')
    aware = cipherbayes("plan", "study.toml", cwd=folder).stdout
    for shown in (chains, aware):
        noise = next(line for line in shown.splitlines() if line.startswith("noise"))
        assert "standard deviation" in noise
        assert "×" not in noise


@pytest.mark.slow
def test_run_warns_before_it_spends(folder: Path) -> None:
    change(folder, "records = 800", "records = 1300")
    change(folder, "delta = 1e-6", "delta = 1e-2")
    done = cipherbayes("run", "study.toml", "--out", "out", cwd=folder)
    assert "privacy.records = 1300 and the tables have 800 rows" in done.stdout
    assert "is not below 1/N" in done.stdout
    # Neither may be told to others: the first depends on the rows.
    assert "1300 and the tables" not in (folder / "out" / "result.json").read_text()
    assert "crypto service provider" in done.stdout


def test_plan_warns_of_a_table_that_cannot_pay(folder: Path) -> None:
    change(folder, '"north.csv" }', '"north.csv", budget = 2.0 }')
    plan = json.loads(cipherbayes("plan", "study.toml", "--json", cwd=folder).stdout)
    (short,) = [w for w in plan["warnings"] if "cannot pay" in w]
    assert "sites.north.budget = 3" in short


@pytest.mark.slow
def test_the_papers_setting_shows_the_claim_and_the_honest_figure() -> None:
    path = EXAMPLES / "paper-as-printed.toml"
    plan = json.loads(cipherbayes("plan", path, "--json").stdout)
    assert plan["certified"] is False
    assert plan["paper_claim"]["claimed_epsilon"] == 1.0
    assert 2.3e4 < plan["paper_claim"]["honest_epsilon"] < 2.7e4
    shown = cipherbayes("plan", path).stdout
    assert "not certified" in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flchain", "physionet"])
def test_every_example_can_be_planned(name: str) -> None:
    done = cipherbayes("plan", EXAMPLES / f"{name}.toml", "--json")
    assert done.returncode == 0, done.stderr


# -- run, ledger, keys -----------------------------------------------------


@pytest.mark.slow
def test_a_private_run_charges_every_table_and_says_so(folder: Path) -> None:
    done = cipherbayes("run", "study.toml", "--out", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "certified" in done.stdout
    record = json.loads((folder / "out" / "result.json").read_text())
    assert record["privacy"]["epsilon"] == 3.0
    assert record["privacy"]["certified"] is True
    assert "the server" in record["privacy"]["holds_against"]
    for site in ("north", "south"):
        shown = cipherbayes("ledger", f"{site}.csv.ledger", "--json", cwd=folder)
        book = json.loads(shown.stdout)
        assert len(book["entries"]) == 12
        assert 2.9 < book["spent"] <= 3.0
    assert "12" in cipherbayes("ledger", "north.csv.ledger", cwd=folder).stdout
    listed = cipherbayes("keys", "out", "--json", cwd=folder)
    kinds = {(row["party"], row["kind"]) for row in json.loads(listed.stdout)}
    rows = json.loads(listed.stdout)
    assert all(len(row["fingerprint"].replace(" ", "")) == 32 for row in rows)
    # The run's own keys went with the run.
    assert kinds == {(party, "identity") for party in ("csp", "north", "south")}
    predicted = cipherbayes("predict", "out", "north.csv", cwd=folder)
    assert predicted.stdout.startswith("row,mean,lower,upper")


def test_an_owner_ends_a_run_that_will_not_be_resumed(folder: Path) -> None:
    run, path = "ab" * 16, folder / "north.csv.ledger"
    ledger = Ledger.open(path, dataset="north.csv", epsilon=1.0, delta=1e-5)
    ledger.release(
        run=bytes.fromhex(run), site="north", round=0, purpose="gradient",
        study=bytes(32), question=bytes(32), event=GaussianSum(9.0),
        compute=lambda: b"the vector of one site",
    )  # fmt: skip
    ledger.close()
    wrong = cipherbayes("ledger", path, "--end", "cd", cwd=folder)
    assert wrong.stderr.startswith("error: ")
    assert b"the vector of one site" in path.read_bytes()
    done = cipherbayes("ledger", path, "--end", run[:8], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert b"the vector of one site" not in path.read_bytes()


def test_an_owner_takes_a_ledger_to_a_new_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "north.csv.ledger"
    Ledger.open(path, dataset="north.csv", epsilon=1.0, delta=1e-5).close()
    monkeypatch.setenv("CIPHERBAYES_STATE", str(folder / "new-machine"))
    refused = cipherbayes("ledger", path, cwd=folder)
    assert "--adopt" in refused.stderr
    assert cipherbayes("ledger", path, "--adopt", cwd=folder).returncode == 0
    assert cipherbayes("ledger", path, cwd=folder).returncode == 0


@pytest.mark.slow
def test_a_second_study_cannot_spend_the_same_budget(folder: Path) -> None:
    assert cipherbayes("run", "study.toml", "--out", "a", cwd=folder).returncode == 0
    done = cipherbayes("run", "study.toml", "--out", "b", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "budget" in done.stderr
    assert not (folder / "b" / "result.json").exists()
    change(folder, '"north.csv" }', '"north.csv", budget = 9.0 }')
    change(folder, '"south.csv" }', '"south.csv", budget = 9.0 }')
    assert cipherbayes("run", "study.toml", "--out", "c", cwd=folder).returncode == 0


@pytest.mark.slow
def test_an_uncertified_run_shouts(folder: Path) -> None:
    change(folder, "records = 800", 'records = 800\nrandomness = "insecure-repeatable"')
    done = cipherbayes("run", "study.toml", "--out", "out", cwd=folder)
    assert "INSECURE-REPEATABLE" in done.stdout
    assert "NOT CERTIFIED" in done.stdout
    plan = json.loads(cipherbayes("plan", "study.toml", "--json", cwd=folder).stdout)
    assert plan["certified"] is False
    assert any("INSECURE-REPEATABLE" in warning for warning in plan["warnings"])


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_end(folder: Path) -> None:
    change(folder, "rounds = 12", "rounds = 200")
    command = [sys.executable, "-m", "cipherbayes", "run", "study.toml", "--out", "out"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    checkpoint = folder / "out" / "server" / "checkpoint.sqlite-wal"
    while not (checkpoint.exists() and checkpoint.stat().st_size > 200_000):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "out" / "result.json").exists()
    again = cipherbayes("run", "study.toml", "--out", "out", cwd=folder)
    assert again.returncode == 1
    assert "cipherbayes resume out" in again.stderr
    done = cipherbayes("resume", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "out" / "result.json").read_text())
    assert record["rounds"] == 200
    book = json.loads(
        cipherbayes("ledger", "north.csv.ledger", "--json", cwd=folder).stdout
    )
    assert [entry["round"] for entry in book["entries"]] == list(range(200))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("resume", "nowhere"), "holds no run"),
        (("ledger", "nowhere.ledger"), "no such ledger"),
        (("ledger", "north.csv"), "no ledger"),
        (("keys", "."), "holds no keys"),
        (("plan", "nowhere.toml"), "no such file"),
        (("predict", "nowhere", "north.csv"), "no finished run"),
        (("audit", "--epsilon", "-1"), "epsilon"),
        (("data", "physionet2012"), "--from"),
        (("data", "physionet2012", "--from", "north.csv"), "north.csv"),
    ],
)
def test_a_wrong_call_gets_one_clear_line(
    folder: Path, words: tuple[str, ...], expected: str
) -> None:
    done = cipherbayes(*words, cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr


def test_an_example_without_its_tables_names_the_missing_file(folder: Path) -> None:
    shutil.copy(EXAMPLES / "flchain.toml", folder)
    done = cipherbayes("run", "flchain.toml", cwd=folder)
    assert done.returncode == 1
    assert "flchain-1.csv: no such file" in done.stderr


def test_the_noise_aware_method_takes_no_rounds_of_a_chain(folder: Path) -> None:
    change(folder, 'method = "psgld"', 'method = "noise-aware"')
    done = cipherbayes("plan", "study.toml", cwd=folder)
    assert done.returncode == 1
    assert "inference.rounds belongs to a chain" in done.stderr


# -- audit and bench -------------------------------------------------------


@pytest.mark.slow
def test_audit_prints_the_bound_beside_the_claim() -> None:
    done = cipherbayes(
        "audit", "--mechanism", "as-printed", "--runs", "20000", "--json"
    )
    found = json.loads(done.stdout)
    assert set(found) == {
        "mechanism", "claimed_epsilon", "delta", "lower_bound", "confidence", "runs",
    }  # fmt: skip
    assert found["claimed_epsilon"] == 0.01
    assert found["lower_bound"] > found["claimed_epsilon"]


@pytest.mark.slow
def test_bench_keeps_its_contract() -> None:
    done = cipherbayes(
        "bench", "--dimension", "8", "--sites", "2", "--rows", "100", "--rounds", "2",
        "--no-circuits", "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["d"] == 8
    assert found["sites"] == 2
    assert set(found["variants"]) == {"plaintext", "secure-sum"}
    for variant in found["variants"].values():
        assert set(variant) >= {
            "server_ms", "encrypt_ms", "decrypt_ms", "message_bytes", "server_ratio",
            "iteration_ratio", "max_error_over_noise",
        }  # fmt: skip
    secure = found["variants"]["secure-sum"]
    assert secure["max_error_over_noise"] < 1e-3
    assert 0.0 < secure["encrypt_online_ms"] < secure["encrypt_ms"]
    steps = found["steps_ms"]
    assert set(steps) == {"site, while it waits", "site", "server", "CSP"}
    assert "noise" in steps["site, while it waits"]
    assert set(steps["site"]) >= {"gradient", "ledger", "masks", "signing"}
    assert set(steps["server"]) >= {"move of θ", "checkpoint"}


@pytest.mark.realdata
def test_example_tables_made_again_start_with_a_new_ledger(tmp_path: Path) -> None:
    """What ``make demo`` does when it is run a second time."""
    pytest.importorskip("sksurv", reason="FLchain comes with scikit-survival")
    for _ in range(2):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        made = cipherbayes("data", "flchain", "--sites", "2", cwd=tmp_path)
        assert made.returncode == 0
        ledger = open_table_ledger(
            tmp_path / "data" / "flchain-1.csv",
            tmp_path / "data" / "flchain-1.csv.ledger",
            epsilon=1.0,
            delta=1e-5,
        )
        assert ledger.spent() == 0.0
        ledger.close()


def test_a_number_of_rows_is_whole_and_a_score_is_not() -> None:
    rows: MeanRow = {"mean": 1497.6, "lower": 1441.2, "upper": 1554.0}
    assert score_in_words("rows", rows) == "rows 1,498 (1,441 to 1,554)"
    score: MeanRow = {"mean": 0.71234, "lower": 0.69, "upper": 0.73}
    assert score_in_words("auc", score) == "AUC 0.712 (0.69 to 0.73)"
