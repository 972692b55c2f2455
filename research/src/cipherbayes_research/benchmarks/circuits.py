"""The CKKS circuits compared: CPU time of a round in the steady state, and error.

``literal`` is the paper's circuit and the unit of all ratios.
The server's time is that of the whole step: adding the sites' ciphertexts, loading
them into SEAL, the circuit, reading the result; ``server_mean_ms`` is the mean over
the sixteen rounds of a block, in one of which the sums of past rounds are rebuilt.

``encrypt_ms`` is all of a site's encryption, ``encrypt_online_ms`` what is left of it
in the round when the encryption of zero was prepared while the site waited.
``iteration_ratio`` compares what a round waits for: ``literal`` encrypts as the paper
does, with nothing prepared, which takes less in all; the others use what they prepared.
``iteration_ratio_all_cpu`` counts the preparation, ``iteration_ratio_both_prepared``
lets ``literal`` prepare as well. The CSP's time is decrypting and, for ``hardened``,
flooding and rounding; it draws the flooding noise while it waits, and
``decrypt_online_ms`` is what is left. While sites compute, the server of ``fast`` and
``hardened`` encodes the prior's drift and the circuit's constants, which it knows
already: ``server_prepare_ms``. ``literal`` encodes its constants once.

Sites that replay the server's step spend its time again, each on its own machine;
that is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from cipherbayes.crypto.ckks.ciphertext import CkksCiphertext
from cipherbayes.crypto.ckks.circuit import Circuit, Update
from cipherbayes.crypto.ckks.circuits import CIRCUITS, make_circuit
from cipherbayes.crypto.ckks.masking import RingMask, ring_mask
from cipherbayes.crypto.ckks.parameters import CkksParameters
from cipherbayes.crypto.ckks.polynomial import minimax
from cipherbayes.privacy.noise import PreparedNoise, SecureNoise
from cipherbayes.protocols.encrypted_update.flooding import Flooding
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.benchmarks.measurements import Variant
from cipherbayes_research.benchmarks.reference_update import ReferenceUpdate
from cipherbayes_research.benchmarks.rosters import QUESTION, FirstSite

STEADY = 224
"""Rounds after which every circuit's window is full."""
CYCLE = 32
"""Rounds after which gradients repeat: both circuits' own cycles divide it."""
DP_NOISE = 0.1
UNIT = 2.0**-20
BLOCK = 16
"""Rounds that ``server_mean_ms`` covers: one in which the past is rebuilt."""
FLOODING = Flooding(bits=40.0, releases=100)
MILD_FLOODING = Flooding(bits=30.0, releases=20)


class _Masks(FirstSite):
    """The masks of one of several sites."""

    def of(self, parameters: CkksParameters, dimension: int, t: int) -> RingMask:
        exchange = self.exchange(t)
        return ring_mask(
            self.masks, exchange, self.roster, QUESTION, parameters, dimension
        )


class CircuitLane:
    """One circuit, its keys and its parties, ready for a steady-state round."""

    def __init__(
        self, name: str, update: Update, totals: Integers, rounds_before: int
    ) -> None:
        self.circuit = make_circuit(name, update)
        started = time.process_time()
        self.keys = self.circuit.generate_keys()
        self.keygen_s = time.process_time() - started
        self.evaluator = self.circuit.evaluator(self.keys.evaluation)
        self.encryptor = self.circuit.encryptor(self.keys.public)
        self._masks = None if name == "literal" else _Masks(update.sites)
        self._noise = PreparedNoise(SecureNoise())
        self.worst = 0.0
        self.message_bytes = self.output_bytes = 0
        distinct = min(CYCLE, rounds_before)
        cycle = [self._messages(totals[t], t + 1) for t in range(distinct)]
        for t in range(rounds_before):
            self.evaluator.absorb(t + 1, cycle[t % CYCLE])

    def _messages(self, total: Integers, t: int) -> list[CkksCiphertext]:
        """The same share from every site but the last, which has the rest."""
        sites = self.circuit.update.sites
        share = total // sites
        rest = total - share * (sites - 1)
        parts = [share] * (sites - 1) + [rest]
        return [self.encryptor.encrypt(part, t) for part in parts]

    def _sent(self, share: Integers, t: int) -> CkksCiphertext:
        """What a site does; the paper's sites have no masks."""
        mask = None
        if self._masks is not None:
            mask = self._masks.of(self.circuit.parameters, share.size, t)
        return self.encryptor.encrypt(share, t, mask)

    def _decrypt(self, out: CkksCiphertext, t: int) -> Floats:
        """What the CSP does; only ``hardened`` has room for flooding."""
        circuit, secret = self.circuit, self.keys.secret
        if circuit.name == "hardened":
            return FLOODING.release(circuit, secret, out, t, self._noise)
        return circuit.decrypt_exactly(secret, out, t)

    def _prepare_csp(self, t: int) -> None:
        """What the CSP does while it waits."""
        if self.circuit.name == "hardened":
            self._noise.prepare([FLOODING.share(self.circuit, t)])

    def round(
        self,
        t: int,
        total: Integers,
        drift: Floats,
        measure: Callable[[str, Callable[[], Any]], Any],
    ) -> Floats:
        """One timed round; returns the decrypted values."""
        name, circuit = self.circuit.name, self.circuit
        messages = self._messages(total, t)
        share = total // circuit.update.sites
        if name == "literal":
            measure(f"{name} encrypt", lambda: self._sent(share, t))
        measure(f"{name} prepare", self.encryptor.prepare)
        sent = measure(f"{name} online", lambda: self._sent(share, t))
        if name != "literal":
            measure(f"{name} expect", lambda: self.evaluator.expect(t, drift))
        out = measure(f"{name} server", lambda: self.evaluator.step(t, messages, drift))
        measure(f"{name} csp prepare", lambda: self._prepare_csp(t))
        measure(f"{name} csp", lambda: self._decrypt(out, t))
        self.message_bytes, self.output_bytes = (
            len(sent.to_bytes()),
            len(out.to_bytes()),
        )
        return circuit.decrypt_exactly(self.keys.secret, out, t)


