"""Settings are chosen on made-up stays that have what is published of real ones."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from scipy.special import expit

from cipherbayes.models.metrics import auc
from cipherbayes_research.datasets.physionet2012 import FEATURES
from cipherbayes_research.paper import ranked_columns, search_settings
from cipherbayes_research.paper.fitting import Averaging, simulate_averaged
from cipherbayes_research.paper.icu_population import MORTALITY, Population, population
from cipherbayes_research.paper.search_settings import GRID, STARTS, climb, mean_auc


@pytest.fixture(scope="module")
def hospitals() -> list[Population]:
    return [population(3000, seed) for seed in range(200, 212)]


@pytest.mark.slow
def test_made_up_stays_have_the_published_deaths_and_scores(
    hospitals: list[Population],
) -> None:
    """MIMIC-II: SAPS II 38 (quartiles 27 and 51); its AUC 0.78 there, 0.86 at first."""
    deaths = np.mean([each.deaths.mean() for each in hospitals])
    assert deaths == pytest.approx(MORTALITY, abs=0.01)
    quartiles = [np.percentile(each.score, (25, 50, 75)) for each in hospitals]
    assert np.mean(quartiles, axis=0) == pytest.approx([27, 38, 51], abs=4.0)
    known = [auc(each.deaths, each.score) or 0.5 for each in hospitals]
    assert 0.78 < np.mean(known) < 0.86


def test_made_up_columns_are_half_widths_in_the_papers_order(
    hospitals: list[Population],
) -> None:
    first = hospitals[0].z
    assert first.shape == (3000, len(FEATURES))
    assert np.abs(first).max() <= 1.5
    low, high, mean = (
        first[:, FEATURES.index(f"HR_{s}")] for s in ("min", "max", "mean")
    )
    assert np.all(low <= mean)
    assert np.all(mean <= high)
    assert np.mean(first[:, FEATURES.index("TroponinI_last")] == 0.0) > 0.7


def test_a_population_is_its_seed() -> None:
    one, same, other = population(50, 1), population(50, 1), population(50, 2)
    assert np.array_equal(one.z, same.z)
    assert np.array_equal(one.deaths, same.deaths)
    assert not np.array_equal(one.z, other.z)


def test_many_draws_at_once_are_the_products_recursion(
    hospitals: list[Population], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_settings, "TRAINING", 2000)
    setting = STARTS[1.0]
    rows = search_settings.prepared(hospitals[0], setting)
    rows = replace(rows, x=rows.x.astype(np.float64))
    ours = search_settings.averaged_thetas(rows, setting, epsilon=1.0, draws=1, seed=3)
    plain = Averaging(setting.clip, setting.step, setting.precision, setting.rounds)
    theirs = simulate_averaged(
        rows.x,
        lambda eta: np.asarray(rows.deaths - expit(eta)),
        rows.start,
        plain,
        epsilon=1.0,
        seed=3,
    )
    assert ours[:, 0] == pytest.approx(theirs, abs=1e-9)


def test_every_setting_is_on_the_grid() -> None:
    assert set(GRID) == {field.name for field in fields(ranked_columns.RankedSetting)}
    for settings in (ranked_columns.SETTINGS, STARTS):
        assert settings.keys() == STARTS.keys()
        for setting in settings.values():
            assert all(getattr(setting, name) in GRID[name] for name in GRID)


def test_a_climb_takes_what_is_clearly_better_and_nothing_else() -> None:
    def value(setting: ranked_columns.RankedSetting) -> np.ndarray:
        luck = np.array([0.1, -0.1]) * (setting.rounds == 40)
        return luck - abs(setting.clip - 0.3) - abs(setting.norm - 4.8)

    end = climb(STARTS[0.1], value)
    assert (end.clip, end.norm) == (0.3, 4.8)
    assert end.rounds == STARTS[0.1].rounds


def settled(populations: int, errors: float) -> bool:
    """Whether no single change betters the setting of ε = 0.1 by so many errors."""
    size = search_settings.TRAINING + search_settings.TEST
    stays = [population(size, seed) for seed in range(populations)]

    @cache
    def value(setting: ranked_columns.RankedSetting) -> np.ndarray:
        return mean_auc(setting, stays, 0.1)

    chosen = ranked_columns.SETTINGS[0.1]
    assert value(chosen).mean() > value(STARTS[0.1]).mean()
    others = {other for move in search_settings.MOVES for other in move(chosen)} - {
        chosen
    }
    gains = np.array([value(other) - value(chosen) for other in others])
    spread = gains.std(axis=1, ddof=1) / np.sqrt(populations)
    return not np.any(gains.mean(axis=1) > errors * spread)


@pytest.mark.slow
def test_no_single_change_betters_the_setting_of_a_small_budget_by_far() -> None:
    assert settled(8, errors=3.0)


@pytest.mark.torture
def test_no_single_change_betters_the_setting_of_a_small_budget() -> None:
    """The search of the whole module, from where it ended."""
    assert settled(search_settings.POPULATIONS, errors=1.0)
