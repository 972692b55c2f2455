"""The studies behind the figures are ones that the product runs and certifies."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cipherbayes.privacy.accountant import epsilon as spent
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.study.schema import Study
from cipherbayes_research.datasets.physionet2012 import FEATURES
from cipherbayes_research.paper import flchain, mortality, physionet, ranked_columns
from cipherbayes_research.paper.cells import Cell, Sources
from cipherbayes_research.paper.fitting import prepared_rows
from cipherbayes_research.paper.peer_methods import DpSgd, fit_dp_sgd

ROOT = Path(__file__).resolve().parents[2]


def test_every_column_of_the_paper_has_a_public_range() -> None:
    assert physionet.COLUMN_SETS["all184"] == FEATURES
    assert len(FEATURES) == 184
    assert len(physionet.COLUMN_SETS["last40"]) == 40
    for column in FEATURES:
        known = physionet.feature(column)
        assert known["low"] < known["missing"] < known["high"]


def test_the_example_is_the_study_of_epsilon_one() -> None:
    example = Study.load(ROOT / "examples" / "physionet.toml")
    ours = physionet.certified_study(1.0, records=4000)
    assert set(example.features) == set(ours.features)
    for name, known in example.features.items():
        assert known.low == pytest.approx(ours.features[name].low, rel=1e-3), name
        assert known.high == pytest.approx(ours.features[name].high, rel=1e-3), name
    assert example.inference.method == ours.inference.method == "averaged"
    assert example.inference.rounds == ours.inference.rounds
    assert _numbers(example) == pytest.approx(_numbers(ours))
    means = {name: given.mean for name, given in example.prior.parameters.items()}
    assert means == pytest.approx(
        {name: given.mean for name, given in ours.prior.parameters.items()}
    )


def _numbers(study: Study) -> list[float | None]:
    privacy, preparation = study.privacy, study.preparation
    assert privacy is not None
    return [
        privacy.epsilon,
        privacy.delta,
        privacy.clip,
        privacy.records,
        preparation.row_norm,
        preparation.intercept,
        study.inference.step.size,
        study.prior.scale,
    ]


BUDGETS = [
    (physionet.certified_study, physionet.SETTINGS),
    (ranked_columns.ranked_study, ranked_columns.SETTINGS),
    (flchain.certified_study, flchain.SETTINGS),
]


@pytest.mark.parametrize(
    ("make", "epsilon"),
    [(make, epsilon) for make, settings in BUDGETS for epsilon in sorted(settings)],  # type: ignore[call-overload]
)
def test_every_private_study_stays_within_its_budget(make, epsilon: float) -> None:  # type: ignore[no-untyped-def]
    study = make(epsilon, records=3200)
    plan = plan_releases(study)
    assert spent(plan.event, 1e-5) <= epsilon * (1 + 1e-9)


def test_longer_rows_with_shorter_coefficients_are_the_same_study() -> None:
    setting = physionet.SETTINGS[1.0]
    study = physionet.certified_study(1.0, records=3200)
    k = 4.8 / 1.5
    assert study.preparation.row_norm == pytest.approx(k)
    assert study.privacy is not None
    assert study.privacy.clip == pytest.approx(setting.clip * k)
    assert study.inference.step.size == pytest.approx(setting.step / k**2)
    assert study.prior.scale == pytest.approx(1.0 / k)
    assert study.prior.parameters["Age"].mean == pytest.approx(0.4 / k)
    assert study.prior.parameters["GCS_last"].mean == pytest.approx(-0.4 / k)
    assert study.preparation.intercept == pytest.approx(0.3 * k)


MAP_FILE = ROOT.parent / "shared" / "data" / "physionet2012" / "public-map.md"


def test_settings_are_those_of_the_public_map() -> None:
    """The map's sentence, number for number."""
    if not MAP_FILE.exists():
        pytest.skip("needs ../shared")
    text = MAP_FILE.read_text(encoding="utf-8")
    found = re.findall(r"ε=([\d.]+): (\w+), ([\d.]+), ([\d.]+), ([\d.]+), (\d+)", text)
    assert len(found) == 5
    for epsilon, columns, *numbers in found:
        clip, step, precision, rounds = map(float, numbers)
        expected = physionet.Setting(columns, clip, step, precision, int(rounds))
        assert physionet.SETTINGS[float(epsilon)] == expected


