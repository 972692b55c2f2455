"""The server drives the run and holds no secret."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import RUN, Consortium, answers_of, changed, four, small_study, three

from cipherbayes.crypto.bfv.keys import KeyPair, PublicKey, SecretKey
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.crypto.masks import ExchangeKey, PairwiseMasks
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.errors import ProtocolError, RunError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.noise import InsecureRepeatableNoise, SecureNoise
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.csp import Csp
from cipherbayes.protocols.messages import (
    DecryptReply,
    Reason,
    Refusal,
    RoundRequest,
    SiteReply,
    decode,
    encode,
)
from cipherbayes.protocols.site import Site

__all__ = ["four", "three"]


# -- what the server is ------------------------------------------------------


def reachable(root: object) -> list[object]:
    """Every object that can be reached from one, code and modules left out."""
    code = types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type
    seen: dict[int, object] = {}
    queue = [root]
    while queue:
        each = queue.pop()
        if id(each) in seen or isinstance(each, code):
            continue
        seen[id(each)] = each
        queue += gc.get_referents(each)
    return list(seen.values())


SECRETS = (
    *(SecretKey, KeyPair, SigningKey, ExchangeKey, PairwiseMasks, PublicKey),
    *(SecureNoise, InsecureRepeatableNoise),
    *(Ledger, Contributions, PreparedTable, Site, Csp),
)


def test_the_server_holds_no_secret_key_no_noise_and_no_record(
    three: Consortium,
) -> None:
    three.play(3)
    held = reachable(three.server)
    assert len(held) > 100
    assert not [type(each) for each in held if isinstance(each, SECRETS)]


def test_the_search_for_secrets_finds_them_where_they_are(three: Consortium) -> None:
    """The control: the same walk over the parties that do hold them."""
    found = {type(each) for each in reachable(three.csp)}
    assert {SecretKey, SigningKey} <= found
    found = {type(each) for each in reachable(three.sites["a"])}
    assert {SigningKey, PairwiseMasks, InsecureRepeatableNoise, Ledger} <= found


def test_the_server_holds_no_secret_bytes(three: Consortium) -> None:
    """Not as an object of another type either."""
    three.play(2)
    secrets = [key.to_secret_bytes()[-32:] for key in three.keys.values()]
    secrets += [key.to_secret_bytes()[-32:] for key in three.exchanges.values()]
    held = [each for each in reachable(three.server) if isinstance(each, bytes)]
    assert held
    assert not [each for each in held for secret in secrets if secret in each]


@pytest.mark.slow
def test_the_servers_imports_cannot_decrypt_draw_noise_or_sum_records() -> None:
    script = (
        "import sys, cipherbayes.protocols.server\nprint('\\n'.join(sys.modules))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert "cipherbayes.protocols.server" in loaded
    forbidden = {
        *("tenseal", "tenseal.sealapi", "opendp", "cipherbayes.crypto.seal"),
        *("cipherbayes.crypto.bfv.scheme", "cipherbayes.crypto.bfv.keys"),
        "cipherbayes.crypto.masks",
        *("cipherbayes.crypto.key_folder", "cipherbayes.privacy.noise"),
        *("cipherbayes.privacy.ledger", "cipherbayes.protocols.contributions"),
        *("cipherbayes.protocols.site", "cipherbayes.protocols.csp"),
    }
    assert not loaded & forbidden


# -- convening ---------------------------------------------------------------


def test_a_site_of_another_study_cannot_enrol(
    three: Consortium, tmp_path: Path
) -> None:
    other = Consortium(tmp_path / "other", small_study(inference={"rounds": 5}))
    enrolments = [three.sites[name].enrol() for name in ("a", "b")]
    with pytest.raises(ProtocolError, match="another run or study"):
        three.make_server().convene(
            [*enrolments, other.sites["c"].enrol()], three.offer
        )


def test_a_site_enrolled_by_somebody_else_is_refused(three: Consortium) -> None:
    posing = three.site("c", key=SigningKey.generate())
    enrolments = [three.sites["a"].enrol(), three.sites["b"].enrol(), posing.enrol()]
    with pytest.raises(ProtocolError, match="pins"):
        three.make_server().convene(enrolments, three.offer)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "b")])
def test_all_sites_of_the_study_must_enrol(three: Consortium, names: Any) -> None:
    enrolments = [three.sites[name].enrol() for name in names]
    with pytest.raises(ProtocolError):
        three.make_server().convene(enrolments, three.offer)


def test_a_key_that_the_csp_did_not_offer_is_refused(three: Consortium) -> None:
    three.pinned["csp"] = SigningKey.generate().identity
    enrolments = [site.enrol() for site in three.sites.values()]
    with pytest.raises(ProtocolError, match="signature"):
        three.make_server().convene(enrolments, three.offer)


# -- rounds ------------------------------------------------------------------


def test_a_run_goes_through_all_rounds_and_theta_moves(three: Consortium) -> None:
    three.play(4)
    assert three.server.finished
    assert three.server.stopped is None
    trajectory = three.checkpoint.trajectory()
    assert len(trajectory) == 4
    assert len({theta.tobytes() for theta in trajectory}) == 4


def test_a_restarted_server_goes_on_where_it_stopped(
    three: Consortium, tmp_path: Path
) -> None:
    three.play(2)
    before = three.server.request()
    three.server = three.make_server()
    three.convene()
    assert three.server.rounds_done == 2
    assert three.server.request() == before
    three.play(2)
    undisturbed = Consortium(tmp_path / "undisturbed", small_study())
    undisturbed.play(4)
    for one, other in zip(
        three.checkpoint.trajectory(), undisturbed.checkpoint.trajectory(), strict=True
    ):
        assert np.array_equal(one, other)


def forged(consortium: Consortium, answers: dict[str, bytes | None]) -> dict[str, Any]:
    """Replies that are not the site's answer to this exchange."""
    reply, other = answers["b"], answers["a"]
    assert reply is not None
    assert other is not None
    b, a = decode(reply, SiteReply), decode(other, SiteReply)
    consortium_key = SigningKey.generate()
    old = b.round_id.__class__(**{**vars_of(b.round_id), "attempt": 7})
    return {
        "another's key": encode(
            SiteReply.signed(
                consortium_key,
                round_id=b.round_id,
                site="b",
                ciphertext=b.ciphertext,
            )
        ),
        "another's reply": other,
        "another's reply renamed": encode(changed(a, site="b")),
        "another exchange": encode(
            SiteReply.signed(
                consortium.keys["b"],
                round_id=old,
                site="b",
                ciphertext=b.ciphertext,
            )
        ),
        "another ciphertext": encode(changed(b, ciphertext=a.ciphertext)),
        "damaged": reply[:-1] + bytes([reply[-1] ^ 1]),
        "no message": b"hello",
        "another kind of message": consortium.manifest,
        "nothing": None,
    }


