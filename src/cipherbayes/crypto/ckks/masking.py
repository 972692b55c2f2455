"""Pairwise masks of ring elements: one site's CKKS message alone is uniform.

A site adds to its first polynomial, which carries its vector, a mask in R_Q with a
fraction behind the point, so to say an element of R modulo Q in steps of 2^(−F):

    c_0 = ⌊A v + fraction⌉ + encryption of zero + residues    (mod Q).

Each two sites of the roster share one such element and add it with opposite signs, as
in the secure sum. Evaluation uses the sum of the messages only, where the masks are
gone. The second polynomial of a fresh ciphertext is independent of what is encrypted:
it needs no mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext

from cipherbayes.crypto.ckks.encoding import FRACTION_BITS
from cipherbayes.crypto.ckks.parameters import CkksParameters
from cipherbayes.crypto.coefficients import Coefficients, add_modulo, column
from cipherbayes.crypto.identity.roster import Roster
from cipherbayes.crypto.masks import PairwiseMasks
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.typing import Integers

_KIND = "ring"


@dataclass(frozen=True, eq=False)
class RingMask:
    """The sum of a site's signed masks for one message.

    Attributes
    ----------
    residues
        The integer part modulo each prime, in SEAL's transformed order, shape
        ``(chunks, levels, n)``.
    fractions
        The part behind the point in units of 2^(−F), one for each coefficient, shape
        ``(chunks, n)``; sums of several, so not reduced.

    Formal guarantees
    -----------------
    Let H be the honest sites of the roster, at least two, and A v_k the encoding of
    k's vector before it is rounded (:mod:`~cipherbayes.crypto.ckks.encoding`): exactly
    linear. Then w_k = A v_k + mask_k (k in H), modulo Q in steps of 2^(−F), are
    computationally indistinguishable from uniform elements with the sum A Σ_H v_k. What
    a site sends is its w_k, rounded, plus an encryption of zero that knows nothing of
    v_k. So to anyone without the honest sites' exchange keys, **the secret key
    included**, all their messages together are a randomised function of Σ_H v_k.

    Edge cases
    ----------
    Without the fraction that would be false: Σ_k ⌊A v_k⌉ − ⌊A Σ_k v_k⌉ is a
    fingerprint of how the sum is divided, and a short vector can be found from it.
    """

    residues: Coefficients
    fractions: Integers


def ring_mask(
    masks: PairwiseMasks,
    exchange: RoundId,
    roster: Roster,
    question: bytes,
    parameters: CkksParameters,
    dimension: int,
) -> RingMask:
    """The mask of this site's message to one question.

    Parameters
    ----------
    masks
        The site's masks of the run.
    exchange, roster, question
        As for :meth:`~cipherbayes.crypto.masks.PairwiseMasks.total`.
    parameters, dimension
        What the message is made with, and the length of its vector.
    """
    chunks, ring = parameters.chunks(dimension), parameters.ring
    moduli = column(parameters.primes)
    residues = np.zeros((chunks, parameters.levels, ring), dtype=np.uint64)
    fractions = np.zeros((chunks, ring), dtype=np.int64)
    for added, stream in masks.streams(exchange, roster, question, _KIND):
        words = uniform_residues(stream, moduli, residues.shape)
        part = _fractions(stream, fractions.shape)
        # q − 0 is q, one too large; adding takes it off.
        signed = words if added else moduli - words
        residues = add_modulo(residues, signed, moduli)
        fractions += part if added else -part
    return RingMask(residues, fractions)


def uniform_residues(
    stream: CipherContext, moduli: Coefficients, shape: tuple[int, ...]
) -> Coefficients:
    """Numbers below each modulus, without any bias beyond the stream's own.

    A word is cut to the bits of its modulus and drawn again until it is below it. Both
    sites of a pair draw again at the same places. The primes lie just under powers of
    two, so that hardly ever happens.
    """
    bits = [int(q).bit_length() for q in moduli.ravel()]
    kept = np.array([2**b - 1 for b in bits], dtype=np.uint64)[:, None]
    words = _words(stream, shape, "<u8") & kept
    while (over := words >= moduli).any():
        drawn = _words(stream, (int(over.sum()),), "<u8")
        words[over] = drawn & np.broadcast_to(kept, shape)[over]
    return words


def _fractions(stream: CipherContext, shape: tuple[int, ...]) -> Integers:
    """Uniform fractions of F bits."""
    words = _words(stream, shape, "<u4") >> np.uint32(32 - FRACTION_BITS)
    return words.astype(np.int64)


def _words(stream: CipherContext, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """The next words of a stream."""
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer(stream.update(bytes(count)), dtype=kind).reshape(shape)
