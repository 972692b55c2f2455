"""What must be said about a noise-aware posterior before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from scipy.special import chdtri, ndtri

from cipherbayes.inference.chains import Draws
from cipherbayes.inference.diagnostics import rhat
from cipherbayes.inference.noise_aware.alike_columns import alike_by_sums
from cipherbayes.inference.noise_aware.evidence import HIDDEN, Evidence
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
"""Window rounds in which the trust region was active, from which on θ never settled."""
FAR = 4.0
"""Prior standard deviations beyond which a posterior mean is not to be believed."""
SURPRISE = 0.01
"""Of a normal prior: what it says happens in one study of a hundred is too far too."""
FAR_FROM_WINDOW = 2.0
"""Posterior standard deviations (root mean square over directions) from where the
sums were taken to the posterior mean, beyond which the sums say little about it."""
MOSTLY_PRIOR, MOSTLY_PRIOR_FLAG = 0.5, "mostly-prior"
LARGEST_RHAT = 1.2
"""With eight chains the mean of all draws is then off by √((R² − 1) / 8), a quarter of
a posterior standard deviation, and a 90 % interval holds 89 in 100."""
NOT_EXCLUDED, ALIKE_FLAG = 0.02, "columns-alike"
"""Chance of being alike from which on columns are named."""
DENIED = 0.5
"""Chance of being alike below which a posterior denies what the released sums say."""
SAYS, ALLOWS = 1.0, 2.0
"""Standard deviations of noise by which the least eigenvalue of the released
correlations may lie above a tenth for the sums to say, or to allow, that columns are
alike. With two, related columns (a correlation of 0.7) would often be flagged."""
THIN = 4.0
"""Standard deviations of its noise below which the information about a constant may
be none at all: half of it is then within what noise does in one study of twenty."""
RARE_LEVEL = 0.2
"""Released standard deviation of a 0/1 column: one record of 24 has the level."""


class FlagRecord(TypedDict):
    """A flag, or a caution, as ``result.json`` has it; ``code`` and ``message`` are
    older names."""

    name: str
    parameters: list[str]
    text: str
    unusable: bool
    code: str
    message: str


def flag_record(
    name: str, text: str, *, unusable: bool, parameters: Sequence[str] = ()
) -> FlagRecord:
    """A flag by its name, in words, and about which parameters."""
    return {
        "name": name,
        "parameters": list(parameters),
        "text": text,
        "unusable": unusable,
        "code": name,
        "message": text,
    }


@dataclass(frozen=True)
class Flag:
    """One warning.

    Attributes
    ----------
    code
        Stable, for programs.
    message
        In words.
    unusable
        Whether the intervals must not be used.
    parameters
        Which parameters it is about; all where empty.
    caution
        Whether it says that intervals are wide and nothing against them: a result
        records it among its cautions.
    """

    code: str
    message: str
    unusable: bool
    parameters: tuple[int, ...] = ()
    caution: bool = False

    def as_record(self, names: Sequence[str]) -> FlagRecord:
        """As a result records it, its parameters by name."""
        about = [names[index] for index in self.parameters]
        every = 1 < len(about) == len(names)
        shown = "all parameters" if every else ", ".join(about)
        message = f"{self.message}: {shown}" if about else self.message
        return flag_record(self.code, message, unusable=self.unusable, parameters=about)


@dataclass(frozen=True)
class CommonParameters:
    """What is judged where sites may differ, whose own priors are not independent.

    Attributes
    ----------
    theta, prior
        Draws and prior of the common parameters.
    loading
        Row j says to which of them the j-th of all parameters belongs.
    between
        Draws of how much sites differ.
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
) -> tuple[Flag, ...]:
    """The flags of a finished run, by the parameters of one site's model.

    ``alike`` is the chance of each column that it almost follows from the others.
    """
    flat = draws.theta.reshape(-1, draws.theta.shape[-1])
    if common is None:
        common = CommonParameters(draws.theta, recursion.prior, np.eye(flat.shape[1]))
    prior, places = common.prior, common.loading
    judged = common.theta.reshape(-1, common.theta.shape[-1])
    flags = []
    held = state.held_back[BURN_IN:].sum() >= HELD_BACK
    window = recursion.shape.outside(window_averages(state)[0])
    if held or _distance(flat, window) > FAR_FROM_WINDOW:
        flags.append(
            Flag(
                "not-converged",
                "do not use these intervals: the parameters were still moving in the "
                "last rounds (separable outcomes, or noise larger than the signal)",
                unusable=True,
            )
        )
    conflict = _conflict(evidence, normal=prior.kind == "normal")
    if conflict is not None:
        flags.append(
            Flag(
                "beyond-the-prior",
                "do not use these intervals: the releases by themselves put parameters "
                "where the prior says they are not (a prior too narrow, rare or "
                "separable outcomes)",
                unusable=True,
                parameters=_at_one_site(conflict, places),
            )
        )
    known = tuple(j for j, _ in evidence.layout.shares)
    share = judged.std(axis=0) / prior.scale
    if mostly := tuple(map(int, np.flatnonzero(share > MOSTLY_PRIOR))):
        flags.append(
            Flag(
                MOSTLY_PRIOR_FLAG,
                "wide, not wrong: intervals more than half as wide as the prior's; "
                "read them as the prior, not as a finding (raise ε, add records or "
                "drop columns)",
                unusable=False,
                parameters=mostly,
                caution=True,
            )
        )
    if thin := _thin_baseline(evidence, places):
        flags.append(
            Flag(
                "baseline-hidden",
                "wide, not wrong: noise hides how much the records say of the baseline "
                "there; read its intervals and those of predictions that reach so far, "
                "not the estimates (join intervals, shorten the horizon, add records "
                "or raise ε)",
                unusable=False,
                parameters=thin,
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
                "wide, not wrong: columns that vary too little to be told from noise, "
                "whose intervals rest on how much columns usually vary (drop them, "
                "join rare levels or raise ε)",
                unusable=False,
                parameters=hidden,
                caution=True,
            )
        )
    flags += _alike(evidence, alike, places)
    every = [draws.theta, common.theta]
    every += [] if common.between is None else [common.between]
    mixing = rhat(np.concatenate(every, axis=2))
    if np.isfinite(mixing).any() and np.nanmax(mixing) > LARGEST_RHAT:
        flags.append(
            Flag(
                "not-mixed",
                "do not use these intervals: the sampler's chains disagree (R-hat "
                f"{np.nanmax(mixing):.2f}; drop columns that say the same thing, or "
                "raise ε)",
                unusable=True,
            )
        )
    return tuple(flags)


