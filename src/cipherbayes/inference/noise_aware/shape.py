"""Public facts about a model's score sums: what the posterior needs to know of a model.

:class:`ScoreShape` says in which units sums are released, which columns are constant,
and whether the score saturates or grows with the exponential of the linear predictor.
From these and a noised information sum it derives the layout of the information matrix
(:meth:`ScoreShape.layout`) and how much the weighted scores vary
(:meth:`ScoreShape.variation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import erfcx, expit

from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.noise_aware.down_weighting import RowLengths, variation
from cipherbayes.inference.noise_aware.layout import (
    ExpectedMasses,
    InformationLayout,
    SiteLayout,
)
from cipherbayes.inference.noise_aware.shrinkage import fitted_frame
from cipherbayes.inference.site_context import FittedInformation
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.influence import (
    InfluenceBound,
    Straightening,
    require_bounded_influence,
)
from cipherbayes.typing import Floats, Integers

OWN_CURVATURE = 0.4
"""Prior sd of the log of a site's information over its share of the records, where the
site's level is not known yet."""
AT_LEVEL = 0.2
"""Prior sd of that log once the site's level is taken into account, which changes the
information of a record."""
UNKNOWN_SIZE = 2.0
"""Prior sd of that log where it is not known how many records the site has."""
LEAST_EVENTS, MOST_EVENTS = 1e-3, 0.95
"""Range within which the estimated number of events per record is kept before sites are
compared by it: noise may put it outside of 0 to 1."""
LEAST_TOTAL = 0.1
"""Smallest information of all sites about one kind of constant (such as one interval of
a baseline), in standard deviations of its noise."""
LARGEST_LEVEL = 6.0
"""Largest distance of a site's level from zero, on the logit scale: one event in 400
records."""
SKEWED_VARIANCE = 1.2
"""Variance of the column of a Weibull shape parameter, once its frame has removed what
depends on the linear predictor, per unit of cumulative hazard. Weighted by its
cumulative hazard, the column of one record is a constant minus a unit exponential
variable, whose variance is one; that records reach different cumulative hazards before
censoring adds to it."""


def saturating_bend(fall: Floats) -> Floats:
    """β = b v of :mod:`~.saturation`, from the fall of the curvature.

    ``fall`` = (1 + b v)^(−½) is the mean curvature at θ̄ over that at θ = 0.
    """
    return np.asarray(np.minimum(fall, 1.0) ** -2.0 - 1.0)


def _no_bend(fall: Floats) -> Floats:
    """β = 0, of a score that does not saturate."""
    return np.zeros_like(fall)


