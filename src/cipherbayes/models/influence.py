"""Bounded influence: what a model states to get a noise-aware posterior.

Opt-in. A model that states its likelihood can be fitted, encrypted and made private by
clipping. A model whose ``bounded_influence`` is a :class:`BoundedInfluence` can also be
given a posterior whose intervals count the noise, because its scores are bounded by
weights that leave their mean at zero, which clipping does not.

For a model whose gradient is ``score_i * x_i`` derive from :class:`ScoreInfluence` and
state two functions of the linear predictor and two numbers. Models with a finite
number of outcomes have :mod:`~cipherbayes.models.enumerated_influence`.

References
----------
Mallows (1975), On some topics in robustness. Krasker and Welsch (1982), Efficient
bounded-influence regression estimation, JASA 77.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cipherbayes.models import kernels
from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.rows import Rows
from cipherbayes.typing import Floats

NODES = 20
"""Points of a quadrature over linear predictors."""


@dataclass(frozen=True)
class InfluenceBound:
    """How far one record may move a weighted score sum; public.

    Attributes
    ----------
    clip
        C: records with ‖x‖ beyond it are weighted down by (C / ‖x‖)².
    stop
        c: a survival record is followed until its cumulative hazard is c; a count
        or a residual is bounded at a multiple of it.
    """

    clip: float
    stop: float = 1.0


@dataclass(frozen=True)
class Influence:
    """Weighted scores and information of m records, bounded without bias.

    With z_i = (x_i, extra columns) and w_i a function of x_i alone, record i adds

        g_i = w_i ∫ z_i dM_i = (score_i x_i, extra_i),
        A_i = w_i ∫ z_i z_i' dΛ_i,

    whose blocks are ``information_i`` x x', x ⊗ ``cross_i`` and ``corner_i``. At the
    true θ the g_i have mean zero given x_i, at any other -dE[Σ g_i]/dθ = E[Σ A_i],
    and E[g_i g_i'] ≤ E[A_i] (equality where w_i = 1), so Σ A_i is slope and (an upper
    bound of the) variance of Σ g_i at once.

    Attributes
    ----------
    score, information
        Shape ``(m,)``.
    extra, cross
        Shape ``(q, m)`` for q parameters that multiply no column; None for q = 0.
    corner
        Shape ``(q, q, m)``; None for q = 0.
    """

    rows: Rows
    score: Floats
    information: Floats
    extra: Floats | None = None
    cross: Floats | None = None
    corner: Floats | None = None

    @property
    def of_extras(self) -> tuple[Floats, Floats]:
        """``cross`` and ``corner``; TypeError where every parameter has a column."""
        if self.cross is None or self.corner is None:
            raise TypeError("every parameter of the model multiplies a column")
        return self.cross, self.corner


@dataclass(frozen=True)
class Weighting:
    """Which records count for less: w = min(1, S / (‖x‖² + b)).

    Attributes
    ----------
    square, beside
        S and b; x with its constant column, if there is one.
    """

    square: float
    beside: float = 0.0


@dataclass(frozen=True)
class Straightening:
    """The change δ in which a log-hazard is a straight line, for a step a from θ̄.

    δ = a + u (c − e^c + 1) + v (e^c − 1 − w'a), c = w'a held within ± ``limit``: with
    it the log-hazard grows by z'δ, z its gradient at θ̄.

    Attributes
    ----------
    along, first, last
        w, u and v.
    """

    along: Floats
    first: Floats
    last: Floats
    limit: float

    def __call__(self, away: Floats) -> tuple[Floats, Floats]:
        """(δ, dδ / da) of a stack of a."""
        change = away @ self.along
        held = np.clip(change, -self.limit, self.limit)
        growth = np.exp(held)
        straight = away + (held - growth + 1.0)[..., None] * self.first
        straight = straight + (growth - 1.0 - change)[..., None] * self.last
        turned = np.outer(self.last - self.first, self.along)
        jacobian = np.eye(away.shape[-1]) + (growth - 1.0)[..., None, None] * turned
        return np.asarray(straight), np.asarray(jacobian)

    def inside(self, basis: Floats) -> Straightening:
        """This map for coordinates x with a = B x, where B is ``basis``."""
        first, last = np.linalg.solve(basis, np.stack([self.first, self.last], 1)).T
        return Straightening(
            basis.T @ self.along, first.copy(), last.copy(), self.limit
        )


@dataclass(frozen=True)
class BoundedInfluence(ABC):
    """Bounded, unbiased scores of a model, and what is public about their mean.

    :meth:`at` and :meth:`sensitivities` are what every model must state; the rest
    describes how the mean of a score sum changes away from where it was taken, and has
    defaults that are right where the gradient is ``score_i * x_i``.

    Attributes
    ----------
    model
        Whose scores these are.
    multiplicative
        Whether the mean of a score grows with the exponential of the linear
        predictor's error (:mod:`~cipherbayes.inference.noise_aware.tilting`).
    saturates
        Whether the information falls as the linear predictor leaves zero: averaged
        over a normal linear predictor of variance v it is about proportional to
        (1 + b v)^(−½) for some b
        (:mod:`~cipherbayes.inference.noise_aware.saturation`).
    multilevel
        Whether scores stay what they are where parameters differ between sites: none
        of them is counted in units that depend on another.
    quiet_stop
        c of :class:`InfluenceBound` where noise is small: what a record says late is
        then worth the larger sensitivity.
    """

    model: Model

    multiplicative: ClassVar[bool] = False
    saturates: ClassVar[bool] = False
    multilevel: ClassVar[bool] = False
    quiet_stop: ClassVar[float] = 1.0

    @abstractmethod
    def at(self, theta: Floats, rows: Rows, bound: InfluenceBound) -> Influence:
        """Bounded, unbiased scores of the records at theta, and their information.

        Scores are gradients in phi, theta = B phi, B = :meth:`basis`.
        """

    @abstractmethod
    def sensitivities(self, bound: InfluenceBound) -> tuple[float, float]:
        """(Δ_g, Δ_H): bounds on ‖g_i‖ and ‖A_i‖_F of any record."""

    def weighting(self, bound: InfluenceBound) -> Weighting | None:
        """By which law records are weighted; None where it is another one.

        A score sum is then taken to vary by its slope, which it does at most.
        """
        return None

    def variance_shares(
        self, bound: InfluenceBound, mean: float, variance: float
    ) -> tuple[float, float]:
        """Variance of a score with w = 1 over its slope, among many records.

        One of the likelihood's own score, less where it is bounded. Of parameters of
        columns, and of the others; (1, 1) is never too small. Linear predictors are
        about normal with this mean and variance.
        """
        return 1.0, 1.0

    def kept_shares(
        self, bound: InfluenceBound, told: float, mean: float, variance: float
    ) -> tuple[float, float]:
        """Information of a score with w = 1 over that of the likelihood's own score.

        How much a fit that bounds no record would have more; only reports use it. Of
        parameters of columns, and of the others. ``told`` is what a record with w = 1
        tells about its constant on average; linear predictors are about normal with
        this mean and variance.
        """
        return 1.0, 1.0

    def basis(self, design: Design) -> Floats:
        """B with theta = B phi, phi what a score sum is the gradient in."""
        return np.eye(len(self.model.parameters(design)))

    def scale(self, theta: Floats) -> float | None:
        """sd of the residuals at theta, where scores are of residuals over it.

        Then a score at theta is the gradient in coefficients over this scale; the
        parameters that multiply no column are not affected. None where scores at every
        theta are in the same units.
        """
        return None

    def unit(self, design: Design) -> float:
        """A public guess of what a score counts a coefficient in; only plans use it."""
        return float(self.basis(design)[0, 0])

    def constants(self, design: Design) -> tuple[int, ...]:
        """Parameters with a constant column, or whose columns exclude each other."""
        return () if design.intercept is None else (0,)

    def frame(self, theta: Floats, design: Design) -> Floats | None:
        """R such that the columns R z of a score at theta are about uncorrelated.

        z is the gradient of the log-hazard; None where nothing is known about how
        its entries are correlated. Shape ``(d, d)``, invertible.
        """
        return None

    def skew(self, design: Design) -> Floats | None:
        """b: z has a part 1 - E times b, E a unit exponential, if it has one.

        Over the hazard that a record has lived through, ln L is minus a unit
        exponential up to a constant: no normal column. In theta's coordinates.
        """
        return None

    def straightening(self, design: Design) -> Straightening | None:
        """δ with log-hazard at θ̄ + away less that at θ̄ equal to z'δ.

        z is the gradient of the log-hazard at θ̄. None where δ is ``away``.
        """
        return None


class LinearPredictorInfluence(BoundedInfluence):
    """Influence where all parameters multiply columns: g = w x r, A = w v x x'.

    w = min(1, (C / ‖x‖)²) are Mallows weights, r a bounded residual with mean zero
    given x under the model, and v = -dE[r] / d eta its information.

    Formal guarantees
    -----------------
    With |r| ≤ R and 0 ≤ v ≤ V for every record, outcome and theta, as
    :meth:`limits` states,

        ‖g‖ = |r| w ‖x‖ ≤ R C and ‖A‖_F = v w ‖x‖² ≤ V C²,

    because w ‖x‖ is ‖x‖ ≤ C where ‖x‖ ≤ C and C² / ‖x‖ ≤ C elsewhere, and w ‖x‖² is
    at most C². Adding or removing a record moves the sums by no more.
    Contributions are shortened to these bounds once more before they are summed
    (:func:`cipherbayes.inference.influence.influence_sums`): a model that states too
    small a limit gets biased intervals, and still the privacy it promises.
    """

    @abstractmethod
    def residuals(
        self, theta: Floats, rows: Rows, stop: float
    ) -> tuple[Floats, Floats]:
        """r and v of each record, shapes that broadcast to ``(m,)``."""

    @abstractmethod
    def limits(self, stop: float) -> tuple[float, float]:
        """(R, V): the largest |r| and v of any record at any theta."""

    def at(self, theta: Floats, rows: Rows, bound: InfluenceBound) -> Influence:
        residual, information = self.residuals(theta, rows, bound.stop)
        weights = mallows_weights(rows.squared_norms, bound.clip)
        return Influence(
            rows, score=weights * residual, information=weights * information
        )

    def weighting(self, bound: InfluenceBound) -> Weighting:
        return Weighting(bound.clip**2)

    def sensitivities(self, bound: InfluenceBound) -> tuple[float, float]:
        residual, information = self.limits(bound.stop)
        return residual * bound.clip, information * bound.clip**2


class ScoreInfluence(LinearPredictorInfluence):
    """The likelihood's own score s = d log p / d eta, weighted where it can be large.

    With S(eta) the largest |s| of any outcome and I(eta) = E[s²] the Fisher
    information, r = a s and v = a I with a = min(1, b / S(eta)).

    *Unbiased.* a depends on x and theta alone, and a score has mean zero under the
    model, so E[r] = a E[s] = 0 at the true theta. There -dE[r] / d eta = a I, as the
    derivative of a multiplies E[s] = 0, and E[r²] = a² I ≤ v.

    Attributes
    ----------
    most_score
        b: a larger one uses more of the records with a large S(eta), and costs noise in
        proportion for all.
    most_information
        The largest I(eta).

    Formal guarantees
    -----------------
    |r| ≤ b by the definition of a, where :meth:`largest_score` is right; v ≤ I ≤
    ``most_information``. The sensitivities are those of
    :class:`LinearPredictorInfluence` with these limits.

    Edge cases
    ----------
    A record whose score or S(eta) is not a finite number contributes zero.
    """

    most_score: ClassVar[float]
    most_information: ClassVar[float]

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that would fail in its first plan."""
        super().__init_subclass__(**options)
        for name in ("most_score", "most_information"):
            if not hasattr(cls, name):
                raise TypeError(f"{cls.__name__} does not say its {name}")

    @abstractmethod
    def largest_score(self, eta: Floats) -> Floats:
        """S(eta): the largest |d log p / d eta| of any outcome."""

    @abstractmethod
    def information(self, eta: Floats) -> Floats:
        """I(eta) = E[(d log p / d eta)²] over the outcomes of a record at eta."""

    def residuals(
        self, theta: Floats, rows: Rows, stop: float
    ) -> tuple[Floats, Floats]:
        score = self.model.gradients(theta, rows).column_scores
        eta = kernels.linear_predictor(theta, rows.x)
        share = self._share(eta)
        return share * score, share * self.information(eta)

    def kept_shares(
        self, bound: InfluenceBound, told: float, mean: float, variance: float
    ) -> tuple[float, float]:
        """E[a I] over E[I]."""
        eta, weights = normal_predictors(mean, variance)
        information = weights * self.information(eta)
        return float(information @ self._share(eta) / information.sum()), 1.0

    def _share(self, eta: Floats) -> Floats:
        """a of records with these linear predictors."""
        most = self.most_score
        return np.asarray(most / np.maximum(self.largest_score(eta), most))

    def limits(self, stop: float) -> tuple[float, float]:
        return self.most_score, self.most_information


def normal_predictors(mean: float, variance: float) -> tuple[Floats, Floats]:
    """Linear predictors, and their weights as those of a normal law; these add to 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return mean + np.sqrt(variance) * nodes, weights / weights.sum()


def require_bounded_influence(model: Model) -> BoundedInfluence:
    """A model's bounded influence; ValueError where it states none."""
    bounded = model.bounded_influence
    if bounded is None:
        raise ValueError(f"a model of kind '{model.kind}' has no bounded influence")
    return bounded


def mallows_weights(squared_norms: Floats, clip: float) -> Floats:
    """w = min(1, (C / ‖z‖)²): ‖w z‖ ≤ C and ‖w z z'‖ ≤ C² for every record.

    A function of the covariates alone keeps a weighted score unbiased (Mallows
    1975; Krasker and Welsch 1982), which clipping a score does not.
    """
    weights: Floats = clip**2 / np.maximum(squared_norms, clip**2)
    return weights
