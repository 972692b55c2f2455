from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from cipherbayes.crypto.identity.roster import Member, Roster
from cipherbayes.crypto.masks import (
    LEAST_PEERS,
    ExchangeKey,
    PairwiseMasks,
    peers_of,
)
from cipherbayes.errors import CryptoError, ProtocolError
from cipherbayes.typing import Integers
from enrolled_sites import QUESTION, RUN, STUDY, EnrolledSites, round_id


def enrolled(count: int) -> EnrolledSites:
    return EnrolledSites(f"site-{k:02d}" for k in range(count))


SIXTY_FOUR = enrolled(64)
THREE = enrolled(3)


@settings(max_examples=30, deadline=None)
@given(
    sites=st.sets(st.sampled_from(sorted(SIXTY_FOUR.keys)), min_size=1),
    round=st.integers(0, 2**32 - 1),
    attempt=st.integers(0, 2**32 - 1),
    dimension=st.integers(1, 300),
)
def test_masks_cancel_over_every_roster(
    sites: set[str], round: int, attempt: int, dimension: int
) -> None:
    roster = SIXTY_FOUR.roster.restrict(sites)
    at = round_id(roster, round, attempt)
    masks = [SIXTY_FOUR.masks[s].total(at, roster, QUESTION, dimension) for s in sites]
    assert not np.add.reduce(masks).any()


# -- whom a site shares masks with -----------------------------------------


@pytest.mark.parametrize("count", [2, 3, 20, 21, 22, 23, 64])
@pytest.mark.parametrize("colluders", [0, 1, 19, 20, 21, 40])
def test_peers_are_peers_of_each_other_and_more_than_the_colluders(
    count: int, colluders: int
) -> None:
    roster = SIXTY_FOUR.roster.restrict(SIXTY_FOUR.roster.sites[:count])
    peers = {site: peers_of(site, roster, colluders) for site in roster.sites}
    for site, shared in peers.items():
        assert site not in shared
        assert len(set(shared)) == len(shared)
        assert all(site in peers[other] for other in shared)
        assert len(shared) >= min(count - 1, max(LEAST_PEERS, colluders + 1))
        assert len(shared) <= max(LEAST_PEERS, colluders + 1) + 1


def in_one_piece(peers: dict[str, tuple[str, ...]], without: set[str]) -> bool:
    """Whether the other sites are connected by masks."""
    left = set(peers) - without
    reached: set[str] = set()
    ahead = {next(iter(sorted(left)))}
    while ahead:
        reached |= ahead
        ahead = {other for site in ahead for other in peers[site]} & left - reached
    return reached == left


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(23, 64),
    colluders=st.integers(0, 30),
    seed=st.integers(0, 2**32 - 1),
    chosen=st.sampled_from(["at random", "peers of one", "two gaps"]),
)
def test_colluders_never_part_the_honest_sites(
    count: int, colluders: int, seed: int, chosen: str
) -> None:
    """However they are chosen: as many as the study names, and one less than peers."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(SIXTY_FOUR.roster.sites)[:count]
    roster = SIXTY_FOUR.roster.restrict(sorted(names))
    peers = {site: peers_of(site, roster, colluders) for site in roster.sites}
    most = min(len(peers[names[0]]) - 1, count - 2)
    assert most >= min(max(colluders, LEAST_PEERS - 1), count - 2)
    if chosen == "at random":
        gone = set(rng.choice(names, most, replace=False))
    elif chosen == "peers of one":
        gone = set(peers[names[0]][:most])
    else:
        left, right = (peers[str(name)] for name in names[:2])
        half = len(left) // 2
        gone = {*left[:half], *right[half:]}
        gone = set(sorted(gone)[:most])
    assert in_one_piece(peers, gone)


def test_one_more_than_that_can_part_them() -> None:
    """The figure is sharp: all peers of a site leave it alone."""
    roster = SIXTY_FOUR.roster
    peers = {site: peers_of(site, roster, 1) for site in roster.sites}
    assert not in_one_piece(peers, set(peers["site-00"]))


def _thousand() -> Roster:
    """A roster of a thousand sites, which cannot speak."""
    one = SIXTY_FOUR.roster.members[0]
    keys = (k.to_bytes(32) for k in range(1000))
    return Roster.of(
        replace(one, site=f"site-{k:04d}", identity=key, exchange=key)
        for k, key in enumerate(keys)
    )


def test_a_site_of_a_thousand_has_as_many_peers_as_one_of_sixty_four() -> None:
    roster = _thousand()
    names = roster.sites
    peers = {site: peers_of(site, roster, 1) for site in names}
    assert {len(shared) for shared in peers.values()} == {LEAST_PEERS}
    # Neighbours in the order of names are no neighbours in the circle.
    close = [names.index(other) - 500 for other in peers["site-0500"]]
    assert max(map(abs, close)) > 100
    assert in_one_piece(peers, set(names[:19]))


def test_a_study_that_names_more_colluders_has_more_peers_at_a_site() -> None:
    """A hundred in the worst places part nobody; all of a site's peers would."""
    roster = _thousand()
    peers = {site: peers_of(site, roster, 100) for site in roster.sites}
    assert {len(shared) for shared in peers.values()} == {102}
    around = peers["site-0500"]
    assert in_one_piece(peers, set(around[:100]))
    assert in_one_piece(peers, set(around[1:]))
    assert not in_one_piece(peers, set(around))


