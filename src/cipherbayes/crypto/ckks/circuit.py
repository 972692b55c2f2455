"""What every circuit of the encrypted update offers: to sites, servers and the CSP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from cipherbayes.crypto.ckks.arithmetic import fill_slots
from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.encoding import encode_exactly
from cipherbayes.crypto.ckks.key_generation import generate_ckks_keys
from cipherbayes.crypto.ckks.keys import (
    CkksKeys,
    CkksPublicKey,
    CkksSecretKey,
    EvaluationKeys,
)
from cipherbayes.crypto.ckks.masking import RingMask
from cipherbayes.crypto.ckks.parameters import MAX_CHUNKS, CkksParameters
from cipherbayes.crypto.ckks.scheme import ckks_scheme
from cipherbayes.crypto.ckks.update import MAX_SITES, Update
from cipherbayes.crypto.coefficients import Coefficients, add_modulo, column
from cipherbayes.crypto.prepared_zeros import PreparedZeros
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Floats, Integers

__all__ = ["MAX_SITES", "Circuit", "Evaluator", "SiteEncryptor", "Update"]


class Evaluator(ABC):
    """Computes the rounds of one run, in order: the server, or a replaying site."""

    @abstractmethod
    def absorb(self, round: int, messages: Sequence[CkksCiphertext]) -> None:
        """Take in a round's site ciphertexts without computing its output."""

    def expect(self, round: int, drift: Floats) -> None:
        """Do now what the next round needs and its messages do not change."""
        return

    @abstractmethod
    def output(self, drift: Floats | None = None) -> CkksCiphertext:
        """The encrypted result of the round that was absorbed last."""

    def step(
        self,
        round: int,
        messages: Sequence[CkksCiphertext],
        drift: Floats | None = None,
    ) -> CkksCiphertext:
        """Absorb a round and compute its output.

        Formal guarantees
        -----------------
        The same ciphertexts of the rounds in the circuit's window, drift and
        evaluation keys give the same coefficients, in any process: sums modulo
        primes do not depend on their order and nothing is random.
        """
        self.absorb(round, messages)
        return self.output(drift)

    @abstractmethod
    def state(self) -> bytes:
        """Everything later rounds depend on, framed."""

    @abstractmethod
    def restore(self, data: bytes) -> None:
        """Continue from :meth:`state`."""


class SiteEncryptor:
    """A site's side: encodes and encrypts one vector a round.

    ``prepare`` makes encryptions of zero while the site waits
    (:class:`~cipherbayes.crypto.prepared_zeros.PreparedZeros`) and reads their
    coefficients; without one at hand ``encrypt`` makes its own.
    """

    def __init__(self, circuit: Circuit, public: CkksPublicKey) -> None:
        if public.parameters != circuit.parameters:
            raise CryptoError("the public key belongs to another circuit")
        self._circuit = circuit
        self._public = public
        self._scheme = ckks_scheme(public.parameters)
        self._zeros = PreparedZeros(self._read_zero)

    def _read_zero(self) -> Coefficients:
        """The coefficients of a fresh encryption of zero."""
        levels = self._public.parameters.levels
        return self._scheme.coefficients(self._public.encrypt_zero(), levels)

    @property
    def prepared(self) -> int:
        """Rounds for which encryptions of zero are at hand."""
        return len(self._zeros) // self._circuit.chunks

    def prepare(self, rounds: int = 1) -> None:
        """Make encryptions of zero ahead of time."""
        self._zeros.prepare(rounds * self._circuit.chunks)

    def encrypt(
        self, values: Integers, round: int, mask: RingMask | None = None
    ) -> CkksCiphertext:
        """Encrypt a site's integers for a round, under its mask if it has one.

        Formal guarantees
        -----------------
        The plaintext is a function of the integers, the round and the mask's
        fractions only, so noise that was added to them on the grid is all there in
        what is encrypted. Before rounding it is exactly linear in the integers.

        Edge cases
        ----------
        Integers beyond 2⁴⁸ are refused. Without a mask, whoever has the secret key
        reads this message.
        """
        update = self._circuit.update
        vector = np.asarray(values)
        if vector.dtype != np.int64 or vector.shape != (update.dimension,):
            raise CryptoError(
                f"only {update.dimension} 64-bit integers can be encrypted here"
            )
        scale = self._circuit.message_scale(round) * update.unit
        parameters = self._public.parameters
        shape = (self._circuit.chunks, 2, parameters.levels, parameters.ring)
        polynomials = np.empty(shape, dtype=np.uint64)
        laid_out = self._circuit.layout(vector.astype(np.float64), round)
        for index, slots in enumerate(laid_out):
            fractions = None if mask is None else mask.fractions[index]
            plain = encode_exactly(
                slots.astype(np.int64), scale, parameters.ring, fractions
            )
            if len(self._zeros):
                self._scheme.added(self._zeros.take(), plain, polynomials[index])
            else:
                zero = self._public.encrypt_zero()
                polynomials[index] = self._scheme.encrypted(zero, plain)
        if mask is not None:
            first = polynomials[:, 0]
            add_modulo(first, mask.residues, column(parameters.primes), out=first)
        return CkksCiphertext(
            parameters, self._public.key_id, update.dimension, polynomials
        )


