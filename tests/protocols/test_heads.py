"""What a party remembers of the others' ledgers, and when it refuses to go on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from parties import Consortium, small_study

from cipherbayes.crypto.identity.roster import Member
from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.errors import ProtocolError, RunError
from cipherbayes.protocols.messages import Enrolment, decode
from cipherbayes.protocols.stores import Heads

RUN, LATER, STUDY = b"r" * 16, b"l" * 16, bytes(32)
KEY = SigningKey.generate()


def member(records: int, run: bytes = RUN, ledger: bytes = b"n" * 16) -> Member:
    link = hashlib.sha256(ledger + bytes([records])).digest()
    return Member.enrol(
        KEY, run=run, study=STUDY, site="a", exchange=b"e" * 32,
        ledger=ledger, records=records, link=link,
    )  # fmt: skip


def met(heads: Heads, who: Member, run: bytes = RUN, answered: int = 0) -> bool:
    try:
        heads.check(run, [who], answered=answered, dropouts=False)
    except ProtocolError as error:
        return "site a" not in str(error) or not error.remedy
    return True


def test_a_ledger_may_go_on_and_never_back(tmp_path: Path) -> None:
    heads = Heads(tmp_path / "heads.sqlite")
    assert met(heads, member(4))
    assert met(heads, member(4))
    assert met(heads, member(9, LATER), LATER)
    heads.close()
    heads = Heads(tmp_path / "heads.sqlite")
    assert not met(heads, member(8, b"x" * 16), b"x" * 16)
    assert met(heads, member(9, b"x" * 16), b"x" * 16)


def test_as_many_records_must_be_the_same_records() -> None:
    heads = Heads()
    assert met(heads, member(4))
    assert not met(heads, replace(member(4), link=bytes(32)))


def test_within_a_run_every_answered_round_must_be_there() -> None:
    heads = Heads()
    assert met(heads, member(4))
    assert not met(heads, member(9), answered=3)
    assert met(heads, member(10), answered=3)


def test_a_ledger_is_not_exchanged_within_a_run() -> None:
    heads = Heads()
    assert met(heads, member(4))
    assert not met(heads, member(40, ledger=b"o" * 16))
    # In another run a site may study another table.
    assert met(heads, member(2, LATER, b"o" * 16), LATER)


def test_a_lost_site_is_met_as_it_was_where_the_study_allows_for_it() -> None:
    heads = Heads()
    assert met(heads, member(4))
    assert met(heads, member(9, LATER), LATER)
    assert not met(heads, member(4), answered=2)
    heads.check(RUN, [member(4)], answered=2, dropouts=True)
    with pytest.raises(ProtocolError):
        heads.check(RUN, [member(3)], answered=2, dropouts=True)


def test_an_enrolment_states_how_far_the_ledger_is_and_is_signed(
    tmp_path: Path,
) -> None:
    three = Consortium(tmp_path, small_study())
    before = decode(three.sites["a"].enrol(), Enrolment).member
    assert before.records == 0
    three.play(2)
    after = decode(three.sites["a"].enrol(), Enrolment).member
    assert (after.records, after.ledger) == (4, before.ledger)
    assert after.link == three.ledger("a").head.link
    own = {"run": after_run(three), "study": three.plan.study_hash}
    after.verify(**own, pinned=three.pinned["a"])
    for change in ({"records": 5}, {"link": bytes(32)}, {"ledger": bytes(16)}):
        with pytest.raises(ProtocolError, match="signature"):
            replace(after, **change).verify(**own, pinned=three.pinned["a"])


def after_run(consortium: Consortium) -> bytes:
    return decode(consortium.sites["a"].enrol(), Enrolment).run


def test_an_honest_run_is_convened_again_and_again(tmp_path: Path) -> None:
    three = Consortium(tmp_path, small_study())
    parties = [three.csp, *three.sites.values()]
    for number, party in enumerate(parties):
        party.heads = Heads(tmp_path / f"{number}.heads")  # type: ignore[attr-defined]
    for _ in range(4):
        three.convene()
        three.play()
    three.convene()


def test_memories_that_others_can_open_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "heads.sqlite"
    Heads(path).close()
    path.chmod(0o664)
    with pytest.raises(RunError, match="opened by other users") as refused:
        Heads(path)
    assert "chmod 600" in refused.value.remedy
