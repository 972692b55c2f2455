"""One release of a bounded sum: clipping, grid, noise and range in one value.

They are coupled here so that they cannot be mismatched: whoever holds a
:class:`ReleasePlan` clips to its C, rounds to its grid, draws its share, and is
charged its event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cipherbayes.errors import PrivacyError
from cipherbayes.privacy.events import GaussianSum, PoissonSampled
from cipherbayes.typing import UNIT_ROUNDOFF, Floats, Integers

TAIL_BITS = 60
ROUNDING_VARIANCE = 16.0
"""Square of the parameter with which continuous noise would be rounded."""
CLIPS, NOISES = (1e-100, 1e100), (1e-6, 1e12)
"""Within these no step, scale or range overflows or becomes subnormal."""


@dataclass(frozen=True)
class ReleasePlan:
    """How a sum of records over K sites is released with noise.

    Parameters
    ----------
    clip
        C: bound on the Euclidean norm of one record's contribution.
    dimension
        d: length of the vector.
    noise_multiplier
        σ: certified noise as a multiple of the sensitivity.
    rounds
        How often it is released, for the range's tail.
    rate
        Probability with which a record takes part (1: all records).
    sites, colluders, dropouts
        K, c, r.
    records
        N: most records over all sites, for range and rounding.
    depth
        Additions that any summand of a site's float64 sum goes through.

    Formal guarantees
    -----------------
    *Grid.* The step s is a power of two, so dividing by it is exact. A site's sum
    is computed with an error of at most γ = D u / (1 − D u) times Σ‖g_i‖ ≤ N C in
    norm (u = 2⁻⁵³, D = ``depth``), on both of two neighbouring tables, and
    rounding to integers moves each coordinate's difference by at most one. So
    adding or removing a record moves the integer sum by at most

        Δ = C (1 + 2 γ N) / s + √d.

    *Noise.* Every site adds a discrete Gaussian of variance
    ((σ Δ)² + 16) / (K − c − r): without c colluders' shares and with r sites lost,
    what is left has at least variance (σ Δ)² + 16.

    *Accounting.* Take continuous noise N(0, (σ Δ)²) and round each coordinate x to
    an integer drawn from the discrete Gaussian of parameter 4 centred at x. The
    result is, up to a total variation of 2⁻³⁰⁰, a discrete Gaussian of variance
    (σ Δ)² + 16 (4 is far above the smoothing parameter of the integers: Peikert
    2010, Theorem 3.1), and so is a sum of such shares. What is released is therefore
    post-processing of a continuous Gaussian mechanism with multiplier σ, in any
    dimension, and its exact curve holds.

    *Range.* Except with probability 2⁻⁶⁰ over all rounds and coordinates the total
    lies within ``bound``. Beyond it a total is wrong, never less private.

    Edge cases
    ----------
    A plan with K − c − r < 1, a non-positive number or a range beyond 62 bits is
    refused.
    """

    clip: float
    dimension: int
    noise_multiplier: float
    rounds: int
    rate: float
    sites: int
    colluders: int
    dropouts: int
    records: int
    depth: int

    def __post_init__(self) -> None:
        if min(self.dimension, self.rounds, self.sites, self.records) < 1:
            raise PrivacyError(
                "a release needs at least one value, round, site and record",
                remedy="raise inference.rounds, or name sites and records",
            )
        if min(self.colluders, self.dropouts, self.depth) < 0:
            raise PrivacyError(
                "colluders, dropouts and additions are not negative",
                remedy="raise privacy.colluders or privacy.dropouts to 0",
            )
        if self.sites - self.colluders - self.dropouts < 1:
            raise PrivacyError(
                f"{self.colluders} colluders and {self.dropouts} dropouts leave no "
                f"honest site among {self.sites}",
                remedy="lower privacy.colluders or privacy.dropouts",
            )
        if not 0.0 < self.rate <= 1.0:
            raise PrivacyError(
                "the sampling rate is outside (0, 1]",
                remedy="give the probability with which a record takes part",
            )
        if not (
            CLIPS[0] <= self.clip <= CLIPS[1]
            and NOISES[0] <= self.noise_multiplier <= NOISES[1]
        ):
            raise PrivacyError(
                "the clipping norm or the noise is not a usable positive number",
                remedy="set privacy.clip near 1, privacy.epsilon between 0.01 and 50",
            )
        if self.bound >= 2**62:
            raise PrivacyError(
                "the sums cannot be shown to fit 64 bits",
                remedy="raise privacy.epsilon less far, or lower privacy.clip",
            )

    @cached_property
    def _real_sensitivity(self) -> float:
        steps = self.depth * UNIT_ROUNDOFF
        error = steps / (1.0 - steps)
        return self.clip * (1.0 + 2.0 * error * self.records)

    @cached_property
    def step(self) -> float:
        """Grid step s: √d s is below 2⁻¹⁰ of the sensitivity, noise ≥ 2¹² steps."""
        fine = 2.0**-10 / math.sqrt(self.dimension)
        fine = min(fine, 2.0**-12 * self.noise_multiplier)
        return float(2.0 ** math.floor(math.log2(self._real_sensitivity * fine)))

    @cached_property
    def sensitivity(self) -> float:
        """Δ in grid units."""
        exact = self._real_sensitivity / self.step + math.sqrt(self.dimension)
        return exact * (1.0 + 2.0**-40)

    @cached_property
    def share_scale(self) -> float:
        """Parameter of one site's discrete Gaussian share, in grid units."""
        honest = self.sites - self.colluders - self.dropouts
        variance = (self.noise_multiplier * self.sensitivity) ** 2 + ROUNDING_VARIANCE
        return math.sqrt(variance / honest) * (1.0 + 2.0**-40)

    @property
    def event(self) -> GaussianSum | PoissonSampled:
        """One release, for the accountant and the ledger."""
        release = GaussianSum(self.noise_multiplier)
        return release if self.rate == 1.0 else PoissonSampled(self.rate, release)

    @cached_property
    def bound(self) -> int:
        """Largest total, in grid units, that public numbers allow."""
        tails = math.log(2.0 * self.dimension * self.rounds) + TAIL_BITS * math.log(2)
        noise = self.share_scale * math.sqrt(2.0 * self.sites * tails)
        sums = self.records * self._real_sensitivity / self.step
        return math.ceil((sums + noise) * (1.0 + 2.0**-30)) + self.sites

    def noise_sd(self, sites: int) -> float:
        """Standard deviation of the noise really in a sum over ``sites`` sites."""
        return self.share_scale * math.sqrt(sites) * self.step

    def to_grid(self, total: Floats) -> Integers:
        """A site's sum as integers; refuses what no bounded records add up to."""
        scaled = total / self.step
        if not np.isfinite(scaled).all() or np.abs(scaled).max(initial=0.0) > 2.0**62:
            raise PrivacyError(
                "a sum is not finite or outside the study's range",
                remedy="check that every party uses the same study",
            )
        return np.rint(scaled).astype(np.int64)

    def from_grid(self, values: Integers) -> Floats:
        """A total in the units of the records."""
        return np.asarray(values * self.step)
