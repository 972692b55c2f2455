"""What a secure sum cannot do without: ``python libraries_alone.py``.

The calls that a round of two sites and 184 parameters makes of SEAL, of the library of
signatures and masks, of SHA-256 and of the disk, each as often as in the round and with
messages of the same length; no party, no message, no ledger. ``literal`` runs in turn,
as in ``cipherbayes bench``, and is the unit. Before each round a table as large as the
two sites' together is read, so that caches are as they would be. CPU time, medians.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tenseal.sealapi as sealapi

from cipherbayes.crypto.bfv.keys import generate_keys
from cipherbayes.crypto.bfv.parameters import parameter_set
from cipherbayes.crypto.bfv.scheme import bfv_scheme
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes_research.benchmarks.circuits import CircuitRace
from cipherbayes_research.benchmarks.iteration import Clock
from cipherbayes_research.benchmarks.rosters import QUESTION, FirstSite

DIMENSION, SITES, ROUNDS = 184, 2, 12
FRAME = bytes(8_300)
"""As long as a site's ciphertext in its frame."""
ROWS = 100_000
PAGES = 4
"""Pages of 4 KiB that the smallest of the commits writes."""


def hashed(times: int) -> None:
    """A site's ciphertext hashed so often."""
    for _ in range(times):
        hashlib.sha256(FRAME).digest()


class Libraries:
    """Keys and open files for the calls of one round after the other."""

    def __init__(self, folder: Path) -> None:
        parameters = parameter_set("bfv-1024-9x4")
        self._ring = parameters.ring
        self._parts, self._pair = bfv_scheme(parameters), generate_keys(parameters)
        self._key = SigningKey.generate()
        self._signature = self._key.sign("round", QUESTION)
        self._first = FirstSite(SITES)
        self._ones = np.ones(parameters.ring, dtype=np.uint64)
        self._zeros = self._pair.public._zeros
        self._files = [os.open(folder / str(i), os.O_RDWR | os.O_CREAT) for i in (0, 1)]
        self._at = 0

    def verify(self, times: int) -> None:
        for _ in range(times):
            self._key.identity.verify(self._signature, "round", QUESTION)

    def sign(self, times: int) -> None:
        for _ in range(times):
            self._key.sign("round", QUESTION)

    def mask(self, times: int) -> None:
        exchange, roster = self._first.exchange(self._at), self._first.roster
        for _ in range(times):
            self._first.masks.total(exchange, roster, QUESTION, DIMENSION)

    def encrypt(self, times: int) -> Any:
        """As a site does that has an encryption of zero at hand."""
        for _ in range(times):
            plain, cipher = sealapi.Plaintext(), self._zeros.take()
            self._parts.plaintext.rewrite(plain, self._ones, self._parts.context)
            self._parts.evaluator.add_plain_inplace(cipher, plain)
            read = self._parts.ciphertext.read(cipher)
        return read

    def decrypt(self, read: Any) -> None:
        plain, cipher = sealapi.Plaintext(), sealapi.Ciphertext()
        decryptor = self._pair.secret._decryptor
        self._parts.ciphertext.rewrite(cipher, read, self._parts.context)
        decryptor.invariant_noise_budget(cipher)
        decryptor.decrypt(cipher, plain)
        plain.resize(self._ring)
        self._parts.plaintext.read(plain)

    def wait_for_disk(self, times: int) -> None:
        """So many commits of a few pages behind the last ones."""
        for index in range(times):
            file = self._files[index % 2]
            os.pwrite(file, bytes(4096 * PAGES), self._at)
            os.fdatasync(file)
            self._at += 4096 * PAGES

    def round(self, measure: Callable[[str, Callable[[], Any]], Any]) -> None:
        """Every site, the server, the CSP."""
        self._zeros.prepare(SITES)
        measure("masks", lambda: self.mask(SITES))
        read = measure("encryption", lambda: self.encrypt(SITES))
        measure("decryption", lambda: self.decrypt(read))
        # Sites and CSP sign; the server checks all of them, the CSP the sites.
        measure("signing", lambda: self.sign(SITES + 1))
        measure("verifying signatures", lambda: self.verify(2 * SITES + 1))
        # The ciphertext's frame, the message, the signature; received by the server,
        # sent on, received by the CSP.
        measure("hashes", lambda: hashed(9 * SITES))
        # Ledgers, the CSP's answer and its mark, the checkpoint.
        measure("disk", lambda: self.wait_for_disk(SITES + 3))


STEPS = (
    "masks", "encryption", "decryption", "signing", "verifying signatures", "hashes",
    "disk",
)  # fmt: skip


def main() -> None:
    race, clock = CircuitRace(DIMENSION, SITES, ("literal",)), Clock()
    table = np.ones((SITES * ROWS, DIMENSION))
    with tempfile.TemporaryDirectory() as scratch:
        libraries = Libraries(Path(scratch))
        for _ in range(ROUNDS):
            race.round(clock.call)
            for _ in range(4):
                table.sum()
                libraries.round(clock.call)
    unit = sum(
        times * clock.median(f"literal {name}")
        for name, times in (("encrypt", SITES), ("server", 1), ("csp", 1))
    )
    taken = {name: clock.median(name) for name in STEPS}
    print(json.dumps({"literal_ms": unit, **taken}, indent=2))
    every = sum(taken.values())
    print(f"all {every:.2f} ms, {every / unit:.4f} of literal; "
          f"without the disk {(every - taken['disk']) / unit:.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
