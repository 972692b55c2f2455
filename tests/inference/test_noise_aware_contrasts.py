"""What the differences between rounds say about the information matrix."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.noise_aware.contrasts import evidence_of
from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.packing import unpack
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import Simulated, release_rounds, simulate

RARE = -3.0


def told(evidence: Evidence, information: Floats) -> float:
    """What the contrasts say of the constant's information, over what it is.

    Given the rest of H, by least squares: the contrasts are −½ tr(H B H) − tr(A'H).
    """
    pull = -(evidence.linear + information @ evidence.quadratic)[0, 0]
    return 1.0 + float(pull / evidence.quadratic[0, 0] / information[0, 0])


def rare_events(kind: str, seed: int) -> tuple[Simulated, Evidence, Evidence]:
    """A study, its evidence as if the score were a line, and as it is."""
    rng = np.random.default_rng(seed)
    study = simulate(kind, 8_000, 5, rng, intercept=RARE, prior_scale=0.4)
    finished = release_rounds(study, 10.0, rng)
    return study, Evidence.of(*finished), evidence_of(*finished)


def information_at(study: Simulated, place: Floats) -> Floats:
    bound = InfluenceBound(study.clip)
    sums = influence_sums(study.model, place, study.table, bound, with_information=True)
    assert sums.information is not None
    return unpack(sums.information)


def test_a_way_down_from_many_events_tells_of_few() -> None:
    """As a line it tells of the curvature on the way, which is larger."""
    line, bent = [], []
    for seed in range(4):
        study, straight, evidence = rare_events("exponential", seed)
        line.append(told(straight, information_at(study, straight.place)))
        bent.append(told(evidence, information_at(study, evidence.place)))
    assert np.mean(line) > 1.4
    assert np.mean(bent) == pytest.approx(1.0, abs=0.15)


def test_rounds_from_where_the_score_bends_count_for_less() -> None:
    _, straight, evidence = rare_events("exponential", 1)
    assert evidence.weights.sum() == pytest.approx(1.0)
    assert evidence.weights[:8].sum() < 0.5 * straight.weights[:8].sum()
    assert evidence.variance > straight.variance


def test_a_line_is_left_as_it_is() -> None:
    rng = np.random.default_rng(2)
    finished = release_rounds(simulate("linear", 2_000, 4, rng), 1.0, rng)
    plain, same = Evidence.of(*finished), evidence_of(*finished)
    assert np.array_equal(plain.quadratic, same.quadratic)
    assert np.array_equal(plain.weights, same.weights)
