"""Warnings about a noise-aware posterior, found from its releases and its draws.

A flag that makes a posterior unusable says that its intervals may be wrong; a caution
says that they are wide because of the noise or the data, and right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cipherbayes.inference.chains import Draws
from cipherbayes.inference.diagnostics import rhat
from cipherbayes.inference.flags import Flag, Leeway
from cipherbayes.inference.noise_aware.alike_columns import alike_by_sums
from cipherbayes.inference.noise_aware.drawn_flags import (
    MOSTLY_PRIOR_FLAG,
    DrawnNumbers,
    at_one_site,
)
from cipherbayes.inference.noise_aware.evidence import HIDDEN, Evidence
from cipherbayes.inference.noise_aware.prior_conflict import (
    HARMFUL,
    PriorConflict,
    prior_conflict,
)
from cipherbayes.inference.noise_aware.recursion import (
    NoiseAware,
    NoiseAwareState,
    window_averages,
)
from cipherbayes.inference.noise_aware.schedule import BURN_IN
from cipherbayes.models.design import Design
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats

HELD_BACK = 3
"""Rounds of the window whose step the trust region shortened, from which on θ is taken
not to have settled."""
SAYS = 1.0
"""Standard deviations of noise by which the least eigenvalue of the released
correlations may lie above a tenth for the sums to say that columns follow from each
other. With two, columns with a correlation of 0.7 would often be flagged."""
ALLOWS = 2.0
"""Standard deviations within which the sums allow it, which is a caution."""
THIN = 4.0
"""Information about a constant, in standard deviations of its noise, below which there
may be hardly any: noise makes half of that in one study of twenty."""
ENOUGH_OUTCOMES = 8.0
"""Outcomes of a site with an equal share, in standard deviations of the noise of their
sum, from which on the sites' levels are told from noise: a rule of thumb."""
LEAST_OUTCOMES, MOST_HIDDEN = 2.0, 0.5
"""Outcomes of a site, by its released number of records, over that noise, below which
it tells nothing of its own; and the share of such sites that is too large for the
others to tell how sites differ."""
RARE_LEVEL = 0.2
"""Released standard deviation of a 0/1 column below which its level is rare: fewer than
one record in 24 has it."""


@dataclass(frozen=True)
class CommonParameters:
    """The parameters that are compared with their prior.

    Where sites may differ these are the common ones, because the priors of the sites'
    own parameters are not independent.

    Attributes
    ----------
    theta, prior
        Draws and prior of the common parameters.
    loading
        Row j is not zero for the common parameter that the j-th of all parameters
        belongs to.
    between
        Draws of τ, by how much sites differ.
    """

    theta: Floats
    prior: ResolvedPrior
    loading: Floats
    between: Floats | None = None


def flags_of(
    recursion: NoiseAware,
    state: NoiseAwareState,
    evidence: Evidence,
    draws: Draws,
    alike: Floats | None = None,
    common: CommonParameters | None = None,
) -> tuple[tuple[Flag, ...], tuple[Leeway, ...]]:
    """All flags of a finished run, with parameters by their number in one site's model.

    And how those that depend on the draws may read for other draws.

    ``alike`` is the posterior probability of each column that it almost follows from
    the others.
    """
    flat = draws.theta.reshape(-1, draws.theta.shape[-1])
    if common is None:
        common = CommonParameters(draws.theta, recursion.prior, np.eye(flat.shape[1]))
    prior, places = common.prior, common.loading
    judged = common.theta.reshape(-1, common.theta.shape[-1])
    window = recursion.shape.outside(window_averages(state)[0])
    every = [draws.theta, common.theta]
    every += [] if common.between is None else [common.between]
    mixing = rhat(np.concatenate(every, axis=2))
    drawn = DrawnNumbers(
        held=bool(state.held_back[BURN_IN:].sum() >= HELD_BACK),
        distance=_distance(flat, window),
        share=judged.std(axis=0) / prior.scale,
        seen=tuple(alike_by_sums(evidence, SAYS)),
        possible=tuple(alike_by_sums(evidence, ALLOWS)),
        chance=np.zeros(evidence.dimension) if alike is None else alike,
        largest_rhat=float(np.nanmax(mixing)) if np.isfinite(mixing).any() else np.nan,
        places=places,
    )
    flags = drawn.not_converged()
    conflict = prior_conflict(evidence, normal=prior.kind == "normal")
    if conflict is not None:
        flags.append(_beyond_the_prior(conflict, places))
    flags += drawn.mostly_prior()
    flags += _of_releases(recursion, evidence, places)
    flags += drawn.alike()
    flags += drawn.not_mixed()
    return tuple(flags), drawn.leeways()


