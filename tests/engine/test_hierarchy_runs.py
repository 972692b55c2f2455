"""Studies whose sites may differ, from the study file to report and prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hospital_studies import SITES, study_of
from parties import trajectory

import cipherbayes as cb
from cipherbayes.errors import CipherbayesError, RunError
from cipherbayes.inference.between_sites import SiteDraws
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.plan import plan_study
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.report.page import render
from cipherbayes.report.run_contents import Contents
from cipherbayes.results.hierarchy import in_units, prior_of
from cipherbayes.results.run import resume, run
from cipherbayes.study.tables import open_site, preparation_of
from conftest import LOGISTIC, another_owner, logistic_frame
from terminal import cipherbayes

PRIVATE = """
[privacy]
epsilon = 8.0
records = 900
randomness = "insecure-repeatable"
[preparation]
method = "public-bounds"
[hierarchy]
slopes = ["sex"]
[sites]
north = { data = "north.csv" }
south = { data = "south.csv" }
east = { data = "east.csv" }
"""


@pytest.fixture
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    less = Effort(chains=2, warm_up=30, kept=40, doublings=0)
    monkeypatch.setattr(Effort, "for_dimension", lambda _: less)


def folder_of(path: Path, protocol: str) -> Path:
    path.mkdir()
    for seed, site in enumerate(SITES):
        frame = logistic_frame(300, seed=seed)
        if site == "south":  # where more patients die
            frame.loc[frame.index % 3 == 0, "death"] = 1
        frame.to_csv(path / f"{site}.csv", index=False)
    text = LOGISTIC.replace("[model]", f'protocol = "{protocol}"\n[model]')
    (path / "study.toml").write_text(text + PRIVATE, encoding="utf-8")
    return path


def grouped_frames() -> dict[str, Any]:
    return {site: logistic_frame(60, seed=k) for k, site in enumerate(SITES)}


def stopped_and_resumed(path: Path, protocol: str) -> cb.Result:
    """The same run by another owner, stopped on the way."""
    another_owner()
    stopped = folder_of(path, protocol)

    def stop(done: int, _: int) -> None:
        if done == 15:
            raise KeyboardInterrupt

    study = cb.Study.load(stopped / "study.toml")
    with pytest.raises(KeyboardInterrupt):
        run(study, out=stopped / "out", progress=stop)
    return resume(stopped / "out")


@pytest.mark.slow
@pytest.mark.usefixtures("fewer_draws")
@pytest.mark.parametrize("protocol", ["pooled", "secure-sum"])
def test_a_study_runs_is_resumed_verified_reported_and_predicts(
    protocol: str, tmp_path: Path
) -> None:
    home = folder_of(tmp_path / "whole", protocol)
    study = cb.Study.load(home / "study.toml")
    result = run(study, out=home / "out")
    hierarchy = result.record["hierarchy"]
    assert {row["name"] for row in hierarchy["between"]} == {"intercept", "sex[M]"}
    levels = {
        row["site"]: row["mean"]
        for row in hierarchy["sites"]
        if row["name"] == "intercept"
    }
    assert set(levels) == set(SITES)
    known = {row["site"]: row["records"] for row in hierarchy["records"]}
    assert known == pytest.approx(dict.fromkeys(SITES, 300.0), abs=60.0)
    assert max(levels, key=lambda site: levels[site]) == "south"
    posterior = result.posterior["posterior"].to_dataset()
    assert posterior["site_effect"].dims == ("chain", "draw", "site", "varying")
    assert posterior["between"].sizes["spread"] == 2
    for row in [*hierarchy["between"], *hierarchy["sites"]]:
        assert row["rhat"] == pytest.approx(1.0, abs=0.9)
        assert row["ess"] == pytest.approx(2_000.0, abs=1_999.0)
    again = stopped_and_resumed(tmp_path / "stopped", protocol)
    assert trajectory(tmp_path / "stopped" / "out") == trajectory(home / "out")
    assert again.record["hierarchy"] == hierarchy
    # Known sites and a new one; the page; the totals again.
    for words in (["--site", "south"], ["--new-site"], []):
        told = cipherbayes(
            "predict", home / "out", home / "north.csv", *words, "--json"
        )
        assert told.returncode == 0, told.stderr
        assert ("site: one that took no part" in told.stderr) == (not words)
    unknown = cipherbayes("predict", home / "out", home / "north.csv", "--site", "west")
    assert unknown.returncode != 0
    assert "no site is called 'west'" in unknown.stderr
    assert cipherbayes("report", home / "out").returncode == 0
    page = (home / "out" / "report.html").read_text(encoding="utf-8")
    for said in (
        "take two sites at random",
        "own parameters not counted",
        "meta-analysis",
    ):
        assert said in page
    assert f"{known['south']:,.0f} ± " in page
    told = cipherbayes("export", home / "out", "--to", "csv", "--out", home / "csv")
    assert told.returncode == 0, told.stderr
    assert (home / "csv" / "sites.csv").read_text().count("\n") == 1 + 3 * 2
    if protocol == "secure-sum":
        told = cipherbayes("verify", home / "out")
        assert told.returncode == 0, told.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [32, pytest.param(64, marks=pytest.mark.torture)], ids=str
)
def test_many_sites_run_encrypted(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    least = Effort(chains=2, warm_up=4, kept=6, doublings=0)
    monkeypatch.setattr(Effort, "for_dimension", lambda _: least)
    frames = {f"s{k:02d}": logistic_frame(8, seed=k) for k in range(count)}
    for k, frame in enumerate(frames.values()):  # patients of every other site die
        frame["death"] = [k % 2] * 7 + [1 - k % 2]
    privacy = {"epsilon": 100.0, "randomness": "insecure-repeatable"}
    study = study_of(
        privacy={**privacy, "records": 8 * count},
        preparation={"method": "public-bounds"},
        sites={site: {} for site in frames},
    )
    result = run(study, frames)
    assert result.record["protocol"] == "secure-sum"
    told = result.record["hierarchy"]
    assert [row["site"] for row in told["sites"]] == list(frames)
    levels = np.array([row["mean"] for row in told["sites"]])
    assert levels[1::2].mean() - levels[::2].mean() > 1.0
    counted = {row["site"]: row["records"] for row in told["records"]}
    assert counted == pytest.approx(dict.fromkeys(frames, 8.0), abs=4.0)


def test_a_known_site_is_predicted_with_its_own_level(tmp_path: Path) -> None:
    frames = {site: logistic_frame(200, seed=k) for k, site in enumerate(SITES)}
    frames["south"]["death"] = np.maximum(
        frames["south"]["death"], frames["south"].index % 2 == 0
    ).astype(int)
    study = study_of(privacy=None, inference={"rounds": 100, "chains": 2})
    result = cb.run(study, frames, out=tmp_path / "out")
    result = cb.Result.load(tmp_path / "out")
    rows = frames["north"].head(3)
    south = result.predict(rows, site="south")
    north = result.predict(rows, site="north")
    new = result.predict(rows, new_site=True)
    assert np.all(south["mean"] > north["mean"])
    assert np.all(new["upper"] - new["lower"] > south["upper"] - south["lower"])
    assert np.array_equal(new["mean"], result.predict(rows)["mean"])
    document = json.loads((tmp_path / "out" / "result.json").read_text())
    assert document["method"] == "multilevel"
    assert len(document["hierarchy"]["influence"]) == 3 * 2
    page = render(Contents.load(tmp_path / "out"))
    assert "of a site in the middle of this study" in page
    places = page.partition('id="at-sites"')[2].partition("</table>")[0]
    for place in ("a typical site", "a new site", *SITES):
        assert f">{place}<" in places


def test_a_hospital_that_took_no_part_is_refused_where_sites_are_fixed() -> None:
    frames = {site: logistic_frame(100, seed=k) for k, site in enumerate(SITES)}
    study = study_of(
        privacy=None,
        hierarchy={"effects": "fixed"},
        inference={"rounds": 40, "chains": 1},
    )
    result = cb.run(study, frames)
    assert result.record["hierarchy"]["between"] == []
    with pytest.raises(CipherbayesError, match="fixed"):
        result.predict(frames["north"])
    assert result.predict(frames["north"], site="north")["mean"].shape == (100,)


@pytest.mark.parametrize("kind", ["logistic", "piecewise"])
def test_levels_are_told_at_the_centres_of_the_columns_as_tau_is(kind: str) -> None:
    """Slopes that differ move levels at age 0, which no patient has, and not those."""
    model: Any = cb.models.Logistic(outcome="death")
    if kind == "piecewise":
        model = cb.models.Piecewise(time="t", event="death", horizon=9.0, cuts=(3.0,))
    study = study_of(privacy=None, model=model, hierarchy={"slopes": ["age"]})
    design = preparation_of(study).design
    rng = np.random.default_rng(3)
    prior = prior_of(study)
    assert prior is not None
    effects = np.zeros((1, 50, 3, len(prior.slots.places)))
    slope = prior.slots.places.index(design.names.index("age"))
    level = [k for k in range(effects.shape[-1]) if k != slope]
    effects[..., slope] = rng.normal(size=(1, 50, 3))
    effects[..., level] = rng.normal(size=(1, 50, 3, 1))
    groups = tuple(group.name for group in prior.groups)
    between = np.ones((1, 50, len(groups)))
    sites = SiteDraws(SITES, prior.slots.places, effects, groups, between)
    common = rng.normal(size=(1, 50, len(model.parameters(design))))
    found = in_units(study, design, common, sites)
    assert found.names[1:] == ("age",)
    assert np.allclose(found.effects[..., 0], effects[..., level[0]])
    half_width = design.half_width[design.names.index("age")]
    assert np.allclose(found.effects[..., 1], effects[..., slope] / half_width)
    assert np.allclose(found.between, [1.0, 1.0 / half_width])


def test_tau_of_a_curve_is_in_the_unit_of_its_sites_differences() -> None:
    """Coefficients of a curve are sums of prepared ones; so are sites' differences."""
    study = study_of(
        model={"kind": "logistic", "formula": "death ~ rcs(age, [40, 60, 75])"},
        hierarchy={"slopes": ["age"]},
    )
    design, prior = preparation_of(study).design, prior_of(study)
    assert prior is not None
    rng, groups = np.random.default_rng(3), tuple(g.name for g in prior.groups)
    between = np.array([0.5, 0.3, 0.2])
    names = tuple(f"s{k}" for k in range(4_000))
    effects = between * rng.normal(size=(1, 1, len(names), 3))
    sites = SiteDraws(
        names, prior.slots.places, effects, groups, np.tile(between, (1, 1, 1))
    )
    common = rng.normal(size=(1, 1, design.width))
    found = in_units(study, design, common, sites)
    assert found.names == groups
    spread = found.effects[0, 0].std(axis=0)
    assert found.between[0, 0] == pytest.approx(spread, rel=0.05)


