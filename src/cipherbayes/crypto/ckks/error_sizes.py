"""How large the elementary errors of CKKS are, and what the secret key must keep to.

A polynomial with independent coefficients, sub-Gaussian of variance v, has slots
|σ_j(e)| ≤ T √(n v) with T = 7.2, except with probability 8 e^(−0.853 T²) < 2⁻⁶⁰ a
slot (eight directions, each a Chernoff bound). So, in units of the last bit and with
S_i for the size of the secret key's i-th power:

=================  =======================================================
encoding           T √(n/12)
fresh, K sites     √K T [√(n/12)(1 + √1.5 + S₁) + √(n v_e) (1 + 2 S₁)/p]
rescaling, size z  T √(n/12) (1 + S₁ + … + S_{z−1})
relinearising      T √(n v_e) Σ_i q_i (T √(n/12) + n/π) / p + T √(n/12)(1 + S₁)
=================  =======================================================

v_e = 10.5 is the variance of SEAL's error; n/π is there because SEAL's digits are not
centred; √1.5 is there because the fractions of masks, with which sites round their
encodings, cancel: of K such errors all but the last are independent, and their sum has
variance (K + 1)/12 at most, not K/12. That rounding errors are independent and uniform
is the usual heuristic; ternary, uniform and centred binomial variables are sub-Gaussian
with their own variance.

Two sizes of everything are needed:

- **of a slot** (nothing may wrap): S_i = S^i, S = 3.6 √(2n/3) ≥ |σ_j(s)| for all j;
- **of the mean over the R slots that hold one value** (what is released). The roots
  of unity of different slots are orthogonal, so the mean of σ_j(e) σ_j(s)^i is
  sub-Gaussian with variance n v S_i²/(2R), S_i² the mean of |σ_j(s)|^(2i) over these
  slots: T √(n v/R) S_i is exceeded with probability 2 e^(−T²) < 2⁻⁷³ a value.

Key generation draws again until the key keeps to these S_i; about nine of ten keys
do, which costs a fraction of a bit of security.

References: Gentry, Halevi and Smart 2012 (ePrint 2012/099); Li, Micciancio,
Schultz and Sorrell 2022 (ePrint 2022/816).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cipherbayes.crypto.ckks.parameters import CkksParameters
from cipherbayes.typing import Floats

TAIL = 7.2
KEY_TAIL = 3.6
ERROR_VARIANCE = 10.5
KEY_POWERS = 3
"""Powers of the key that an output may have: four polynomials are ever rescaled."""


@dataclass(frozen=True)
class ErrorSizes:
    """Sizes of the elementary errors, of a slot or of a mean of slots.

    Attributes
    ----------
    parameters
        Ring and primes.
    powers
        S_0 = 1, S_1, …
    copies
        R, one for a slot.
    """

    parameters: CkksParameters
    powers: tuple[float, ...]
    copies: int

    def _bound(self, variance: float) -> float:
        return TAIL * math.sqrt(self.parameters.ring * variance / self.copies)

    @property
    def encoding(self) -> float:
        """An encoded vector: rounded coefficients."""
        return self._bound(1.0 / 12.0)

    def fresh(self, sites: int) -> float:
        """A sum of fresh encryptions."""
        key = self.powers[1]
        rounding = self._bound(1.0 / 12.0) * (1.0 + math.sqrt(1.5) + key)
        errors = self._bound(ERROR_VARIANCE) * (1.0 + 2.0 * key)
        return math.sqrt(sites) * (rounding + errors / self.parameters.special)

    def rescaling(self, size: int) -> float:
        """Rounding ``size`` polynomials."""
        return self._bound(1.0 / 12.0) * sum(self.powers[:size])

    def switching(self, level: int) -> float:
        """A key switch modulo ``level`` primes."""
        n, special = self.parameters.ring, self.parameters.special
        digit = TAIL * math.sqrt(n / 12.0) + n / math.pi
        digits = sum(q / special for q in self.parameters.primes[:level]) * digit
        return self._bound(ERROR_VARIANCE) * digits + self.rescaling(2)


def slot_errors(parameters: CkksParameters) -> ErrorSizes:
    """Sizes in the worst slot."""
    key = KEY_TAIL * _typical(parameters)
    return ErrorSizes(parameters, tuple(key**i for i in range(KEY_POWERS + 1)), 1)


def mean_errors(parameters: CkksParameters, dimension: int) -> ErrorSizes:
    """Sizes in the mean over the copies of a value, for vectors of ``dimension``."""
    moments = (key_moment(parameters, dimension, i) for i in range(KEY_POWERS + 1))
    powers = tuple(
        math.sqrt(moment) * _typical(parameters) ** i
        for i, moment in enumerate(moments)
    )
    return ErrorSizes(parameters, powers, parameters.replicas(dimension))


def key_moment(parameters: CkksParameters, dimension: int, power: int) -> float:
    """Largest mean of (|σ_j(s)|²/(2n/3))^power over the R slots of one value.

    For a random key |σ_j(s)|² is about exponential, with moments i!. A Bernstein
    bound with the largest slot that is to be expected in place of the largest
    possible one is what most keys keep to.
    """
    if power == 0:
        return 1.0
    copies = parameters.replicas(dimension)
    values = min(dimension, parameters.slots)
    mean = math.factorial(power)
    deviation = math.sqrt(math.factorial(2 * power) - mean**2)
    largest = (math.log(2.0 * parameters.slots) + 1.0) ** power
    spread = deviation * math.sqrt(2.0 * math.log(2.0 * values) / copies)
    return min(mean + spread + largest / copies, KEY_TAIL ** (2 * power))


def key_is_short(parameters: CkksParameters, slots: Floats, dimension: int) -> bool:
    """Whether a secret key with these |σ_j(s)| keeps to the bounds."""
    squares = (slots / _typical(parameters)) ** 2
    if squares.max() > KEY_TAIL**2:
        return False
    copies = parameters.replicas(dimension)
    values = min(dimension, parameters.slots)
    held = squares[: copies * values].reshape(copies, values)
    return all(
        float(np.mean(held**power, axis=0).max())
        <= key_moment(parameters, dimension, power)
        for power in range(1, KEY_POWERS + 1)
    )


def _typical(parameters: CkksParameters) -> float:
    """√(2n/3): root mean square of a ternary secret's slots."""
    return math.sqrt(2.0 * parameters.ring / 3.0)
