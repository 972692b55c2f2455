"""A CSP that holds the keys of a run which computes under encryption."""

from __future__ import annotations

from typing import Any

from cipherbayes.crypto.ckks.keys import CkksKeys
from cipherbayes.protocols.csp import Csp
from cipherbayes.protocols.encrypted_update.offers import signed_trio
from cipherbayes.protocols.plan import AnyPlan


class CkksCsp(Csp[AnyPlan]):
    """The party with the secret key; what it opens is each protocol's own.

    Parameters
    ----------
    keys
        The key trio of this run.
    """

    def __init__(self, *, keys: CkksKeys, **common: Any) -> None:
        super().__init__(**common)
        self._keys = keys

    @property
    def key_id(self) -> bytes:
        return self._keys.public.key_id

    def offer(self) -> bytes:
        """The run's public and evaluation keys, signed."""
        return signed_trio(self._key, self._keys, self._run, self._plan.study_hash)

    def erase_secret(self) -> None:
        del self._keys
