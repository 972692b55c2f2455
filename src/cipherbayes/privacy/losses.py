"""Composition of Poisson-sampled Gaussian releases by their privacy losses.

For a pair (P, Q) the privacy loss is L = log P(X)/Q(X), X ~ P, and

    delta(epsilon) = E max(0, 1 - e^{epsilon - L}).

Losses of composed releases add, so the distribution of the total is a convolution.
Each release is discretised pessimistically on a grid (*connect the dots*:
Doroshenko et al. 2022, Algorithm 1) and the convolution is an FFT of the
exponentially tilted masses p_k e^{lambda l_k}: an untilted FFT carries an absolute
error near 1e-16 times the number of rounds, which at 10⁵ rounds hides every
delta below 1e-11 (and can make epsilon too small); with the tilt that error is
relative to the delta asked for, and it is bounded and added.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft, optimize, signal

from cipherbayes.privacy.gaussian import hockey_stick
from cipherbayes.typing import Floats

FINENESS = 48
"""Grid points per root-mean-square loss of a release."""

LARGEST_GRID = 2**21
NEGLIGIBLE = 1e-7
"""Share of delta that truncated tails may cost."""

TILT = 0.7
"""Tilt as a share of the saddle point's: the window is far smaller, and rounding
is still far below delta."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class Direction(enum.Enum):
    """Which of two neighbours is P: the larger table (REMOVE) or the smaller."""

    REMOVE = "remove"
    ADD = "add"


@dataclass(frozen=True)
class SampledGaussian:
    """``count`` releases of N(x mu, 1), the record taking part with rate q each.

    P = (1-q) N(0,1) + q N(mu,1) against Q = N(0,1), or the other way round
    (Zhu, Dong, Wang 2022: both pairs dominate Poisson sampling under
    add-or-remove). q = 1 is the plain Gaussian release.
    """

    mu: float
    rate: float
    count: int

    def curve(self, epsilon: Floats, direction: Direction) -> Floats:
        """Hockey-stick divergence of one release for any real epsilon."""
        q = self.rate
        if q == 1.0:
            return hockey_stick(epsilon, self.mu)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            if direction is Direction.REMOVE:
                # P - e^eps Q = q (N(mu) - e^inner N(0)).
                inner = _log_mixture(epsilon, q)
                split = q * hockey_stick(inner, self.mu)
                flat = -np.expm1(epsilon)
                whole = epsilon <= math.log1p(-q)
            else:
                # P - e^eps Q = rest (N(0) - e^inner N(mu)), rest = 1 - (1-q) e^eps.
                rest = -np.expm1(epsilon + math.log1p(-q))
                inner = epsilon + math.log(q) - np.log(rest)
                split = rest * hockey_stick(inner, self.mu)
                flat = np.zeros_like(epsilon)
                whole = epsilon >= -math.log1p(-q)
        result: Floats = np.where(whole, flat, split)
        return result

    def largest_loss(self, direction: Direction, reach: float) -> float:
        """Loss above which less than Phi(-reach) of P lies."""
        if direction is Direction.REMOVE:
            return float(self._loss(self.mu * np.float64(reach + self.mu / 2.0)))
        return -float(self._loss(-self.mu * np.float64(reach + self.mu / 2.0)))

    def smallest_loss(self, direction: Direction, reach: float) -> float:
        """Loss below which less than Phi(-reach) of P lies."""
        if direction is Direction.REMOVE:
            return float(self._loss(-self.mu * np.float64(reach + self.mu / 2.0)))
        return -float(self._loss(self.mu * np.float64(reach - self.mu / 2.0)))

    def mean_square(self, direction: Direction) -> float:
        """E L² of one release, to a few per cent: it only sets the grid."""
        absent = _WEIGHTS @ self._loss(self.mu * (_NODES - self.mu / 2.0)) ** 2
        if direction is Direction.ADD:
            return float(absent)
        present = _WEIGHTS @ self._loss(self.mu * (_NODES + self.mu / 2.0)) ** 2
        return float((1.0 - self.rate) * absent + self.rate * present)

    def _loss(self, plain: Floats) -> Floats:
        """log(1 - q + q e^plain)."""
        if self.rate == 1.0:
            return plain
        q = self.rate
        loss: Floats = np.logaddexp(math.log1p(-q), math.log(q) + plain)
        return loss