def test_a_meta_analysis_and_the_posterior_tell_of_the_same_level() -> None:
    """At the columns' centres: where a scale of ages has its zero moves neither."""

    def levels(shift: float) -> tuple[list[float], list[float]]:
        frames = {site: logistic_frame(100, seed=k) for k, site in enumerate(SITES)}
        for frame in frames.values():
            frame["age"] += shift
        study = study_of(
            privacy=None,
            features={"age": {"low": 18 + shift, "high": 100 + shift}},
            hierarchy={"slopes": ["age"]},
            inference={"rounds": 30, "chains": 1},
        )
        row, _ = cb.run(study, frames).record["hierarchy"]["meta_analysis"]
        assert row["name"] == "intercept"
        ours = row["posterior"]
        assert row["lower"] < row["estimate"] < row["upper"]
        assert abs(row["estimate"] - ours["mean"]) < ours["upper"] - ours["lower"]
        theirs = [row[key] for key in ("estimate", "se", "lower", "upper", "between")]
        return theirs, [ours["mean"], ours["lower"], ours["upper"]]

    for here, there in zip(levels(0.0), levels(1000.0), strict=True):
        assert here == pytest.approx(there, rel=1e-3)


def test_a_meta_analysis_is_that_of_each_sites_own_regression() -> None:
    """Two stages by hand: statsmodels at every site, then DerSimonian and Laird."""
    api = pytest.importorskip("statsmodels.api")
    combine = pytest.importorskip("statsmodels.stats.meta_analysis").combine_effects
    frames = {site: logistic_frame(600, seed=k) for k, site in enumerate(SITES)}
    frames["south"]["death"] |= frames["south"].index % 3 == 0
    study = study_of(
        privacy=None,
        hierarchy={"slopes": ["age"]},
        inference={"rounds": 30, "chains": 1},
    )
    rows = cb.run(study, frames).record["hierarchy"]["meta_analysis"]
    fits = [
        # Levels are those at the middle of the public range, 18 to 100.
        api.Logit(frame["death"], api.add_constant(frame["age"] - 59.0)).fit(disp=0)
        for frame in frames.values()
    ]
    assert [row["name"] for row in rows] == ["intercept", "age"]
    for row, name in zip(rows, ("const", "age"), strict=True):
        estimates = np.array([fit.params[name] for fit in fits])
        errors = np.array([fit.bse[name] for fit in fits])
        theirs = combine(estimates, errors**2, method_re="dl")
        wanted = theirs.summary_frame().loc["random effect"]
        assert abs(row["estimate"] - wanted["eff"]) < 0.1 * wanted["sd_eff"]
        assert row["se"] == pytest.approx(wanted["sd_eff"], rel=0.1)
        spread = np.sqrt(max(theirs.tau2, 0.0))
        assert abs(row["between"] - spread) < 0.1 * wanted["sd_eff"]


