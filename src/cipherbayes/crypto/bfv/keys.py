"""Key pairs, encryption and decryption of integer vectors with BFV (SEAL).

Sites hold a :class:`PublicKey`, the CSP a :class:`SecretKey`; the server holds
neither and adds (:func:`cipherbayes.crypto.bfv.ciphertext.add`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto import rlwe
from cipherbayes.crypto.bfv import limbs
from cipherbayes.crypto.bfv.ciphertext import Ciphertext, public_key_id
from cipherbayes.crypto.bfv.parameters import MAX_DIMENSION, ParameterSet, parameter_set
from cipherbayes.crypto.bfv.scheme import bfv_scheme
from cipherbayes.crypto.coefficients import (
    Coefficients,
    are_reduced,
    pack_coefficients,
    unpack_coefficients,
)
from cipherbayes.crypto.prepared_zeros import PreparedZeros
from cipherbayes.crypto.seal import HeldSecretKey, encryptor_of
from cipherbayes.crypto.wire.framing import Kind, decode_frame, encode_frame
from cipherbayes.errors import CryptoError
from cipherbayes.typing import Integers

_MAX_KEY_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class PublicKey:
    """What a site encrypts with.

    Attributes
    ----------
    parameters
        The set the key belongs to.
    key_id
        :func:`~cipherbayes.crypto.bfv.ciphertext.public_key_id` of its frame.
    """

    parameters: ParameterSet
    key_id: bytes
    _coefficients: Coefficients = field(repr=False)
    _zeros: PreparedZeros = field(repr=False)

    @classmethod
    def _of(cls, parameters: ParameterSet, coefficients: Coefficients) -> PublicKey:
        _require_reduced(coefficients, parameters)
        encryptor = encryptor_of(bfv_scheme(parameters), coefficients)

        def encrypt_zero() -> Any:
            cipher = sealapi.Ciphertext()
            encryptor.encrypt_zero(cipher)
            return cipher

        zeros = PreparedZeros(encrypt_zero)
        key_id = public_key_id(_public_frame(parameters, coefficients))
        return cls(parameters, key_id, coefficients, zeros)

    def prepare(self, dimension: int) -> None:
        """Make the random part of the next encryption now, while nobody waits for it.

        A ciphertext is a fresh encryption of zero plus round(q m / t) for the
        message m (Fan and Vercauteren 2012); only the second depends on m.

        Formal guarantees
        -----------------
        What is made ahead has the law of what is made on demand, and is used once
        (:class:`~cipherbayes.crypto.prepared_zeros.PreparedZeros`).
        """
        self._zeros.prepare(self.parameters.chunks(dimension) - len(self._zeros))

    def encrypt(self, values: Integers) -> Ciphertext:
        """Encrypt a vector of integers modulo 2^b, in as many chunks as it takes.

        Formal guarantees
        -----------------
        IND-CPA under RLWE with the set's ring and modulus: fresh randomness of the
        operating system in every call, 128 bits. Not malleability-proof: sign it.

        Edge cases
        ----------
        Values outside [-2^(b-1), 2^(b-1)) are taken modulo 2^b, as masked values
        must be. An empty vector is refused.
        """
        vector = np.asarray(values)
        if vector.ndim != 1 or vector.dtype != np.int64:
            raise CryptoError("only a vector of 64-bit integers can be encrypted")
        if not 1 <= len(vector) <= MAX_DIMENSION:
            raise CryptoError(f"only 1 to {MAX_DIMENSION} values can be encrypted")
        parts = bfv_scheme(self.parameters)
        ring = self.parameters.ring
        chunks = self.parameters.chunks(len(vector))
        plaintexts = np.zeros((chunks, ring), dtype=np.uint64)
        split = limbs.split_limbs(vector, self.parameters)
        plaintexts.ravel()[: split.size] = split
        polynomials = np.empty((chunks, 2, ring), dtype=np.uint64)
        for chunk in range(chunks):
            plain, cipher = sealapi.Plaintext(), self._zeros.take()
            parts.plaintext.rewrite(plain, plaintexts[chunk], parts.context)
            parts.evaluator.add_plain_inplace(cipher, plain)
            polynomials[chunk] = parts.ciphertext.read(cipher)
        return Ciphertext(self.parameters, self.key_id, len(vector), 1, polynomials)

    def to_bytes(self) -> bytes:
        """One PUBLIC_KEY frame."""
        return _public_frame(self.parameters, self._coefficients)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> PublicKey:
        """The key in a frame; whose it is, the CSP's signature must say."""
        body = decode_frame(data, Kind.PUBLIC_KEY, limit=_MAX_KEY_BYTES)
        parameters, rest = _named(body)
        shape = (2, len(parameters.primes), parameters.ring)
        return cls._of(parameters, _shaped(rest, shape, parameters))


