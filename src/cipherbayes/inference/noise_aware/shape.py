"""What the mean of a model's score sum looks like, away from where it was taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.noise_aware.down_weighting import RowLengths, variation
from cipherbayes.inference.noise_aware.shrinkage import (
    InformationLayout,
    SiteLayout,
    fitted_frame,
)
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.influence import (
    InfluenceBound,
    Straightening,
    require_bounded_influence,
)
from cipherbayes.typing import Floats, Integers

OWN_CURVATURE, AT_LEVEL, UNKNOWN_SIZE = 0.4, 0.2, 2.0
"""How much a site's information differs from its share of the records, as the sd of a
logarithm; once its level is taken into account; and where its size is not known."""
LEAST_EVENTS, MOST_EVENTS = 1e-3, 0.95
"""Events for each record, as far as they say how a hazard saturates."""
LEAST_PART = 1e-3
"""Of the information of all constants, the least that one of them is taken to have."""
SKEWED_VARIANCE = 1.2
"""Of a column with a part 1 − E, its frame taken off, over what is lived through: one,
and more where records are not followed equally far."""


def saturating_bend(fall: Floats) -> Floats:
    """β = b v of :mod:`~cipherbayes.inference.noise_aware.saturation`.

    ``fall`` = (1 + b v)^(−½) is the mean curvature at θ̄ over that at θ = 0, of any
    shape.
    """
    return np.asarray(np.minimum(fall, 1.0) ** -2.0 - 1.0)


def _straight(fall: Floats) -> Floats:
    """β = 0: the score does not saturate."""
    return np.zeros_like(fall)


@dataclass(frozen=True)
class ScoreShape:
    """Public facts about a model's scores, in internal units.

    Attributes
    ----------
    basis
        Of the model's :class:`~cipherbayes.models.influence.BoundedInfluence`: B of
        θ = B · (internal θ).
    bend
        β as a function of the curvature's fall; zero where the score does not saturate.
    constants
        Parameters whose columns are constant, or exclude each other.
    unit
        The direction along which the linear predictor of every record grows by one:
        only where the score grows with the exponential of the linear predictor, else
        None.
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
        Of the residuals at a θ in internal units, which scores there are divided by;
        None where they are by nothing that moves.
    lengths
        By which law records are weighted; None where none is known.
    once
        Whether a record has one event at most, and is not at risk after it.
    level_values
        What a unit of each constant adds to a site's linear predictor, where each has
        its own and the score saturates.
    """

    basis: Floats
    bend: Callable[[Floats], Floats] = _straight
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

    @classmethod
    def of(
        cls,
        model: Model,
        design: Design,
        slots: SiteSlots | None = None,
        site_records: SiteRecords | None = None,
        bound: InfluenceBound | None = None,
    ) -> ScoreShape:
        """Of a model's influences on prepared columns, at one site or at all.

        ``bound`` is that of the releases; only the posterior needs it.
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
            saturating_bend if bounded.saturates else _straight,
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
        """With the law of the records' weights."""
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
        """K of the score sum's variance K H K at θ, from an estimate of H."""
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
        """The predictor's mean and variance over the records, where it says how much
        they count.

        H tells of records by their information, which grows with the predictor where
        that is small and not where it is large: half of the way is taken back.
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
        """The same where each site's own parameters have slots.

        A site's indicator takes the place of the constant column: of all of them one
        is not zero in a record, as of the intervals of a baseline hazard.
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
            saturating_bend if bounded.saturates else _straight,
            constants,
            unit,
            width=slots.dimension - extra,
            slots=slots,
            site_records=site_records,
            once=model.predicts_over_time,
            level_values=values,
        )

    def measured_at(self, theta: Floats) -> ScoreShape:
        """The same in units of the scale at an internal θ.

        Only of scores that know neither frame nor skew, and are not straightened.
        """
        scale = self.scale(theta)
        if scale is None:
            return self
        basis = self.basis.copy()
        basis[: self.width] *= scale
        return replace(self, basis=basis, scale=lambda theta: None)

    def outside(self, internal: Floats) -> Floats:
        """θ on the prepared scale, of one or a stack of internal ones."""
        return np.asarray(internal @ self.basis.T)

    def inside(self, theta: Floats) -> Floats:
        """The inverse of :meth:`outside`."""
        return np.asarray(np.linalg.solve(self.basis, theta.T).T)

    def prior_covariance(self, variances: Floats) -> Floats:
        """Λ⁻¹ of parameters with independent priors of these variances.

        For a stack of variances a stack of matrices.
        """
        root = np.linalg.inv(self.basis)
        return np.asarray((root * variances[..., None, :]) @ root.T)

    def prior_precision(self, variances: Floats) -> Floats:
        """Λ, as :meth:`prior_covariance`."""
        return np.asarray((self.basis.T / variances[..., None, :]) @ self.basis)

    def covariance_inside(self, covariance: Floats) -> Floats:
        """A covariance of θ, or a stack of them, in internal units."""
        root = np.linalg.inv(self.basis)
        return np.asarray(root @ covariance @ root.T)

    def layout(
        self, theta: Floats, noisy: Floats, noise_sd: float, *, by_level: bool = False
    ) -> InformationLayout:
        """What is known about H at θ, the frame as a noised H says.

        ``by_level``: with the levels at θ for what a site's record is expected to tell;
        rounds, whose θ still moves, do without.
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
        """Masses to expect: as many of a constant's as the site has of the records.

        All of them together are at least what noise would hide: what is seen of them
        may be negative.
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
            return SiteLayout(own, _others(owner, constants), None, None)
        # Constants of one kind, the same of every site, stand next to each other.
        totals = np.diag(noisy)[constants].reshape(-1, count).sum(axis=1)
        whole = max(float(totals.sum()), noise_sd)
        totals = np.maximum(totals, LEAST_PART * whole)
        parts = share[own].reshape(-1, count)
        if theta is not None:
            parts = parts * self._curvatures(theta, parts, totals, counts)
            parts = parts / parts.sum(axis=1, keepdims=True)
        expected = (totals[:, None] * parts).ravel()
        return SiteLayout(own, _others(owner, constants), expected, spread[own])

    def _curvatures(
        self, theta: Floats, shares: Floats, totals: Floats, counts: Floats | None
    ) -> Floats:
        """What a record is expected to tell of each constant at θ, up to a factor.

        That is the variance of an outcome that is yes or no, and the number of events
        of one that is counted, which grows as exp(level). Where a record has one event
        at most it grows as 1 − exp(−exp(level + c)), c such that all sites together
        have as many as they are seen to have.
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
        return np.stack(
            [_at_most_one(*each) for each in zip(levels, shares, events, strict=True)]
        )

    def predictor(self, theta: Floats) -> Floats:
        """θ without what is no coefficient of a column."""
        return np.asarray(
            np.where(np.arange(theta.size) < (self.width or theta.size), theta, 0.0)
        )


def _at_most_one(levels: Floats, shares: Floats, events: float) -> Floats:
    """1 − exp(−exp(level + c)) with the mean ``events``."""

    def chances(c: float) -> Floats:
        return np.asarray(-np.expm1(-np.exp(levels + c)))

    most = float(np.abs(levels).max()) + 20.0
    return chances(brentq(lambda c: shares @ chances(c) - events, -most, most))


def _others(owner: Integers, constants: Integers) -> Integers:
    """Whose columns those are that are not constant; -1 for a column of all sites."""
    return np.delete(owner, constants)
