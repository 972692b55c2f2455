"""The paper's privacy claim, and what its Algorithm 3 really spends. Not certified.

*The claim* (Theorem 4): with the step size η_t of Algorithm 1 the run is (ε, δ)-DP,
and scaling gradients by a constant c "keeps" it (Remark on the RMSprop
preconditioner).

*The honest figure.* Algorithm 3 moves θ by

    [(η_t/2)(∇log p(θ) + N c ḡ_t) − √((λ+L) η_t) z] G_t,   z ~ N(0, I).

Grant the paper everything else: that G_t is public (it is not, see
:mod:`~cipherbayes.validation.mechanisms`), that nobody knows z, and that minibatches
are secret. Dividing by (η_t/2) N G_t, what is released is c ḡ_t plus Gaussian noise of
standard deviation

    s_t = (2/N) √((λ+L)/η_t),

the proof's "essential noise". ḡ_t is a mean over τ records with gradients of norm
at most L, so replacing a record that is in the batch moves c ḡ_t by up to 2 c L/τ:
c multiplies the sensitivity and not the noise. The noise multiplier is

    σ_t = s_t τ/(2 c L) = (τ/(c L N)) √((λ+L)/η_t),

proportional to √t because η_t ∝ 1/t. A record is in a batch with probability
q = τ/N (drawn without replacement; under replacement of a record the pair
(1−q) N(0,1) + q N(1/σ_t,1) against N(0,1) dominates: Zhu, Dong and Wang 2022,
Balle, Barthe and Gaboardi 2018). The T' = ⌊NT/τ⌋ rounds are composed by their
privacy loss distributions, rounded up.

With the paper's logistic setting (c = 3500, claimed ε = 1, τ = 320, T = 500, L = 1,
λ = 1e-4, γ = 0.99, δ = 1e-5) this gives ε ≈ 24,900 for all N = 4,000 records (24,700
on a grid twice as fine) and ε ≈ 21,600 for the 3,200 of a training split; the first
round alone gives 9,660 and 7,860.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cipherbayes.errors import PrivacyError
from cipherbayes.inference.schedules import paper_step_size
from cipherbayes.privacy.gaussian import epsilon_of, require_delta

NOT_CERTIFIED = "not certified"

SMALLEST_GRADIENT = 1e-3
"""The paper's floor on the scaled gradient's magnitude."""

BLOCK_GROWTH = 1.04
"""Rounds t to 1.04 t are counted with the noise of round t, the smallest."""

LONG_BLOCK, TAIL_MASS = 1000, 1e-15
"""Tails of this mass are cut off in blocks of more rounds, and always in the total."""

POINTS_PER_SPREAD = 40
LARGEST_GRID = 50_000


@dataclass(frozen=True)
class PaperSetting:
    """What Theorem 4 and Algorithm 3 depend on.

    Parameters
    ----------
    epsilon, delta
        The claim.
    records, batch, epochs
        N, τ and T.
    scale
        c: what gradients are multiplied with.
    lipschitz, gamma, floor
        L, γ and λ.
    """

    epsilon: float
    delta: float
    records: int
    batch: int
    epochs: int
    scale: float = 1.0
    lipschitz: float = 1.0
    gamma: float = 0.99
    floor: float = 1e-4

    def __post_init__(self) -> None:
        require_delta(self.delta)
        positive = (self.epsilon, self.scale, self.lipschitz, self.gamma, self.floor)
        if not all(0.0 < value < math.inf for value in positive):
            raise PrivacyError(
                "epsilon, scale, lipschitz, gamma and floor must be positive numbers",
                remedy="check the [paper] and [privacy] tables",
            )
        if not (1 <= self.batch <= self.records and self.epochs >= 1):
            raise PrivacyError(
                "the batch is empty or larger than the table, or there are no epochs",
                remedy="check paper.batch, paper.epochs and privacy.records",
            )

    @property
    def rounds(self) -> int:
        """T' = ⌊N T / τ⌋."""
        return self.records * self.epochs // self.batch

    @property
    def rate(self) -> float:
        """q = τ / N."""
        return self.batch / self.records

    def step_size(self, t: int) -> float:
        """η_t of Algorithm 1."""
        return paper_step_size(
            t,
            epsilon=self.epsilon,
            delta=self.delta,
            records=self.records,
            batch=self.batch,
            epochs=self.epochs,
            lipschitz=self.lipschitz,
            gamma=self.gamma,
            floor=self.floor,
        )

    def noise_multiplier(self, t: int) -> float:
        """σ_t: essential noise over the sensitivity of the scaled mean gradient."""
        essential = math.sqrt((self.floor + self.lipschitz) / self.step_size(t))
        return self.batch * essential / (self.scale * self.lipschitz * self.records)