def vars_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


FORGERIES = (
    "another's key",
    "another's reply",
    "another's reply renamed",
    "another exchange",
    "another ciphertext",
    "damaged",
    "no message",
    "another kind of message",
    "nothing",
)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_reply_ends_a_run_that_allows_no_dropout(
    three: Consortium, kind: str, early: Any
) -> None:
    answers = answers_of(three)
    given = {**answers, "b": forged(three, answers)[kind]}
    if early:
        for site, data in given.items():
            three.server.verify(site, data)
    with pytest.raises(RunError, match="no usable answer from b in round 0"):
        three.server.collect(given)
    # Nothing was lost: the honest answers still do.
    assert three.server.collect(answers) is not None


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_reply_costs_its_site_the_place_where_dropouts_are_allowed(
    four: Consortium, kind: str
) -> None:
    answers = answers_of(four)
    assert four.server.collect({**answers, "b": forged(four, answers)[kind]}) is None
    assert four.server.roster().sites == ("a", "c", "d")
    four.play(4)
    assert four.server.finished


def test_what_was_verified_early_is_not_taken_for_another_answer(
    three: Consortium,
) -> None:
    answers = answers_of(three)
    for site, data in answers.items():
        three.server.verify(site, data)
    with pytest.raises(RunError, match="no usable answer from b in round 0"):
        three.server.collect({**answers, "b": forged(three, answers)["damaged"]})


