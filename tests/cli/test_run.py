"""`cipherbayes run` and `predict`, as a person at a terminal meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cipherbayes.cli.console import progress_bar
from conftest import survival_frame
from terminal import cipherbayes

QUICK = "[inference]\nrounds = 400\nchains = 2\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished logistic run in `out`."""
    from conftest import LOGISTIC, logistic_frame

    folder = tmp_path_factory.mktemp("finished")
    logistic_frame(seed=1).to_csv(folder / "north.csv", index=False)
    logistic_frame(seed=2).to_csv(folder / "south.csv", index=False)
    sites = '[sites]\nnorth = { data = "north.csv" }\nsouth = { data = "south.csv" }\n'
    text = LOGISTIC + QUICK + "[evaluation]\nholdout = 0.25\n" + sites
    (folder / "study.toml").write_text(text, encoding="utf-8")
    done = cipherbayes("run", folder / "study.toml", "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    assert "result.json" in done.stdout
    # What a reader asks for comes before the coefficients behind it.
    assert 0 < done.stdout.index("odds ratio") < done.stdout.index("own units")
    return folder


def test_result_json_keeps_its_contract(finished: Path) -> None:
    record = json.loads((finished / "out" / "result.json").read_text())
    for key in (
        "version", "study", "protocol", "sites", "rounds", "privacy", "posterior",
        "timing", "bytes", "metrics",
    ):  # fmt: skip
        assert key in record
    assert set(record["privacy"]) >= {
        "epsilon", "delta", "relation", "certified", "holds_against",
    }  # fmt: skip
    names = [row["name"] for row in record["posterior"]]
    assert names == ["intercept", "age", "sex[M]"]
    assert set(record["posterior"][0]) >= {"name", "mean", "sd", "lower", "upper"}
    assert set(record["timing"]) == {"site_s", "server_s", "csp_s", "wall_s"}
    assert set(record["bytes"]) == {"per_round_site", "total"}
    assert 0.6 < record["metrics"]["auc"] < 0.95


def test_the_posterior_is_on_the_users_own_scale(finished: Path) -> None:
    """The simulated effect of a year of age is 0.04, of sex 0.5."""
    record = json.loads((finished / "out" / "result.json").read_text())
    by_name = {row["name"]: row for row in record["posterior"]}
    assert abs(by_name["age"]["mean"] - 0.04) < 4 * by_name["age"]["sd"]
    assert by_name["age"]["sd"] < 0.02
    assert abs(by_name["sex[M]"]["mean"] - 0.5) < 4 * by_name["sex[M]"]["sd"]


def test_the_resolved_study_has_no_data_paths(finished: Path) -> None:
    text = (finished / "out" / "study.toml").read_text()
    assert "north.csv" not in text
    assert "[inference" in text


def test_predict_gives_a_probability_with_an_interval_for_each_row(
    finished: Path,
) -> None:
    done = cipherbayes("predict", finished / "out", finished / "north.csv")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert lines[0] == "row,mean,lower,upper"
    values = np.array([[float(v) for v in line.split(",")[1:]] for line in lines[1:]])
    assert len(values) == 400
    assert (values[:, 1] <= values[:, 0]).all()
    assert (values[:, 0] <= values[:, 2]).all()


def test_predict_carries_a_column_over_and_writes_few_digits(
    finished: Path, tmp_path: Path
) -> None:
    table = tmp_path / "new.csv"
    table.write_text("pid,age,sex\n007,17,F\nb,60,M\n")
    done = cipherbayes("predict", finished / "out", table, "--id", "pid")
    heading, first, second = (line.split(",") for line in done.stdout.splitlines())
    assert heading == ["row", "pid", "mean", "lower", "upper"]
    assert [first[1], second[1]] == ["007", "b"]
    assert all(len(text) <= len("0.000123456") for text in first[2:] + second[2:])
    wrong = cipherbayes("predict", finished / "out", table, "--id", "nobody")
    assert "has no column 'nobody'" in wrong.stderr


def test_predict_says_how_many_values_lie_beyond_a_public_range(
    finished: Path, tmp_path: Path
) -> None:
    table = tmp_path / "far.csv"
    table.write_text("age,sex\n17,F\n300,M\n301,M\n100,F\n")
    done = cipherbayes("predict", finished / "out", table)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"warning: {table}: column 'age': of 4 values ")
    assert "1 is below 18 and 2 are above 100" in line
    rows = [line.split(",")[1:] for line in done.stdout.splitlines()]
    assert rows[2] == rows[3]  # both held at 100


