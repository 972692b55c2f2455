"""Speed of the protocols, all variants interleaved in one run, CPU time, medians.

Only ratios within one run carry over to another machine. ``secure-sum`` is compared
with ``plaintext``: the same federated, differentially private iteration
with the same integers (gradient pass, grid, exact noise share, sum, θ), without
masks, encryption, signatures, ledger and CSP. ``over_unprotected`` compares with an
iteration that has no noise either.

Both call the same functions for the gradient, for the noise and for the move of θ,
which are timed wherever they are called and count alike in both. All else that a party
does in a round is timed in that round
(:mod:`~cipherbayes_research.benchmarks.steps`), so a few milliseconds of protocol are
not the difference of two passes over all rows.
"""

from __future__ import annotations

import math
import secrets
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cipherbayes.crypto.bfv.keys import PublicKey, generate_keys
from cipherbayes.crypto.bfv.scheme import bfv_scheme
from cipherbayes.crypto.identity.roster import Member, Roster
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey, PairwiseMasks
from cipherbayes.crypto.wire.transcript import RoundId
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.inference.gradient import gradient_sum
from cipherbayes.inference.released import Release
from cipherbayes.privacy.noise import SecureNoise
from cipherbayes.protocols.csp import Csp
from cipherbayes.protocols.messages import SiteReply, encode
from cipherbayes.protocols.secure_sum.protocol import SecureSum
from cipherbayes.protocols.server import Server
from cipherbayes.protocols.site import Site
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats
from cipherbayes_research.benchmarks.circuits import CircuitRace, add_ratios
from cipherbayes_research.benchmarks.measurements import Bench, Setting, SiteCrypto
from cipherbayes_research.benchmarks.steps import (
    CSP,
    GRADIENT,
    MOVE,
    NOISE,
    SERVER,
    SITE,
    STEPS,
    WAITING,
    Steps,
)

WARM_UP = 3
PASSES = 4
"""Rounds of a secure sum, and of plaintext, for each round of the circuits."""


@dataclass
class Clock:
    """CPU milliseconds by name, one number for each round."""

    spent: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the CPU time of a block."""
        started = time.process_time()
        yield
        self.spent[name].append(1000.0 * (time.process_time() - started))

    def call(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of a call, whose CPU time is added."""
        with self.measure(name):
            return work()

    def median(self, name: str) -> float:
        """Median after the warm-up."""
        return statistics.median(self.spent[name][WARM_UP:])


def bench_study(dimension: int, sites: int, rounds: int, rows: int) -> Study:
    """A logistic study with so many parameters; the budget is no matter here."""
    return Study.model_validate(
        {
            "study": {"name": "bench", "protocol": "secure-sum"},
            "model": {"kind": "logistic", "outcome": "y"},
            "features": {
                f"x{j}": {"low": -1.0, "high": 1.0} for j in range(dimension - 1)
            },
            # No rounds before the first gradient, and the pass that plaintext has.
            "preparation": {"method": "public-bounds"},
            "privacy": {"epsilon": 1.0, "delta": 1e-6, "records": sites * rows},
            "inference": {"method": "psgld", "rounds": rounds},
            "sites": {f"s{k:02d}": {} for k in range(sites)},
        }
    )