class LossDistribution:
    """The total privacy loss of several kinds of releases, in one direction.

    Parameters
    ----------
    parts
        The releases and how often each happens.
    direction
        Which neighbour plays P.
    smallest_delta
        The delta below which tails may be cut (they are added back, whole).

    Formal guarantees
    -----------------
    :meth:`delta` is never below, :meth:`epsilon` never below the value of the
    releases composed adaptively, for the deltas from ``smallest_delta`` up:
    discretisation rounds towards more loss, cut tails count as infinite loss, the
    wrap-around of the FFT only adds mass, and its rounding error is added.
    """

    def __init__(
        self,
        parts: Sequence[SampledGaussian],
        direction: Direction,
        smallest_delta: float,
    ) -> None:
        total = sum(part.count for part in parts)
        cut = smallest_delta * NEGLIGIBLE
        reach = math.sqrt(-2.0 * math.log(cut / total)) + 1.0
        squares = sum(part.count * part.mean_square(direction) for part in parts)
        step = math.sqrt(squares / total) / FINENESS
        widest = max(
            part.largest_loss(direction, reach) - part.smallest_loss(direction, reach)
            for part in parts
        )
        self._step = max(step, widest / LARGEST_GRID)
        self._scale = math.sqrt(squares)
        self._total = total
        self._cut = cut
        self._infinite = 0.0
        self._masses: list[tuple[int, Floats, int]] = []
        for part in parts:
            low, masses, infinite = self._discretise(part, direction, reach)
            self._masses.append((low, masses, part.count))
            self._infinite += part.count * infinite
        self._coarse = [self._coarsen(*masses) for masses in self._masses]

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon >= 0 with :meth:`delta` at most ``delta``.

        Every tilt gives a valid answer; the best one depends on the answer, so the
        first comes from the Chernoff bound at delta, the next from the answer.
        """
        log_delta = math.log(delta)
        tilt = TILT * self._best_tilt(lambda x: (self._cumulant(x) - log_delta) / x)
        smallest = self._solve(tilt, delta)
        for _ in range(4):
            if not math.isfinite(smallest):
                break
            better = self._tilt_at(smallest)
            if 0.7 < better / tilt < 1.4:
                break
            tilt = better
            smallest = min(smallest, self._solve(tilt, delta))
        return smallest

    def delta(self, epsilon: float) -> float:
        """Bound on the hockey-stick divergence at ``epsilon``."""
        tilt = self._tilt_at(epsilon)
        losses, masses, beyond, noise = self._window(tilt, epsilon)
        above = losses > epsilon
        first = int(np.argmax(above))
        if first == 0:
            return 1.0
        gain = -np.expm1(epsilon - losses[above])
        return min(1.0, beyond + float(gain @ masses[above]) + float(noise[first - 1]))

    def _solve(self, tilt: float, delta: float) -> float:
        losses, masses, beyond, noise = self._window(tilt, 0.0)
        # delta(l_k) = beyond + sum_{j>k} p_j - sum_{j>k} p_j e^{l_k - l_j}.
        decay = math.exp(-self._step)
        above = np.cumsum(masses[::-1])[::-1]
        discounted = signal.lfilter([1.0], [1.0, -decay], masses[::-1])[::-1]
        deltas = beyond + np.append(above[1:] - decay * discounted[1:], 0.0) + noise
        if deltas[-1] > delta:
            return math.inf
        first = int(np.argmax(deltas <= delta))
        if first == 0:
            return max(0.0, float(losses[0]))
        # Just below l_first the curve is beyond + above - e^{eps - l} discounted.
        ratio = (beyond + noise[first - 1] + above[first] - delta) / discounted[first]
        epsilon = losses[first] + min(0.0, math.log(ratio))
        return max(0.0, float(epsilon))

    def _window(self, tilt: float, least: float) -> tuple[Floats, Floats, float, Floats]:
        """Losses and masses of the total from ``least`` or lower up, the mass beyond
        them, and a bound on the rounding error of delta at each loss."""
        cumulant = self._exact_cumulant(tilt)
        low, high = self._bounds(tilt, least)
        first = math.floor(low / self._step)
        n = fft.next_fast_len(math.ceil(high / self._step) - first + 1, real=True)
        spectrum = np.ones(n // 2 + 1, dtype=np.complex128)
        sensitivity = np.zeros(n // 2 + 1)
        offset = 0
        for start, masses, count in self._masses:
            tilted = self._tilted(start, masses, tilt)
            folded = np.zeros(n * -(-tilted.size // n))
            folded[: tilted.size] = tilted
            factor = fft.rfft(folded.reshape(-1, n).sum(axis=0))
            spectrum *= factor**count
            sensitivity += count / np.maximum(np.abs(factor), 1e-30)
            offset += start * count
        composed = np.roll(fft.irfft(spectrum, n), -((first - offset) % n))
        losses = (first + np.arange(n)) * self._step
        untilt = np.exp(np.minimum(cumulant - tilt * losses, 600.0))
        # Each factor is wrong by at most 4 u log2 n at every frequency (Higham 2002,
        # section 24.1). In l2 the masses are then wrong by `error` (Parseval), and
        # delta at l by that times the l2 norm of e^{K - tilt l'}, l' > l.
        wrong = np.abs(spectrum) * sensitivity
        error = 4.0 * 2.0**-53 * math.log2(n) * math.sqrt(2.0 * float(np.mean(wrong**2)))
        noise = error / math.sqrt(-math.expm1(-2.0 * tilt * self._step)) * untilt
        masses = np.maximum(composed, 0.0) * untilt
        return losses, masses, self._infinite + self._cut, noise

    def _bounds(self, tilt: float, least: float) -> tuple[float, float]:
        """A window [low, high] outside of which less than ``cut`` can matter.

        The FFT wraps what lies above ``high`` down by W = high - low, and undoing
        the tilt multiplies it by e^{tilt W}: so high is such that K(x) - x high +
        tilt W <= log cut for some x > tilt. What lies below ``low`` is wrapped up
        and divided by as much. Both only add to delta.
        """
        log_cut = math.log(self._cut)
        low = max(least, self._quantile(5.0))
        for _ in range(2):
            high = self._highest(tilt, low, log_cut)
            low = min(low, max(high + log_cut / tilt, self._quantile(-log_cut)))
        return low, max(high, low + 16.0 * self._step)

    def _highest(self, tilt: float, low: float, log_cut: float) -> float:
        shift = tilt * low + log_cut
        more = self._best_tilt(lambda x: (self._cumulant(tilt + x) - shift) / x)
        chernoff = (self._exact_cumulant(tilt + more) - shift) / more
        support = sum(
            count * (start + masses.size) * self._step
            for start, masses, count in self._masses
        )
        return min(chernoff, support)

    def _quantile(self, nats: float) -> float:
        """A loss with P(L < loss) <= e^-nats, by Chernoff's bound."""
        shifts = [z / self._scale for z in (0.75, 1.5, 3.0, 6.0, 12.0, 24.0)]
        return max((-self._cumulant(-x) - nats) / x for x in shifts)

    def _discretise(
        self, part: SampledGaussian, direction: Direction, reach: float
    ) -> tuple[int, Floats, float]:
        """Connect the dots: masses on the grid, first index, infinite mass."""
        h = self._step
        low = math.floor(part.smallest_loss(direction, reach) / h)
        high = max(math.ceil(part.largest_loss(direction, reach) / h), low + 1)
        points = np.arange(low, high + 1) * h
        deltas = np.minimum.accumulate(part.curve(points, direction))
        rise = np.diff(deltas)
        masses = np.zeros(points.size)
        masses[0] = 1.0 - deltas[0] + rise[0] / math.expm1(h)
        masses[1:-1] = (rise[1:] - rise[:-1] * math.exp(h)) / math.expm1(h)
        masses[-1] = rise[-1] / math.expm1(-h)
        # Rounding can leave a mass at -1e-17; raising it is pessimistic.
        return low, np.maximum(masses, 0.0), float(deltas[-1])

    def _coarsen(
        self, low: int, masses: Floats, count: int
    ) -> tuple[Floats, Floats, int]:
        """At most 2,048 points that stand for the masses: to choose tilts with."""
        width = -(-masses.size // 2048)
        padded = np.zeros(width * -(-masses.size // width))
        padded[: masses.size] = masses
        losses = (low + np.arange(padded.size)) * self._step
        sums = padded.reshape(-1, width).sum(axis=1)
        weighted = (padded * losses).reshape(-1, width).sum(axis=1)
        used = sums > 0.0
        return weighted[used] / sums[used], np.log(sums[used]), count

    def _cumulant(self, tilt: float) -> float:
        """log E e^{tilt L} of the total, approximately: on the coarse masses."""
        total = 0.0
        for losses, log_masses, count in self._coarse:
            exponents = tilt * losses + log_masses
            top = float(exponents.max())
            total += count * (top + math.log(float(np.exp(exponents - top).sum())))
        return total

    def _exact_cumulant(self, tilt: float) -> float:
        """log E e^{tilt L; L finite} of the total."""
        return sum(
            count * self._log_moment(start, masses, tilt)
            for start, masses, count in self._masses
        )

    def _log_moment(self, start: int, masses: Floats, tilt: float) -> float:
        exponents = tilt * self._step * (start + np.arange(masses.size))
        with np.errstate(divide="ignore"):
            exponents += np.log(masses)
        top = float(exponents.max())
        return top + math.log(float(np.exp(exponents - top).sum()))

    def _tilted(self, start: int, masses: Floats, tilt: float) -> Floats:
        exponents = tilt * self._step * (start + np.arange(masses.size))
        exponents -= self._log_moment(start, masses, tilt)
        with np.errstate(divide="ignore"):
            tilted: Floats = np.exp(exponents + np.log(masses))
        return tilted

    def _tilt_at(self, epsilon: float) -> float:
        return TILT * self._best_tilt(lambda x: self._cumulant(x) - x * epsilon)

    def _best_tilt(self, objective: Callable[[float], float]) -> float:
        """The tilt > 0 that minimises a Chernoff bound."""
        found = optimize.minimize_scalar(
            lambda log_tilt: objective(math.exp(log_tilt) / self._scale),
            bounds=(-8.0, 8.0),
            method="bounded",
            options={"xatol": 1e-2},
        )
        return math.exp(float(found.x)) / self._scale


def _log_mixture(epsilon: Floats, q: float) -> Floats:
    """log((e^epsilon - 1 + q) / q), without overflow."""
    moderate = np.log1p(np.expm1(np.minimum(epsilon, 50.0)) / q)
    large = epsilon - math.log(q)
    result: Floats = np.where(epsilon < 50.0, moderate, large)
    return result