def test_sites_of_a_group_have_one_level_and_one_slot() -> None:
    """What is released, fitted and predicted is of the two together."""
    groups = {"small": ["east", "north"]}
    study = study_of(hierarchy={"slopes": ["age"], "groups": groups})
    prior = prior_of(study)
    assert prior is not None
    assert prior.slots.sites == ("small", "south")
    last = plan_releases(study).last_phase
    assert last.sums.dimension == 2 * 2
    sums = {
        site: Contributions.of_site(study, site, open_site(study, site, frame))
        for site, frame in grouped_frames().items()
    }
    theta = np.array([0.5, -0.5, 0.1, 0.2])
    counts = plan_releases(study).phases[0]
    assert counts.purpose == "records"
    for site, places in (("east", [0, 2]), ("north", [0, 2]), ("south", [1, 3])):
        found = sums[site].total(last, Question(theta, None))[:4]
        assert np.flatnonzero(found).tolist() == places
        count = sums[site].total(counts, Question(np.zeros(1), None))
        assert np.flatnonzero(count).tolist() == places[:1]
    plan = plan_study(study)
    said = "\n".join(plan.protocol.describe(plan).lines)
    assert "east and north are one, 'small'" in said


def test_a_group_is_fitted_as_one_site_and_predicted_by_its_sites_names() -> None:
    groups = {"small": ["east", "north"]}
    study = study_of(
        privacy=None,
        hierarchy={"groups": groups},
        inference={"rounds": 40, "chains": 1},
    )
    frames = grouped_frames()
    result = cb.run(study, frames)
    assert {row["site"] for row in result.record["hierarchy"]["sites"]} == {
        "small",
        "south",
    }
    rows = frames["east"].head(3)
    together = [
        result.predict(rows, site=site)["mean"] for site in ("east", "north", "small")
    ]
    assert np.array_equal(together[0], together[1])
    assert np.array_equal(together[0], together[2])
    with pytest.raises(RunError, match="one of east, north, south, small, or ask"):
        result.predict(rows, site="west")


# -- the plan --------------------------------------------------------------
