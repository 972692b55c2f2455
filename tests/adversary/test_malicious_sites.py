"""Sites that pool what they know, subtract, send rubbish, or send it slowly."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coded import Coded, coded
from exposed import Silent, certified, exact, without
from parties import Consortium, changed, refusal, small_study, three

from cipherbayes.crypto.wire.framing import HEADER_BYTES, Kind, encode_frame
from cipherbayes.engine.processes import PartyProcess
from cipherbayes.errors import PrivacyError, ProtocolError, RunError
from cipherbayes.privacy.noise import InsecureRepeatableNoise, SecureNoise
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.messages import (
    DecryptReply,
    DecryptRequest,
    Reason,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.study.tables import open_site
from conftest import logistic_frame

__all__ = ["three"]

ROUNDS = 2
"""Of 400 coordinates each."""


def residual(
    tmp_path: Path, colluding: tuple[str, ...], sites: tuple[str, ...], **privacy: Any
) -> float:
    """Noise left to a coalition with server and CSP, over what was certified.

    The coalition subtracts its own vectors, noise included, from every total. The
    claim is that of a study with c colluders, whatever noise was really drawn.
    """
    inference = {"rounds": ROUNDS, "method": "averaged"}
    claimed = {"colluders": len(colluding)}
    claim = Coded(
        tmp_path / "claim",
        coded(small_study(sites, privacy=claimed, inference=inference)),
    )
    study = small_study(sites, privacy=privacy, inference=inference)
    consortium = Coded(tmp_path / "run", coded(study))
    step = consortium.plan.last_phase.sums.step
    honest = [name for name in sites if name not in colluding]
    truth = sum(exact(consortium, name, consortium.zero) for name in honest)
    left = []
    for number in range(ROUNDS):
        request = consortium.request(round=number, theta=consortium.zero)
        question = consortium.question(request)
        total = decode(consortium.csp.handle(encode(question)), DecryptReply).values
        known = [
            consortium.unmasked(r) for r in question.replies if r.site in colluding
        ]
        left.append((total - sum(known) - truth) * step)
    release = claim.plan.last_phase.sums
    return float(np.std(left) / (certified(claim) * release.step))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("colluding", "sites"),
    [
        (("a",), ("a", "b")),
        pytest.param(("a",), ("a", "b", "c"), marks=pytest.mark.torture),
        (("a", "b"), ("a", "b", "c", "d")),
    ],
    ids=["one of two", "one of three", "two of four"],
)
def test_colluding_sites_with_server_and_csp_meet_the_certified_noise(
    tmp_path: Path, colluding: tuple[str, ...], sites: tuple[str, ...]
) -> None:
    """K = 2 and subtraction included: K − c shares must carry the whole σΔ."""
    # 2 · 400 draws: the standard error of their sd is 2.5 %.
    naive = residual(tmp_path / "naive", colluding, sites, colluders=0)
    honest = len(sites) - len(colluding)
    assert naive == pytest.approx(np.sqrt(honest / len(sites)), rel=0.11)
    assert naive < 0.95
    kept = residual(tmp_path / "kept", colluding, sites, colluders=len(colluding))
    assert 0.89 < kept < 1.11


@pytest.mark.slow
def test_a_site_that_omits_its_noise_counts_as_a_colluder(tmp_path: Path) -> Any:
    """The others' shares are certified without it."""

    def noise_left(colluders: int) -> float:
        study = small_study(
            privacy={"colluders": colluders},
            inference={"rounds": ROUNDS, "method": "averaged"},
        )
        consortium = Coded(tmp_path / str(colluders), coded(study))
        consortium.sites["a"] = consortium.site("a", noise=Silent())
        consortium.sites["a"].join(consortium.manifest, consortium.offer)
        zero = consortium.zero
        truth = sum(exact(consortium, name, zero) for name in "abc")
        left = []
        for number in range(ROUNDS):
            request = consortium.request(round=number, theta=zero)
            question = consortium.question(request)
            reply = decode(consortium.csp.handle(encode(question)), DecryptReply)
            left.append(reply.values - truth)
        return float(np.std(left) / certified(consortium))

    assert noise_left(0) < 0.95
    assert noise_left(1) > 0.89


def difference_of_two_runs(tmp_path: Path, noise: Any) -> tuple[Any, Any, float]:
    """Two studies, before and after a patient left: seen, true and certified."""
    seen, sums = [], []
    frame = logistic_frame(60, seed=ord("b"))
    for number, rows in enumerate((frame, frame.iloc[1:])):
        consortium = Consortium(tmp_path / str(number), small_study(("a", "b")))
        table = open_site(consortium.study, "b", rows)
        given = Contributions(consortium.study.model, table)
        for name in "ab":
            changes = {"contributions": given} if name == "b" else {}
            consortium.sites[name] = consortium.site(name, noise=noise(name), **changes)
            consortium.sites[name].join(consortium.manifest, consortium.offer)
        question = encode(consortium.question())
        seen.append(decode(consortium.csp.handle(question), DecryptReply).values)
        phase = consortium.plan.last_phase
        sums.append(phase.sums.to_grid(given.total(phase, Question(np.zeros(3)))))
    return seen[0] - seen[1], sums[0] - sums[1], certified(consortium)


