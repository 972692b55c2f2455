from __future__ import annotations

from dataclasses import replace

import pytest

from cipherbayes.crypto.identity.roster import Member, Roster
from cipherbayes.crypto.identity.signatures import Identity, SigningKey
from cipherbayes.crypto.masks import ExchangeKey
from cipherbayes.errors import ProtocolError

RUN, STUDY = b"r" * 16, b"s" * 32
KEYS = {site: SigningKey.generate() for site in ("east", "north", "south")}
PINNED = {site: key.identity for site, key in KEYS.items()}


def member(site: str, key: SigningKey | None = None) -> Member:
    return Member.enrol(
        key or KEYS[site],
        run=RUN,
        study=STUDY,
        site=site,
        exchange=ExchangeKey.generate().public,
    )


ROSTER = Roster.of(member(site) for site in ("south", "east", "north"))


def refused(roster: Roster, pinned: dict[str, Identity] = PINNED) -> str:
    with pytest.raises(ProtocolError) as caught:
        roster.verify(run=RUN, study=STUDY, pinned=pinned)
    return str(caught.value)


def test_a_roster_is_in_the_order_of_the_names_and_verifies() -> None:
    assert ROSTER.sites == ("east", "north", "south")
    ROSTER.verify(run=RUN, study=STUDY, pinned=PINNED)


def test_an_exchange_key_that_the_server_chose_is_refused() -> None:
    swapped = replace(ROSTER["north"], exchange=ExchangeKey.generate().public)
    roster = Roster.of([ROSTER["east"], swapped, ROSTER["south"]])
    assert "signature" in refused(roster)


def test_an_identity_that_the_study_does_not_pin_is_refused() -> None:
    impostor = member("north", SigningKey.generate())
    roster = Roster.of([ROSTER["east"], impostor, ROSTER["south"]])
    assert "pins" in refused(roster)
    relabelled = replace(ROSTER["north"], identity=SigningKey.generate().identity.raw)
    assert "pins" in refused(Roster.of([ROSTER["east"], relabelled]))
    assert "no such site" in refused(ROSTER, {"east": PINNED["east"]})


def test_an_enrolment_of_another_run_or_study_is_refused() -> None:
    for run, study in ((b"x" * 16, STUDY), (RUN, b"x" * 32)):
        with pytest.raises(ProtocolError, match="signature"):
            ROSTER.verify(run=run, study=study, pinned=PINNED)


def test_what_was_found_right_once_covers_nothing_else() -> None:
    """Entries are verified once in a process; a wrong one is refused every time."""
    ROSTER.verify(run=RUN, study=STUDY, pinned=PINNED)
    first, *others = ROSTER.members
    altered = Roster.of([replace(first, signature=bytes(64)), *others])
    assert refused(altered) == refused(altered)
    assert "identity" in refused(ROSTER, {**PINNED, "east": PINNED["north"]})
    ROSTER.verify(run=RUN, study=STUDY, pinned=PINNED)


def test_the_digest_changes_with_any_name_or_key() -> None:
    smaller = ROSTER.restrict(["south", "east"])
    other_key = Roster.of([ROSTER["east"], member("north"), ROSTER["south"]])
    assert len({ROSTER.digest, smaller.digest, other_key.digest}) == 3
    assert ROSTER.restrict(ROSTER.sites).digest == ROSTER.digest


def test_a_roster_with_repetitions_cannot_be_made() -> None:
    north = ROSTER["north"]
    renamed = replace(north, site="west")
    for members in (
        (),
        (north, north),
        (north, renamed),
        (ROSTER["south"], ROSTER["east"]),
    ):
        with pytest.raises(ProtocolError):
            Roster(members)


def test_a_site_outside_the_roster_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not in the roster"):
        ROSTER.restrict(["north", "west"])
