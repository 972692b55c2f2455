"""The server goes on without sites that are lost, as far as the study allows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import FOUR_SITES, RUN, Consortium, answers_of, four, small_study

from cipherbayes.errors import ProtocolError, RunError
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.protocols.messages import (
    DecryptReply,
    RoundRequest,
    RunManifest,
    decode,
)
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.protocols.transcripts import Transcript
from cipherbayes.validation.verify.replaying import replay

__all__ = ["four"]


def test_the_run_goes_on_without_a_lost_site_and_the_noise_is_counted(
    four: Consortium, caplog: pytest.LogCaptureFixture
) -> None:
    four.play(1)
    answers = answers_of(four)
    with caplog.at_level(logging.WARNING, logger="cipherbayes.server"):
        assert four.server.collect({**answers, "d": None}) is None
    assert "going on without d" in caplog.text
    names, request = four.server.request()
    assert names == ("a", "b", "c")
    assert decode(request, RoundRequest).round_id.attempt == 1
    sizes = []
    take = type(four.server._rounds).take

    def spy(self: Any, values: Any, sites: Any, lost: Any) -> None:
        sizes.append(sites)
        assert lost == ("d",)
        take(self, values, sites, lost)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(four.server._rounds), "take", spy)
        four.play(3)
    assert sizes == [3, 3, 3]
    # The sites that stayed answered round 1 twice with one entry.
    for name in ("a", "b", "c"):
        assert len(list(four.ledger(name).entries())) == 4


@pytest.mark.slow
def test_a_lost_sites_own_parameters_are_those_of_one_that_took_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = Effort(chains=4, warm_up=60, kept=120, doublings=0)
    monkeypatch.setattr(Effort, "for_dimension", lambda _: less)
    study = small_study(
        FOUR_SITES,
        privacy={"dropouts": 1, "epsilon": 20.0},
        hierarchy={},
        inference={"method": "noise-aware"},
    )
    four = Consortium(tmp_path, study)
    four.play(6)
    assert four.server.collect({**answers_of(four), "d": None}) is None
    four.play(2)
    four.server = four.make_server()  # who was lost since when is remembered
    four.convene()
    while not four.server.finished:
        four.play(1)
    draws = four.server._rounds.draws()
    assert draws is not None
    assert draws.sites is not None
    assert draws.sites.sites == FOUR_SITES
    assert "site-lost" in [flag.code for flag in draws.flags]
    effects = draws.sites.effects[..., 0].std(axis=(0, 1))
    assert effects[3] > effects[:3].max()
    # Whoever has the transcript finds the same.
    transcript = Transcript.from_bytes(four.server.transcript())
    sizes = [len(roster) for roster in transcript.rosters(four.plan)]
    again = replay(four.plan, transcript, sizes).draws
    assert again is not None
    assert again.sites is not None
    assert np.array_equal(again.sites.effects, draws.sites.effects)


def test_a_site_lost_before_it_enrols_is_lost_as_any_other(four: Consortium) -> None:
    def convene(names: str) -> bytes:
        four.checkpoint = Checkpoint()
        four.server = four.make_server()
        enrolments = [four.sites[name].enrol() for name in names]
        return four.server.convene(enrolments, four.offer)

    with pytest.raises(ProtocolError, match="not the study's"):
        convene("ab")
    manifest = convene("abc")
    assert four.server.present == ("a", "b", "c")
    four.csp.join(manifest)
    for name in "abc":
        four.sites[name].join(manifest, four.offer)
    four.play(2)
    four.server = four.make_server()  # without d from now on
    assert four.server.present == ("a", "b", "c")
    again = [four.sites[name].enrol() for name in "abc"]
    assert decode(four.server.convene(again, four.offer), RunManifest).roster.sites == (
        *"abc",
    )
    four.play(2)
    transcript = Transcript.from_bytes(four.server.transcript())
    transcript.check(four.plan, RUN, four.pinned)
    sizes = [len(roster) for roster in transcript.rosters(four.plan)]
    assert sizes == [3, 3, 3, 3]
    found = replay(four.plan, transcript, sizes).trajectory
    assert np.array_equal(found, four.checkpoint.trajectory())


def test_a_second_lost_site_is_one_too_many(four: Consortium) -> None:
    answers = answers_of(four)
    assert four.server.collect({**answers, "d": None}) is None
    answers = answers_of(four)
    with pytest.raises(RunError, match="needs 3 sites"):
        four.server.collect({**answers, "a": None})


def test_two_sites_lost_at_once_are_one_too_many(four: Consortium) -> None:
    answers = answers_of(four)
    with pytest.raises(RunError, match="no usable answer from a, b"):
        four.server.collect({**answers, "a": None, "b": None})
    assert four.server.roster().sites == FOUR_SITES


def test_a_restarted_server_remembers_whom_it_lost(four: Consortium) -> None:
    answers = answers_of(four)
    four.server.collect({**answers, "a": None})
    exchange = decode(four.server.request()[1], RoundRequest).round_id
    four.server = four.make_server()
    four.convene()
    assert four.server.roster().sites == ("b", "c", "d")
    again = decode(four.server.request()[1], RoundRequest).round_id
    assert again.attempt >= exchange.attempt == 1
    four.play(4)


def test_a_round_the_csp_answered_before_a_loss_is_taken_for_its_first_roster(
    tmp_path: Path,
) -> None:
    """z is lost; the CSP answers; the server dies; on its return a is lost too."""
    names = ("a", "b", "c", "d", "z")
    five = Consortium(tmp_path, small_study(names, privacy={"dropouts": 2}))
    assert five.server.collect({**answers_of(five), "z": None}) is None
    question = five.server.collect(answers_of(five))
    given = decode(five.csp.handle(question), DecryptReply)  # type: ignore[arg-type]
    five.server = five.make_server()
    five.convene()
    assert five.server.collect({**answers_of(five), "a": None}) is None
    question = five.server.collect(answers_of(five))
    answer = five.csp.handle(question)  # type: ignore[arg-type]
    assert np.array_equal(decode(answer, DecryptReply).values, given.values)
    sizes = []
    take = type(five.server._rounds).take

    def spy(self: Any, values: Any, sites: Any, lost: Any) -> None:
        sizes.append(sites)
        assert lost == ("z",)
        take(self, values, sites, lost)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(five.server._rounds), "take", spy)
        five.server.accept(answer)
    assert sizes == [4]
