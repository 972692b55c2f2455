"""A canary cannot show more than ε, in the mechanisms and in the real protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from exposed import Silent, certified, exact
from parties import Consortium, small_study

from cipherbayes.privacy.noise import InsecureRepeatableNoise, SecureNoise
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.messages import DecryptReply, decode, encode
from cipherbayes.protocols.questions import Question
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim", [0.1, pytest.param(1.0, marks=pytest.mark.torture), 10.0]
)
@pytest.mark.parametrize("mechanism", CERTIFIED)
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

LEVELS = [f"code-{k}" for k in range(400)]
ROUNDS = 10


def coded_study(claim: float, delta: float) -> Study:
    """A rare diagnosis has a coordinate of its own, so each is an audit of its own."""
    study = small_study(
        privacy={"epsilon": claim, "delta": delta},
        inference={"method": "averaged", "rounds": ROUNDS},
    )
    document = study.model_dump(mode="json", exclude_none=True)
    return Study.model_validate({**document, "features": {"code": {"levels": LEVELS}}})


def coded_table(study: Study, name: str, canary: bool = False) -> Contributions:
    codes = [LEVELS[(31 * ord(name) + k) % len(LEVELS)] for k in range(50)]
    frame = pd.DataFrame({"code": codes, "death": [k % 2 for k in range(50)]})
    if canary:
        frame.loc[len(frame)] = [LEVELS[7], 1]
    return Contributions(study.model, open_site(study, name, frame))


class Coded(Consortium):
    def contributions(self, name: str) -> Contributions:
        return coded_table(self.study, name)


def protocol_scores(
    tmp_path: Path, claim: float, delta: float, noise: Callable[[str], Any]
) -> tuple[Any, Any, float]:
    """What server, CSP and site c see of a canary at b in ten encrypted rounds.

    Scores of each coordinate with and without the canary, and the noise in them over
    what is certified. c's noise is known to the coalition, so c adds none.
    """
    consortium = Coded(tmp_path, coded_study(claim, delta))
    for name in consortium.names:
        source = Silent() if name == "c" else noise(name)
        consortium.sites[name] = consortium.site(name, noise=source)
        consortium.sites[name].join(consortium.manifest, consortium.offer)
    phase = consortium.plan.last_phase
    zero = np.zeros(phase.dimension)
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