def bench_iteration(
    dimension: int,
    sites: int,
    rows: int,
    rounds: int,
    race: CircuitRace | None = None,
    clock: Clock | None = None,
    steps: Steps | None = None,
    passes: int = 1,
) -> Setting:
    """One setting: plaintext, secure-sum and, if given, the circuits, turn by turn.

    Parameters
    ----------
    passes
        Rounds of plaintext and of secure-sum in a turn.
    """
    study = bench_study(dimension, sites, passes * (rounds + WARM_UP), rows)
    table = random_table(study, rows)
    clock = Clock() if clock is None else clock
    steps = Steps() if steps is None else steps
    with tempfile.TemporaryDirectory(prefix="cipherbayes-bench-") as place:
        folder = RunFolder.create(
            Path(place) / "run", study, dict.fromkeys(study.sites)
        )
        server, _ = folder.server()
        csp = folder.csp()
        parties = {name: folder.site(name, table) for name in study.sites}
        offer = csp.offer()
        manifest = server.convene([s.enrol() for s in parties.values()], offer)
        csp.join(manifest)
        for party in parties.values():
            party.join(manifest, offer)
        message = 0
        plan = plan_releases(study)
        recursion = plan.recursion(sites * rows)
        state = recursion.start()
        sums = plan.last_phase.sums
        # Largest rounding error of a total, as a share of the noise's sd.
        rounding = 0.5 * math.sqrt(sums.sites) / sums.share_scale
        while not server.finished:
            for _ in range(passes):
                release = _plaintext(plan, table, state.theta, clock)
                with clock.measure(MOVE):
                    state = recursion.advance(state, release)
                with steps.next_round():
                    message = _secure(server, csp, parties)
            if race is not None:
                race.round(clock.call)
    _take(steps, sites, clock)
    gradient, noise = clock.median(GRADIENT), clock.median(NOISE)
    plain_site = gradient + noise + clock.median("grid")
    move = clock.median(MOVE)
    plain_server = clock.median("plain server") + move
    unprotected = gradient * sites + plain_server
    plain = plain_site * sites + plain_server
    online = clock.median("site")
    protocol = online + clock.median("site, waiting")
    site = gradient + noise + protocol
    secure = site * sites + clock.median("server") + move + clock.median("csp")
    setting: Setting = {
        "d": dimension,
        "sites": sites,
        "rows_per_site": rows,
        "variants": {
            "plaintext": {
                "server_ms": plain_server,
                "site_ms": plain_site,
                "noise_ms": noise,
                "encrypt_ms": 0.0,
                "decrypt_ms": 0.0,
                "message_bytes": 8 * dimension,
                "server_ratio": None,
                "iteration_ratio": None,
                "max_error_over_noise": 0.0,
                "iteration_ms": plain,
                "iteration_over_plaintext": 1.0,
                "over_unprotected": plain / unprotected,
            },
            "secure-sum": {
                "server_ms": clock.median("server"),
                "site_ms": site,
                "noise_ms": noise,
                "move_ms": move,
                "encrypt_ms": protocol,
                "encrypt_online_ms": online,
                "decrypt_ms": clock.median("csp"),
                "message_bytes": message,
                "server_ratio": None,
                "iteration_ratio": None,
                # BFV sums are exact; rounding to the grid is all there is.
                "max_error_over_noise": rounding,
                "iteration_ms": secure,
                "iteration_over_plaintext": secure / plain,
                "over_unprotected": secure / unprotected,
            },
        },
    }
    if race is not None:
        setting["variants"] |= race.variants(clock.median, clock.spent, sites)
        add_ratios(setting["variants"], sites)
    return setting


def _take(steps: Steps, sites: int, clock: Clock) -> None:
    """Add what the parties spent to the clock, that of sites for one of them."""
    for name, times in (
        (GRADIENT, steps.of(SITE, GRADIENT)),
        (NOISE, steps.of(WAITING, NOISE)),
        ("site", steps.protocol(SITE)),
        ("site, waiting", steps.protocol(WAITING)),
    ):
        clock.spent[name] += [each / sites for each in times]
    clock.spent[MOVE] += steps.of(SERVER, MOVE)
    clock.spent["server"] += steps.protocol(SERVER)
    clock.spent["csp"] += steps.protocol(CSP)


def random_table(study: Study, rows: int) -> PreparedTable:
    """Uniform columns and an outcome that depends on none of them."""
    rng = np.random.default_rng(0)
    design = preparation_of(study).design
    x = rng.uniform(-1.0, 1.0, (design.width, rows))
    x[0] = 1.0
    y = (rng.random(rows) < 0.3).astype(np.float64)
    return PreparedTable.from_arrays(design, x, {"y": y})


def _plaintext(
    plan: StudyPlan, table: PreparedTable, theta: Floats, clock: Clock
) -> Release:
    """One iteration without encryption, up to the move of θ; what it releases."""
    release, noise = plan.last_phase.sums, SecureNoise()
    with clock.measure(GRADIENT):
        total = gradient_sum(plan.study.model, theta, table, clip=release.clip)
    with clock.measure(NOISE):
        share = noise.share(release.dimension, release.share_scale, "")
    with clock.measure("grid"):
        sent = (release.to_grid(total) + share).tobytes()
    with clock.measure("plain server"):
        summed = np.zeros(release.dimension, dtype=np.int64)
        for _ in plan.study.sites:
            summed += np.frombuffer(sent, dtype=np.int64)
        noise_sd = release.noise_sd(len(plan.study.sites))
        return Release(release.from_grid(summed), noise_sd)


