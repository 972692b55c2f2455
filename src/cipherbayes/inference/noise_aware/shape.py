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

from cipherbayes.inference.method import SiteRecords
from cipherbayes.inference.noise_aware.down_weighting import (
    RowLengths,
    kept_by_weights,
    variation,
)
from cipherbayes.inference.noise_aware.layout import InformationLayout
from cipherbayes.inference.noise_aware.shrinkage import fitted_frame
from cipherbayes.inference.noise_aware.site_masses import SiteMasses
from cipherbayes.inference.site_context import FittedInformation
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.influence import (
    InfluenceBound,
    Straightening,
    require_bounded_influence,
)
from cipherbayes.typing import Floats

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
    learns_scale
        Whether the last parameter is the logarithm of that scale, at which scores are
        measured now.
    lengths
        How records are weighted by the length of their row; None where that is not
        known.
    once
        Whether a record has one event at most and leaves the risk set after it.
    level_values
        What a unit of each constant adds to a site's linear predictor, where each has
        its own and the score saturates.
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
    learns_scale: bool = False
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
            partial(bounded.kept_shares, bound),
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

    def kept(
        self,
        theta: Floats,
        information: Floats,
        information_sd: float,
        records: int | None,
    ) -> Floats:
        """The share of each parameter's information that bounded scores keep.

        ``information`` is H at θ. What stopping a record's score takes is only known
        where the number of ``records`` is.
        """
        found = np.ones(len(information))
        if self.lengths is None:
            return found
        constant, column = kept_by_weights(
            self.lengths, information, information_sd, self.constants
        )
        found[list(self.constants)] = constant
        found[list(self.lengths.columns)] = column
        found[self.lengths.width :] = constant
        if records is None or not self.constants:
            return found
        masses = np.diag(information)[list(self.constants)]
        told = float(masses.sum()) / (self.lengths.value**2 * records * constant)
        predictor = self._linear_predictor(theta, information)
        own, rest = self.lengths.kept(told, *predictor)
        found[: self.lengths.width] *= own
        found[self.lengths.width :] *= rest
        return found

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
        return replace(self, basis=basis, scale=lambda theta: None, learns_scale=True)

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
                sites=self._site_masses.layout(
                    noisy, noise_sd, theta if by_level else None
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

    @property
    def _site_masses(self) -> SiteMasses:
        """What the sites' layout follows from."""
        assert self.slots is not None
        return SiteMasses(
            self.constants,
            self.unit,
            self.slots,
            self.site_records,
            self.once,
            self.level_values,
        )

    def fitted(self, theta: Floats, information: Floats) -> FittedInformation:
        """An H taken at an internal θ, in the units of θ, where sites may differ."""
        return FittedInformation(
            self.information_outside(information),
            self.outside(theta),
            self._site_masses.leaning(theta, information),
        )

    def predictor(self, theta: Floats) -> Floats:
        """θ with zero for all that is not a coefficient of a column."""
        return np.asarray(
            np.where(np.arange(theta.size) < (self.width or theta.size), theta, 0.0)
        )