class SecretKey(HeldSecretKey[ParameterSet]):
    """What the CSP decrypts with. Never printed, pickled or compared."""

    __slots__ = ()

    def __init__(
        self, parameters: ParameterSet, key_id: bytes, coefficients: Coefficients
    ) -> None:
        _require_reduced(coefficients, parameters)
        super().__init__(parameters, bfv_scheme(parameters), key_id, coefficients)

    def decrypt(self, ciphertext: Ciphertext) -> Integers:
        """The sum of the encrypted vectors, centred modulo 2^b.

        Formal guarantees
        -----------------
        Exact, or refused: the noise must leave a bit of SEAL's budget, unused
        coefficients must be zero and no limb may exceed what ``summands`` words add up
        to. A ciphertext of another key, like any random one, leaves a bit of
        budget with probability 2^-n.

        Edge cases
        ----------
        A ciphertext that was altered may pass: with the public key, and where a value
        is only added to, without. Answers and refusals tell about the secret key. What
        may be asked, and how often, is for the CSP to decide before it calls this
        method.
        """
        parameters = self.parameters
        if ciphertext.parameters != parameters or ciphertext.key_id != self.key_id:
            raise CryptoError(
                "the ciphertext was made with another key",
                remedy="every run has its own key: use the one of this run",
            )
        parts = bfv_scheme(parameters)
        sums = np.empty((len(ciphertext.polynomials), parameters.ring), dtype=np.uint64)
        for chunk, polynomials in enumerate(ciphertext.polynomials):
            plain, cipher = sealapi.Plaintext(), sealapi.Ciphertext()
            parts.ciphertext.rewrite(cipher, polynomials, parts.context)
            if self._decryptor.invariant_noise_budget(cipher) < 1:
                raise CryptoError(
                    "the ciphertext is not of this key, or its noise is too large",
                    remedy="a site encrypted with another key or altered its message",
                )
            self._decryptor.decrypt(cipher, plain)
            plain.resize(parameters.ring)  # SEAL leaves out zeros at the end
            sums[chunk] = parts.plaintext.read(plain)
        used = ciphertext.dimension * parameters.limbs
        words, unused = sums.ravel()[:used], sums.ravel()[used:]
        if unused.any() or not limbs.are_sums(words, ciphertext.summands, parameters):
            raise CryptoError(
                "the ciphertext does not hold a sum of encoded vectors",
                remedy="a site encrypted something else than its vector",
            )
        return limbs.join_limbs(words, parameters)


@dataclass(frozen=True, eq=False)
class KeyPair:
    """A public key and the secret key that goes with it."""

    public: PublicKey
    secret: SecretKey

    def to_secret_bytes(self) -> bytes:
        """Both keys, framed: for :class:`~.key_folder.KeyFolder` only."""
        parameters = self.public.parameters
        width = parameters.coefficient_bytes
        return encode_frame(
            Kind.SECRET_KEY,
            rlwe.set_name(parameters),
            pack_coefficients(self.public._coefficients, width),
            pack_coefficients(self.secret._coefficients, width),
        )

    @classmethod
    def from_secret_bytes(cls, data: bytes | memoryview) -> KeyPair:
        """Both keys, after a trial that they belong together."""
        body = decode_frame(data, Kind.SECRET_KEY, limit=_MAX_KEY_BYTES)
        parameters, rest = _named(body)
        shape = (3, len(parameters.primes), parameters.ring)
        coefficients = _shaped(rest, shape, parameters)
        public = PublicKey._of(parameters, coefficients[:2])
        secret = SecretKey(parameters, public.key_id, coefficients[2])
        secret.decrypt(public.encrypt(np.zeros(1, dtype=np.int64)))
        return cls(public, secret)


def generate_keys(parameters: ParameterSet) -> KeyPair:
    """A fresh key pair from the operating system's randomness."""
    parts = bfv_scheme(parameters)
    generator = sealapi.KeyGenerator(parts.context)
    key = sealapi.PublicKey()
    generator.create_public_key(key)
    public = PublicKey._of(parameters, parts.public_key.read(key))
    secret = parts.secret_key.read(generator.secret_key())
    return KeyPair(public, SecretKey(parameters, public.key_id, secret))


def _public_frame(parameters: ParameterSet, coefficients: Coefficients) -> bytes:
    packed = pack_coefficients(coefficients, parameters.coefficient_bytes)
    return encode_frame(Kind.PUBLIC_KEY, rlwe.set_name(parameters), packed)


def _named(body: memoryview) -> tuple[ParameterSet, memoryview]:
    """The parameter set a key's frame begins with, and what follows."""
    name, rest = rlwe.split_set_name(body)
    return parameter_set(name), rest


def _shaped(
    data: memoryview, shape: tuple[int, ...], parameters: ParameterSet
) -> Coefficients:
    width = parameters.coefficient_bytes
    rlwe.require_key_size(data, width * math.prod(shape))
    return unpack_coefficients(data, width).reshape(shape)


def _require_reduced(coefficients: Coefficients, parameters: ParameterSet) -> None:
    if not are_reduced(coefficients, parameters.primes):
        raise rlwe.key_not_reduced()
