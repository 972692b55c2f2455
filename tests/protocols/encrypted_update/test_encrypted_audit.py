"""A canary against the encrypted update with noise in the gradient."""

from __future__ import annotations

import pytest

from cipherbayes.privacy.noise import InsecureRepeatableNoise
from cipherbayes.validation import mechanisms as audited
from cipherbayes.validation.canary import epsilon_lower_bound

NOISE = InsecureRepeatableNoise("encrypted audit")
DELTA = 0.05
"""At a large δ half a million runs tell 1 from 1.2."""


@pytest.mark.parametrize(("honest", "refuted"), [(2, False), (3, True)])
def test_shares_must_be_divided_by_the_honest_sites_only(
    honest: int, refuted: bool
) -> None:
    """With variance (σΔ)²/K the audit catches it; with (σΔ)²/(K − c) it does not."""
    scores = audited.in_gradient(1.0, DELTA, 500_000, honest=honest, noise=NOISE)
    bound = epsilon_lower_bound(scores.present, scores.absent, DELTA)
    assert (bound > 1.0) is refuted
    # Tight, too: the coalition undoes the preconditioner completely.
    assert bound > 0.9


@pytest.mark.slow
def test_the_preconditioner_hides_nothing_from_the_coalition() -> None:
    """Directions of an encrypted update tell as much as the noised sums."""
    direct = audited.gaussian_sum(1.0, 1e-5, 50_000, noise=NOISE)
    undone = audited.in_gradient(1.0, 1e-5, 50_000, noise=NOISE)
    difference = undone.present - undone.absent
    assert difference == pytest.approx(direct.present - direct.absent, rel=1e-6)


def test_the_audit_names_the_mechanism() -> None:
    assert audited.audit_mechanism("in-gradient", runs=400).mechanism == "in-gradient"