class Circuit(ABC):
    """One way to compute :class:`Update` under encryption."""

    name: str
    parameters: CkksParameters
    update: Update

    @property
    def chunks(self) -> int:
        """Ciphertexts that a vector takes."""
        return self.parameters.chunks(self.update.dimension)

    @property
    def replicas(self) -> int:
        """Copies of every value in a ciphertext."""
        return self.parameters.replicas(self.update.dimension)

    def _check_size(self) -> None:
        if self.chunks > MAX_CHUNKS:
            raise CryptoError(
                f"{self.update.dimension} values are too many for one vector",
                remedy=f"at most {MAX_CHUNKS * self.parameters.slots}",
            )

    @abstractmethod
    def window(self, round: int) -> range:
        """Rounds whose ciphertexts the output of ``round`` depends on."""

    @abstractmethod
    def place(self, round: int) -> int:
        """Where in its block or pack a round lies; evaluators start at 0."""

    @abstractmethod
    def message_scale(self, round: int) -> float:
        """Scale at which h is encoded in a round."""

    @abstractmethod
    def output_scale(self, round: int) -> float:
        """What a decrypted slot is divided by."""

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, int]:
        """Polynomials and primes of an output ciphertext."""

    @abstractmethod
    def noise_bound(self, round: int) -> float:
        """Largest error of a decrypted value, derived from the bookkeeping."""

    @abstractmethod
    def evaluator(self, keys: EvaluationKeys) -> Evaluator:
        """A fresh evaluator, before round 1."""

    def rotation_steps(self) -> tuple[int, ...]:
        """Rotations that the evaluation keys must allow."""
        return ()

    def generate_keys(self) -> CkksKeys:
        """The CSP's key trio for a run."""
        steps, dimension = self.rotation_steps(), self.update.dimension
        return generate_ckks_keys(self.parameters, steps, dimension)

    def encryptor(self, public: CkksPublicKey) -> SiteEncryptor:
        """A site's side of the circuit."""
        return SiteEncryptor(self, public)

    def layout(self, values: Floats, round: int) -> list[Floats]:
        """The slots of each chunk: replicated when there is room."""
        slots = self.parameters.slots
        return [
            fill_slots(values[start : start + slots], slots)
            for start in range(0, len(values), slots)
        ]

    def read_message(self, data: bytes | memoryview, key_id: bytes) -> CkksCiphertext:
        """A site's ciphertext from its bytes, if it is one of this circuit."""
        return CkksCiphertext.from_bytes(
            data,
            parameters=self.parameters,
            key_id=key_id,
            dimension=self.update.dimension,
        )

    def read_output(self, data: bytes | memoryview, key_id: bytes) -> CkksCiphertext:
        """An output ciphertext from its bytes, if it is one of this circuit."""
        size, level = self.output_shape
        return CkksCiphertext.from_bytes(
            data,
            parameters=self.parameters,
            key_id=key_id,
            dimension=self.update.dimension,
            size=size,
            level=level,
        )

    def decrypt_exactly(
        self, secret: CkksSecretKey, output: CkksCiphertext, round: int
    ) -> Floats:
        """The d values as they decrypt: **never release them**.

        A CKKS decryption tells whoever has the ciphertext about the secret key (Li
        and Micciancio 2021). Whoever releases them adds noise that hides the error.
        """
        if output.parameters != self.parameters or output.key_id != secret.key_id:
            raise CryptoError(
                "the ciphertext was made with another key",
                remedy="every run has its own key: use the one of this run",
            )
        if (output.size, output.level) != self.output_shape:
            raise CryptoError("the ciphertext is not an output of this circuit")
        scheme, values = ckks_scheme(self.parameters), []
        left = self.update.dimension
        for chunk in output.polynomials:
            plain = secret.decrypt(scheme.load(chunk))
            plain.scale = 1.0
            slots = np.asarray(scheme.encoder.decode_double(plain))
            width = min(left, self.parameters.slots)
            values.append(self._collect(slots, width, round))
            left -= width
        return np.concatenate(values) / self.output_scale(round)

    def _collect(self, slots: Floats, width: int, round: int) -> Floats:
        """The mean of every value's copies."""
        copies = len(slots) // width
        return np.asarray(slots[: copies * width].reshape(copies, width).mean(axis=0))
