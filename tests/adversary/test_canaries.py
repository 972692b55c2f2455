"""A canary cannot show more than ε, in the mechanisms and in the real protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coded import Coded, coded, coded_table
from exposed import Silent, certified, exact
from parties import small_study

from cipherbayes.privacy.noise import InsecureRepeatableNoise, SecureNoise
from cipherbayes.protocols.messages import DecryptReply, decode, encode
from cipherbayes.protocols.questions import Question
from cipherbayes.validation.canary import epsilon_lower_bound
from cipherbayes.validation.mechanisms import MECHANISMS, audit_mechanism

EPSILONS = (0.1, 1.0, 10.0)
CERTIFIED = sorted(set(MECHANISMS) - {"as-printed"})


class Weak:
    """Noise a quarter as wide as the plan says: what an audit must find."""

    insecure = True

    def __init__(self, seed: str) -> None:
        self._honest = InsecureRepeatableNoise(seed)

    def share(self, dimension: int, scale: float, label: str = "") -> np.ndarray:
        return self._honest.share(dimension, scale / 4.0, label)


@pytest.mark.parametrize(
    ("mechanism", "claim"),
    [
        # Each with one claim here, the smallest or the largest; with all by torture.
        pytest.param(
            mechanism,
            claim,
            marks=pytest.mark.slow
            if claim == EPSILONS[-(place % 2)]
            else pytest.mark.torture,
        )
        for place, mechanism in enumerate(CERTIFIED)
        for claim in EPSILONS
    ],
)
def test_no_certified_mechanism_is_refuted_and_a_weaker_one_is(
    mechanism: str, claim: float
) -> None:
    delta = 1e-3
    weak = MECHANISMS[mechanism](claim, delta, 60_000, noise=Weak("audit"))  # type: ignore[call-arg]
    assert epsilon_lower_bound(weak.present, weak.absent, delta) > min(claim, 5.0)
    kept = audit_mechanism(
        mechanism, epsilon=claim, delta=delta, runs=30_000, confidence=0.999
    )
    assert not kept.refuted
    assert kept.noise == "secure"


@pytest.mark.torture
@pytest.mark.parametrize("claim", EPSILONS)
@pytest.mark.parametrize("mechanism", CERTIFIED)
def test_a_long_audit_does_not_refute_a_certified_mechanism(
    mechanism: str, claim: float
) -> None:
    assert not audit_mechanism(
        mechanism, epsilon=claim, runs=1_600_000, confidence=0.999
    ).refuted


# -- the protocol itself --------------------------------------------------------

ROUNDS = 10


def protocol_scores(
    tmp_path: Path, claim: float, delta: float, noise: Callable[[str], Any]
) -> tuple[Any, Any, float]:
    """What server, CSP and site c see of a canary at b in ten encrypted rounds.

    Scores of each coordinate with and without the canary, and the noise in them over
    what is certified. c's noise is known to the coalition, so c adds none.
    """
    study = small_study(
        privacy={"epsilon": claim, "delta": delta},
        inference={"method": "averaged", "rounds": ROUNDS},
    )
    consortium = Coded(tmp_path, coded(study))
    for name in consortium.names:
        source = Silent() if name == "c" else noise(name)
        consortium.sites[name] = consortium.site(name, noise=source)
        consortium.sites[name].join(consortium.manifest, consortium.offer)
    phase, zero = consortium.plan.last_phase, consortium.zero
    truth = sum(exact(consortium, name, zero) for name in consortium.names)
    left = zero.copy()
    for number in range(ROUNDS):
        question = consortium.question(consortium.request(round=number, theta=zero))
        reply = decode(consortium.csp.handle(encode(question)), DecryptReply)
        left += reply.values - truth
    with_canary = coded_table(consortium.study, "b", canary=True).total(
        phase, Question(zero)
    )
    moved = phase.sums.to_grid(with_canary) - exact(consortium, "b", zero)
    shift = ROUNDS * float(np.linalg.norm(moved))
    spread = np.std(left) / (np.sqrt(ROUNDS) * certified(consortium))
    return left + shift, left, float(spread)


@pytest.mark.slow
@pytest.mark.parametrize("claim", EPSILONS)
def test_the_encrypted_protocol_keeps_its_claim_and_weak_noise_does_not(
    tmp_path: Path, claim: float
) -> None:
    """400 coordinates, each with noise of its own: 400 audits in ten rounds."""
    delta = 0.05
    *weak, spread = protocol_scores(tmp_path / "weak", claim, delta, Weak)
    if claim < 5.0:  # 400 audits cannot show an ε above log 400, whatever leaks
        assert epsilon_lower_bound(weak[0], weak[1], delta) > claim
    assert spread < 0.3
    *kept, spread = protocol_scores(
        tmp_path / "kept", claim, delta, lambda _: SecureNoise()
    )
    assert epsilon_lower_bound(kept[0], kept[1], delta, 0.999) <= claim
    # 400 draws: the standard error of their sd is 3.5 %.
    assert spread > 0.86
