"""What the CSP may release of a CKKS decryption: flooded, rounded, d values.

A CKKS decryption is the result plus a small error that depends on the secret key
(Li and Micciancio 2021, ePrint 2020/1533). Noise of standard deviation

    σ = √(12 τ d) 2^(s/2) t

in each of the d values hides an error of at most t in each of them, over τ releases, to
s bits of statistical security. Proof:

1. The d errors of a release are a vector of ℓ₂ norm at most √d t.
2. Two discrete Gaussians on one grid, shifted against each other by a vector Δ of the
   grid, have a Kullback-Leibler divergence of at most ‖Δ‖₂²/(2σ²) (Canonne, Kamath and
   Steinke 2020, Proposition 5): d t²/(2σ²) for a release with and without its error.
3. Divergences of releases that may depend on earlier ones add up (chain rule):
   τ d t²/(2σ²) = 2^(−s)/24 over the run.
4. That much is what Li, Micciancio, Schultz and Sorrell 2022 (ePrint 2022/816,
   Theorem 3) ask for s bits: noise that is 2^(−s)/(24 τ)-KL private in each of τ
   releases.

Here t is :meth:`~cipherbayes.crypto.ckks.circuit.Circuit.noise_bound`, derived by the
bookkeeping, not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.circuit import Circuit
from cipherbayes.crypto.ckks.keys import CkksSecretKey
from cipherbayes.errors import CryptoError
from cipherbayes.privacy.noise import NoiseSource
from cipherbayes.typing import Floats

GRID_BITS = 8
"""Released values lie on a grid 2⁸ times finer than the flooding noise."""
STEP_BITS = 4
"""The noise is drawn on a grid 2⁴ times finer than t, so that rounding to it adds
little to t."""


def flooding_bits(
    sd: float, noise_bound: float, releases: int, dimension: int
) -> float:
    """s of a flooding noise: the bits that a certificate may state."""
    values = 12.0 * releases * dimension
    return 2.0 * math.log2(sd / (noise_bound * math.sqrt(values)))


@dataclass(frozen=True)
class Flooding:
    """How outputs are flooded over a run.

    Parameters
    ----------
    bits
        s: statistical security.
    releases
        τ: decryptions in the run.

    Formal guarantees
    -----------------
    The released values of the whole run are within 2^(−s) advantage (in the bit
    security sense of the reference) of values that depend on the sites' integers
    only, so they are post-processing of the noised sums. Values are rounded to a
    grid of at most t/16 (which is added to t), get an exact discrete Gaussian on that
    grid, and leave as d numbers on a grid of about σ/2⁸.

    Edge cases
    ----------
    The guarantee covers ciphertexts that the circuit really made from honest
    encryptions: the CSP must decrypt only what every site replayed and signed. A
    malicious site's message need not be one. It can put any multiple of the secret key
    into the sum, far above t, and no flooding that leaves a result hides that.
    One round must be answered once: a repeated answer must be the stored one.
    """

    bits: float
    releases: int

    def __post_init__(self) -> None:
        if not 0.0 < self.bits <= 128.0 or self.releases < 1:
            raise CryptoError(
                "flooding needs a number of bits up to 128 and one release or more"
            )

    def sd(self, circuit: Circuit, round: int) -> float:
        """σ: standard deviation of the flooding noise, in the output's units."""
        bound = circuit.noise_bound(round) + self._step(circuit, round)
        values = 12.0 * self.releases * circuit.update.dimension
        return math.sqrt(values) * math.exp2(self.bits / 2.0) * bound

    def grid(self, circuit: Circuit, round: int) -> float:
        """Step of the grid that released values lie on: a power of two."""
        fine = self._step(circuit, round)
        coarse = 2.0 ** (math.floor(math.log2(self.sd(circuit, round))) - GRID_BITS)
        return float(max(fine, coarse))

    def _step(self, circuit: Circuit, round: int) -> float:
        """The noise's own grid, far below t."""
        exponent = math.floor(math.log2(circuit.noise_bound(round)))
        return float(2.0 ** (exponent - STEP_BITS))

    def share(self, circuit: Circuit, round: int) -> tuple[int, float, str]:
        """Length, scale and label of a round's noise, in steps of its own grid."""
        scale = self.sd(circuit, round) / self._step(circuit, round)
        return circuit.update.dimension, scale, f"flooding/{round}"

    def release(
        self,
        circuit: Circuit,
        secret: CkksSecretKey,
        output: CkksCiphertext,
        round: int,
        noise: NoiseSource,
    ) -> Floats:
        """Decrypt an output, flood it, and round it to the coarser grid."""
        values = circuit.decrypt_exactly(secret, output, round)
        return self.flooded(circuit, values, round, noise)

    def flooded(
        self, circuit: Circuit, values: Floats, round: int, noise: NoiseSource
    ) -> Floats:
        """The values of an output with the noise, on the coarser grid."""
        step = self._step(circuit, round)
        units = values / step
        if not (np.isfinite(units).all() and np.abs(units).max() < 2.0**61):
            raise CryptoError(
                "the output is outside the circuit's range",
                where=f"round {round}",
                remedy="a gradient left the box that the circuit was made for",
            )
        flood = noise.share(*self.share(circuit, round))
        flooded = (np.rint(units).astype(np.int64) + flood) * step
        grid = self.grid(circuit, round)
        return np.asarray(np.rint(flooded / grid) * grid)