@dataclass(frozen=True)
class PaperClaim:
    """The claim beside the honest figure; never certified.

    Attributes
    ----------
    claimed_epsilon, delta
        What Theorem 4 says.
    honest_epsilon
        What the accountant gives, granting the paper its best case.
    first_round_epsilon
        The same for the first round alone.
    rounds
        T'.
    """

    claimed_epsilon: float
    delta: float
    honest_epsilon: float
    first_round_epsilon: float
    rounds: int

    @property
    def certified(self) -> bool:
        return False

    def __str__(self) -> str:
        return (
            f"the paper claims ε = {self.claimed_epsilon:g}; its algorithm spends "
            f"ε ≈ {_shown(self.honest_epsilon)} at δ = {self.delta:g} in "
            f"{self.rounds:,} rounds ({_shown(self.first_round_epsilon)} in the "
            f"first), even if its preconditioner were public: {NOT_CERTIFIED}"
        )


def paper_claim(setting: PaperSetting) -> PaperClaim:
    """Claimed and honest ε of a setting; see the module for the derivation.

    Formal guarantees
    -----------------
    None for the data. ``honest_epsilon`` is an upper bound, within about one per
    cent, for an algorithm that is *better* than the paper's.
    """
    return PaperClaim(
        claimed_epsilon=setting.epsilon,
        delta=setting.delta,
        honest_epsilon=composed_epsilon(setting),
        first_round_epsilon=first_round_epsilon(setting),
        rounds=setting.rounds,
    )


def first_round_epsilon(setting: PaperSetting) -> float:
    """ε of round 1, exactly: log(1 + q (e^ε' − 1)), ε' that of the batch at δ/q."""
    q = setting.rate
    if setting.delta >= q:
        return 0.0
    inner = epsilon_of(1.0 / setting.noise_multiplier(1), setting.delta / q)
    if inner > 30.0:
        return inner + math.log(q) + math.log1p((1.0 - q) / q * math.exp(-inner))
    return math.log1p(q * math.expm1(inner))


@lru_cache(maxsize=16)
def composed_epsilon(setting: PaperSetting) -> float:
    """ε of all rounds, rounded up."""
    from dp_accounting.pld import privacy_loss_distribution as losses

    interval = _interval(setting)
    total: Any = losses.identity(interval)
    for first, last in blocks(setting.rounds):
        block = losses.from_gaussian_mechanism(
            setting.noise_multiplier(first),
            value_discretization_interval=interval,
            sampling_prob=setting.rate,
        )
        count = last - first + 1
        # Where tails end costs more to find than they do, unless they are long.
        cut = TAIL_MASS if count > LONG_BLOCK else 0.0
        total = total.compose(block.self_compose(count, tail_mass_truncation=cut))
    return float(total.get_epsilon_for_delta(setting.delta))


def blocks(rounds: int) -> Iterator[tuple[int, int]]:
    """Consecutive rounds, first and last, that are counted alike."""
    first = 1
    while first <= rounds:
        last = min(rounds, max(first, math.floor(first * BLOCK_GROWTH)))
        yield first, last
        first = last + 1


def _interval(setting: PaperSetting) -> float:
    """A grid fine against the root-mean-square loss of a round."""
    q = setting.rate
    squares = 0.0
    for first, last in blocks(setting.rounds):
        mu = 1.0 / setting.noise_multiplier(first)
        # Small losses are about q (e^{μx − μ²/2} − 1); large ones μ²/2, when sampled.
        small = q * math.sqrt(math.expm1(min(mu**2, 50.0)))
        large = math.sqrt(q) * (mu**2 / 2.0 + mu)
        squares += (last - first + 1) * min(small, large) ** 2
    spread = math.sqrt(squares / setting.rounds)
    mu = 1.0 / setting.noise_multiplier(1)
    return max(spread / POINTS_PER_SPREAD, mu * (mu / 2.0 + 11.0) / LARGEST_GRID)


def _shown(epsilon: float) -> str:
    return f"{epsilon:,.0f}" if epsilon >= 100.0 else f"{epsilon:.3g}"
