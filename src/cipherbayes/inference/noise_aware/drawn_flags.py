"""Warnings that depend on what a sampler drew, and how sure each of them is.

Another sampling of the same posterior, as another kind of machine gives, is off by
Monte Carlo errors. A number near its limit may be on the other side of it there; one
that is far from it may not. :meth:`DrawnNumbers.leeways` says which is which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.inference.flags import MOSTLY_PRIOR, Flag, Leeway
from cipherbayes.typing import Bools, Floats

FAR_FROM_WINDOW = 2.0
"""Distance between the posterior mean and the θ at which the window's sums were taken,
in posterior standard deviations (root mean square over directions), beyond which the
sums say little about the posterior."""
MOSTLY_PRIOR_FLAG = "mostly-prior"
"""Code of the flag for such parameters."""
LARGEST_RHAT = 1.2
"""Largest R-hat of usable draws. With eight chains the mean of all draws is then off by
√((R² − 1) / 8), a quarter of a posterior standard deviation, and a 90 % interval covers
in 89 of 100 cases."""
NOT_MIXED = "not-mixed"
"""Code of the flag of larger ones."""
NOT_EXCLUDED = 0.02
"""Posterior probability of following from the others that gets a column named."""
ALIKE_FLAG = "columns-alike"
"""Code of the flags for such columns."""
DENIED = 0.5
"""Posterior probability of following from the others below which the posterior
contradicts released sums that say that columns do."""

NEAR = 1.25
"""Factor within which a distance, or an interval's width, is near its limit."""
NEAR_RHAT = 1.5
"""The same of what R-hat is above one: from 1.13 to 1.3."""
NEAR_CHANCE = 5.0
"""The same of a small probability, the share of draws that is counted."""
NEAR_DENIED = 0.2
"""What a probability near one half may be off by."""


@dataclass(frozen=True)
class DrawnNumbers:
    """What these warnings are judged by.

    Attributes
    ----------
    held
        Whether rounds were held back, which no draw decides.
    distance
        From the draws' mean to where the sums were taken.
    share
        Posterior over prior standard deviation of each common parameter.
    seen, possible
        Columns that follow from each other by the released sums, and that may.
    chance
        Posterior probability of each column that it follows from the others.
    largest_rhat
        The largest R-hat; not a number where there is none.
    places
        Row j is not zero for the common parameter that the j-th belongs to.
    """

    held: bool
    distance: float
    share: Floats
    seen: tuple[int, ...]
    possible: tuple[int, ...]
    chance: Floats
    largest_rhat: float
    places: Floats

    def not_converged(self) -> list[Flag]:
        """Parameters that were still moving."""
        raised = self.held or self.distance > FAR_FROM_WINDOW
        return [_not_converged()] if raised else []

    def mostly_prior(self) -> list[Flag]:
        """Intervals that are nearly the prior's."""
        found = self._wide(MOSTLY_PRIOR)
        return [_mostly_prior(found)] if found else []

    def alike(self) -> list[Flag]:
        """Columns of which one may almost follow from the others.

        Where the posterior allows for it, intervals are wide and right. Where the
        released sums say so and the posterior, whose prior expects most columns to be
        unrelated, contradicts them, intervals may be too narrow.
        """
        denied = self._denied(DENIED)
        found = [_denied(self._at_one_site(self.seen))] if denied else []
        if named := self._named(NOT_EXCLUDED, denied=denied):
            found.append(_alike(named))
        return found

    def not_mixed(self) -> list[Flag]:
        """Chains that disagree."""
        raised = self.largest_rhat > LARGEST_RHAT
        return [not_mixed(self.largest_rhat)] if raised else []

    def leeways(self) -> tuple[Leeway, ...]:
        """How each of these may read for other draws of the same posterior."""
        found = []
        if self.held or self.distance > FAR_FROM_WINDOW / NEAR:
            sure = self.held or self.distance > FAR_FROM_WINDOW * NEAR
            found.append(Leeway(_not_converged(), needed=sure))
        if wide := self._wide(MOSTLY_PRIOR / NEAR):
            always = self._wide(MOSTLY_PRIOR * NEAR)
            found.append(Leeway(_mostly_prior(wide), always, needed=bool(always)))
        found += self._alike_leeways()
        largest = self.largest_rhat
        if largest - 1.0 > (LARGEST_RHAT - 1.0) / NEAR_RHAT:
            sure = largest - 1.0 > (LARGEST_RHAT - 1.0) * NEAR_RHAT
            found.append(Leeway(not_mixed(largest), needed=sure, told=True))
        return tuple(found)

    def _alike_leeways(self) -> list[Leeway]:
        likely = self._denied(DENIED - NEAR_DENIED)
        possible = self._denied(DENIED + NEAR_DENIED)
        found = []
        if possible:
            seen = self._at_one_site(self.seen)
            found.append(Leeway(_denied(seen), seen, needed=likely))
        named = self._named(NOT_EXCLUDED / NEAR_CHANCE, denied=likely)
        if named:
            always = self._named(NOT_EXCLUDED * NEAR_CHANCE, denied=possible)
            found.append(Leeway(_alike(named), always, needed=bool(always)))
        return found

    def _wide(self, limit: float) -> tuple[int, ...]:
        return _numbers(np.asarray(self.share > limit))

    def _denied(self, limit: float) -> bool:
        return bool(self.seen) and bool(self.chance[list(self.seen)].max() < limit)

    def _named(self, limit: float, *, denied: bool) -> tuple[int, ...]:
        named = {*_numbers(np.asarray(self.chance > limit)), *self.possible}
        named -= set(self.seen if denied else ())
        return self._at_one_site(tuple(sorted(named)))

    def _at_one_site(self, parameters: tuple[int, ...]) -> tuple[int, ...]:
        return at_one_site(parameters, self.places)


