"""Each site's parameters in slots of their own: the same sums, the same norms."""

from __future__ import annotations

import numpy as np
import pytest

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models import Design, Logistic
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.packing import pack, unpack
from cipherbayes.typing import Floats

SITES = ("east", "north", "south")


def slots(places: tuple[int, ...] = (0,), width: int = 4) -> SiteSlots:
    return SiteSlots(SITES, width, places)


@pytest.mark.parametrize("places", [(0,), (0, 2), (2,), (0, 1, 3)])
def test_an_arrow_has_the_entries_that_can_differ_from_zero(
    places: tuple[int, ...],
) -> None:
    k, q, c = len(SITES), len(places), 4 - len(places)
    layout = slots(places)
    assert layout.dimension == k * q + c
    expected = k * q * (q + 1) // 2 + k * q * c + c * (c + 1) // 2
    assert layout.packed_length == expected


@pytest.mark.parametrize("places", [(0,), (0, 2), (2,)])
def test_a_sites_sums_keep_their_norm_and_their_numbers(
    places: tuple[int, ...],
) -> None:
    rng, layout = np.random.default_rng(0), slots(places)
    score, root = rng.normal(size=4), rng.normal(size=(4, 4))
    packed = pack(root @ root.T)
    spread = layout.spread("north", score)
    wide = layout.spread_packed("north", packed)
    assert np.linalg.norm(spread) == np.linalg.norm(score)
    assert np.linalg.norm(wide) == pytest.approx(np.linalg.norm(packed), rel=1e-15)
    own = layout.of_site("north")
    assert np.array_equal(spread[own], score)
    assert layout.unpack(wide)[np.ix_(own, own)] == pytest.approx(unpack(packed))
    assert layout.unpack(wide).astype(bool).sum() == 16


def test_sums_over_sites_are_those_of_a_design_with_site_indicators() -> None:
    """The whole matrix, computed with K columns of zeros and ones, is the arrow."""
    rng, layout = np.random.default_rng(1), slots()
    narrow = Design(("intercept", "a", "b", "c"), np.zeros(4), np.ones(4), 1.0)
    wide = Design((*SITES, "a", "b", "c"), np.zeros(6), np.ones(6), None)
    model, bound = Logistic(outcome="y"), InfluenceBound(1.5)
    theta = rng.normal(size=layout.dimension)
    gradient, information = np.zeros(6), np.zeros(layout.packed_length)
    columns: list[Floats] = []
    outcomes: list[Floats] = []
    for k, site in enumerate(SITES):
        count = 20 + 10 * k
        x = np.vstack([np.ones(count), rng.normal(size=(3, count))])
        y = rng.integers(2, size=count).astype(float)
        table = PreparedTable.from_arrays(narrow, x, {"y": y})
        own = theta[layout.of_site(site)]
        sums = influence_sums(model, own, table, bound, with_information=True)
        assert sums.information is not None
        gradient += layout.spread(site, sums.gradient)
        information += layout.spread_packed(site, sums.information)
        indicators = np.zeros((3, count))
        indicators[k] = 1.0
        columns.append(np.vstack([indicators, x[1:]]))
        outcomes.append(y)
    whole = PreparedTable.from_arrays(
        wide, np.hstack(columns), {"y": np.concatenate(outcomes)}
    )
    expected = influence_sums(model, theta, whole, bound, with_information=True)
    assert expected.information is not None
    assert gradient == pytest.approx(expected.gradient, rel=1e-12)
    assert pack(layout.unpack(information)) == pytest.approx(
        expected.information, rel=1e-12, abs=1e-12
    )


def test_names_say_whose_parameter_it_is() -> None:
    names = slots((0, 2)).names(("intercept", "age", "sex", "bmi"))
    assert names[:3] == ("intercept[east]", "intercept[north]", "intercept[south]")
    assert names[3] == "sex[east]"
    assert names[6:] == ("age", "bmi")
