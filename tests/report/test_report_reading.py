"""What readers of the page trip over: labels, dots, large ε; and what a paper needs."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import cipherbayes as cb
from cipherbayes.errors import StudyError
from cipherbayes.protocols.site_words import alike_in_words
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.report.charts import LETTER, NARROW, interval_axis, interval_row
from cipherbayes.report.effect_rows import Effect, Effects
from cipherbayes.report.numbers import Axis, number, resolved
from cipherbayes.report.page import render
from cipherbayes.report.run_contents import Contents, Spent
from cipherbayes.report.sections.findings import findings_section
from cipherbayes.report.sections.forest import forest_axis
from cipherbayes.report.sections.held_out import how_to_hold_out
from cipherbayes.report.sections.methods import checklist, methods_paragraph
from cipherbayes.report.sections.privacy import privacy_section
from cipherbayes.report.sections.sites import spread_in_words
from cipherbayes.results.export import export
from cipherbayes.results.result import Result
from cipherbayes.study.schema import Study
from finished_runs import FinishedRuns, runs
from terminal import cipherbayes

__all__ = ["runs"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("open", "numbers at the means of all rows"),
        ("federated", "numbers at the means that the study released"),
        pytest.param(
            "printed",
            "numbers in the middle of their public ranges",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_reference_record_says_where_its_values_come_from(
    runs: FinishedRuns, name: str, words: str
) -> None:
    contents = Contents.load(runs[name])
    assert words in render(contents)
    made = contents.record["reference"]
    assert isinstance(made["age"], float)
    assert 18.0 <= made["age"] <= 100.0


@pytest.mark.parametrize("top", [3.0, 50.0, 1e4, 1e9, 1e30])
@pytest.mark.parametrize("low", [1e-9, 0.2, 0.99])
def test_labels_of_huge_ratios_do_not_run_into_each_other(
    low: float, top: float
) -> None:
    axis = Axis(low, top, log=True)
    drawn = interval_axis(axis)
    found = re.findall(
        r'<text x="([\d.]+)%"[^>]*text-anchor="(\w+)"[^>]*>([^<]*)<', drawn
    )
    assert found, drawn
    end = -math.inf
    for at, anchor, text in found:
        wide = LETTER * len(text)
        left = NARROW * float(at) / 100.0
        left -= {"start": 0.0, "middle": wide / 2.0, "end": wide}[anchor]
        assert left >= end
        end = left + wide
        assert len(text) <= 7


def test_an_effect_that_looks_like_a_dot_says_what_would_show_it(
    runs: FinishedRuns,
) -> None:
    page = render(Contents.load(runs["open"]))
    assert "Intervals too short to see: age" in page
    assert "per = 10" in page


def test_the_ends_of_a_short_interval_do_not_look_alike() -> None:
    ends = (1.0023, 1.0262)
    assert [resolved(end, *ends) for end in ends] == ["1.002", "1.026"]
    assert resolved(0.6352, 0.4922, 0.8198) == "0.635"
    assert resolved(1.5, None, None) == "1.50"


def test_small_steps_do_not_push_an_ordinary_effect_off_the_axis() -> None:
    ratios = [
        (1.0, 0.987, 1.015), (0.635, 0.49, 0.82), (1.46, 1.33, 1.62),
        (1.01, 1.0, 1.026), (1.8, 0.365, 5.8), (1.87, 0.343, 6.4),
        (0.997, 0.996, 0.999),
    ]  # fmt: skip
    rows = [Effect(f"x{k}", "", *r, above=0.5) for k, r in enumerate(ratios)]
    axis = forest_axis(rows, Effects("hazard ratio", tuple(rows)))
    assert axis.low < 0.343
    assert axis.high > 6.4
    huge = Effect("huge", "", 1e6, 1e-3, 1e12, above=0.5)
    axis = forest_axis([*rows, huge], Effects("hazard ratio", (*rows, huge)))
    assert axis.high < 10.0
    assert "<circle" not in interval_row(axis, 1e6, 1e-3, 1e12, 1.0)


def test_effects_are_told_for_the_step_that_the_study_states(
    runs: FinishedRuns, tmp_path: Path
) -> None:
    text = (runs["open"].parent / "study.toml").read_text()
    text = text.replace("low = 18, high = 100", "low = 18, high = 100, per = 10")
    for name in ("north", "south", "east"):
        shutil.copy(runs["open"].parent / f"{name}.csv", tmp_path)
    (tmp_path / "study.toml").write_text(text.replace("rounds = 300", "rounds = 60"))
    done = cipherbayes("run", "study.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (age, _) = Result.load(tmp_path / "out").effects()
    assert age["per"] == "10 units of age"
    assert age["estimate"] is not None
    assert 1.2 < age["estimate"] < 2.0
    assert "10 units of age" in done.stdout


@pytest.mark.parametrize(
    ("epsilon", "bold", "words"),
    [
        (1.0, True, "almost the same"),
        (3.0, False, "little more"),
        (10.0, False, "not a"),
    ],
)
def test_a_large_epsilon_is_not_called_almost_nothing(
    runs: FinishedRuns, epsilon: float, bold: bool, words: str
) -> None:
    contents = Contents.load(runs["federated"])
    record = contents.record
    privacy = record["privacy"].copy()
    privacy["epsilon"] = epsilon
    result = replace(contents.result, record={**record, "privacy": privacy})
    lead = privacy_section(replace(contents, result=result)).partition("</p>")[0]
    assert words in lead
    assert ("<strong>" in lead) is bold


def test_bars_of_widths_stay_within_their_box(runs: FinishedRuns) -> None:
    page = render(Contents.load(runs["federated"]))
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)%"', page)]
    assert widths
    assert sum(width >= 100.0 for width in widths) <= 6  # the longest of each drawing


@pytest.mark.parametrize("name", ["federated", "open", "survival", "point"])
def test_the_page_has_a_paragraph_and_a_checklist_for_a_paper(
    runs: FinishedRuns, name: str
) -> None:
    page = unescape(render(Contents.load(runs[name])))
    methods = page.partition('id="methods-paragraph">')[2].partition("</blockquote")[0]
    assert "Bayesian" in methods
    assert "age" in methods
    assert ("differentially private" in methods) is (name != "open")
    assert ("credible" in methods) is (name != "point")
    for item in ("T6", "S12", "Missing values", "yours to write"):
        assert item in page


def paragraph(ledgers: tuple[Spent, ...] = (), flags: Any = (), **sections: Any) -> str:
    """The methods of a study that was never run."""
    study = Study(
        **{
            "features": {"age": {"low": 18, "high": 100}},
            "privacy": {"epsilon": 3.0, "records": 50_000},
            "sites": {"a": {}, "b": {}},
            **sections,
        }
    )
    record: Any = {
        "model": study.model.kind,
        "sites": ["a", "b"],
        "rounds": 7,
        "privacy": {"epsilon": 3.0, "delta": 1e-5, "certified": True},
        "posterior": [],
        "interval": 0.95,
        "flags": flags,
        "study_hash": study.fingerprint(),
        "cipherbayes": "0",
    }
    result = Result(study, None, record)
    plan = plan_releases(study.with_privacy())
    assert plan.rounds > 7
    said = methods_paragraph(Contents(result, plan, ledgers=ledgers))
    assert f"spent in {plan.rounds} rounds" in said
    return said


def test_the_methods_claim_no_order_of_events_but_what_ledgers_show() -> None:
    """Nobody here knows whether the tables were looked at before the study."""
    model = {"kind": "logistic", "outcome": "death"}
    said = paragraph(model=model)
    assert "The analysis was stated in a study file (SHA-256" in said
    assert "before" not in said
    alone = Spent("a", 3.0, 5.0, 1e-5)
    twice, other_delta = Spent("b", 4.5, 5.0, 1e-5), Spent("b", 4.5, 5.0, 1e-7)
    assert paragraph((alone, other_delta), model=model) == said
    told = paragraph((alone, twice), model=model)
    assert "used for other releases too (b: ε up to 4.5 in all" in told


def test_the_methods_say_which_site_was_lost_and_which_are_one() -> None:
    model = {"kind": "logistic", "outcome": "death"}
    groups = {"small": ["b", "c"]}
    lost: Any = {"name": "site-lost", "message": "site c was lost: 9 of 24 rounds"}
    said = paragraph(
        flags=[lost],
        model=model,
        hierarchy={"groups": groups},
        sites={"a": {}, "b": {}, "c": {}},
    )
    assert "During the rounds, site c was lost: 9 of 24 rounds." in said
    assert "random intercepts (b and c as one, 'small')" in said


def test_the_methods_say_what_a_record_is_and_all_that_was_released() -> None:
    said = paragraph(
        model={"kind": "logistic", "outcome": "death"},
        privacy={"epsilon": 3.0, "records": 50_000, "unit": "patient"},
        evaluation={"holdout": 0.2},
        describe={},
    )
    assert "adding or removing one person (all rows of one 'patient')" in said
    assert "a hash of the person's name" in said
    assert "Characteristics of the records" in said
    assert "earlier fit" not in said


@pytest.mark.slow
def test_a_paper_gets_performance_and_characteristics(runs: FinishedRuns) -> None:
    result = Result.load(runs["hospitals"])
    contents = Contents(result, plan_releases(result.study.with_privacy()))
    items = dict(checklist(contents))
    assert items["Characteristics of the records (S14; T13b)"] == "Who the records are"
    told = items["Performance of the model (T10d, T16)"]
    area = result.metrics["auc"]
    assert f"AUC {number(area['mean'])} ({number(area['lower'])} to" in told
    assert "calibration in the large" in told
    assert "with an indicator of its own in cold ischaemia [h]" in " ".join(
        items.values()
    )
    assert "counts of prediction by outcome" in methods_paragraph(contents)


def test_the_methods_say_what_was_fitted() -> None:
    said = paragraph(
        model={"kind": "logistic", "outcome": "death"},
        hierarchy={"slopes": ["age"], "scale": 0.5},
    )
    assert "standardised by means and standard deviations released" in said
    assert "normal priors of scale 0.5 on" in said
    assert "the intercept of scale 5." in said
    assert "random intercepts and random slopes of age" in said
    assert "half-normal priors of scale 0.5" in said
    assert "could follow the means of covariates" in said
    alone = paragraph(
        model={"kind": "logistic", "outcome": "death"}, hierarchy={"context": False}
    )
    assert "Levels did not follow the means of covariates" in alone
    assert "Missing values" not in said
    assert "held out" not in said
    survival = {"kind": "piecewise", "time": "t", "event": "e", "horizon": 9.0}
    for hierarchy, stratified in (
        ({}, "Bayesian"),
        ({"baseline": "stratified"}, "Bayesian site-stratified"),
        ({"effects": "fixed"}, "Bayesian site-stratified"),
    ):
        said = paragraph(model={**survival, "cuts": [3.0]}, hierarchy=hierarchy)
        assert f"{stratified} proportional-hazards regression with a pi" in said
        assert ("of their own level and shape" in said) == bool(hierarchy)
    said = paragraph(
        model={"kind": "logistic", "outcome": "death"},
        features={
            "age": {"low": 18, "high": 100},
            "bmi": {"low": 10, "high": 70, "missing": "impute"},
        },
        evaluation={"holdout": 0.25},
    )
    assert "Missing values were multiply imputed" in said
    assert "25 % of the records were held out of the fit" in said.replace("\xa0", " ")
    said = paragraph(
        model={
            "kind": "piecewise",
            "formula": "Surv(days, cause) ~ age",
            "horizon": 9.0,
            "cuts": [3.0],
            "cause": 2,
        },
        preparation={"method": "public-bounds"},
    )
    assert "columns scaled to their public ranges, the baseline's log hazards" in said
    assert "time to an event of cause 2 in 'cause' (days; cause-specific hazard" in said
    assert "Sites had" not in said
    said = paragraph(model={"kind": "poisson", "formula": "n ~ age + offset(log(d))"})
    assert "of n (exposure: d) to" in said


@pytest.mark.parametrize(
    ("model", "differ"),
    [
        ({"kind": "poisson", "outcome": "n"}, True),
        ({"kind": "negative-binomial", "outcome": "n"}, False),
        ({"kind": "ordinal", "outcome": "n", "classes": 3}, False),
    ],
)
def test_only_what_a_model_knows_is_advised(model: Any, differ: bool) -> None:
    sections: dict[str, Any] = {
        "model": model,
        "features": {"age": {"low": 18, "high": 100}},
        "privacy": {"epsilon": 3.0, "records": 50_000},
        "sites": {"a": {}, "b": {}},
    }
    study = Study(**sections)
    assert "[evaluation]" in how_to_hold_out(study)
    Study(**sections, evaluation={"holdout": 0.2})
    assert ("[hierarchy]" in alike_in_words(study)) is differ
    if differ:
        Study(**sections, hierarchy={})
        return
    with pytest.raises(StudyError):
        Study(**sections, hierarchy={})


def has_r() -> bool:
    """Whether R is here, with the package that reads draws."""
    if shutil.which("Rscript") is None:
        return False
    asked = ["Rscript", "-e", 'quit(status = !requireNamespace("posterior"))']
    return subprocess.run(asked, capture_output=True).returncode == 0


# -- export ------------------------------------------------------------------


def test_a_result_is_exported_as_csv(runs: FinishedRuns, tmp_path: Path) -> None:
    done = cipherbayes(
        "export", runs["survival"], "--to", "csv", "--out", tmp_path / "x"
    )
    assert done.returncode == 0, done.stderr
    result = Result.load(runs["survival"])
    draws = pd.read_csv(tmp_path / "x" / "draws.csv")
    assert list(draws.columns[:3]) == [".chain", ".iteration", ".draw"]
    for row in result.summary():
        assert draws[row["name"]].mean() == pytest.approx(row["mean"])
    assert len(pd.read_csv(tmp_path / "x" / "effects.csv")) == len(result.effects())
    curve = pd.read_csv(tmp_path / "x" / "survival.csv")
    assert (curve["estimate"].diff().dropna() < 0).all()
    again = cipherbayes(
        "export", runs["survival"], "--to", "csv", "--out", tmp_path / "x"
    )
    assert again.returncode == 1
    assert "--out" in again.stderr


@pytest.mark.slow
def test_what_differs_between_sites_is_exported_with_its_draws(
    runs: FinishedRuns, tmp_path: Path
) -> None:
    result = Result.load(runs["hospitals"])
    hierarchy = result.hierarchy()
    assert hierarchy is not None
    files = {path.name: path for path in export(result, tmp_path / "x", for_r=True)}
    draws = pd.read_csv(files["draws.csv"])
    for site in hierarchy["sites"]:
        own = draws[f"site_effect[{site['site']},{site['name']}]"]
        assert own.mean() == pytest.approx(site["mean"])
    for spread in hierarchy["between"]:
        assert draws[f"between[{spread['name']}]"].mean() == pytest.approx(
            spread["mean"]
        )
    for name in ("between", "sites", "influence", "meta_analysis"):
        assert len(pd.read_csv(files[f"{name}.csv"])) == len(hierarchy[name])
    assert len(pd.read_csv(files["site_records.csv"])) == len(hierarchy["records"])
    script = files["read.R"].read_text(encoding="utf-8")
    for name in files.keys() - {"read.R", "draws.csv", "summary.csv"}:
        stem = name.removesuffix(".csv")
        assert f'{stem} <- table_of("{stem}")' in script


@pytest.mark.slow
def test_r_reads_what_is_exported(runs: FinishedRuns, tmp_path: Path) -> None:
    if not has_r():
        pytest.skip("R with its package posterior is not here")
    cipherbayes("export", runs["survival"], "--to", "r", "--out", tmp_path / "x")
    script = """
        source("read.R")
        table <- posterior::summarise_draws(draws)
        stopifnot(is.null(scores), is.null(sites))
        cat(table$mean[table$variable == "age"], nrow(effects), nrow(survival),
            posterior::nchains(draws), posterior::ndraws(draws),
            paste(table$variable, collapse = "|"))
    """
    done = subprocess.run(
        ["Rscript", "-e", script], cwd=tmp_path / "x", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = Result.load(runs["survival"])
    mean, effects, curve, chains, draws, names = done.stdout.split()
    (age,) = (row for row in result.summary() if row["name"] == "age")
    assert float(mean) == pytest.approx(age["mean"], rel=1e-4)
    baseline = result.baseline()
    assert baseline is not None
    assert int(effects) == len(result.effects())
    assert int(curve) == len(baseline["survival"])
    assert (int(chains), int(draws)) == (result.dataset.sizes["chain"],
                                         len(result.draws()))  # fmt: skip
    assert names.split("|") == [row["name"] for row in result.summary()]


@pytest.mark.parametrize(
    ("lower", "upper", "said"),
    [
        (0.01, 0.05, "Sites hardly differ in their level"),
        (0.02, 0.87, "Whether sites differ much in their level cannot be told"),
        (0.2, 0.9, "Sites differ in their level"),
        (0.6, 1.2, "Sites differ a lot in their level"),
    ],
)
def test_what_is_said_of_sites_is_what_the_interval_tells(
    lower: float, upper: float, said: str
) -> None:
    study = cb.Study(
        model=cb.models.Logistic(outcome="y"), features={"x": {"low": 0, "high": 1}}
    )
    contents: Any = SimpleNamespace(study=study)
    mean = (lower + upper) / 2.0
    row: Any = {"name": "intercept", "mean": mean, "lower": lower, "upper": upper}
    assert spread_in_words(contents, row).startswith(f"{said}: ")


def test_effects_come_first_and_a_column_of_zeros_and_ones_has_one_line_in_percent(
    runs: FinishedRuns,
) -> None:
    contents = Contents.load(runs["open"])
    contents.record["describe"] = [
        {
            "group": "all",
            "column": column,
            "statistic": f"share: {level}",
            "mean": mean,
            "lower": mean - 0.01,
            "upper": mean + 0.01,
        }
        for column, level, mean in (
            *(("died", "0", 0.75), ("died", "1", 0.25)),
            *(("ward", "0", 0.5), ("ward", "2", 0.5)),
        )
    ]
    count = contents.record["describe"][1].copy()
    count.update({"statistic": "count: 1", "mean": 1500.2})
    contents.record["describe"].insert(0, count)
    page = str(findings_section(contents))
    effects, parameters = page.index('id="effects"'), page.index('id="posterior"')
    assert 0 < effects < parameters < page.index('id="characteristics"')
    assert "died: share of 0" not in page
    assert "died: share of 1" in page
    assert "25.0 % (n = 1,500)" in page
    assert "24.0 to 26.0 %" in page
    assert "ward: share of 0" in page