def test_a_prepared_row_is_the_maps_formula() -> None:
    """(value − centre)/half-width within ±1.5, missing 0, norm R, constant 0.3."""
    rng = np.random.default_rng(0)
    study = physionet.certified_study(1.0, records=40)
    names = physionet.COLUMN_SETS["last40"]
    columns, expected = {}, []
    for name in names:
        variable = name.partition("_")[0]
        if variable in physionet.LINEAR:
            centre, half = physionet.LINEAR[variable]
            raw = centre + half * rng.normal(0.0, 1.5, 40)
            z = (raw - centre) / half
        else:
            centre, factor = physionet.LOGARITHMIC[variable]
            floor = 1e-3 if variable.startswith("Troponin") else centre / 50
            raw = np.maximum(centre * factor ** rng.normal(0.0, 1.5, 40), floor)
            z = np.log(raw / centre) / np.log(factor)
        absent = rng.random(40) < 0.2
        columns[name] = np.where(absent, np.nan, raw)
        expected.append(np.where(absent, 0.0, np.clip(z, -1.5, 1.5)))
    rows = np.array(expected).T
    norms = np.linalg.norm(rows, axis=1)
    rows = rows * np.minimum(1.0, 4.8 / norms)[:, None] / 4.8
    table = pa.table(columns | {"In-hospital_death": np.arange(40) % 2})
    x, _ = prepared_rows(study, table)
    x = x / (4.8 / 1.5)
    assert x[:, 0] == pytest.approx(np.full(40, 0.3))
    assert x[:, 1:] == pytest.approx(rows, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_a_ranked_row_is_half_widths_times_the_columns_scale(epsilon: float) -> None:
    """w (value − centre)/half-width, |·| ≤ 1.5 w, norm R, constant 0.3 R."""
    rng = np.random.default_rng(1)
    setting = ranked_columns.SETTINGS[epsilon]
    scales = ranked_columns.column_scales(setting)
    columns, expected = {}, []
    for name, scale in scales.items():
        bounds = physionet.feature(name)
        low, high = bounds["low"], bounds["high"]
        raw = rng.uniform(0.5 * low, 1.5 * high, 60)
        f = np.log if "transform" in bounds else np.asarray
        z = 1.5 * (2.0 * f(np.clip(raw, low, high)) - f(low) - f(high))
        absent = rng.random(60) < 0.2
        columns[name] = np.where(absent, np.nan, raw)
        expected.append(np.where(absent, 0.0, scale * z / (f(high) - f(low))))
    rows = np.array(expected).T
    lengths = np.linalg.norm(rows, axis=1)
    rows *= np.minimum(1.0, setting.norm / lengths)[:, None]
    deaths = {"In-hospital_death": np.arange(60) % 2}
    table = ranked_columns.within_ranges(pa.table(columns | deaths))
    study = ranked_columns.ranked_study(epsilon, records=60)
    x, _ = prepared_rows(study, table)
    assert 1.5 * x[:, 1:] == pytest.approx(rows, abs=1e-9)
    assert 1.5 * x[:, 0] == pytest.approx(np.full(60, 0.3 * setting.norm))


def test_the_ranked_prior_is_a_severity_score_at_the_usual_mortality() -> None:
    study = ranked_columns.ranked_study(1.0, records=60)
    normal = {name: [physionet.feature(name)["missing"]] for name in physionet.CORE}
    older = normal | {"Age": [90.0]}

    def log_odds(columns: dict[str, list[float]]) -> float:
        known = {name: columns.get(name, [np.nan]) for name in study.features}
        table = pa.table(known | {"In-hospital_death": [0]})
        x, _ = prepared_rows(study, table)
        prior = study.prior.resolve(["intercept", *study.features])
        return float(x[0] @ prior.mean)

    assert 1 / (1 + np.exp(-log_odds(normal))) == pytest.approx(0.13)
    effect = ranked_columns.SETTINGS[1.0].effect
    assert log_odds(older) - log_odds(normal) == pytest.approx(effect)


def test_the_clinical_score_counts_half_widths() -> None:
    columns = {name: [physionet.feature(name)["missing"]] for name in physionet.CORE}
    normal = physionet.clinical_score(pa.table(columns))
    assert normal[0] == pytest.approx(0.0, abs=1e-9)
    sick = pa.table(columns | {"Age": [90.0], "GCS_last": [7.0]})
    assert physionet.clinical_score(sick)[0] == pytest.approx(2 / 1.5)
    absent = pa.table(columns | {"Lactate_last": [float("nan")]})
    assert physionet.clinical_score(absent)[0] == pytest.approx(0.0, abs=1e-9)


def test_as_printed_rows_are_as_long_as_one_at_most() -> None:
    rng = np.random.default_rng(0)
    table = pa.table(
        {name: rng.standard_normal(50) for name in FEATURES}
        | {"In-hospital_death": rng.integers(0, 2, 50)}
    )
    train = np.arange(40)
    x, _ = physionet.as_printed_rows(table, train)
    assert np.linalg.norm(x[train], axis=1).max() == pytest.approx(1.0)
    assert np.abs(x[train].mean(axis=0)).max() < 1e-12


@pytest.mark.slow
def test_dp_sgd_learns_with_a_budget_and_not_without_one() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 3)) / 2
    truth = np.array([2.0, -2.0, 0.0])
    y = (rng.random(2000) < 1 / (1 + np.exp(-x @ truth))).astype(float)
    settings = DpSgd(clip=0.5, step=2.0, epochs=4, batch=200)
    rich = fit_dp_sgd(x, y, np.zeros(3), settings, epsilon=8.0, delta=1e-5, seed=0)
    poor = fit_dp_sgd(x, y, np.zeros(3), settings, epsilon=0.05, delta=1e-5, seed=0)
    assert np.linalg.norm(rich - truth) < 1.0
    assert np.linalg.norm(poor - truth) > np.linalg.norm(rich - truth)


@pytest.fixture(scope="module")
def stays(physionet_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    from cipherbayes_research.datasets.physionet2012 import load_physionet2012
    from cipherbayes_research.datasets.splitting import write_table

    path = tmp_path_factory.mktemp("data") / "physionet2012.parquet"
    write_table(load_physionet2012(physionet_archive, missing="keep"), path)
    return Sources(physionet=path)


@pytest.mark.realdata
@pytest.mark.slow
def test_a_certified_fit_beats_the_score_that_needs_no_data(stays: Sources) -> None:
    def mean(kind: str, epsilon: float, splits: int) -> float:
        cells = [Cell(kind, split, epsilon=epsilon) for split in range(splits)]
        return float(np.mean([mortality.compute(c, stays)["auc"] for c in cells]))

    assert 0.77 < mean("no-data", 0.0, 10) < 0.79
    assert mean("private", 1.0, 3) > mean("no-data", 0.0, 3) + 0.02
