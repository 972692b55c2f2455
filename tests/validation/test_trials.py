"""Coverage on the columns of a table, with stated truths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from cipherbayes.errors import DataError
from cipherbayes.inference.noise_aware import Effort, posterior
from cipherbayes.validation.outcome_draws import trial_draws
from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.trial_records import Ground
from cipherbayes.validation.trials import Trial, by_flag, summarised, trial
from terminal import cipherbayes

RNG = np.random.default_rng(5)
TABLE = pa.table(
    {
        "age": RNG.normal(60.0, 12.0, 300),
        "crp": np.exp(RNG.normal(0.0, 1.5, 300)),
        "sex": RNG.choice(["F", "M"], 300).tolist(),
        "smoker": RNG.integers(0, 2, 300),
        "site": ["one"] * 300,
        "note": [f"text {i}" for i in range(300)],
        "half": [None if i % 10 == 0 else float(i) for i in range(300)],
    }
)


@pytest.fixture(scope="module")
def columns() -> Columns:
    return Columns.of("made up", TABLE)


def test_columns_that_vary_are_taken_and_the_others_are_named(columns: Columns) -> None:
    assert set(columns.numbers) == {"age", "crp", "half"}
    assert set(columns.levels) == {"sex", "smoker"}
    assert columns.left_out == ("site", "note")
    assert columns.count == 270


def test_ranges_are_as_many_times_too_wide_as_asked_for(columns: Columns) -> None:
    one, ten = columns.features(1.0), columns.features(10.0)
    width = one["age"]["high"] - one["age"]["low"]
    assert ten["age"]["high"] - ten["age"]["low"] == pytest.approx(10.0 * width)
    assert one["crp"]["transform"] == "log"
    assert one["sex"] == {"levels": ["F", "M"]}


def test_a_table_without_a_column_that_varies_is_refused() -> None:
    with pytest.raises(DataError, match="no column that varies"):
        Columns.of("flat", pa.table({"a": [1.0, 1.0]}))


def test_a_file_that_is_no_table_is_refused_without_its_contents(
    tmp_path: Path,
) -> None:
    path = tmp_path / "secret.csv"
    path.write_bytes(b"a,b\n1\nsecret,2,3\n")
    with pytest.raises(DataError) as refused:
        Columns.read(path)
    assert "secret,2" not in str(refused.value)
    with pytest.raises(DataError, match="no such file"):
        Columns.read(tmp_path / "absent.csv")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any draws, where no interval is looked at."""
    effort = Effort(chains=2, warm_up=4, kept=10, doublings=0)
    monkeypatch.setattr(
        posterior.Effort, "for_dimension", classmethod(lambda cls, dimension: effort)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", trial_draws())
def test_a_study_of_every_kind_is_simulated_and_run(
    kind: str, columns: Columns
) -> None:
    ground = Ground(kind, rows=600, epsilon=3.0, events="rare")
    found = trial(columns, ground, 0)
    assert len(found.names) == len(found.held) == len(found.plain) == len(found.ratio)
    assert min(found.ratio) > 0.0
    assert found.expected >= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("sites", [1, 3])
def test_with_hardly_any_noise_private_intervals_are_about_the_plain_ones(
    sites: int, columns: Columns
) -> None:
    ground = Ground("logistic", rows=4_000, epsilon=300.0, sites=sites)
    found = trial(columns, ground, 1)
    assert 0.9 < np.median(found.ratio) < 1.3
    assert np.mean(np.equal(found.held, found.plain)) > 0.7


def _trial(
    held: tuple[bool, ...], flags: tuple[tuple[str, tuple[str, ...]], ...]
) -> Trial:
    return Trial(("a", "b"), held, (True, True), (1.0, 2.0), 1.5, flags, unusable=False)


def test_a_flag_is_judged_by_the_parameters_that_it_names() -> None:
    found = [
        _trial((False, True), (("rare", ("a",)),)),
        _trial((True, True), (("all", ()),)),
    ]
    assert by_flag(found) == [
        {"flag": "all", "parameters": 2, "coverage": 1.0, "others": 0.5},
        {"flag": "rare", "parameters": 1, "coverage": 0.0, "others": 1.0},
    ]
    row = summarised(found)
    assert row["coverage"] == 0.75
    assert row["difference"] == -0.25
    assert row["expected_over_actual"] == 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_calibrate_takes_a_table_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process; tests/cli/test_calibrate.py has others compute.
    monkeypatch.setattr("cipherbayes.cli.calibrate.os.cpu_count", lambda: 1)
    path, results = tmp_path / "made-up.csv", tmp_path / "results.jsonl"
    pyarrow.csv.write_csv(TABLE.select(["age", "sex"]), path)
    words = ["calibrate", "--table", str(path), "--kind", "logistic", "--wider", "3"]
    words += ["--records", "500", "--results", str(results), "--replicates"]
    first = cipherbayes(*words, "2", "--json")
    assert first.returncode == 0, first.stderr
    lines = results.read_text(encoding="utf-8")
    row = json.loads(first.stdout)["rows"][0]
    assert row["table"] == "made-up"
    assert row["replicates"] == 2
    more = cipherbayes(*words, "3", "--json")
    assert json.loads(more.stdout)["rows"][0]["replicates"] == 3
    both = results.read_text(encoding="utf-8")
    assert both.startswith(lines)
    again = cipherbayes(*words, "3")
    assert "made-up" in again.stdout
    assert results.read_text(encoding="utf-8") == both
