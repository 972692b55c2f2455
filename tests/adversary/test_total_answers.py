"""What the server learns from whether, and how, a site answers a question of its own.

Each attack is run on two consortia, or two tables, that differ in one record. With the
defence taken out the record is found; with it in there is nothing to see.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from exposed import without
from parties import Consortium, small_study

import cipherbayes as cb
from cipherbayes.errors import RunError
from cipherbayes.models import NeuralLogistic, neural
from cipherbayes.protocols import site as site_module
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.messages import (
    DecryptReply,
    Reason,
    Refusal,
    RoundRequest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.refusals import CANNOT
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.study.tables import open_site, split_site
from cipherbayes.validation.protocol_audit import audit_protocol
from cipherbayes.validation.sensitivity import worst_shifts
from cipherbayes.validation.study_audit import audit_study
from conftest import logistic_frame

OLDEST = 99.0
"""Age of the patient in question; nobody else is over 90."""


def with_moments(method: str = "private-moments") -> cb.Study:
    return small_study(
        privacy={"randomness": "secure", "epsilon": 0.1},
        preparation={"method": method},
    )


def consortium(folder: Any, study: cb.Study, *, patient: bool) -> Consortium:
    """Three sites whose first has one patient more or less; moments are released."""
    parties = Consortium(folder, study)
    frame = logistic_frame(60, seed=1)
    if patient:
        frame.loc[len(frame)] = [OLDEST, "F", 1]
    given = Contributions(study.model, open_site(study, "a", frame))
    parties.sites["a"] = parties.site("a", contributions=given)
    parties.sites["a"].join(parties.manifest, parties.offer)
    parties.play(len(parties.plan.preparatory))
    return parties


def overflowing(threshold: float) -> np.ndarray:
    """Scales at which a record with an age above the threshold, and no other, is
    pushed out of float64's range."""
    edge = (threshold - 59.0) / 41.0
    tiny = (edge + 1.0) / np.finfo(np.float64).max
    return np.array([-1.0, 0.0, tiny, 1.0])


def reaction(parties: Consortium, **changes: Any) -> tuple[bytes, int]:
    """What the site's answer says besides its random numbers; rounds charged."""
    honest = decode_request(parties)
    answer = parties.sites["a"].handle(encode(replace(honest, **changes)))
    said = decode(answer, SiteReply, Refusal)
    seen = answer if isinstance(said, Refusal) else b"an answer"
    return seen, parties.sites["a"].rounds_charged


def decode_request(parties: Consortium) -> Any:
    return decode(parties.server.request()[1], RoundRequest)