def _secure(server: Server[Any], csp: Csp[Any], parties: dict[str, Site[Any]]) -> int:
    """One encrypted iteration; returns the size of a site's message."""
    _, request = server.request()
    for party in parties.values():
        party.prepare()
    answers = {name: party.handle(request) for name, party in parties.items()}
    question = server.collect(answers)
    assert question is not None
    server.accept(csp.handle(question))
    return max(map(len, answers.values()))


def bench_site_crypto(dimension: int, sites: int, rounds: int) -> SiteCrypto:
    """A site's crypto beside one bare SEAL encryption of the same ring.

    Grid, masks, encryption, signature and framing; the noise sampler apart. It is
    compared with SEAL's ``encrypt`` alone, its plaintext encoded beforehand.
    """
    study = bench_study(dimension, sites, rounds + WARM_UP, 1)
    plan = SecureSum().plan(study.with_privacy())
    release, parameters = plan.last_phase.sums, plan.parameters
    public = generate_keys(parameters).public
    run = secrets.token_bytes(16)
    exchange_keys = {name: ExchangeKey.generate() for name in study.sites}
    signing = {name: SigningKey.generate() for name in study.sites}
    roster = Roster.of(
        Member.enrol(
            signing[name],
            run=run,
            study=plan.study_hash,
            site=name,
            exchange=exchange_keys[name].public,
        )
        for name in study.sites
    )
    masks = PairwiseMasks(
        "s00",
        exchange_keys["s00"],
        roster,
        run=run,
        study=plan.study_hash,
        colluders=study.colluders,
    )
    bare = _bare_encryption(public)
    total = np.linspace(-1.0, 1.0, dimension)
    noise, clock = SecureNoise(), Clock()
    for number in range(rounds + WARM_UP):
        exchange = RoundId(run, plan.study_hash, number, 0, "gradient", roster.digest)
        with clock.measure("bare"):
            bare()
        with clock.measure("crypto"):
            mask = masks.total(exchange, roster, bytes(32), dimension)
            vector = release.to_grid(total) + mask
            sealed = public.encrypt(vector).to_bytes()
            encode(
                SiteReply.signed(
                    signing["s00"], round_id=exchange, site="s00", ciphertext=sealed
                )
            )
    for _ in range(rounds + WARM_UP):
        with clock.measure("noise"):
            noise.share(dimension, release.share_scale, "")
    return {
        "bare_encryption_ms": clock.median("bare"),
        "site_crypto_ms": clock.median("crypto"),
        "site_crypto_over_bare": clock.median("crypto") / clock.median("bare"),
        "noise_ms": clock.median("noise"),
    }


def _bare_encryption(public: PublicKey) -> Callable[[], None]:
    """SEAL's own encryption of an encoded plaintext, nothing of ours around it."""
    import tenseal.sealapi as sealapi

    parts = bfv_scheme(public.parameters)
    plain, cipher = sealapi.Plaintext(), sealapi.Ciphertext()
    ones = np.ones(public.parameters.ring, dtype=np.uint64)
    parts.plaintext.rewrite(plain, ones, parts.context)
    key = sealapi.PublicKey()
    parts.public_key.write(key, public._coefficients, parts.context)
    encryptor = sealapi.Encryptor(parts.context, key)
    return lambda: encryptor.encrypt(plain, cipher)


def run_bench(
    dimension: int = 184,
    sites: int = 2,
    rows: int = 100_000,
    rounds: int = 16,
    circuits: bool = True,
) -> Bench:
    """The whole benchmark: the asked setting, and how cost grows around it."""
    race = CircuitRace(dimension, sites) if circuits else None
    settings = {(sites, 1_000), (5, rows), (16, 1_000), (16, rows)} - {(sites, rows)}
    steps = Steps(STEPS)
    bench_iteration(dimension, sites, rows, PASSES * rounds, steps=steps)
    return {
        **bench_iteration(dimension, sites, rows, rounds, race, passes=PASSES),
        "steps_ms": steps.middle(WARM_UP, sites),
        "site_crypto": bench_site_crypto(dimension, sites, 4 * rounds),
        "scaling": [
            bench_iteration(dimension, k, n, rounds) for k, n in sorted(settings)
        ],
    }
