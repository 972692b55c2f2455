"""A CSP that looks into single messages, alone or with the server, or that lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exposed import centred, exact, without
from parties import Consortium, small_study, three

from cipherbayes.errors import ProtocolError
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.messages import DecryptReply, SiteReply, decode, encode
from cipherbayes.protocols.phase import Phase
from cipherbayes.study.tables import open_site
from conftest import logistic_frame

__all__ = ["three"]

TRIALS = 60


def all_dead_or_alive(consortium: Consortium, outcome: int) -> Contributions:
    """Two tables that any look at the gradient tells apart."""
    frame = logistic_frame(200, seed=1).assign(death=outcome)
    return Contributions(
        consortium.study.model, open_site(consortium.study, "a", frame)
    )


def guesses_right(tmp_path: Path, rest: tuple[str, ...]) -> float:
    """How often the CSP, with the server, tells which of two tables site a has.

    It decrypts a's message with its key and adds those of ``rest``, which the server
    hands over. The intercept's gradient has the sign of the outcome.
    """
    study = small_study(inference={"rounds": TRIALS})
    consortium = Consortium(tmp_path, study)
    bits = consortium.pair.public.parameters.word_bits
    tables = [all_dead_or_alive(consortium, outcome) for outcome in (0, 1)]
    rng = np.random.default_rng(3)
    right = []
    for number in range(TRIALS):
        outcome = int(rng.integers(2))
        site = consortium.sites["a"]
        site._contributions = tables[outcome]
        request = consortium.request(round=number)
        seen = consortium.opened(decode(site.handle(request), SiteReply))
        for name in rest:
            other = decode(consortium.sites[name].handle(request), SiteReply)
            seen = seen + consortium.opened(other)
        guess = int(centred(seen, bits)[0] > 0)
        right.append(guess == outcome)
    return float(np.mean(right))


@pytest.mark.slow
@pytest.mark.parametrize("rest", [(), ("b",)], ids=["one message", "two of three"])
def test_the_csp_learns_nothing_from_messages_short_of_the_roster(
    tmp_path: Path, rest: Any
) -> None:
    with without("masks"):
        assert guesses_right(tmp_path / "bare", rest) > 0.95
    # A fair coin is right in 38 or more of 60 with probability 0.026, in 45 or more
    # with 0.0001; masked words are fair coins.
    assert 0.25 < guesses_right(tmp_path / "masked", rest) < 0.75


def test_the_sum_of_all_messages_is_the_total_and_no_more(three: Consortium) -> None:
    """What masks do not hide is what the CSP is there to tell."""
    question = three.question()
    bits = three.pair.public.parameters.word_bits
    total = centred(sum(three.opened(reply) for reply in question.replies), bits)
    answer = decode(three.csp.handle(encode(question)), DecryptReply)
    assert np.array_equal(total, answer.values)


def lie(consortium: Consortium, values: Any) -> bytes:
    """An answer that the CSP signs although nothing decrypts to it."""
    names, request = consortium.server.request()
    answers = {name: consortium.sites[name].handle(request) for name in names}
    assert consortium.server.collect(answers) is not None
    return encode(
        DecryptReply.signed(
            consortium.keys["csp"], round_id=consortium.round_id(), values=values
        )
    )


@pytest.mark.parametrize("value", [lambda bound: bound + 1, lambda _: -(2**63)])
def test_an_answer_out_of_range_moves_nothing(three: Consortium, value: Any) -> None:
    """A lie within the range cannot be told from a total; one outside it can."""
    answer = lie(three, np.array([0, value(three.plan.last_phase.sums.bound), 0]))
    with pytest.raises(ProtocolError, match="range"):
        three.server.accept(answer)
    assert three.server.rounds_done == 0
    with without("range"):
        three.server.accept(answer)
    assert three.server.rounds_done == 1


def test_a_second_decryption_of_a_round_adds_nothing(tmp_path: Path) -> None:
    """Sites repeat their vectors, so even a CSP that decrypts again sees the same."""
    three = Consortium(tmp_path, small_study())
    request = three.server.request()[1]
    first = decode(three.csp.handle(encode(three.question(request))), DecryptReply)
    with without("one answer"):
        for name in three.names:
            three.restart(name)
        again = decode(three.csp.handle(encode(three.question(request))), DecryptReply)
    assert np.array_equal(first.values, again.values)


def test_server_and_csp_that_invent_a_dropout_see_one_share(tmp_path: Path) -> None:
    """The limit that the certificate states: it needs both, and dropouts allowed."""
    four = Consortium(
        tmp_path, small_study(("a", "b", "c", "d"), privacy={"dropouts": 1})
    )
    whole = four.question()
    part = four.question(four.request(("a", "b", "c"), attempt=1))
    bits = four.pair.public.parameters.word_bits
    sums = [sum(four.opened(r) for r in each.replies) for each in (whole, part)]
    alone = centred(sums[0] - sums[1], bits)
    left = alone - exact(four, "d", np.zeros(3))
    noise = four.plan.last_phase.sums.share_scale
    assert (np.abs(left) < 6 * noise).all()
    assert left.any()
    # With dropouts = 0 no site answers for a smaller roster.
    strict = Consortium(tmp_path / "strict", small_study(("a", "b", "c", "d")))
    smaller = strict.request(("a", "b", "c"), attempt=1)
    with pytest.raises(ProtocolError):
        strict.replies(smaller)


def test_the_range_that_is_checked_is_the_studys(three: Consortium) -> None:
    phase: Phase = three.plan.last_phase
    bound = phase.sums.bound
    assert phase.in_range(np.array([bound, -bound, 0]))
    for outside in (bound + 1, -bound - 1, 2**63 - 1, -(2**63)):
        assert not phase.in_range(np.array([outside, 0, 0]))
