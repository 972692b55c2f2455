"""A counting wrapper around SEAL's evaluator: the operations of a table, observed.

HM: product of ciphertexts; SM: product with a plaintext; Rot: rotation.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

_KINDS = {
    "multiply": "HM",
    "square": "HM",
    "multiply_plain": "SM",
    "rotate_vector": "Rot",
    "relinearize": "relinearise",
    "rescale_to_next": "rescale",
    "encrypt": "Enc",
    "encrypt_zero": "Enc",
    "decrypt": "Dec",
}


class CountingEvaluator:
    """Passes every call on to a SEAL object and counts it by kind.

    ``CountingEvaluator(scheme.evaluator)`` goes where SEAL's evaluator goes;
    encryptors and decryptors can be wrapped with the same ``counts``.
    """

    def __init__(self, seal: Any, counts: Counter[str] | None = None) -> None:
        self._seal = seal
        self.counts: Counter[str] = Counter() if counts is None else counts

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._seal, name)
        kind = _KINDS.get(name.removesuffix("_inplace"))
        if kind is None:
            return method

        def counted(*arguments: Any) -> Any:
            self.counts[kind] += 1
            return method(*arguments)

        return counted
