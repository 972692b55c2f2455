"""What a person at a Python prompt or in a notebook meets."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import threadpoolctl
from quick_studies import FEATURES, study

import cipherbayes as cb
from cipherbayes.errors import BeyondRangeWarning, DataError, RunError, StudyError
from cipherbayes.results.notebook import bar_html, notebook_progress
from cipherbayes.results.predictions import beyond_horizon
from cipherbayes.results.table import Table
from conftest import logistic_frame
from terminal import cipherbayes


@pytest.fixture(scope="module")
def result() -> cb.Result:
    return cb.run(study(), logistic_frame(200))


def test_a_run_has_one_thread_of_linear_algebra_and_gives_the_others_back() -> None:
    def threads() -> list[int]:
        pools = threadpoolctl.threadpool_info()
        return [p["num_threads"] for p in pools if p["user_api"] == "blas"]

    seen: list[int] = []
    with threadpoolctl.threadpool_limits(2, "blas"):
        before = threads()
        cb.run(study(), logistic_frame(50), progress=lambda *_: seen.extend(threads()))
        assert set(seen) == {1}
        assert threads() == before


def test_a_notebook_can_complete_the_names() -> None:
    assert {"Study", "Result", "run", "resume", "models", "errors"} <= set(dir(cb))
    for name in dir(cb):
        assert getattr(cb, name) is not None


def test_a_result_says_in_a_line_what_it_is(result: cb.Result) -> None:
    shown = repr(result)
    assert "\n" not in shown
    for word in ("study", "logistic", "3 parameters", "no privacy"):
        assert word in shown
    html = result._repr_html_()
    assert "<table>" in html
    assert "odds ratio" in html
    assert result.warnings == result.record["warnings"]


def test_a_summary_is_a_list_that_prints_as_a_table(result: cb.Result) -> None:
    rows = result.summary()
    assert isinstance(rows, list)
    assert [row["name"] for row in rows] == ["intercept", "age", "sex[M]"]
    lines = repr(rows).splitlines()
    assert lines[0].split() == ["name", "mean", "sd", "lower", "upper", "rhat", "ess"]
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert repr(Table()) == "(no rows)"


@pytest.mark.parametrize("native", ["pandas", "polars", "pyarrow"])
def test_a_summary_becomes_a_frame_of_any_library(
    result: cb.Result, native: str
) -> None:
    frame = result.summary().to_frame(native)
    assert type(frame).__module__.split(".")[0] == native
    assert frame.shape == (3, 7)
    effects = result.effects().to_frame(native)
    assert effects.shape[0] == 2


def test_a_library_that_is_not_there_is_named() -> None:
    with pytest.raises(RunError, match="pyarrow"):
        Table([{"a": 1}]).to_frame("nonsense")


def test_names_in_a_table_cannot_become_markup() -> None:
    assert "<b>" not in Table([{"<b>": "<b>"}], title="<b>")._repr_html_()


def test_effects_are_drawn_with_their_intervals(result: cb.Result) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = result.plot()
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "1 unit of age",
        "sex: M against F",
    ]
    drawn = [tuple(np.asarray(line.get_xdata())) for line in axes.get_lines()]
    for row in result.effects():
        assert (row["lower"], row["upper"]) in drawn
        assert (row["estimate"],) in drawn
    assert axes.get_xscale() == "log"
    assert "odds ratio" in axes.get_xlabel()
    axes.figure.canvas.draw()
    assert "1" in {text.get_text() for text in axes.get_xticklabels()}
    assert axes.get_title() == f"{result.study.name}\nno privacy"
    assert result.plot(axes) is axes
    pyplot.close(axes.figure)
    with pytest.raises(ValueError, match="survival"):
        result.plot_survival()


def test_times_are_for_survival_models_which_need_them(
    result: cb.Result, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"age": [50.0, 60.0], "died": [1, 0], "days": [100.0, 300.0]})
    survival = cb.run(
        cb.Study(
            model=cb.models.Exponential(time="days", event="died", horizon=400.0),
            features={"age": {"low": 18, "high": 100}},
            inference={"rounds": 20, "chains": 1},
        ),
        frame,
    )
    with pytest.raises(RunError, match=r"at times; give some .* times=\[365\]"):
        survival.predict(frame)
    logistic_frame(3).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(RunError, match="leave the times out"):
        result.predict(tmp_path / "rows.csv", times=[365.0])
    result.save(tmp_path / "out")
    words = ("predict", tmp_path / "out", tmp_path / "rows.csv", "--times", "365")
    done = cipherbayes(*words)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "leave the times out" in " ".join(done.stderr.split())


def test_survival_curves_are_drawn_of_the_reference_and_of_rows() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"age": rng.uniform(40, 80, 80), "died": 1})
    frame["days"] = rng.exponential(300.0, 80)
    fitted = cb.run(
        cb.Study(
            model={"kind": "weibull", "time": "days", "event": "died", "horizon": 3000},
            features={"age": {"low": 40, "high": 80}},
            inference={"rounds": 60, "chains": 1},
        ),
        frame,
    )
    baseline = fitted.baseline()
    assert baseline is not None
    (curve,) = fitted.plot_survival().get_lines()
    assert np.asarray(curve.get_ydata())[-1] == baseline["survival"][-1]["estimate"]
    two = fitted.plot_survival(frame[:2], labels=["young", "old"])
    assert [line.get_label() for line in two.get_lines()] == ["young", "old"]
    assert two.get_xlabel() == "days"
    assert len(two.collections) == 2
    pyplot.close("all")
    with pytest.raises(RunError, match="at most 8"):
        fitted.plot_survival(frame)
    with pytest.raises(RunError, match="one label"):
        fitted.plot_survival(frame[:2], labels=["one"])


def test_a_picture_without_matplotlib_says_what_to_install(
    result: cb.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RunError, match=r"cipherbayes\[plots\]"):
        result.plot()


def test_one_frame_by_itself_is_a_study_in_one_place() -> None:
    private = study(privacy={"epsilon": 5.0, "records": 200})
    result = cb.run(private, logistic_frame(200))
    assert result.record["protocol"] == "pooled"
    assert result.record["sites"] == ["table"]
    assert "ε = 5" in repr(result)


def test_a_step_is_no_longer_than_the_public_range() -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.uniform(0.04, 0.2, 50), "death": [0, 1] * 25})
    fitted = cb.run(
        cb.Study(
            model=cb.models.Logistic(outcome="death"),
            features={"x": {"low": 0.04, "high": 0.2}},
            inference={"rounds": 20, "chains": 1},
        ),
        frame,
    )
    (x,) = fitted.effects()
    assert x["per"] == "0.01 units of x"
    slopes = np.asarray(fitted.dataset["theta"].sel(parameter="x"))
    assert x["estimate"] is not None
    assert np.isclose(np.exp(0.01 * slopes), x["estimate"]).any()


def test_a_notebook_gets_a_bar_and_a_script_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []

    class Shown:
        def update(self, html: str) -> None:
            shown.append(html)

    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda html, display_id: Shown()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    report = notebook_progress()
    report(1, 3)
    report(2, 3)  # too soon after the first
    report(3, 3)
    assert shown == [bar_html(1, 3), bar_html(3, 3)]
    assert "round 1 of 3" in shown[0]
    ipython.get_ipython = lambda: None  # type: ignore[attr-defined]
    notebook_progress()(1, 3)
    assert len(shown) == 2


def rows(n: int = 400) -> tuple[Any, Any]:
    frame = logistic_frame(n)
    X = pd.DataFrame({"age": frame["age"], "male": (frame["sex"] == "M") * 1.0})
    return X, np.where(frame["death"] == 1, "died", "lived")


def test_the_estimator_fits_under_a_budget_and_predicts() -> None:
    pytest.importorskip("sklearn")
    X, y = rows()
    model = cb.PrivateLogistic(
        5.0, low=[18, 0], high=[100, 1], records=400, method="averaged", rounds=8
    ).fit(X, y)
    assert list(model.classes_) == ["died", "lived"]
    chance = model.predict_proba(X)
    assert chance.shape == (400, 2)
    assert np.allclose(chance.sum(axis=1), 1.0)
    assert set(model.predict(X)) <= {"died", "lived"}
    assert model.result_.certificate["epsilon"] == 5.0
    assert model.result_.certificate["certified"] is True


def test_the_estimator_speaks_of_the_frames_own_columns() -> None:
    frame = logistic_frame(200)
    columns = frame[["age"]].assign(y=np.linspace(0.0, 2.0, 200))
    model = cb.PrivateLogistic(None, low=[18, 0], high=[100, 2], rounds=40).fit(
        columns, frame["death"]
    )
    assert [row["name"] for row in model.result_.summary()] == ["intercept", "age", "y"]
    with pytest.warns(BeyondRangeWarning, match="'age'"):
        model.predict_proba(columns.assign(age=150.0))
    numbered = cb.PrivateLogistic(None, low=[18, 0], high=[100, 2], rounds=40).fit(
        columns.to_numpy(), frame["death"]
    )
    assert [row["name"] for row in numbered.result_.summary()][1:] == ["x0", "x1"]


BEYOND = "its columns lie beyond low and high, where nothing is left but a constant"
TWO_FITS = "two private fits differ by their noise"
DO_NOT_APPLY = {
    None: {
        "check_fit_idempotent": BEYOND,
        "check_fit_check_is_fitted": BEYOND,
        "check_n_features_in": BEYOND,
    },
    8.0: {
        "check_classifier_data_not_an_array": TWO_FITS,
        "check_fit_idempotent": TWO_FITS,
        "check_classifiers_train": "noise hides what a few dozen rows say",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", DO_NOT_APPLY)
def test_the_estimator_passes_scikit_learns_own_checks(epsilon: float | None) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    model = cb.PrivateLogistic(epsilon, method="averaged", rounds=4)
    if epsilon is None:
        model = cb.PrivateLogistic(epsilon, rounds=200)
    found = checks.check_estimator(
        model,
        on_fail=None,
        on_skip=None,
        expected_failed_checks=DO_NOT_APPLY[epsilon],
    )
    failed = [
        f"{check['check_name']}: {check['exception']!r}"
        for check in found
        if check["status"] == "failed"
    ]
    assert failed == []
    assert sum(f["status"] == "passed" for f in found) > 40


def test_values_beyond_a_public_range_are_counted_and_warned_of(
    result: cb.Result,
) -> None:
    far = pd.DataFrame({"age": [17.0, 150.0, 50.0], "sex": ["F", "M", "M"]})
    assert result.beyond_ranges(far) == [
        {"feature": "age", "low": 18, "high": 100, "below": 1, "above": 1, "rows": 3}
    ]
    with pytest.warns(BeyondRangeWarning, match="'age': of 3 values 1 is below 18"):
        predicted = result.predict(far)
    held = result.predict(far.assign(age=far.age.clip(18, 100)))  # says nothing
    assert np.array_equal(predicted["mean"], held["mean"])


def test_a_plan_prints_as_the_command_does(tmp_path: Path) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-6, "records": 400}
    planned = cb.plan(study(privacy=budget, sites={"north": {}}))
    assert repr(planned).startswith("study: logistic, secure-sum")
    assert "\nwarning: " in repr(planned)
    assert planned.record()["epsilon"] == pytest.approx(1.0, abs=0.01)
    with pytest.raises(StudyError, match="read a study file"):
        cb.plan("study.toml")  # type: ignore[arg-type]


def test_the_prior_without_privacy_is_said_and_how_to_have_the_private_one() -> None:
    shown = repr(cb.plan(study()))
    assert "prior       normal of scale 1 for half of a column's public range" in shown
    assert 'preparation.method = "public-bounds"' in shown
    stated = cb.plan(study(preparation={"method": "public-bounds"}))
    assert "preparation.method" not in repr(stated)
    budget = {"epsilon": 3.0, "delta": 1e-6, "records": 20_000}
    private = cb.Study(
        model=cb.models.Weibull(time="days", event="death", horizon=1000.0),
        features=FEATURES,
        privacy=budget,
        sites={"north": {}, "south": {}, "east": {}},
    )
    shown = repr(cb.plan(private))
    assert "prior       normal of scale 0.5 for a standard deviation" in shown
    assert "hazard ratios between 0.38 and 2.7 in 95 of 100" in shown
    assert "constants 5; log_shape 1\n" in shown
    assert "without a [privacy] table it would be of scale 1 for half of a" in shown
    assert "N = 20,000, 2 coefficients, intercept, log_shape" in shown


def test_a_gap_to_predict_for_is_named_by_its_row(result: cb.Result) -> None:
    gaps = pd.DataFrame({"age": [40.0, np.nan, 50.0], "sex": ["F", "M", "M"]})
    with pytest.raises(
        DataError, match="column 'age' has missing values: row 1, where"
    ):
        result.predict(gaps)
    unknown = pd.DataFrame({"age": [40.0] * 9, "sex": ["F", *[None] * 8]})
    with pytest.raises(DataError, match="rows 1, 2, 3, 4, 5 and others") as refused:
        result.predict(unknown)
    assert "fill them in, or leave these rows out" in str(refused.value)
    assert ".missing" not in str(refused.value)


def test_times_beyond_the_horizon_are_warned_of() -> None:
    model = cb.models.Weibull(time="days", event="death", horizon=1000.0)
    weibull = cb.Study(model=model, features=FEATURES)
    assert beyond_horizon(weibull, [365.0, 1000.0]) == ""
    assert "beyond the horizon of 1000" in beyond_horizon(weibull, [365.0, 1000.5])
    assert beyond_horizon(study(), None) == ""
