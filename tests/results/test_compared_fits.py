"""Fits that are compared: by their scores, or row by row."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from checked_study import run_of
from typer.testing import CliRunner

import cipherbayes as cb
from cipherbayes.cli.main import app
from cipherbayes.errors import CipherbayesError, StudyError
from cipherbayes.study.rival import read_rival


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federated run with the default method."""
    return run_of(tmp_path_factory.mktemp("checked"), "noise-aware")


@pytest.fixture(scope="module")
def point(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federated run of the quickest method."""
    return run_of(tmp_path_factory.mktemp("point"), "averaged")


def scored(
    name: str, mean: float, horizon: float | None = None, cause: int | None = None
) -> cb.Result:
    """A result that has a score, for a comparison."""
    model: Any = cb.models.Logistic(outcome="death")
    if horizon is not None:
        model = cb.models.Weibull(
            time="days", event="death", horizon=horizon, cause=cause
        )
    study = cb.Study(
        study={"name": name},
        model=model,
        features={"age": {"low": 18, "high": 100}},
        privacy={"epsilon": 1.0, "records": 1000},
    )
    score = {"mean": mean, "lower": mean - 0.03, "upper": mean + 0.03}
    record: Any = {"metrics": {"private": True, "log_score": score}, "interval": 0.9}
    return cb.Result(study, None, record)


def test_two_fits_are_compared_by_their_scores() -> None:
    clear = cb.compare(scored("age", -0.5), scored("age-and-sex", -0.4))
    assert clear["better"] == "age-and-sex"
    assert clear["mean"] == pytest.approx(-0.1)
    assert clear["upper"] - clear["lower"] == pytest.approx(0.06 * np.sqrt(2.0))
    close = cb.compare(scored("age", -0.41), scored("age-and-sex", -0.4))
    assert close["better"] is None


def test_fits_of_other_records_get_no_verdict() -> None:
    """Every fit has a higher log score where outcomes are rarer."""
    first, other = scored("age", -0.5), scored("age-and-sex", -0.2)
    alike = cb.compare(first, other)
    assert (alike["better"], alike["caution"]) == ("age-and-sex", None)
    for sections, said in (
        ({"privacy": {"epsilon": 1.0, "records": 2000}}, "records"),
        ({"sites": {"elsewhere": {}}}, "sites"),
    ):
        study = cb.Study(**{**first.study.document(), **sections})
        found = cb.compare(cb.Result(study, first.posterior, first.record), other)
        assert found["better"] is None
        assert found["mean"] == alike["mean"]
        assert f"the studies differ in {said}" in str(found["caution"])


def test_fits_of_one_name_are_told_apart() -> None:
    found = cb.compare(scored("age", -0.5), scored("age", -0.4))
    assert (found["first"], found["better"]) == ("age (first)", "age (second)")
    named = cb.compare(scored("a", -0.5), scored("a", -0.4), names=("one", "two"))
    assert (named["first"], named["better"]) == ("one", "two")


def compared(finished: Path, unit: str = "patient", **evaluation: Any) -> cb.Study:
    """A study with one feature less, to be compared with a finished one."""
    held = {"holdout": 0.3, "against": str(finished / "out"), **evaluation}
    return cb.Study(
        study={"name": "age-only", "protocol": "pooled"},
        model=cb.models.Logistic(outcome="death"),
        features={"age": {"low": 18, "high": 100}},
        privacy={"epsilon": 8.0, "records": 6000, "unit": unit},
        evaluation=held,
        sites={"north": {}, "south": {}},
    )


def test_a_later_study_is_compared_row_by_row_with_an_earlier_one(
    finished: Path,
) -> None:
    """The later one has no sex, which the invented deaths depend on."""
    earlier = cb.Result.load(finished / "out")
    study = compared(finished)
    assert cb.Study(**study.document()).fingerprint() == study.fingerprint()
    tables = {s: pd.read_csv(finished / f"{s}.csv") for s in ("north", "south")}
    later = cb.run(study, tables)
    found = later.metrics["difference"]
    assert found["against"] == "checked"
    rows = pd.concat(tables.values())
    dead = rows["death"].to_numpy() == 1.0
    scores = []
    for result in (later, earlier):
        chance = np.asarray(result.predict(rows)["mean"])
        scores.append(np.log(np.where(dead, chance, 1.0 - chance)))
    exact = float(np.clip(scores[0] - scores[1], -0.5, 0.5).mean())
    width = found["upper"] - found["lower"]
    assert found["lower"] - width < exact < found["upper"] + width
    paired, other = cb.compare(later, earlier), cb.compare(earlier, later)
    assert paired["paired"]
    assert paired["mean"] == found["mean"] == -other["mean"]
    assert paired["lower"] == -other["upper"]
    del later.record["metrics"]["difference"]
    apart = cb.compare(later, earlier)
    assert not apart["paired"]
    assert 5.0 * width < apart["upper"] - apart["lower"]


def test_a_plan_says_how_well_a_difference_will_be_known(finished: Path) -> None:
    path = finished / "later.toml"
    path.write_text(compared(finished).to_toml(), encoding="utf-8")
    said = CliRunner().invoke(app, ["plan", str(path)]).output
    assert "\ncomparing" in said
    assert "\nfive folds" in said


@pytest.mark.parametrize(
    ("evaluation", "match"),
    [
        ({"holdout": 0.2}, "set holdout = 0.3 and seed = 1"),
        ({"against": "nowhere"}, "holds no finished run"),
        ({"holdout_is_public": True}, "compares fits with noise on protected rows"),
    ],
)
def test_a_fit_that_cannot_be_compared_with_is_refused(
    finished: Path, evaluation: dict[str, Any], match: str
) -> None:
    with pytest.raises(StudyError, match=match):
        compared(finished, **evaluation)


def test_records_without_names_are_not_compared_row_by_row(point: Path) -> None:
    """Rows that are equal in the earlier study's columns may differ in the later's."""
    with pytest.raises(StudyError, match=r"set privacy\.unit in both studies"):
        compared(point, unit="row")


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5])
@pytest.mark.parametrize("place", [0, -1])
def test_scales_that_no_run_releases_are_refused(
    finished: Path, value: float, place: int
) -> None:
    """The first is a mean, the last a standard deviation."""
    forged = read_rival(finished / "out")
    scales = list(forged["scales"])
    scales[place] = value
    with pytest.raises(StudyError, match="draws or scales are not those"):
        compared(finished, against={**forged, "scales": scales})


def test_a_column_is_words_or_numbers_in_both_fits(finished: Path) -> None:
    forged = read_rival(finished / "out")
    age = {"levels": ["30", "40"]}
    study = forged["study"] | {"features": {**forged["study"]["features"], "age": age}}
    with pytest.raises(StudyError, match="reads the column 'age' as levels"):
        compared(finished, against={**forged, "study": study})


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(StudyError, match="different outcomes"):
        cb.compare(scored("one", -0.5), scored("two", -0.5, horizon=30.0))
    with pytest.raises(StudyError, match="different outcomes or causes"):
        cb.compare(scored("one", -0.5, 30.0, 1), scored("two", -0.5, 30.0, 2))
    bare = scored("bare", -0.5)
    bare.record["metrics"] = {}
    with pytest.raises(CipherbayesError, match="no private score"):
        cb.compare(bare, scored("two", -0.5))


def test_compare_prints_which_is_better(finished: Path, tmp_path: Path) -> None:
    out = str(finished / "out")
    copy = shutil.copytree(finished / "out", tmp_path / "again")
    for same in (out, str(copy)):
        said = CliRunner().invoke(app, ["compare", out, same])
        assert said.exit_code == 1
        assert "is compared with itself" in str(said.exception)
    # Tables in one place have no number of a run.
    first, second = cb.Result.load(out), cb.Result.load(copy)
    for each in (first, second):
        each.record["run"] = ""
    with pytest.raises(StudyError, match="is compared with itself"):
        cb.compare(first, second)
    record = json.loads((copy / "result.json").read_text())
    record["run"] = "00" * 16  # as if it were another
    (copy / "result.json").write_text(json.dumps(record))
    said = CliRunner().invoke(app, ["compare", out, str(copy)])
    assert said.exit_code == 0
    assert "neither is clearly better" in said.output
    assert "out less again" in said.output
    asked = ["compare", out, str(copy), "--json"]
    assert json.loads(CliRunner().invoke(app, asked).output)["mean"] == 0.0
