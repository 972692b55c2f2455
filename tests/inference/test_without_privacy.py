"""What a report says of the width that an interval would have without privacy."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.inference.noise_aware.without_privacy import sd_of
from cipherbayes.inference.target import Target
from cipherbayes.typing import Floats
from cipherbayes.validation.simulation import Simulated, release_rounds, simulate

MODELS = (
    "logistic",
    "linear",
    "learnt-variance",
    "poisson",
    "exponential",
    "weibull",
    "gompertz",
    "piecewise",
)
RECORDS = 8_000


def sd_of_the_rows(study: Simulated) -> Floats:
    """Of a fit of the rows themselves, every record in full."""
    target = Target(study.model, study.prior, [study.table])
    return np.sqrt(np.diag(np.linalg.inv(target.curvature(target.mode()))))


def median_error(kind: str, epsilon: float, clip: float | None = None) -> float:
    """The median over parameters of what is told over what is."""
    rng = np.random.default_rng(3)
    study = simulate(kind, RECORDS, 7, rng, prior_scale=0.5)
    told = np.array(sd_of(*release_rounds(study, epsilon, rng, clip), RECORDS))
    return float(np.median(told / sd_of_the_rows(study)))


@pytest.mark.parametrize("kind", MODELS)
def test_without_noise_the_width_of_a_fit_of_the_rows_is_told(kind: str) -> None:
    """Though records with long rows count for little in what was released."""
    for clip in (None, 1.2):
        assert median_error(kind, 100.0, clip) == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("kind", MODELS)
def test_noise_leaves_it_about_right(kind: str) -> None:
    assert median_error(kind, 1.0) == pytest.approx(1.0, abs=0.3)