class CircuitRace:
    """All circuits on the same gradients, turn by turn.

    Parameters
    ----------
    dimension, sites
        d and K.
    names
        Which circuits.
    rounds_before
        Rounds that they have behind them when the race begins.
    """

    def __init__(
        self,
        dimension: int,
        sites: int,
        names: tuple[str, ...] = CIRCUITS,
        rounds_before: int = STEADY,
    ) -> None:
        rng = np.random.default_rng(0)
        spread = np.geomspace(0.05, 0.7, dimension)
        h = np.clip(rng.standard_normal((CYCLE, dimension)) * spread, -0.9, 0.9)
        self._totals = np.rint(h / UNIT).astype(np.int64)
        self._drift: Floats = np.linspace(-0.1, 0.1, dimension)
        update = Update(dimension, sites, UNIT, minimax(0.01), drift=0.2)
        self._reference = ReferenceUpdate(update)
        self.lanes = {
            name: CircuitLane(name, update, self._totals, rounds_before)
            for name in names
        }
        self._round = rounds_before
        for t in range(self._round):
            self._reference.step(self._totals[t % CYCLE])

    def round(self, measure: Callable[[str, Callable[[], Any]], Any]) -> None:
        """One round of every circuit."""
        total = self._totals[self._round % CYCLE]
        self._round += 1
        expected = self._reference.step(total, self._drift)
        noise = DP_NOISE * self._reference.update.polynomial(self._reference.variance)
        for lane in self.lanes.values():
            found = lane.round(self._round, total, self._drift, measure)
            error = float((np.abs(found - expected) / noise).max())
            lane.worst = max(lane.worst, error)

    def variants(
        self, median: Callable[[str], float], spent: dict[str, list[float]], sites: int
    ) -> dict[str, Variant]:
        """The benchmark's rows, without ratios."""
        rows: dict[str, Variant] = {}
        for name, lane in self.lanes.items():
            online = median(f"{name} online")
            encrypt = online + median(f"{name} prepare")
            if name == "literal":
                encrypt = median(f"{name} encrypt")
            expected = 0.0 if name == "literal" else median(f"{name} expect")
            server, asked = median(f"{name} server"), median(f"{name} csp")
            csp = asked + median(f"{name} csp prepare")
            block = spent[f"{name} server"][-BLOCK:]
            rows[name] = {
                "server_ms": server,
                "server_prepare_ms": expected,
                "server_mean_ms": sum(block) / BLOCK if len(block) == BLOCK else None,
                "encrypt_ms": encrypt,
                "encrypt_online_ms": online,
                "decrypt_ms": csp,
                "decrypt_online_ms": asked,
                "message_bytes": lane.message_bytes,
                "output_bytes": lane.output_bytes,
                "max_error_over_noise": lane.worst,
                "iteration_ms": sites * encrypt + expected + server + csp,
                "iteration_online_ms": sites * online + server + asked,
                "key_generation_s": lane.keygen_s,
                "public_key_bytes": len(lane.keys.public.to_bytes()),
                "evaluation_key_bytes": len(lane.keys.evaluation.to_bytes()),
                "noise_bound": lane.circuit.noise_bound(self._round),
                "flooding_over_noise": {
                    "30 bits, 20 releases": _flooding(MILD_FLOODING, lane.circuit),
                    "40 bits, 100 releases": _flooding(FLOODING, lane.circuit),
                },
            }
        return rows


def _flooding(flooding: Flooding, circuit: Circuit) -> float:
    """Flooding noise as a share of the smallest DP noise that an output can have."""
    polynomial = circuit.update.polynomial
    smallest = float(polynomial(np.linspace(polynomial.low, 1.0, 257)).min())
    widest = max(flooding.sd(circuit, t) for t in range(1, BLOCK + 1))
    return widest / (DP_NOISE * smallest)


def add_ratios(variants: dict[str, Variant], sites: int) -> None:
    """Fill in every variant's ratios to ``literal``: crypto only, no gradients."""
    if "literal" not in variants:
        return
    base = variants["literal"]
    literal = _iteration(base, sites)
    for name, row in variants.items():
        every = _iteration(row, sites)
        online = _iteration(row, sites, prepared=True)
        row["server_ratio"] = row["server_ms"] / base["server_ms"]
        row["iteration_ratio"] = (every if name == "literal" else online) / literal
        row["iteration_ratio_all_cpu"] = every / literal
        row["iteration_ratio_both_prepared"] = online / _iteration(
            base, sites, prepared=True
        )


def _iteration(row: Variant, sites: int, *, prepared: bool = False) -> float:
    """CPU of one round: every site, the server, the CSP.

    With ``prepared`` every party's work counts only what is left of it in the round.
    """
    encrypt, decrypt = row["encrypt_ms"], row["decrypt_ms"]
    server = row["server_ms"]
    if prepared:
        encrypt = row.get("encrypt_online_ms", encrypt)
        decrypt = row.get("decrypt_online_ms", decrypt)
    else:
        server += row.get("server_prepare_ms", 0.0)
    return sites * encrypt + server + decrypt
