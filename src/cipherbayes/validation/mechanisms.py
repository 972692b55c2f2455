"""The mechanisms that are audited, each run many times at once.

``gaussian-sum`` and ``poisson-gaussian-sum`` go through the real clipping, grid and
noise shares, and the attacker is a coalition of the server, the CSP and one site:
it knows every other record and its own share of the noise. ``in-gradient`` is the
encrypted update, seen by the server and one site. ``as-printed`` is the
paper's Algorithm 3 in plaintext.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cipherbayes.errors import PrivacyError
from cipherbayes.inference.ascent import UNIT_NOISE
from cipherbayes.inference.gradient import bounded_sum
from cipherbayes.models.design import Design
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.privacy.accountant import calibrate_noise
from cipherbayes.privacy.noise import NoiseSource, SecureNoise, poisson_sample
from cipherbayes.privacy.release import ReleasePlan
from cipherbayes.protocols.paper_claim import SMALLEST_GRADIENT, PaperSetting
from cipherbayes.typing import Floats
from cipherbayes.validation.canary import AuditResult, epsilon_lower_bound

SITES, COLLUDERS = 3, 1
DECAY = 0.9
"""α of the RMSprop preconditioner."""

CHUNK = 20_000


@dataclass(frozen=True)
class Scores:
    """What the attacker makes of the runs with and without the canary."""

    present: Floats
    absent: Floats
    noise: str


def audit_mechanism(
    mechanism: str,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    runs: int = 400_000,
    confidence: float = 0.95,
) -> AuditResult:
    """Run a mechanism ``runs`` times, half with a canary; bound its ε from below.

    Parameters
    ----------
    mechanism
        ``"gaussian-sum"``, ``"poisson-gaussian-sum"``, ``"in-gradient"`` or
        ``"as-printed"``.
    epsilon, delta
        What the mechanism claims.
    """
    if mechanism not in MECHANISMS:
        raise PrivacyError(
            f"there is no mechanism '{mechanism}'",
            remedy=f"choose one of {', '.join(MECHANISMS)}",
        )
    if runs < 16:
        raise PrivacyError("too few runs for a bound", remedy="run at least 16")
    scores = MECHANISMS[mechanism](epsilon, delta, runs // 2)
    return AuditResult(
        mechanism=mechanism,
        claimed_epsilon=epsilon,
        delta=delta,
        lower_bound=epsilon_lower_bound(
            scores.present, scores.absent, delta, confidence
        ),
        confidence=confidence,
        runs=2 * (runs // 2),
        noise=scores.noise,
    )


def gaussian_sum(
    epsilon: float,
    delta: float,
    runs: int,
    *,
    rounds: int = 2,
    noise: NoiseSource | None = None,
) -> Scores:
    """``rounds`` full-batch releases; the attacker adds up what it sees.

    Both tables' runs use the same noise draws, which halves the cost: the bound
    needs runs of one table to be independent of each other, not of the other's.
    """
    source = SecureNoise() if noise is None else noise
    plan = _plan(epsilon, delta, rounds, 1.0)
    with_canary, without = _sums(plan)
    drawn = np.zeros(runs)
    for t in range(rounds):
        drawn += _honest_noise(plan, source, runs, t)
    present, absent = drawn + rounds * with_canary, drawn + rounds * without
    return Scores(present, absent, _name(source))


def poisson_gaussian_sum(
    epsilon: float,
    delta: float,
    runs: int,
    *,
    rounds: int = 2,
    rate: float = 0.25,
    noise: NoiseSource | None = None,
) -> Scores:
    """``rounds`` Poisson-sampled releases; the attacker takes the likelihood ratio.

    Both tables' runs use the same noise draws, as in :func:`gaussian_sum`.
    """
    source = SecureNoise() if noise is None else noise
    plan = _plan(epsilon, delta, rounds, rate)
    with_canary, without = _sums(plan)
    shift = float(with_canary - without)
    variance = plan.share_scale**2 * (SITES - COLLUDERS)

    def ratio(seen: Floats) -> Floats:
        plain = shift * (seen - shift / 2.0) / variance
        return np.logaddexp(math.log1p(-rate), math.log(rate) + plain)

    present, absent = np.zeros(runs), np.zeros(runs)
    for t in range(rounds):
        seen = _honest_noise(plan, source, runs, t)
        absent += ratio(seen)
        seen[poisson_sample(runs, rate)] += shift
        present += ratio(seen)
    return Scores(present, absent, _name(source))


def paper_releases(
    epsilon: float,
    delta: float,
    runs: int,
    *,
    rounds: int = 10,
    setting: PaperSetting | None = None,
    seed: int = 0,
) -> Scores:
    """The first rounds of Algorithm 3; the attacker takes the likelihood ratio.

    The canary is the only record with a gradient in the coordinate looked at (a
    rare diagnosis, say), of norm L; without it that record's gradient is zero.
    θ_{t+1} is released each round. The noise's scale √((λ+L)η) G_t depends on the
    canary through G_t = 1/(λ+√V_t), V_t the moving average of squares of un-noised
    gradients: that, and not the shift of the mean, gives it away. (The polynomial
    that stands for 1/(λ+√V) under encryption is left out.)

    Edge cases
    ----------
    A prefix of the run is audited, which is post-processing of the whole, so the
    bound holds for the whole.
    """
    claim = setting or PaperSetting(epsilon, delta, records=3200, batch=320, epochs=500)
    generator = np.random.default_rng(seed)
    parts = [min(CHUNK, runs - start) for start in range(0, runs, CHUNK)]
    present = [_trajectory_scores(claim, rounds, n, True, generator) for n in parts]
    absent = [_trajectory_scores(claim, rounds, n, False, generator) for n in parts]
    name = "simulated"
    return Scores(np.concatenate(present), np.concatenate(absent), name)


def in_gradient(
    epsilon: float,
    delta: float,
    runs: int,
    *,
    rounds: int = 2,
    honest: int = SITES - COLLUDERS,
    noise: NoiseSource | None = None,
) -> Scores:
    """The released directions of an encrypted update with noise in the gradient.

    A coalition of the server and one site sees u_t = P(V_t) h_t, V_t the running mean
    of squares of all noised h up to t. It knows V₀, so it undoes the preconditioner
    round by round (|h| ↦ P(V) |h| grows as long as V ≤ 1 is kept by the box), takes
    its own share of the noise off, and adds the rounds up: what is left is the sum
    over records and K − c shares. The bound must stay below the claim, and near it.

    Parameters
    ----------
    honest
        By what the noise is shared: K − c, or K, which is too little.
    """
    source = SecureNoise() if noise is None else noise
    plan = _plan(epsilon, delta, rounds, 1.0)
    with_canary, without = _sums(plan)
    scale = plan.share_scale * math.sqrt((SITES - COLLUDERS) / honest)
    total_sd = scale * math.sqrt(SITES)
    unit = UNIT_NOISE / total_sd
    scores: list[Floats] = []
    drawn = [
        [source.share(runs, scale, f"audit {t} {k}") for k in range(SITES)]
        for t in range(rounds)
    ]
    for records in (with_canary, without):
        moment = np.full(runs, UNIT_NOISE**2)
        known, seen = moment.copy(), np.zeros(runs)
        for shares in drawn:
            h = unit * (records + np.sum(shares, axis=0))
            moment = DECAY * moment + (1.0 - DECAY) * h**2
            released = h / np.sqrt(moment)
            # u² = h²/(α V + (1 − α) h²), solved for h.
            square = released**2 * DECAY * known / (1.0 - released**2 * (1.0 - DECAY))
            found = np.sign(released) * np.sqrt(square)
            known = DECAY * known + (1.0 - DECAY) * square
            seen += found / unit - np.sum(shares[:COLLUDERS], axis=0)
        scores.append(seen)
    return Scores(scores[0], scores[1], _name(source))


MECHANISMS: dict[str, Callable[[float, float, int], Scores]] = {
    "gaussian-sum": gaussian_sum,
    "poisson-gaussian-sum": poisson_gaussian_sum,
    "in-gradient": in_gradient,
    "as-printed": paper_releases,
}


def _plan(epsilon: float, delta: float, rounds: int, rate: float) -> ReleasePlan:
    return ReleasePlan(
        clip=1.0,
        dimension=1,
        noise_multiplier=calibrate_noise(epsilon, delta, rounds, rate),
        rounds=rounds,
        rate=rate,
        sites=SITES,
        colluders=COLLUDERS,
        dropouts=0,
        records=2,
        depth=2,
    )


def _sums(plan: ReleasePlan) -> tuple[int, int]:
    """The site's integer sum with a canary far beyond the clip, and without it."""
    design = Design(("canary",), np.zeros(1), np.ones(1), None)

    def total(gradients: list[float]) -> int:
        x = np.ones((1, len(gradients)))
        rows = Rows(design, x, {}, np.ones(len(gradients)))
        bounded = bounded_sum(RecordGradients(rows, np.array(gradients)), plan.clip)
        return int(plan.to_grid(bounded)[0])

    ordinary = 0.3 * plan.clip
    return total([ordinary, 100.0 * plan.clip]), total([ordinary])


