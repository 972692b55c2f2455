"""The circuits by name."""

from __future__ import annotations

from functools import lru_cache

from cipherbayes.crypto.ckks.circuit import Circuit, Update
from cipherbayes.crypto.ckks.factored import TUNINGS, FactoredCircuit
from cipherbayes.errors import CryptoError

CIRCUITS = ("literal", *TUNINGS)


@lru_cache(maxsize=16)  # a circuit is a value: what changes in a run is elsewhere
def make_circuit(name: str, update: Update) -> Circuit:
    """``literal``, ``fast`` or ``hardened`` for an update.

    Raises
    ------
    CryptoError
        If there is no such circuit, or it cannot be shown that nothing wraps.
    """
    if name == "literal":
        from cipherbayes.crypto.ckks.literal import LiteralCircuit

        return LiteralCircuit(update)
    if name not in TUNINGS:
        raise CryptoError(
            "there is no such circuit", remedy=f"choose one of {', '.join(CIRCUITS)}"
        )
    return FactoredCircuit(name, update)