@pytest.mark.slow
def test_survival_curves_at_asked_times(tmp_path: Path) -> None:
    survival_frame().to_parquet(tmp_path / "one.parquet")
    (tmp_path / "study.toml").write_text(
        '[model]\nkind = "exponential"\ntime = "time"\nevent = "event"\n'
        "horizon = 1500.0\n[features]\nage = { low = 18, high = 100 }\n"
        + QUICK
        + '[sites]\none = { data = "one.parquet" }\n'
    )
    assert (
        cipherbayes("run", "study.toml", "--out", "out", cwd=tmp_path).returncode == 0
    )
    features = survival_frame()[["age"]].head(3)
    features.to_csv(tmp_path / "new.csv", index=False)
    done = cipherbayes("predict", "out", "new.csv", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert "--times" in done.stderr
    done = cipherbayes(
        "predict", "out", "new.csv", "--times", "100,1600", "--json", cwd=tmp_path
    )
    assert done.stderr.startswith("warning: times beyond the horizon of 1500: ")
    rows = json.loads(done.stdout)
    assert [row["time"] for row in rows] == [100, 1600] * 3
    assert all(0 < row["lower"] <= row["mean"] <= row["upper"] < 1 for row in rows)
    assert rows[0]["mean"] > rows[1]["mean"]


def test_a_result_is_never_overwritten(finished: Path) -> None:
    before = (finished / "out" / "result.json").read_bytes()
    done = cipherbayes("run", finished / "study.toml", "--out", finished / "out")
    assert done.returncode == 1
    assert "not empty" in done.stderr
    assert (finished / "out" / "result.json").read_bytes() == before


def write(path: Path, **columns: object) -> None:
    pd.DataFrame(columns).to_csv(path, index=False)


GOOD = {"age": [30, 50, 70, 90], "sex": ["F", "M", "F", "M"], "death": [0, 1, 0, 1]}
BAD_TABLES: dict[str, Any] = {
    "missing file": (None, "no such file"),
    "unknown column": ({"age": [1, 2], "death": [0, 1]}, "column 'sex'"),
    "wrong dtype": (GOOD | {"age": ["old", "young", "old", "old"]}, "column 'age'"),
    "label not binary": (GOOD | {"death": [0, 1, 2, 1]}, "not binary"),
    "label of text": (GOOD | {"death": ["no", "yes", "no", "no"]}, "column 'death'"),
    "constant column": (GOOD | {"age": [50] * 4}, "same value"),
    "one class only": (GOOD | {"death": [0] * 4}, "death"),
    "no rows": ({"age": [], "sex": [], "death": []}, "no rows"),
    "missing value": (GOOD | {"age": [30, None, 70, 90]}, "missing"),
    "missing label": (GOOD | {"death": [0, None, 0, 1]}, "missing"),
    "infinite value": (GOOD | {"age": [30, np.inf, 70, 90]}, "infinite"),
    "unknown level": (GOOD | {"sex": ["F", "X", "F", "M"]}, "column 'sex'"),
    "not UTF-8": (b"age,sex,death\n30,F,0\n50,\xff\xfe,1\n", "UTF-8"),
    "ragged": (b"age,sex,death\n30,F,0\n50,M\n", "line"),
    "duplicate columns": (b"age,age,sex,death\n30,3,F,0\n", "same name"),
    "empty file": (b"", "no rows"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_gets_one_clear_line(study_folder: Path, case: str) -> None:
    content, expected = BAD_TABLES[case]
    text = (study_folder / "study.toml").read_text()
    text = text.replace('south = { data = "south.csv" }\n', "")
    (study_folder / "study.toml").write_text(text)
    table = study_folder / "north.csv"
    if content is None:
        table.unlink()
    elif isinstance(content, bytes):
        table.write_bytes(content)
    else:
        write(table, **content)
    done = cipherbayes("run", "study.toml", "--out", "out", cwd=study_folder)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert pd.Series([done.stderr]).str.contains(expected).all(), done.stderr
    assert not (study_folder / "out" / "result.json").exists()


SURVIVAL = """
[model]
kind = "exponential"
time = "time"
event = "event"
horizon = 1500.0
[features]
age = { low = 18, high = 100 }
[sites]
one = { data = "one.csv" }
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"time": [-1.0, 2.0, 3.0]}, "'time'"),
        ({"event": [0, 0, 0]}, "censored"),
        ({"event": [0, 1, 2]}, "not binary"),
    ],
)
def test_impossible_survival_times_are_refused(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    (tmp_path / "study.toml").write_text(SURVIVAL)
    columns = {"age": [30, 50, 70], "time": [1.0, 2.0, 3.0], "event": [0, 1, 1]}
    write(tmp_path / "one.csv", **(columns | change))
    done = cipherbayes("run", "study.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_site_without_rows_is_refused(study_folder: Path) -> None:
    (study_folder / "south.csv").write_text("age,sex,death\n")
    done = cipherbayes("run", "study.toml", "--out", "out", cwd=study_folder)
    assert done.returncode == 1
    assert "south.csv" in done.stderr
    assert "no rows" in done.stderr


def test_a_failure_while_saving_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    import cipherbayes as cb
    from cipherbayes.study.schema import Study

    study = Study(
        model=cb.models.Logistic(outcome="death"),
        features={"age": {"low": 18, "high": 100}},
        inference={"rounds": 50, "chains": 1},
    )
    from conftest import logistic_frame

    result = cb.run(study, {"only": logistic_frame()})
    real = os.replace

    def fail_at_the_end(source: object, target: object) -> None:
        if str(target).endswith("result.json"):
            raise OSError("disk full")
        real(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", fail_at_the_end)
    with pytest.raises(OSError, match="disk full"):
        result.save(tmp_path / "out")
    assert not (tmp_path / "out" / "result.json").exists()
    with pytest.raises(cb.errors.RunError, match="no finished run"):
        cb.Result.load(tmp_path / "out")


@pytest.mark.slow
def test_the_module_and_a_real_process_behave_alike(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cipherbayes", "run", "nowhere.toml"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: nowhere.toml: no such file")
    assert done.stderr.count("\n") == 1


def test_version_and_help() -> None:
    assert cipherbayes("--version").stdout.startswith("cipherbayes ")
    helped = cipherbayes("--help").stdout
    for verb in ("run", "predict", "data"):
        assert verb in helped


def test_a_command_has_one_kind_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of linear algebra inside of those that pass over records slow both."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    cipherbayes("--version")
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    done = subprocess.run(
        [sys.executable, "-c", "import cipherbayes.cli.main, sys; "
         "assert 'numpy' not in sys.modules"], check=False,
    )  # fmt: skip
    assert done.returncode == 0  # the setting is read when numpy is loaded


def test_a_long_run_whose_output_is_no_terminal_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("cipherbayes.cli.console.time.monotonic", lambda: now)
    with progress_bar() as report:
        for done in range(1, 25):
            now += 3.0
            report(done, 24)
    with progress_bar() as report:  # a short one says nothing
        report(24, 24)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        *(f"round {done} of 24" for done in (4, 8, 12, 16, 20)),
        "round 24 of 24; drawing the posterior",
    ]