def forged(parties: Consortium, signer: str) -> Any:
    """Preparatory totals that were never decrypted, under somebody's signature."""
    released = decode_request(parties).releases
    return tuple(
        DecryptReply.signed(
            parties.keys[signer],
            round_id=reply.round_id,
            values=np.full(phase.dimension, -phase.bound, dtype=np.int64),
        )
        for reply, phase in zip(released, parties.plan.preparatory, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["private-moments", "private-scales"])
def test_scales_of_the_servers_own_making_tell_nothing_of_a_patient(
    tmp_path: Path, method: str
) -> None:
    """A scale so small that one patient's age overflows was an oracle: the site
    refused if and only if the patient was there, as often as it was asked."""
    study = with_moments(method)
    worlds = [
        consortium(tmp_path / str(patient), study, patient=patient)
        for patient in (True, False)
    ]
    attack = overflowing(95.0)
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(site_module, "released_scales", lambda *_, **__: attack)
        seen = [reaction(world) for world in worlds]
        assert seen[0] != seen[1]
    # Forged by the server, and even by a CSP that signs whatever the server likes.
    for signer in ("b", "csp"):
        fresh = [
            consortium(tmp_path / f"{signer}{patient}", study, patient=patient)
            for patient in (True, False)
        ]
        seen = [reaction(world, releases=forged(world, signer)) for world in fresh]
        assert seen[0] == seen[1]
        answered = seen[0][0] == b"an answer"
        assert answered is (signer == "csp")
        assert seen[0][1] == len(fresh[0].plan.preparatory) + answered


SURVIVAL: dict[str, Any] = {"time": "t", "event": "d", "horizon": 40.0}
EVERY_MODEL: dict[str, cb.models.Model] = {
    "logistic": cb.models.Logistic(outcome="y"),
    "linear": cb.models.Linear(outcome="k", low=0.0, high=5.0),
    "poisson": cb.models.Poisson(outcome="k"),
    "negative-binomial": cb.models.NegativeBinomial(outcome="k"),
    "ordinal": cb.models.Ordinal(outcome="k", classes=4),
    "exponential": cb.models.Exponential(**SURVIVAL),
    "weibull": cb.models.Weibull(**SURVIVAL),
    "gompertz": cb.models.Gompertz(**SURVIVAL),
    "piecewise": cb.models.Piecewise(**SURVIVAL, cuts=(5.0, 12.0)),
}


@pytest.mark.parametrize("kind", EVERY_MODEL)
def test_a_site_without_a_complete_record_answers_every_phase(kind: str) -> None:
    """One record more, and complete, must not decide between an answer and a crash."""
    study = cb.Study(
        study={"protocol": "secure-sum"},
        model=EVERY_MODEL[kind],
        features={"bmi": {"low": 10, "high": 60, "missing": "impute"}},
        privacy={"epsilon": 1.0, "records": 3000},
        evaluation={"holdout": 0.5},
        describe={"by": ["site"]},
        sites={"a": {}, "b": {}, "c": {}},
    )
    plan, few = plan_releases(study), np.arange(12)
    frame = {"y": few % 2, "k": few % 4, "t": few + 0.5, "d": few % 2}
    gaps = pa.array([None] * few.size, pa.float64())
    table = open_site(study, "a", pa.table({**frame, "bmi": gaps}))
    given = Contributions.of_site(study, "a", *split_site(study, "a", table))
    nobody = [np.zeros(p.dimension, np.int64) for p in plan.preparatory]
    facts = plan.facts(nobody)
    for phase in plan.phases:
        question = np.zeros(plan.question_size(phase))
        total = given.total(phase, Question(question, plan.scales(phase, facts)))
        assert total.shape == (phase.dimension,)
        assert np.isfinite(total).all()


@pytest.mark.parametrize("error", [ValueError("62"), MemoryError("62 rows")])
def test_whatever_nobody_foresaw_leaves_a_site_as_one_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """A raw traceback in a round after enrolment told what one record had decided."""

    def fail(*_: Any) -> Any:
        raise error

    parties = Consortium(tmp_path, small_study())
    monkeypatch.setattr(Contributions, "total", fail)
    answer = parties.sites["a"].handle(parties.request())
    assert decode(answer, Refusal) == Refusal("a", Reason.UNAVAILABLE, CANNOT)
    assert type(error).__name__ in caplog.text
    assert "62" not in "".join(record.getMessage() for record in caplog.records)


def test_whatever_nobody_foresaw_leaves_a_curator_as_one_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("62")

    monkeypatch.setattr(Contributions, "total", fail)
    study = small_study(header={"protocol": "pooled"}, privacy={"records": 180})
    tables = {name: logistic_frame(60, seed=i) for i, name in enumerate("abc")}
    with pytest.raises(RunError, match=CANNOT):
        cb.run(study, tables, out=tmp_path / "run")


def columns(count: int) -> dict[str, Any]:
    return {f"c{index}": {"low": -1, "high": 1} for index in range(count)}


def gradient_study(model: cb.models.Model, features: int) -> cb.Study:
    return cb.Study(
        study={"protocol": "secure-sum"},
        model=model,
        features=columns(features),
        preparation={"method": "public-bounds"},
        privacy={"epsilon": 1.0, "records": 2000},
        inference={"method": "averaged"},
        sites={"a": {}, "b": {}, "c": {}},
    )


def largest_share(study: cb.Study) -> float:
    return max(shift.share for shift in worst_shifts(plan_releases(study)))


@pytest.mark.slow
def test_weights_that_cancel_do_not_make_one_record_count_for_several() -> None:
    """BLAS adds the last few records of a block in another order: with weights that
    cancel each other, taking one record away changed what three others add."""
    study = gradient_study(cb.models.Logistic(outcome="y"), 12)
    assert largest_share(study) <= 1.0
    with without("theta bound", "one arithmetic for every place"):
        assert largest_share(study) > 2.0
    with without("one arithmetic for every place"):
        # The bound on theta alone leaves nothing of it that could be seen.
        assert largest_share(study) <= 1.0
    with without("theta bound"):
        assert largest_share(study) <= 1.0


@cache
def matrix_network(widths: tuple[int, ...], gradients: bool) -> Any:
    """The network as one matrix product of the whole block."""
    import jax

    def network(weights: Any, x: Any) -> Any:
        start = 0
        for depth, (inputs, units) in enumerate(pairwise(widths), start=1):
            wide = inputs if depth == 1 else inputs + 1
            layer = weights[start : start + units * wide].reshape(units, wide)
            start += units * wide
            linear = layer[:, wide - inputs :] @ x
            x = jax.numpy.tanh(linear if depth == 1 else linear + layer[:, 0])
        return weights[start:] @ x / np.sqrt(widths[-1])

    return jax.jit(
        jax.vmap(jax.value_and_grad(network), in_axes=(None, 1), out_axes=-1)
    )


@pytest.mark.slow
def test_a_network_is_the_same_program_for_every_table(
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Blocks padded to powers of two are other programs, with other roundings."""
    model = NeuralLogistic(outcome="y", hidden=(16, 7))
    study = gradient_study(model, 11)
    rng = np.random.default_rng(1)
    frame = {f"c{index}": rng.uniform(-1.0, 1.0, 1025) for index in range(11)}
    frame["y"] = rng.integers(2, size=1025).astype(float)
    table = open_site(study, "a", pa.table(frame))
    theta = rng.normal(size=len(model.parameters(table.design))) * 1e3

    def differing() -> int:
        """Numbers that change in other records when the first one leaves."""
        (whole,) = table.blocks()
        (rest,) = table.subset(np.arange(1, 1025)).blocks()
        monkeypatch_chunk(whole.count)
        expected = model.gradients(theta, whole).extra
        monkeypatch_chunk(rest.count)
        found = model.gradients(theta, rest).extra
        return int(np.sum(found != expected[:, 1:]))  # type: ignore[index]

    padded = False

    def monkeypatch_chunk(rows: int) -> None:
        if padded:
            size = max(64, 1 << max(rows - 1, 0).bit_length())
            monkeypatch.setattr(neural, "CHUNK_ROWS", size)

    assert differing() == 0
    padded = True
    monkeypatch.setattr(neural, "_compiled", matrix_network)
    assert differing() > 0


@pytest.mark.slow
def test_the_audit_of_a_study_would_have_found_these() -> None:
    """The same attacks, found by ``cipherbayes audit STUDY`` without being told."""
    moments = with_moments()
    plain = gradient_study(cb.models.Logistic(outcome="y"), 12)
    for study in (moments, with_moments("private-scales"), plain):
        assert not audit_study(study, runs=64).refuted
    with without("theta bound", "one arithmetic for every place"):
        assert audit_study(plain, runs=64).refuted
    with without("limits of scales"), np.errstate(all="ignore"):
        found = audit_study(moments, runs=2000)
    assert found.refuted
    assert found.result.lower_bound > moments.privacy.epsilon  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_audit_of_messages_would_have_found_them_too() -> None:
    """With the real parties: scales that nobody signed, and one table at two sites."""
    assert not audit_protocol(with_moments("private-scales")).refuted
    study = with_moments()
    assert not audit_protocol(study).refuted
    with without("distinct tables"):
        (difference,) = audit_protocol(study).differences
    assert difference == "one table at two sites is taken for two"
    with without("signed scales", "limits of scales"), np.errstate(all="ignore"):
        found = audit_protocol(study)
    assert any("forged" in each for each in found.differences)
    assert found.result.lower_bound > study.privacy.epsilon  # type: ignore[union-attr]