def _of_releases(
    recursion: NoiseAware, evidence: Evidence, places: Floats
) -> list[Flag]:
    """Cautions that follow from what was released, whatever was drawn."""
    known = tuple(j for j, _ in evidence.layout.shares)
    flags = []
    if thin := _thin_baseline(evidence, places):
        flags.append(
            Flag(
                "baseline-hidden",
                "noise hides how much the records say of the baseline there: the "
                "estimate may be off by a factor, more often too low than too high; "
                "do not rely on predictions that reach so far (join intervals and "
                "shorten the horizon where there are several, add records or raise ε)",
                unusable=False,
                parameters=thin,
                caution=True,
            )
        )
    if levels := _hidden_levels(recursion, evidence, places):
        flags.append(
            Flag(
                "sites-hidden",
                "sites have few outcomes for this noise: how much they differ may be "
                "told too high, and their levels and the common one too low or too "
                "high, with intervals that hold less often than they say (put sites "
                "together under hierarchy.groups, take fewer cuts, or raise ε)",
                unusable=False,
                parameters=levels,
                caution=True,
            )
        )
    if np.diag(evidence.information).mean() < evidence.information_sd:
        flags.append(
            Flag(
                "correlation-not-learnt",
                "wide, not wrong: the correlation of the columns was not learnt (raise "
                "ε or drop columns)",
                unusable=False,
                caution=True,
            )
        )
    elif hidden := hidden_columns(evidence, places, known):
        flags.append(
            Flag(
                "column-hidden",
                "wide: columns that vary too little to be told from noise, "
                "whose intervals rest on how much columns usually vary (drop them, "
                "join rare levels or raise ε)",
                unusable=False,
                parameters=hidden,
                caution=True,
            )
        )
    return flags


def _beyond_the_prior(conflict: PriorConflict, places: Floats) -> Flag:
    """The flag of a conflict with the prior, or a caution where it does little harm."""
    parameters = at_one_site(tuple(conflict.parameters), places)
    if conflict.pull > HARMFUL:
        return Flag(
            "beyond-the-prior",
            "do not use these intervals: the releases by themselves put parameters "
            "where the prior says they are not, and the prior pulls them back by more "
            "than their standard deviation (state a wider scale in [prior], or look "
            "for rare or separable outcomes)",
            unusable=True,
            parameters=parameters,
        )
    return Flag(
        "beyond-the-prior",
        "farther out than the prior expects, by the releases themselves; the prior "
        f"pulls no estimate back by more than {max(conflict.pull, 0.01):.2f} of its "
        "standard deviation (where such values are to be expected, state a wider scale "
        "in [prior])",
        unusable=False,
        parameters=parameters,
        caution=True,
    )


def hidden_columns(
    evidence: Evidence, places: Floats, known: Sequence[int] = ()
) -> tuple[int, ...]:
    """Columns whose information, summed over the sites, is not clear of its noise.

    By their number in one site's model; ``known`` columns are left out. The sum counts
    because small sites always say little about an effect of their own: their intervals
    show it, and it is no reason to drop the column.
    """
    information, copies = np.zeros((2, places.shape[1]))
    for j, own in evidence.own_information.items():
        if j not in known:
            information += own * (places[j] != 0.0)
            copies += places[j] != 0.0
    least = HIDDEN * evidence.information_sd * np.sqrt(copies)
    return tuple(map(int, np.flatnonzero((copies > 0.0) & (information < least))))


