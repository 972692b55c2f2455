"""A canary cannot show more than is promised, and refutes what is not kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.gaussian import epsilon_of, mu_for
from cipherbayes.privacy.noise import InsecureRepeatableNoise
from cipherbayes.protocols.paper_claim import PaperSetting
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.validation import mechanisms as audited
from cipherbayes.validation.canary import epsilon_lower_bound
from cipherbayes.validation.mechanisms import audit_mechanism
from cipherbayes.validation.neighbours import neighbours, questions

TEST_NOISE = InsecureRepeatableNoise("audit tests")


def gaussian_scores(mu: float, runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.standard_normal(runs) + mu, generator.standard_normal(runs)


def test_the_bound_is_below_the_truth_for_a_known_mechanism() -> None:
    exceeded = 0
    for seed in range(60):
        scores = gaussian_scores(1.0, 4000, seed)
        exceeded += epsilon_lower_bound(*scores, 1e-2) > epsilon_of(1.0, 1e-2)
    # At 95 % confidence each exceeds with probability at most 0.05 (in practice far
    # less): more than 10 of 60 has probability below 1e-3 even at 0.05.
    assert exceeded <= 10


def test_the_bound_nears_the_truth_as_runs_grow() -> None:
    truth = epsilon_of(1.0, 1e-2)
    scores = gaussian_scores(1.0, 2_000_000, 5)
    assert 0.8 * truth < epsilon_lower_bound(*scores, 1e-2) < truth


def test_both_directions_are_tried() -> None:
    present, absent = gaussian_scores(2.0, 20_000, 6)
    assert epsilon_lower_bound(absent, present, 1e-3) > 1.0


def test_scores_that_say_nothing_bound_nothing() -> None:
    same = np.zeros(1000)
    assert epsilon_lower_bound(same, same, 1e-5) == 0.0
    present, absent = gaussian_scores(0.0, 50_000, 7)
    assert epsilon_lower_bound(present, absent, 1e-5) < 0.1


def test_a_sure_canary_is_bounded_by_the_number_of_runs() -> None:
    bound = epsilon_lower_bound(np.ones(10_000), np.zeros(10_000), 1e-5)
    # Three quarters counted, none of them wrong: Q <= 1 - 0.025^(1/7500).
    limit = -math.log(-math.expm1(math.log(0.025) / 7500))
    assert bound == pytest.approx(limit, abs=1e-3)


def test_more_confidence_means_a_smaller_bound() -> None:
    scores = gaussian_scores(1.0, 20_000, 8)
    bounds = [epsilon_lower_bound(*scores, 1e-3, level) for level in (0.5, 0.95, 0.999)]
    assert bounds == sorted(bounds, reverse=True)


@pytest.mark.parametrize(
    ("present", "absent", "delta", "confidence"),
    [
        (np.zeros(4), np.zeros(100), 1e-5, 0.95),
        (np.zeros(100), np.zeros(100), 0.0, 0.95),
        (np.zeros(100), np.zeros(100), 1e-5, 1.0),
        (np.full(100, np.nan), np.zeros(100), 1e-5, 0.95),
    ],
)
def test_unusable_scores_are_refused(
    present: np.ndarray, absent: np.ndarray, delta: float, confidence: float
) -> None:
    with pytest.raises(PrivacyError):
        epsilon_lower_bound(present, absent, delta, confidence)


def test_the_result_has_the_six_keys_of_the_contract() -> None:
    result = audit_mechanism("gaussian-sum", runs=400)
    assert set(result.to_dict()) == {
        "mechanism",
        "claimed_epsilon",
        "delta",
        "lower_bound",
        "confidence",
        "runs",
    }
    assert result.noise == "secure"
    assert result.runs == 400


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(PrivacyError, match="gaussian-sum"):
        audit_mechanism("laplace")
    with pytest.raises(PrivacyError, match="runs"):
        audit_mechanism("gaussian-sum", runs=2)


def test_the_canary_is_clipped_before_it_is_summed() -> None:
    plan = audited._plan(1.0, 1e-5, 2, 1.0)
    present, absent = audited._sums(plan)
    assert 0 < present - absent <= plan.sensitivity
    assert present - absent >= 0.99 * plan.clip / plan.step


def test_the_coalition_sees_the_certified_noise_and_no_more() -> None:
    plan = audited._plan(1.0, 1e-5, 2, 1.0)
    noise = audited._honest_noise(plan, TEST_NOISE, 200_000, 0)
    certified = plan.noise_multiplier * plan.sensitivity
    # Standard error of a standard deviation of 2e5 draws: 0.16 %.
    assert noise.std() == pytest.approx(certified, rel=0.01)


def test_shares_divided_among_all_sites_would_break_the_claim() -> None:
    """With variance (σΔ)²/K the coalition's canary exceeds ε; with K − c it does not.

    This is the audit's own control: it does find a mechanism that is wrong.
    """
    delta, runs = 0.05, 1_000_000
    generator = np.random.default_rng(9)
    mu = mu_for(1.0, delta)
    for weaker, refuted in ((1.0, False), (math.sqrt(3 / 2), True)):
        canary = generator.standard_normal(runs) + mu * weaker
        bound = epsilon_lower_bound(canary, generator.standard_normal(runs), delta)
        assert (bound > 1.0) is refuted


def test_the_papers_algorithm_is_refuted_in_seconds() -> None:
    scores = audited.paper_releases(0.01, 1e-5, 30_000, rounds=6)
    assert epsilon_lower_bound(scores.present, scores.absent, 1e-5) > 0.1


def test_without_its_preconditioner_leak_the_papers_canary_is_invisible() -> None:
    """Where the floor hides the canary's gradient, nothing is left to see."""
    setting = PaperSetting(0.01, 1e-5, 32_000, 3_200, 500)
    scores = audited.paper_releases(0.01, 1e-5, 30_000, rounds=6, setting=setting)
    assert epsilon_lower_bound(scores.present, scores.absent, 1e-5) < 0.01