def _at_one_site(parameters: Sequence[int], places: Floats) -> tuple[int, ...]:
    """Parameters by their place in one site's model."""
    return tuple(map(int, np.flatnonzero(places[list(parameters)].any(axis=0))))


def hidden_columns(
    evidence: Evidence, places: Floats, known: Sequence[int] = ()
) -> tuple[int, ...]:
    """Columns whose information, of all sites together, is not clear of its noise.

    By their place in one site's model. Where an effect differs between sites, small
    sites say little of it: that is in their intervals, and no reason to drop it.
    """
    told, copies = np.zeros((2, places.shape[1]))
    for j, own in evidence.own_information.items():
        if j not in known:
            told += own * (places[j] != 0.0)
            copies += places[j] != 0.0
    least = HIDDEN * evidence.information_sd * np.sqrt(copies)
    return tuple(map(int, np.flatnonzero((copies > 0.0) & (told < least))))


def _thin_baseline(evidence: Evidence, places: Floats) -> tuple[int, ...]:
    """Constants whose information, of all sites together, noise may have made."""
    constants = list(evidence.layout.constants)
    if not constants:
        return ()
    owns = (places[constants] != 0.0).astype(float)
    told = np.diag(evidence.information)[constants] @ owns
    noise = evidence.information_sd * np.sqrt(owns.sum(axis=0))
    return tuple(map(int, np.flatnonzero((noise > 0.0) & (told < THIN * noise))))