def test_the_difference_of_two_runs_is_noise_and_not_the_patient_who_left(
    tmp_path: Path,
) -> None:
    """With noise that repeats, the patient's gradient, hence row, is read off."""
    repeats = difference_of_two_runs(tmp_path / "repeats", InsecureRepeatableNoise)
    assert np.array_equal(repeats[0], repeats[1])
    assert repeats[1].any()
    found, truth, noise = difference_of_two_runs(
        tmp_path / "fresh", lambda name: SecureNoise()
    )
    # Two runs of two shares each: twice the certified variance per share pair.
    assert np.abs(found - truth).max() > 0.05 * noise


# -- rubbish ------------------------------------------------------------------


def test_a_value_out_of_range_spoils_the_round_and_is_not_told(
    three: Consortium,
) -> None:
    question = three.question()
    a, b, c = question.replies
    huge = three.opened(a) + 3 * three.plan.last_phase.sums.bound
    reply = SiteReply.signed(
        three.keys["a"],
        round_id=a.round_id,
        site="a",
        ciphertext=three.pair.public.encrypt(huge).to_bytes(),
    )
    forged = encode(DecryptRequest(question.round_id, (reply, b, c)))
    with without("range", "one answer"):
        decode(three.csp.handle(forged), DecryptReply)
    assert refusal(three.csp.handle(forged)).reason is Reason.RANGE


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_sum_that_is_no_number_never_becomes_a_message(
    three: Consortium, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by accident: a broken table stops at its site. That it did is charged."""
    monkeypatch.setattr(Contributions, "total", lambda *_: np.array([0.0, value, 0.0]))
    answer = refusal(three.sites["a"].handle(three.request()))
    assert answer.reason is Reason.UNAVAILABLE
    assert [entry.kept for entry in three.ledger("a").entries()] == [False]
    with pytest.raises(PrivacyError):
        three.plan.last_phase.sums.to_grid(np.array([value]))


@pytest.mark.parametrize("kind", ["another round", "another's signature"])
def test_a_reply_that_is_not_the_sites_own_answer_is_left_out(
    three: Consortium, kind: str
) -> Any:
    def attack() -> bool:
        """Whether the server passes the forgery on to the CSP."""
        names, request = three.server.request()
        answers = {name: three.sites[name].handle(request) for name in names}
        b = decode(answers["b"], SiteReply)
        if kind == "another round":
            old = three.round_id(round=3)
            forged = SiteReply.signed(
                three.keys["b"], round_id=old, site="b", ciphertext=b.ciphertext
            )
            forged = changed(forged, round_id=b.round_id)
        else:
            signature = decode(answers["a"], SiteReply).signature
            forged = changed(b, signature=signature)
        try:
            return three.server.collect({**answers, "b": encode(forged)}) is not None
        except RunError:
            return False

    with without("signatures"):
        assert attack()
    assert not attack()


def test_a_huge_message_is_refused_by_its_header(three: Consortium) -> None:
    """64 MiB and more: refused before a byte of it is hashed or copied."""
    body = bytes(2**26 + 2**17)
    message = encode_frame(Kind.SITE_REPLY, body)
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(ProtocolError, match="at most"):
        decode(message, SiteReply)
    seconds = time.process_time() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**16
    started = time.process_time()
    encode_frame(Kind.SITE_REPLY, body)
    assert seconds < (time.process_time() - started) / 10
    assert len(message) == HEADER_BYTES + len(body)


DRIP = """
import sys, time
sys.stdout.buffer.write(b"=" + (1000).to_bytes(4, "little"))
while True:
    sys.stdout.buffer.write(b".")
    sys.stdout.buffer.flush()
    time.sleep(0.05)
"""


def dripping(seconds: float) -> PartyProcess:
    """A party that sends twenty bytes a second of the thousand it announced."""
    party = object.__new__(PartyProcess)
    party.name = "a"
    party.patience = seconds
    party._process = subprocess.Popen(
        [sys.executable, "-c", DRIP], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    return party


def test_a_slow_drip_is_a_lost_site_after_the_deadline() -> None:
    """The deadline is for the whole answer, so a byte now and then gains nothing."""
    party = dripping(1.0)
    try:
        started = time.monotonic()
        assert party.receive() is None
        waited = time.monotonic() - started
        assert 0.9 < waited < 5.0
        # It was alive and sending all the while, and is ended now.
        assert party._process.wait(10) == -signal.SIGKILL
    finally:
        party.close()


def test_in_range_poisoning_is_not_stopped(three: Consortium) -> Any:
    """Stated as a limit: a vector that keeps the total in range is accepted."""

    class Poison:
        insecure = True

        def share(self, dimension: int, scale: float, label: str = "") -> Any:
            return np.full(dimension, int(40 * scale), dtype=np.int64)

    three.sites["a"] = three.site("a", noise=Poison())
    three.sites["a"].join(three.manifest, three.offer)
    question = three.question()
    reply = decode(three.csp.handle(encode(question)), DecryptReply)
    phase: Phase = three.plan.last_phase
    truth = sum(exact(three, name, np.zeros(3)) for name in "abc")
    assert (reply.values - truth > 30 * phase.sums.share_scale).all()