@dataclass(frozen=True)
class ScoreShape:
    """Public facts about a model's scores, in internal units.

    Attributes
    ----------
    basis
        B of θ = B · (internal θ), as the model's
        :class:`~cipherbayes.models.influence.BoundedInfluence` states it.
    bend
        β as a function of the curvature's fall; zero where the score does not saturate.
    constants
        Parameters whose columns are constant, or exclude each other.
    unit
        The direction of θ along which the linear predictor of every record grows by
        one; None where the score does not grow with the exponential of the linear
        predictor.
    straightening, frame
        As the model's bounded influence states them, in internal units.
    width
        How many of the parameters are coefficients of columns; all where None.
    skew
        As the model's bounded influence states it, in internal units.
    slots, site_records
        Where sites may differ: where the parameters of each stand, and how many
        records it has.
    scale
        The scale by which residuals are divided, as a function of an internal θ; it
        returns None where no scale is learnt.
    lengths
        How records are weighted by the length of their row; None where that is not
        known.
    once
        Whether a record has one event at most and leaves the risk set after it.
    level_values
        What a unit of each constant adds to a site's linear predictor, where each has
        its own and the score saturates.
    interval_lengths
        As the model's bounded influence states them.
    """

    basis: Floats
    bend: Callable[[Floats], Floats] = _no_bend
    constants: tuple[int, ...] = ()
    unit: Floats | None = None
    straightening: Straightening | None = None
    frame: Callable[[Floats], Floats | None] = lambda theta: None
    width: int | None = None
    skew: Floats | None = None
    scale: Callable[[Floats], float | None] = lambda theta: None
    slots: SiteSlots | None = None
    site_records: SiteRecords | None = None
    lengths: RowLengths | None = None
    once: bool = False
    level_values: Floats | None = None
    interval_lengths: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        model: Model,
        design: Design,
        slots: SiteSlots | None = None,
        site_records: SiteRecords | None = None,
        bound: InfluenceBound | None = None,
    ) -> ScoreShape:
        """The shape of a model's scores on a design's columns.

        ``slots`` where sites may differ. ``bound`` is the bound on a record's influence
        with which sums were released; only the posterior needs it.
        """
        if slots is not None:
            found = cls._of_sites(model, design, slots, site_records)
            return found._weighted(model, design, bound)
        bounded = require_bounded_influence(model)
        basis = bounded.basis(design)
        inverse = np.linalg.inv(basis)
        constants = bounded.constants(design)
        unit = form = None
        if bounded.multiplicative and constants:
            value = 1.0 if design.intercept is None else design.intercept
            ones = np.zeros(len(basis))
            ones[list(constants)] = 1.0 / value
            unit = inverse @ ones
            form = bounded.straightening(design)

        def frame(theta: Floats) -> Floats | None:
            found = bounded.frame(basis @ theta, design)
            return None if found is None else basis.T @ found @ inverse.T

        skew = bounded.skew(design)
        found = cls(
            basis,
            saturating_bend if bounded.saturates else _no_bend,
            constants,
            unit,
            None if form is None else form.inside(basis),
            frame,
            design.width,
            None if skew is None else basis.T @ skew,
            lambda theta: bounded.scale(basis @ theta),
        )
        return found._weighted(model, design, bound)

    def _weighted(
        self, model: Model, design: Design, bound: InfluenceBound | None
    ) -> ScoreShape:
        """This shape with how records are weighted under a bound on their influence."""
        if bound is None:
            return self
        bounded = require_bounded_influence(model)
        if (weighting := bounded.weighting(bound)) is None:
            return self
        value = 1.0 if design.intercept is None else design.intercept
        width = len(self.basis) if self.width is None else self.width
        lengths = RowLengths(
            weighting.square,
            weighting.beside + (design.intercept or 0.0) ** 2,
            value,
            design.width - (design.intercept is not None),
            tuple(j for j in range(width) if j not in self.constants),
            width,
            partial(bounded.variance_shares, bound),
        )
        return replace(self, lengths=lengths)

    def variation(
        self, theta: Floats, information: Floats, information_sd: float
    ) -> Floats:
        """Diagonal of K in V = K H K, the variance of the score sum at θ."""
        if self.lengths is None:
            return np.ones(len(information))
        return variation(
            self.lengths,
            information,
            information_sd,
            self.constants,
            self._linear_predictor(theta, information),
        )

    def _linear_predictor(
        self, theta: Floats, information: Floats
    ) -> tuple[float, float]:
        """Mean and variance of the linear predictor over the records; zero if unused.

        H weights records by their information. That grows with the exponential of the
        predictor where it is small and not at all where it is large, so half of the
        shift of the mean that full weighting would cause, the variance, is taken off.
        """
        if self.unit is None:
            return 0.0, 0.0
        pushed, mass = information @ self.unit, self.unit @ information @ self.unit
        theta = self.predictor(theta)
        mean = float(pushed @ theta / mass)
        variance = max(float(theta @ information @ theta / mass) - mean**2, 0.0)
        return mean - 0.5 * variance, variance

    @classmethod
    def _of_sites(
        cls,
        model: Model,
        design: Design,
        slots: SiteSlots,
        site_records: SiteRecords | None,
    ) -> ScoreShape:
        """The shape where sites may differ, with slots for each site's own parameters.

        Indicators of the sites take the place of the constant column: in each record
        one of them is not zero, as one interval of a baseline hazard is.
        """
        bounded = require_bounded_influence(model)
        assert bounded.multilevel
        units = slots.expanded(np.diag(bounded.basis(design)))
        places = [slots.copies(place) for place in bounded.constants(design)]
        constants = tuple(int(j) for copies in places for j in copies)
        unit = values = None
        value = 1.0 if design.intercept is None else design.intercept
        if bounded.multiplicative and constants:
            unit = np.zeros(slots.dimension)
            unit[list(constants)] = 1.0 / (value * units[list(constants)])
        if bounded.saturates and constants and max(constants) < slots.slots:
            values = value * units[list(constants)]
        extra = sum(place >= design.width for place in slots.shared)
        return cls(
            np.diag(units),
            saturating_bend if bounded.saturates else _no_bend,
            constants,
            unit,
            width=slots.dimension - extra,
            slots=slots,
            site_records=site_records,
            once=model.predicts_over_time,
            level_values=values,
            interval_lengths=bounded.interval_lengths,
        )

    def measured_at(self, theta: Floats) -> ScoreShape:
        """This shape in units of the residual scale at an internal θ.

        Models that learn a scale have neither frame, skew nor straightening.
        """
        scale = self.scale(theta)
        if scale is None:
            return self
        basis = self.basis.copy()
        basis[: self.width] *= scale
        return replace(self, basis=basis, scale=lambda theta: None)

    def outside(self, internal: Floats) -> Floats:
        """θ on the prepared scale of one internal θ, or of a stack of them."""
        return np.asarray(internal @ self.basis.T)

    def inside(self, theta: Floats) -> Floats:
        """Internal θ of one θ on the prepared scale, or of a stack of them."""
        return np.asarray(np.linalg.solve(self.basis, theta.T).T)

    def prior_covariance(self, variances: Floats) -> Floats:
        """Λ⁻¹ in internal units of independent priors with these variances.

        For a stack of variances, a stack of matrices.
        """
        root = np.linalg.inv(self.basis)
        return np.asarray((root * variances[..., None, :]) @ root.T)

    def prior_precision(self, variances: Floats) -> Floats:
        """Λ, the inverse of :meth:`prior_covariance`."""
        return np.asarray((self.basis.T / variances[..., None, :]) @ self.basis)

    def covariance_inside(self, covariance: Floats) -> Floats:
        """A covariance of θ, or a stack of them, in internal units."""
        root = np.linalg.inv(self.basis)
        return np.asarray(root @ covariance @ root.T)

    def information_outside(self, information: Floats) -> Floats:
        """An H in internal units, or a stack of them, in those of θ."""
        root = np.linalg.inv(self.basis)
        return np.asarray(root.T @ information @ root)

    def layout(
        self, theta: Floats, noisy: Floats, noise_sd: float, *, by_level: bool = False
    ) -> InformationLayout:
        """What is known about H at θ, with a frame fitted to the noised H.

        With ``by_level`` the sites' levels at θ say how much information a record of
        each site has. The rounds do without, because their θ still moves.
        """
        if self.slots is not None:
            return InformationLayout(
                self.constants,
                None,
                self.predictor(theta),
                sites=self._site_layout(
                    self.slots, noisy, noise_sd, theta if by_level else None
                ),
            )
        frame = self.frame(theta)
        if frame is None:
            return InformationLayout(self.constants, None, self.predictor(theta))
        frame = fitted_frame(frame, noisy, noise_sd, self.constants)
        shares: tuple[tuple[int, float], ...] = ()
        if self.skew is not None and self.unit is not None:
            per_mass = SKEWED_VARIANCE * self.unit[self.constants[0]] ** 2
            sizes = per_mass * (np.diag(frame) * self.skew) ** 2
            shares = tuple((int(j), float(sizes[j])) for j in np.flatnonzero(sizes))
        return InformationLayout(self.constants, frame, self.predictor(theta), shares)

    def _site_layout(
        self, slots: SiteSlots, noisy: Floats, noise_sd: float, theta: Floats | None
    ) -> SiteLayout:
        """The sites' layout: a site's mass is expected to be its share of the records.

        What is shared out is the total of each kind of constant that is to be expected
        given its noised one: what is seen of it may be negative.
        """
        count, place = len(slots.sites), np.arange(slots.dimension)
        owner = np.where(place < slots.slots, place % count, -1)
        constants = np.array(self.constants, dtype=np.int64)
        share, spread = np.full(count, 1.0 / count), np.full(count, UNKNOWN_SIZE)
        counts = None
        if (known := self.site_records) is not None:
            counts = np.maximum(known.counts, 0.5 * known.noise_sd)
            share = counts / counts.sum()
            doubt = OWN_CURVATURE if theta is None else AT_LEVEL
            spread = np.hypot(doubt, known.noise_sd / counts)
        own = owner[constants]
        if own.min(initial=0) < 0:  # a constant that all sites share
            return SiteLayout(own, _others(owner, constants), None)
        # Constants of one kind, the same of every site, stand next to each other.
        totals = np.diag(noisy)[constants].reshape(-1, count).sum(axis=1)
        totals = _known_to_be_positive(totals, noise_sd * np.sqrt(count))
        parts = share[own].reshape(-1, count)
        if theta is not None:
            parts = parts * self._curvatures(theta, parts, totals, counts)
            parts = parts / parts.sum(axis=1, keepdims=True)
        expected = ExpectedMasses(
            (totals[:, None] * parts).ravel(),
            spread[own],
            np.zeros(0) if theta is None else self._interval_steps(theta, count),
        )
        return SiteLayout(own, _others(owner, constants), expected)

    def _interval_steps(self, theta: Floats, sites: int) -> Floats:
        """Growth of log mass from interval to interval at θ if nobody dropped out.

        The mass of an interval is the hazard there times the time at risk.
        """
        if len(self.interval_lengths) < 2 or self.unit is None:
            return np.zeros(0)
        constants = list(self.constants)
        levels = (theta[constants] / self.unit[constants]).reshape(-1, sites)
        return np.diff(levels.mean(axis=1) + np.log(self.interval_lengths))

    def _curvatures(
        self, theta: Floats, shares: Floats, totals: Floats, counts: Floats | None
    ) -> Floats:
        """A record's information about each constant at θ, up to a common factor.

        For a binary outcome it is the variance p (1 − p). For counts it is the expected
        number of events, which grows as exp(level); where a record has one event at
        most, as 1 − exp(−exp(level + c)), with c such that all sites together have as
        many events as was released. In later intervals of a baseline those count who
        had none before: fewer where the level is high.
        """
        constants = list(self.constants)
        levels = theta[constants]
        if self.level_values is not None:
            chance = expit(self.level_values * levels)
            return np.asarray(chance * (1.0 - chance)).reshape(shares.shape)
        if self.unit is None:
            return np.ones_like(shares)
        levels = (levels / self.unit[constants]).reshape(shares.shape)
        if not self.once or counts is None:
            return np.asarray(np.exp(levels))
        units = self.unit[constants].reshape(shares.shape)[:, 0] ** 2
        events = np.clip(totals * units / counts.sum(), LEAST_EVENTS, MOST_EVENTS)
        found, left = np.empty_like(shares), np.ones(shares.shape[1])
        for j, (level, share) in enumerate(zip(levels, shares, strict=True)):
            most = MOST_EVENTS * float(share @ left)
            chance = _at_most_one(level, share * left, min(float(events[j]), most))
            found[j], left = left * chance, left * (1.0 - chance)
        return found

    def fitted(
        self, theta: Floats, information: Floats, spread: float
    ) -> FittedInformation:
        """An H taken at an internal θ, in the units of θ, where sites may differ.

        ``spread`` is how much the sites' levels are likely to differ.
        """
        return FittedInformation(
            self.information_outside(information),
            self.outside(theta),
            self._leaning(theta, information),
            spread,
        )

    def _leaning(self, theta: Floats, information: Floats) -> Floats:
        """Derivative of the log of a record's information by η, at every site.

        For a binary outcome it is that of p (1 − p). For counts it is one; where a
        record has one event at most, that of the chance q of one.
        """
        assert self.slots is not None
        constants, count = list(self.constants), len(self.slots.sites)
        if not constants or max(constants) >= self.slots.slots:
            return np.zeros(count)
        masses = np.diag(information)[constants]
        if self.level_values is not None:
            levels = information[constants] @ theta / masses
            levels = np.clip(self.level_values * levels, -LARGEST_LEVEL, LARGEST_LEVEL)
            return np.asarray(1.0 - 2.0 * expit(levels))
        if self.unit is None or not self.once or self.site_records is None:
            return np.ones(count)
        known = self.site_records
        records = np.maximum(known.counts, 0.5 * known.noise_sd)
        events = masses * self.unit[constants] ** 2
        share = events.reshape(-1, count).sum(axis=0) / np.maximum(records, 1.0)
        share = np.clip(share, LEAST_EVENTS, MOST_EVENTS)
        return np.asarray(-(1.0 - share) * np.log1p(-share) / share)

    def predictor(self, theta: Floats) -> Floats:
        """θ with zero for all that is not a coefficient of a column."""
        return np.asarray(
            np.where(np.arange(theta.size) < (self.width or theta.size), theta, 0.0)
        )


def _known_to_be_positive(seen: Floats, noise_sd: float) -> Floats:
    """The expected value of something positive that is seen with normal noise."""
    # n φ(z) / Φ(z), z = seen / n, added to what is seen; erfcx keeps it from underflow.
    z = np.asarray(seen / (np.sqrt(2.0) * noise_sd))
    more = np.sqrt(2.0 / np.pi) * noise_sd / erfcx(-z)
    return np.asarray(np.maximum(seen + more, LEAST_TOTAL * noise_sd))


def _at_most_one(levels: Floats, shares: Floats, events: float) -> Floats:
    """1 − exp(−exp(level + c)) of each site, c such that their sum is ``events``."""
    from scipy.optimize import brentq  # takes half a second to load

    def chances(c: float) -> Floats:
        return np.asarray(-np.expm1(-np.exp(levels + c)))

    most = float(np.abs(levels).max()) + 20.0
    return chances(brentq(lambda c: shares @ chances(c) - events, -most, most))


def _others(owner: Integers, constants: Integers) -> Integers:
    """The site of each column that is not constant; -1 for a column of all sites."""
    return np.delete(owner, constants)