@pytest.mark.slow
def test_the_papers_algorithm_leaks_fifty_times_its_claim() -> None:
    result = audit_mechanism("as-printed", epsilon=0.01, runs=40_000)
    assert result.refuted
    assert result.lower_bound >= 0.5


# A large δ needs few runs. Over 150 simulated audits of about this size the bounds are
# 0.82 ± 0.03 and 0.75 ± 0.04; with noise shared by K, not K − c, 1.15 ± 0.04 and
# 1.30 ± 0.06.
FEW: dict[str, float] = {"epsilon": 1.0, "delta": 0.05, "confidence": 0.999}


@pytest.mark.slow
def test_our_full_batch_release_keeps_its_claim_and_is_tight() -> None:
    result = audit_mechanism("gaussian-sum", runs=60_000, **FEW)
    assert not result.refuted
    assert result.lower_bound >= 0.65


@pytest.mark.slow
def test_our_sampled_release_keeps_its_claim() -> None:
    result = audit_mechanism("poisson-gaussian-sum", runs=60_000, **FEW)
    assert not result.refuted
    assert result.lower_bound >= 0.55


def test_an_audit_asks_through_scales_that_could_have_been_released() -> None:
    """Also where models of columns with missing values follow them."""
    plan = plan_releases(
        cb.Study(
            model=cb.models.Logistic(outcome="y"),
            features={
                "age": {"low": 20, "high": 100},
                "bmi": {"low": 5, "high": 55, "missing": "impute"},
            },
            preparation={"method": "private-scales"},
            privacy={"epsilon": 1.0, "records": 400},
            sites={"a": {}, "b": {}, "c": {}},
        )
    )
    assert plan.imputing is not None
    near = neighbours(plan.study, 4, 0, seed=4, alike=False)
    asked = list(questions(plan, plan.last_phase, near))
    assert any("ordinary scales" in name for name, _ in asked)
    for name, question in asked:
        moments, learnt = plan.imputing.split(question.scales)
        assert moments is not None
        assert moments.size == 2 * near.present.design.moved, name
        _, sds = np.split(moments, 2)
        assert np.all((sds >= 1e-4) & (sds <= 1.0)), name
        model = plan.imputing.models.read(learnt)["bmi"]
        assert 0.02 <= model.sd <= 3.0, name
