"""What private scales cost, and whether they can be had, from public numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from cipherbayes.data.preparation import Preparation
from cipherbayes.data.windows import MOST_NOISE
from cipherbayes.privacy.gaussian import mu_for

if TYPE_CHECKING:
    from cipherbayes.study.schema import PrivateStudy

NOISE_OF_A_BIN = 0.02
"""Noise over N that a bin of a histogram should have."""
LEAST_HISTOGRAMS, MOST_HISTOGRAMS = 0.005, 0.1
"""Least and most share of μ² of one round of histograms. Much where it must be: without
scales the prior is of half a public range, and rules what little N and ε can tell."""
SUMS = 0.03
"""Share of μ² of the sums inside the windows."""
BINS, FEW_BINS, FOR_FEW = 64, 32, 0.025
"""Bins of a histogram; fewer where the noise of one is above that share of N."""


@dataclass(frozen=True)
class ScalesBudget:
    """Shares of μ² and bins of a study's histograms.

    Attributes
    ----------
    histograms, sums
        Share of each round of histograms, and of the sums inside the windows.
    bins
        Bins of a histogram.
    noise
        Noise of a bin over N; None where N is not public.
    """

    histograms: float
    sums: float
    bins: int
    noise: float | None

    @property
    def suffices(self) -> bool:
        """Whether histograms can be told from their noise, as far as is known."""
        return self.noise is None or self.noise <= MOST_NOISE


def scales_budget(study: PrivateStudy) -> ScalesBudget:
    """The budget of a private study's scales."""
    privacy = study.privacy
    sites = max(len(study.sites), 1)
    lost = study.colluders + privacy.dropouts if study.rules.federated else 0
    numbers = sum(feature.levels is None for feature in study.features.values())
    if study.model.terms is not None:  # a curve has several columns
        prepared = Preparation(
            study.features, intercept=1.0, formula=study.model.terms, baseline=True
        )
        numbers = len(prepared.numbers(BINS).places)
    excess = sites / max(sites - lost, 1) if study.rules.federated else 1.0
    return _budget(
        privacy.epsilon, privacy.delta, study.training_records, numbers, excess
    )


@lru_cache(maxsize=1024)
def _budget(
    epsilon: float, delta: float, records: int | None, numbers: int, excess: float
) -> ScalesBudget:
    if records is None:
        return ScalesBudget(MOST_HISTOGRAMS, SUMS, BINS, None)
    mu = mu_for(epsilon, delta)
    share = numbers / (NOISE_OF_A_BIN * records * mu) ** 2
    share = min(max(share, LEAST_HISTOGRAMS), MOST_HISTOGRAMS)
    noise = math.sqrt(excess * numbers / share) / (mu * records)
    return ScalesBudget(share, SUMS, FEW_BINS if noise > FOR_FEW else BINS, noise)
