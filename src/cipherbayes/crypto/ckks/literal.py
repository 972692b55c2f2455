"""The circuit ``literal``: the paper's own, as the benchmark's baseline.

n = 2¹⁴, primes [55, 45 × 6 | 55], Δ = 2⁴⁵. The gradients of r rounds share one
ciphertext, each in its own slots; V is ⌈219/r⌉ scalar products, a sum and log₂ r
rotations; the polynomial is in standard form; the division by K is delayed.

=====  =====================================  ==================
level  result                                 HM, SM, Rot
=====  =====================================  ==================
7      g = Σ_k g_k  (K h)
6      g², added to its pack; c g             1 HM, 1 SM
5      V = Σ weights · pack, rotated          ⌈219/r⌉ SM, log₂ r Rot
4      V²; a_j V (j = 1, 3, 5, 7)             1 HM, 4 SM
3      V⁴; (a₃V)V², (a₇V)V²; a₂V², a₆V²       3 HM, 2 SM
2      (a₅V)V⁴, (a₆V²)V⁴, (a₇V³)V⁴; a₄V⁴      3 HM, 1 SM
1      G · (c g + drift)                      1 HM
=====  =====================================  ==================

In all 9 HM, 8 + ⌈219/r⌉ SM and log₂ r ≤ 8 Rot, as in the paper's table. Products that
are added are added before they are rescaled, and weights are encoded once and kept.

The paper divides a_j by K^{2j}. At Δ = 2⁴⁵ that leaves no digit of a₇ beyond K = 8,
so the division by K² is in the window's weights, at no cost. The window keeps
⌈219/r⌉ packs, the newest partly filled: what is left out weighs less than α^(219 − r).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto.ckks.arithmetic import Encrypted, SealArithmetic
from cipherbayes.crypto.ckks.blocks import check_round
from cipherbayes.crypto.ckks.bounds import Arithmetic, Bounds, Node, Tracked, fresh_noise
from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext, add_coefficients
from cipherbayes.crypto.ckks.circuit import Circuit, Evaluator, Update
from cipherbayes.crypto.ckks.factored import CELLS, ENCODER_ERROR, require_message
from cipherbayes.crypto.ckks.keys import EvaluationKeys
from cipherbayes.crypto.ckks.parameters import ckks_set
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats

WINDOW = 219
SCALE = 2.0**45


def standard_form(
    arithmetic: Arithmetic[Node], coefficients: Sequence[float], v: Node
) -> Node:
    """Σ a_j V^j in three levels, 7 HM and 7 SM."""
    a, (a0, a1, a2, a3, a4, a5, a6, a7) = arithmetic, coefficients
    v2 = a.rescale(a.relinearise(a.square(v)))
    v4 = a.rescale(a.relinearise(a.square(v2)))

    def by_v(weight: float) -> Node:
        return a.rescale(a.weighted(v, weight, v.scale * SCALE))

    third = a.relinearise(a.multiply(by_v(a3), v2))
    second = a.weighted(v2, a2, third.scale)
    seventh = a.rescale(a.relinearise(a.multiply(by_v(a7), v2)))
    sixth = a.rescale(a.weighted(v2, a6, seventh.scale * _prime(a, v2)))
    fifth = a.drop(by_v(a5), v4.level)
    low = a.rescale(a.add(third, second))
    top = a.add(
        a.relinearise(a.multiply(seventh, v4)), a.relinearise(a.multiply(sixth, v4))
    )
    total = a.add(top, a.weighted(v4, a4, top.scale))
    fifth = a.relinearise(a.multiply(fifth, v4))
    return _sum_of(a, total, fifth, low, by_v(a1), a0)