def _alike(
    evidence: Evidence, drawn: Floats | None, places: Floats
) -> tuple[Flag, ...]:
    """What to say of columns of which one may follow from the others.

    Where the posterior counts with it, intervals are wide. Where the released sums say
    so and a posterior under which most columns are unrelated denies it, they may be too
    narrow.
    """
    chance = np.zeros(evidence.dimension) if drawn is None else drawn
    seen = alike_by_sums(evidence, SAYS)
    denied = bool(seen) and chance[seen].max() < DENIED
    possible = alike_by_sums(evidence, ALLOWS)
    named = {*map(int, np.flatnonzero(chance > NOT_EXCLUDED)), *possible}
    named -= set(seen if denied else ())
    found = []
    if denied:
        found.append(
            Flag(
                ALIKE_FLAG,
                "intervals may be too narrow: by the released sums one of these "
                "columns almost follows from the others, which the posterior takes for "
                "noise; do not read their effects (drop one of them or raise ε)",
                unusable=False,
                parameters=_at_one_site(seen, places),
            )
        )
    if named:
        found.append(
            Flag(
                ALIKE_FLAG,
                "wide, not wrong: columns of which one almost follows from the others, "
                "or may as far as noise tells; they are known together better than one "
                "by one (drop one of them or raise ε)",
                unusable=False,
                parameters=_at_one_site(sorted(named), places),
                caution=True,
            )
        )
    return tuple(found)


def not_calibrated(reason: str, parameters: int) -> Flag:
    """Of a private run whose draws are no intervals, for a reason in words."""
    return Flag(
        "not-calibrated",
        f"points without intervals. {reason} Without an interval",
        unusable=True,
        parameters=tuple(range(parameters)),
    )


def prior_of_ranges(found: Sequence[Flag]) -> list[Flag]:
    """The flags of a study whose prior nobody stated and whose scales nobody released.

    The default prior is then of half a public range: where ranges are wider than the
    values it is far narrower than effects are, and what is mostly prior is wrong.
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
    """A flag for 0/1 columns that standardising has blown up.

    A level of few records lies many standard deviations out once it is divided by its
    own: such records are weighted down, and their scores are far from a line.
    """
    rare = tuple(
        j
        for j, name in enumerate(public.names)
        # A number's own name may end so too: dose [mg].
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
    """Root mean square, over directions, of (mean − place) in posterior sds."""
    away = draws.mean(axis=0) - place
    spread = np.atleast_2d(np.cov(draws, rowvar=False))
    spread = spread + 1e-12 * np.trace(spread) * np.eye(away.size)
    return float(np.sqrt(away @ np.linalg.solve(spread, away) / away.size))


def _conflict(evidence: Evidence, *, normal: bool) -> tuple[int, ...] | None:
    """Parameters where releases and prior disagree; None where they do not.

    The averaged score sum says θ̂ = θ̄ + H⁻¹ ḡ by itself, with variance
    H⁻¹ (V + s² I) H⁻¹. Before it is seen the prior expects θ̂ − μ₀ to be normal with
    covariance Λ⁻¹ plus that: its length is then χ² distributed (Box 1980). The
    posterior mean would be shrunk by the prior that is to be judged. Priors with
    heavier tails than a normal are judged parameter by parameter only.
    """
    h = evidence.estimate
    inverse = np.linalg.inv(h)
    expected = (
        evidence.prior_covariance + inverse @ evidence.score_covariance(h) @ inverse
    )
    away = evidence.place + inverse @ evidence.gradient - evidence.prior_mean
    each = np.abs(away) / np.sqrt(np.diag(expected))
    farthest = -ndtri(0.5 * SURPRISE / away.size) if normal else FAR
    length = float(away @ np.linalg.solve(expected, away))
    if not (each.max() > farthest or (normal and length > chdtri(away.size, SURPRISE))):
        return None
    return tuple(int(j) for j in np.flatnonzero(each > min(farthest, each.max())))
