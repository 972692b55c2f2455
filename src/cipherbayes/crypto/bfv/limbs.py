"""Integers modulo 2^b, and their limbs: coefficients of a plaintext."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cipherbayes.crypto.bfv.parameters import ParameterSet
from cipherbayes.typing import Integers

Words = NDArray[np.uint64]


def centre(words: Words, bits: int) -> Integers:
    """The representative of each word modulo 2^bits in [-2^(bits-1), 2^(bits-1))."""
    shift = np.uint64(64 - bits)
    centred: Integers = (words << shift).view(np.int64) >> shift.astype(np.int64)
    return centred


def split_limbs(values: Integers, parameters: ParameterSet) -> Words:
    """Limbs of a vector: all lowest ones, then all second ones, and so on.

    value_i mod 2^b = sum_j limb_{j d + i} 2^(w j), with 0 <= limb < 2^w.
    """
    words = np.ascontiguousarray(values, dtype=np.int64).view(np.uint64)
    limb_mask = np.uint64(parameters.limb_mask)
    words = words & np.uint64((1 << parameters.word_bits) - 1)
    shifts = np.arange(parameters.limbs, dtype=np.uint64)
    shifts *= np.uint64(parameters.limb_bits)
    limbs: Words = (words >> shifts[:, None]) & limb_mask
    return limbs.reshape(-1)


def join_limbs(sums: Words, parameters: ParameterSet) -> Integers:
    """The vector whose limbs were added up in ``sums``, centred modulo 2^b."""
    rows = sums.reshape(parameters.limbs, -1)
    words = np.zeros(rows.shape[1], dtype=np.uint64)
    for index, limb in enumerate(rows):
        words += limb << np.uint64(index * parameters.limb_bits)
    return centre(words, parameters.word_bits)


def are_sums(sums: Words, summands: int, parameters: ParameterSet) -> bool:
    """Whether so many words may have these sums; the last limb may be shorter."""
    last = parameters.word_bits - (parameters.limbs - 1) * parameters.limb_bits
    most = np.full((parameters.limbs, 1), parameters.limb_mask, dtype=np.uint64)
    most[-1] = (1 << last) - 1
    rows = sums.reshape(parameters.limbs, -1)
    return bool((rows <= most * np.uint64(summands)).all())