# -- budgets -----------------------------------------------------------------


def test_the_run_stops_cleanly_when_a_sites_budget_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three = Consortium(tmp_path, small_study(), budgets={"b": 1.5})
    three.play(1)
    assert three.server.collect(answers_of(three)) is None
    assert three.server.finished
    assert three.server.rounds_done == 1
    assert "site b" in three.server.stopped  # type: ignore[operator]
    assert "budget" in three.server.stopped  # type: ignore[operator]
    assert str(tmp_path) not in three.server.stopped  # type: ignore[operator]


def test_a_forged_refusal_stops_a_run_but_costs_nothing(three: Consortium) -> None:
    """Refusals are not signed: whoever cuts the line can also end the run."""
    answers = answers_of(three)
    forged = encode(Refusal("b", Reason.BUDGET, "budget"))
    assert three.server.collect({**answers, "b": forged}) is None
    assert three.server.stopped is not None
    assert three.answers.rounds() == 0


# -- the CSP's answer ---------------------------------------------------------


def test_an_answer_the_csp_did_not_sign_is_refused(three: Consortium) -> None:
    question = three.server.collect(answers_of(three))
    honest = decode(three.csp.handle(question), DecryptReply)  # type: ignore[arg-type]
    key = SigningKey.generate()
    for values, signature in (
        (honest.values + 1, honest.signature),
        (
            honest.values,
            DecryptReply.signed(
                key, round_id=honest.round_id, values=honest.values
            ).signature,
        ),
    ):
        forged = DecryptReply(honest.round_id, values, signature)
        with pytest.raises(ProtocolError, match="signature"):
            three.server.accept(encode(forged))
    assert three.server.rounds_done == 0
    three.server.accept(encode(honest))
    assert three.server.rounds_done == 1


def test_an_answer_to_another_round_is_refused(three: Consortium) -> None:
    first = three.csp.handle(three.server.collect(answers_of(three)))  # type: ignore[arg-type]
    three.server.accept(first)
    three.server.collect(answers_of(three))
    with pytest.raises(ProtocolError, match="another round"):
        three.server.accept(first)
    assert three.server.rounds_done == 1


@pytest.mark.parametrize(
    ("changes", "values", "match"),
    [
        ({"roster": bytes(32)}, 3, "another roster"),
        ({"run": bytes(16)}, 3, "another round"),
        ({"study": bytes(32)}, 3, "another round"),
        ({}, 2, "another length"),
        ({}, 4, "another length"),
    ],
)
def test_an_answer_that_does_not_fit_the_question_is_refused(
    three: Consortium, changes: Any, values: Any, match: str
) -> None:
    wrong = DecryptReply.signed(
        three.keys["csp"],
        round_id=three.round_id(**changes),
        values=np.zeros(values, dtype=np.int64),
    )
    with pytest.raises(ProtocolError, match=match):
        three.server.accept(encode(wrong))
    assert three.server.rounds_done == 0


def test_a_refusal_of_the_csp_ends_the_run_with_its_reason(three: Consortium) -> None:
    no = encode(Refusal("csp", Reason.RANGE, "the total is outside the range"))
    with pytest.raises(RunError, match="outside the range"):
        three.server.accept(no)


def test_no_message_of_the_server_names_more_than_the_protocol_needs(
    three: Consortium,
) -> None:
    """The request: exchange, sites, θ. No path, no key, no run-time detail."""
    _, request = three.server.request()
    message = decode(request, RoundRequest)
    assert message.sites == ("a", "b", "c")
    assert message.round_id.run == RUN
    assert len(request) < 512