def test_masks_cancel_in_ten_thousand_dimensions() -> None:
    roster = THREE.roster
    at = round_id(roster)
    masks = [each.total(at, roster, QUESTION, 10_000) for each in THREE.masks.values()]
    assert not np.add.reduce(masks).any()
    assert all(np.count_nonzero(mask) == 10_000 for mask in masks)


def test_masks_do_not_cancel_over_a_part_of_the_roster() -> None:
    roster = THREE.roster
    masks = [
        each.total(round_id(roster), roster, QUESTION, 50)
        for each in THREE.masks.values()
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.count_nonzero(masks[one] + masks[other]) == 50


def test_a_roster_of_one_has_no_mask() -> None:
    roster = THREE.roster.restrict(["site-01"])
    mask = THREE.masks["site-01"].total(round_id(roster), roster, QUESTION, 7)
    assert mask.tolist() == [0] * 7


def test_every_exchange_has_a_mask_of_its_own() -> None:
    full, pair = THREE.roster, THREE.roster.restrict(["site-00", "site-01"])
    at = round_id(full)
    mine = THREE.masks["site-00"]
    found = [
        mine.total(at, full, QUESTION, 20),
        mine.total(replace(at, round=1), full, QUESTION, 20),
        mine.total(replace(at, attempt=1), full, QUESTION, 20),
        mine.total(at, full, b"x" * 32, 20),
        mine.total(replace(at, round=1, attempt=1), full, QUESTION, 20),
        mine.total(replace(at, purpose="moments"), full, QUESTION, 20),
        mine.total(round_id(pair), pair, QUESTION, 20),
    ]
    for run, study in ((b"x" * 16, STUDY), (RUN, b"x" * 32)):
        key = THREE.keys["site-00"]
        other = PairwiseMasks("site-00", key, full, run=run, study=study, colluders=1)
        found.append(other.total(replace(at, run=run, study=study), full, QUESTION, 20))
    # No word may appear twice, at the same place or shifted.
    assert len(np.unique(np.concatenate(found))) == 20 * len(found)


def test_a_repeated_exchange_has_the_same_mask() -> None:
    roster, mine = THREE.roster, THREE.masks["site-02"]
    first = mine.total(round_id(roster, 5), roster, QUESTION, 30)
    mine.total(round_id(roster, 6), roster, QUESTION, 300)
    assert (mine.total(round_id(roster, 5), roster, QUESTION, 30) == first).all()
    again = THREE.masks_of("site-02")
    assert (again.total(round_id(roster, 5), roster, QUESTION, 30) == first).all()


def test_many_rosters_do_not_pile_up_in_memory() -> None:
    mine = SIXTY_FOUR.masks_of("site-00")
    for k in range(1, 40):
        roster = SIXTY_FOUR.roster.restrict(["site-00", f"site-{k:02d}"])
        mine.total(round_id(roster), roster, QUESTION, 3)
    assert len(mine._pairs) <= 8


def chi_square_p(values: Integers, bins: int = 256) -> float:
    counts = np.bincount(values, minlength=bins)
    return float(chisquare(counts).pvalue)


@pytest.mark.parametrize("shift", [0, 8, 24, 40, 56])
def test_one_masked_vector_looks_uniform(shift: int) -> None:
    secret = np.full(100_000, 123_456, dtype=np.int64)
    roster = THREE.roster
    sent = secret + THREE.masks["site-01"].total(
        round_id(roster), roster, QUESTION, len(secret)
    )
    byte = (sent.view(np.uint64) >> np.uint64(shift)) & np.uint64(255)
    # Keys are fresh in every session: five bytes, one failure in 10^7 sessions.
    assert chi_square_p(byte.astype(np.int64)) > 1e-8


def test_the_mask_is_the_same_on_every_machine() -> None:
    keys = [
        ExchangeKey(X25519PrivateKey.from_private_bytes(bytes([k]) * 32))
        for k in (1, 2)
    ]
    members = [
        Member(name, name.encode() * 32, key.public, bytes(64))
        for name, key in zip("ab", keys, strict=True)
    ]
    roster = Roster.of(members)
    at = round_id(roster, 7, 1)
    masks = [
        PairwiseMasks(name, key, roster, run=RUN, study=STUDY, colluders=1).total(
            at, roster, QUESTION, 2
        )
        for name, key in zip("ab", keys, strict=True)
    ]
    assert masks[0].tolist() == [-2814117416101105605, 2346536616175304109]
    assert (masks[0] + masks[1]).tolist() == [0, 0]


def test_masks_of_another_run_study_or_roster_are_refused() -> None:
    roster, mine = THREE.roster, THREE.masks["site-00"]
    at = round_id(roster)
    stranger = enrolled(2).roster
    pair = roster.restrict(["site-00", "site-01"])
    for wrong, members in (
        (replace(at, run=b"x" * 16), roster),
        (replace(at, study=b"x" * 32), roster),
        (at, pair),
        (round_id(stranger), stranger),
        (round_id(others := roster.restrict(["site-01", "site-02"])), others),
    ):
        with pytest.raises(ProtocolError):
            mine.total(wrong, members, QUESTION, 3)
    with pytest.raises(CryptoError):
        mine.total(at, roster, QUESTION, 0)


def test_a_site_whose_key_was_replaced_in_the_roster_notices() -> None:
    with pytest.raises(ProtocolError, match="another exchange key"):
        PairwiseMasks(
            "site-00",
            ExchangeKey.generate(),
            THREE.roster,
            run=RUN,
            study=STUDY,
            colluders=1,
        )


def test_a_degenerate_exchange_key_is_refused() -> None:
    for point in (bytes(32), b"\x01" + bytes(31)):
        with pytest.raises(CryptoError, match="degenerate"):
            ExchangeKey.generate().shared_with(point)


def test_an_exchange_key_is_never_shown_or_pickled() -> None:
    key = ExchangeKey.generate()
    secret = key.to_secret_bytes()[-32:]
    assert secret.hex() not in repr(key)
    assert repr(THREE.masks["site-00"]) == "PairwiseMasks(site site-00, 2 peers)"
    for thing in (key, THREE.masks["site-00"]):
        with pytest.raises(CryptoError):
            pickle.dumps(thing)
    again = ExchangeKey.from_secret_bytes(key.to_secret_bytes())
    assert again.public == key.public
