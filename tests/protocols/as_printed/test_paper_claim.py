"""The paper's claim never stands alone."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from cipherbayes.errors import PrivacyError
from cipherbayes.protocols.paper_claim import (
    PaperSetting,
    blocks,
    composed_epsilon,
    first_round_epsilon,
    paper_claim,
)

LOGISTIC = PaperSetting(
    epsilon=1.0, delta=1e-5, records=4000, batch=320, epochs=500, scale=3500.0
)


@pytest.mark.slow
def test_the_papers_logistic_setting_spends_about_25000() -> None:
    claim = paper_claim(LOGISTIC)
    assert claim.claimed_epsilon == 1.0
    assert claim.rounds == 6250
    assert claim.honest_epsilon == pytest.approx(24_700, rel=0.02)
    assert claim.first_round_epsilon == pytest.approx(9659, rel=1e-3)
    assert not claim.certified
    assert "not certified" in str(claim)
    assert f"{claim.honest_epsilon:,.0f}" in str(claim)


@pytest.mark.slow
def test_a_training_split_spends_about_21000() -> None:
    split = dataclasses.replace(LOGISTIC, records=3200)
    assert split.rounds == 5000
    assert composed_epsilon(split) == pytest.approx(21_400, rel=0.02)


def test_the_essential_noise_is_the_updates_noise_over_its_drift() -> None:
    for t in (1, 7, 6250):
        eta = LOGISTIC.step_size(t)
        # Algorithm 3: noise √((λ+L)η) z against drift (η/2) N (c ḡ).
        noise = math.sqrt((1e-4 + 1.0) * eta) / (eta / 2.0 * 4000)
        sensitivity = 3500.0 * 2.0 / 320
        assert LOGISTIC.noise_multiplier(t) == pytest.approx(noise / sensitivity)


def test_the_constant_multiplies_the_sensitivity_and_not_the_noise() -> None:
    plain = dataclasses.replace(LOGISTIC, scale=1.0)
    ratio = plain.noise_multiplier(3) / LOGISTIC.noise_multiplier(3)
    assert ratio == pytest.approx(3500.0)


def test_the_first_round_is_the_exact_amplified_gaussian() -> None:
    setting = dataclasses.replace(LOGISTIC, epochs=1, scale=3.0)
    single = dataclasses.replace(setting, records=320, epochs=1)
    assert single.rounds == 1
    assert first_round_epsilon(single) == pytest.approx(
        composed_epsilon(single), rel=1e-3
    )
    assert 0.0 < first_round_epsilon(setting) < composed_epsilon(setting)


@pytest.mark.slow
def test_the_composition_agrees_with_simulated_losses() -> None:
    setting = dataclasses.replace(LOGISTIC, delta=0.01, epochs=20, scale=200.0)
    assert setting.rounds == 250
    epsilon = composed_epsilon(setting)
    generator = np.random.default_rng(1)
    runs, q = 40_000, setting.rate
    losses = np.zeros(runs)
    for t in range(1, setting.rounds + 1):
        mu = 1.0 / setting.noise_multiplier(t)
        x = generator.standard_normal(runs) + mu * (generator.random(runs) < q)
        plain = math.log(q) + mu * x - mu * mu / 2.0
        losses += np.logaddexp(math.log1p(-q), plain)

    def delta(at: float) -> float:
        return float(np.maximum(0.0, -np.expm1(at - losses)).mean())

    # delta falls through 0.01 between 0.95 and 1.02 of the accountant's epsilon;
    # the simulation's standard error there is below 0.0006.
    assert delta(0.95 * epsilon) > 0.01 - 0.0015
    assert delta(1.02 * epsilon) < 0.01 + 0.0015


def test_every_round_is_counted_once() -> None:
    counted = [t for first, last in blocks(6250) for t in range(first, last + 1)]
    assert counted == list(range(1, 6251))


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"delta": 0.0},
        {"delta": 1.0},
        {"batch": 0},
        {"batch": 5000},
        {"epochs": 0},
        {"scale": -1.0},
        {"lipschitz": 0.0},
        {"gamma": math.inf},
    ],
)
def test_impossible_settings_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(PrivacyError):
        dataclasses.replace(LOGISTIC, **change)  # type: ignore[arg-type]