def at_one_site(parameters: tuple[int, ...], places: Floats) -> tuple[int, ...]:
    """The numbers in one site's model of these parameters of all sites."""
    return _numbers(np.asarray(places[list(parameters)].any(axis=0)))


def _numbers(found: Bools) -> tuple[int, ...]:
    return tuple(map(int, np.flatnonzero(found)))


def _not_converged() -> Flag:
    return Flag(
        "not-converged",
        "do not use these intervals: the parameters were still moving in the "
        "last rounds (separable outcomes, or noise larger than the signal)",
        unusable=True,
    )


def _mostly_prior(parameters: tuple[int, ...]) -> Flag:
    return Flag(
        MOSTLY_PRIOR_FLAG,
        "wide: intervals more than half as wide as the prior's; read them as "
        "the prior, not as a finding, and expect larger effects than it does "
        "to lie outside (raise ε, add records, drop columns or state [prior])",
        unusable=False,
        parameters=parameters,
        caution=True,
    )


def _denied(parameters: tuple[int, ...]) -> Flag:
    return Flag(
        ALIKE_FLAG,
        "intervals may be too narrow: by the released sums one of these "
        "columns almost follows from the others, which the posterior takes for "
        "noise; do not read their effects (drop one of them or raise ε)",
        unusable=False,
        parameters=parameters,
    )


def _alike(parameters: tuple[int, ...]) -> Flag:
    return Flag(
        ALIKE_FLAG,
        "wide, not wrong: columns of which one almost follows from the others, "
        "or may as far as noise tells; they are known together better than one "
        "by one (drop one of them or raise ε)",
        unusable=False,
        parameters=parameters,
        caution=True,
    )


def not_mixed(largest: float) -> Flag:
    """The flag of chains that disagree, with the largest R-hat."""
    return Flag(
        NOT_MIXED,
        "do not use these intervals: the sampler's chains disagree (R-hat "
        f"{largest:.2f}; drop columns that say the same thing, or "
        "raise ε)",
        unusable=True,
    )