def _honest_noise(plan: ReleasePlan, noise: NoiseSource, runs: int, t: int) -> Floats:
    """What is left of the noise when the colluders' shares are known."""
    total = np.zeros(runs)
    for k in range(SITES - COLLUDERS):
        total += noise.share(runs, plan.share_scale, f"audit {t} {k}")
    return total


def _name(noise: NoiseSource) -> str:
    return "insecure-repeatable" if noise.insecure else "secure"


def _trajectory_scores(
    claim: PaperSetting,
    rounds: int,
    runs: int,
    canary: bool,
    generator: np.random.Generator,
) -> Floats:
    """log p(trajectory | canary) − log p(trajectory | none), exactly.

    The canary's batches are not seen, so the first density is a sum over all 2^t
    histories of taking part.
    """
    q = claim.rate
    idle = SMALLEST_GRADIENT
    active = max(claim.scale * claim.lipschitz / claim.batch, SMALLEST_GRADIENT)
    theta, truth = np.zeros(runs), np.zeros(runs)
    # Of each history: V, and the logarithm of its weight in every run.
    moments, weights = np.zeros(1), np.zeros((1, runs))
    quiet_moment, quiet = np.zeros(1), np.zeros((1, runs))
    for t in range(1, rounds + 1):
        eta = claim.step_size(t)
        taking = canary & (generator.random(runs) < q)
        gradient = np.where(taking, active, idle)
        truth = _moving(truth, gradient)
        mean, sd = _move(claim, eta, theta, gradient, truth)
        increment = mean + sd * generator.standard_normal(runs)

        quiet_moment = _moving(quiet_moment, idle)
        quiet += _log_density(claim, eta, theta, increment, idle, quiet_moment)
        inside, outside = _moving(moments, active), _moving(moments, idle)
        taken = _log_density(claim, eta, theta, increment, active, inside)
        left = _log_density(claim, eta, theta, increment, idle, outside)
        weights = np.concatenate(
            [weights + taken + math.log(q), weights + left + math.log1p(-q)]
        )
        moments = np.concatenate([inside, outside])
        theta = theta + increment
    scores: Floats = np.logaddexp.reduce(weights, axis=0) - quiet[0]
    return scores


def _moving(moment: Floats, gradient: Floats | float) -> Floats:
    return DECAY * moment + (1.0 - DECAY) * np.square(gradient)


def _move(
    claim: PaperSetting, eta: float, theta: Floats, gradient: Floats | float, v: Floats
) -> tuple[Floats, Floats]:
    """Mean and standard deviation of θ's move in Algorithm 3 (prior N(0, 1))."""
    g = 1.0 / (claim.floor + np.sqrt(v))
    mean = -eta / 2.0 * (-theta + claim.records * gradient) * g
    return mean, math.sqrt((claim.floor + claim.lipschitz) * eta) * g


def _log_density(
    claim: PaperSetting,
    eta: float,
    theta: Floats,
    increment: Floats,
    gradient: float,
    v: Floats,
) -> Floats:
    """log density of every run's move under every history: shape (histories, runs)."""
    mean, sd = _move(claim, eta, theta[None, :], gradient, v[:, None])
    density: Floats = -0.5 * ((increment - mean) / sd) ** 2 - np.log(sd)
    return density