def _thin_baseline(evidence: Evidence, places: Floats) -> tuple[int, ...]:
    """Constants whose information, summed over the sites, may be nothing but noise."""
    constants = list(evidence.layout.constants)
    if not constants:
        return ()
    owns = (places[constants] != 0.0).astype(float)
    information = np.diag(evidence.information)[constants] @ owns
    noise = evidence.information_sd * np.sqrt(owns.sum(axis=0))
    thin = (noise > 0.0) & (information < THIN * noise)
    return tuple(map(int, np.flatnonzero(thin)))


def _hidden_levels(
    recursion: NoiseAware, evidence: Evidence, places: Floats
) -> tuple[int, ...]:
    """The constants, where noise hides the outcomes of a site with an equal share, or
    those of more than half of the sites.

    A site's level is told by its outcomes less those expected, in all intervals of a
    baseline together; its information about the level is about their number.
    """
    shape, sites = recursion.shape, evidence.layout.sites
    constants = list(evidence.layout.constants)
    if sites is None or sites.masses is None:
        return ()
    value = 1.0
    if shape.level_values is not None:
        value = float(shape.level_values[0])
    elif shape.unit is not None:
        value = 1.0 / float(shape.unit[constants[0]])
    count = np.unique(sites.constants).size
    outcomes = np.diag(evidence.information)[constants].sum() / value**2
    noise = np.sqrt(evidence.variance * sites.kinds) / value
    few = outcomes < ENOUGH_OUTCOMES * noise * count
    if (known := shape.site_records) is not None:
        # Where one site has most of the records, the others may tell nothing.
        each = outcomes * known.counts / max(float(known.counts.sum()), 1.0)
        few |= (each < LEAST_OUTCOMES * noise).sum() > MOST_HIDDEN * count
    return at_one_site(tuple(constants), places) if few else ()


def not_calibrated(reason: str, parameters: int) -> Flag:
    """The flag of a private run whose draws give no intervals, with the reason."""
    return Flag(
        "not-calibrated",
        f"points without intervals. {reason} Without an interval",
        unusable=True,
        parameters=tuple(range(parameters)),
    )


def prior_of_ranges(found: Sequence[Flag]) -> list[Flag]:
    """These flags for a study with the default prior and without released scales.

    The default prior is then on the scale of half a public range. Where ranges are much
    wider than the values, it is far narrower than real effects are, so a parameter that
    is mostly its prior is wrong, not just wide.
    """
    return [
        replace(
            flag,
            message="do not use these intervals: noise leaves the prior in charge, and "
            "without released scales that is N(0, 1) for half of a public range, "
            "however wide the range (raise ε, add records, or state [prior] scale). "
            "Mostly prior",
            unusable=True,
            caution=False,
        )
        if flag.code == MOSTLY_PRIOR_FLAG
        else flag
        for flag in found
    ]


def rare_levels(public: Design, standardised: Design) -> tuple[Flag, ...]:
    """A flag for 0/1 columns of rare levels, if there are any.

    Divided by its small standard deviation, a rare level lies many standard deviations
    from the mean: its records are weighted down, and their scores are far from linear
    in θ.
    """
    rare = tuple(
        j
        for j, name in enumerate(public.names)
        # The name of a numeric column may end so too: dose [mg].
        if name.endswith("]")
        and (public.centre[j], public.half_width[j]) == (0.0, 1.0)
        and standardised.half_width[j] < RARE_LEVEL
    )
    if not rare:
        return ()
    return (
        Flag(
            "level-rare",
            "levels that few records have; do not read their effects (leave them out, "
            "or join levels)",
            unusable=False,
            parameters=rare,
        ),
    )


def _distance(draws: Floats, place: Floats) -> float:
    """Distance of the draws' mean from ``place``, in posterior sds, over √d."""
    away = draws.mean(axis=0) - place
    spread = np.atleast_2d(np.cov(draws, rowvar=False))
    spread = spread + 1e-12 * np.trace(spread) * np.eye(away.size)
    return float(np.sqrt(away @ np.linalg.solve(spread, away) / away.size))
