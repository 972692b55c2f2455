"""Models of columns that have missing values, learnt from bounded sums.

For a column t with gaps, u = (1, complete columns z, outcome y) and r = 1 where t is
there, two matrices and a vector are summed over the records,

    S = Σ u u',    S_t = Σ r u u',    c = Σ r t u   (and Σ r t² for a number).

The regression of t on u among the records that have it, a = S_t⁻¹ c, is right also
where the gaps depend on z and on the outcome. What is drawn from must not know the
outcome yet: with G the regression of y on (1, z) among *all* records (S),

    E[t | z] = (a_z + a_y G) (1, z),    Var[t | z] = τ² + a_y Σ_y a_y'.

A category has one such column for each level but the first (a linear probability).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cipherbayes.data.encoders import Levels, Number
from cipherbayes.data.preparation import Preparation
from cipherbayes.models.kernels import add_rows
from cipherbayes.models.packing import pack, unpack
from cipherbayes.models.rows import Rows, absent_role
from cipherbayes.typing import UNIT_ROUNDOFF, Floats

REACH = 3.0
"""Largest size that a column has here: values beyond are held at it."""
LARGEST = 10.0
"""Largest size of a coefficient of a column model, and of its error."""
LEAST_SD, LARGEST_SD = 0.02, 3.0
"""Standard deviations that a number may have around its column model."""
LEAST_SHARE = 0.005
"""Smallest share that a level of a column model may have."""
OUTCOME_SQUARE = 0.3
"""Guess of the mean square of an outcome as it is used here."""


@dataclass(frozen=True)
class ColumnModel:
    """A column given the complete ones.

    Attributes
    ----------
    coefficients
        Of the constant and the complete columns, one row for each column of the
        feature (one for a number; one for each level but the first).
    errors
        Standard deviations of these, from sampling and from noise.
    sd
        Of a number around its mean; 0 for a category.
    gaps
        Share of the records that have no value.
    """

    coefficients: Floats
    errors: Floats
    sd: float
    gaps: float


@dataclass(frozen=True)
class ColumnModels:
    """The models of all columns that the study learns, as sums and as one vector.

    Attributes
    ----------
    preparation
        How raw columns become the design matrix.
    predictors
        Places of the complete columns in the design.
    roles
        Of the outcomes.
    square
        Guess of the mean of |u|².
    """

    preparation: Preparation
    predictors: tuple[int, ...]
    roles: tuple[str, ...]
    square: float

    @classmethod
    def of(
        cls, preparation: Preparation, roles: tuple[str, ...], *, scaled: bool
    ) -> ColumnModels:
        moved = set(preparation.moved)
        gaps = set(preparation.imputed)
        predictors = tuple(
            place
            for name, places in preparation.owners.items()
            if name not in gaps
            for place in places
            if place in moved
        )
        first = 0 if preparation.design.intercept is None else 1
        squares = preparation.mean_squares
        own = [1.0 if scaled else float(squares[p - first]) for p in predictors]
        return cls(
            preparation,
            predictors,
            roles,
            1.0 + sum(own) + OUTCOME_SQUARE * len(roles),
        )

    @cached_property
    def learnt(self) -> tuple[str, ...]:
        """Features whose models are learnt."""
        known = self.preparation.features
        return tuple(name for name in self.preparation.imputed if known[name].learns)

    @cached_property
    def widths(self) -> dict[str, int]:
        """Columns of each of these features."""
        return {name: len(self._places(name)) for name in self.learnt}

    @property
    def size(self) -> int:
        """Numbers in u."""
        return 1 + len(self.predictors) + len(self.roles)

    @property
    def length(self) -> int:
        """Numbers in all models."""
        each = 1 + len(self.predictors)
        return sum(2 * width * each + 2 for width in self.widths.values())

    @property
    def dimension(self) -> int:
        """Numbers in the sums."""
        triangle = self.size * (self.size + 1) // 2
        own = sum(
            triangle + width * self.size + self._is_number(name)
            for name, width in self.widths.items()
        )
        return triangle + own

    @property
    def bound(self) -> float:
        """Largest norm of what a record adds to the sums."""
        return math.sqrt(float(self._nominal(np.array(self.square))))

    def _nominal(self, square: Floats) -> Floats:
        """What |u|² alone says of the square of a record's contribution."""
        own = sum(1.0 if self._is_number(name) else 0.5 for name in self.learnt)
        return square * square * (1.0 + len(self.learnt)) + own * (square + 1.0)

    def sums(self, public: Rows, seen: Rows) -> Floats:
        """The sums over a block, as it is prepared and as it is seen.

        Formal guarantees
        -----------------
        A record's contribution is shortened, if need be, to the norm ``bound`` less
        what roundings can hide. It is a function of that record.
        """
        count = public.count
        u = np.empty((self.size, count))
        u[0] = 1.0
        ends = 1 + len(self.predictors)
        u[1:ends] = np.clip(seen.x[list(self.predictors)], -REACH, REACH)
        for row, role in enumerate(self.roles, start=ends):
            value = public.outcome[role]
            u[row] = value / (1.0 + np.abs(value))
        square = add_rows(u * u)
        norms = square * square
        targets: list[tuple[Floats, Floats, bool]] = []
        for name in self.learnt:
            there = 1.0 - public.outcome[absent_role(name)]
            number = self._is_number(name)
            source = seen.x if number else public.x
            target = np.clip(source[self._places(name)], -REACH, REACH) * there
            length = add_rows(target * target)
            norms = norms + there * square * square + square * length
            if number:
                norms = norms + length * length
            targets.append((there, target, number))
        room = 1.0 - 64.0 * (self.dimension + 16) * UNIT_ROUNDOFF
        limit = self.bound * room
        # By u alone first, which leaves regressions on u where they are.
        weights = limit / np.maximum(np.sqrt(self._nominal(square)), limit)
        lengths = weights * np.sqrt(norms)
        weights = weights * (limit / np.maximum(lengths, limit))
        weights = np.where(np.isfinite(weights), weights, 0.0)
        if public.shares is not None:
            weights = weights * public.shares
        parts = [pack((u * weights) @ u.T)]
        for there, target, number in targets:
            own = u * (weights * there)
            parts.append(pack(own @ u.T))
            parts.append((target @ own.T).ravel())
            if number:
                parts.append(np.array([(weights * target[0] * target[0]).sum()]))
        return np.concatenate(parts)

    def learn(self, sums: Floats, noise: float) -> Floats:
        """All models as one vector, from the sums and the sd of their noise.

        Formal guarantees
        -----------------
        Whatever the sums are, coefficients and errors are finite and at most
        ``LARGEST``, standard deviations within [``LEAST_SD``, ``LARGEST_SD``], and
        shares within [0, 1].
        """
        with np.errstate(all="ignore"):
            return self._learn(sums, noise)

    def _learn(self, sums: Floats, noise: float) -> Floats:
        size, ends = self.size, 1 + len(self.predictors)
        triangle = size * (size + 1) // 2
        everyone = _solvable(unpack(sums[:triangle]), noise)
        count = everyone[0, 0]
        outcome = np.linalg.solve(everyone[:ends, :ends], everyone[:ends, ends:]).T
        spread = everyone[ends:, ends:] - outcome @ everyone[:ends, ends:]
        start = triangle
        parts: list[Floats] = []
        for name, width in self.widths.items():
            own = _solvable(unpack(sums[start : start + triangle]), noise)
            start += triangle
            cross = sums[start : start + width * size].reshape(width, size)
            start += width * size
            inverse = np.linalg.inv(own)
            slopes = cross @ inverse
            there = max(own[0, 0], 1.0)
            variances = np.full(width, 0.25)
            if self._is_number(name):
                rest = float(sums[start] - slopes[0] @ cross[0])
                variances[0] = np.clip(rest / there, LEAST_SD**2, LARGEST_SD**2)
                start += 1
            turn = np.hstack([np.eye(ends), outcome.T])
            coefficients = slopes @ turn.T
            onto = slopes[:, ends:]
            blurred = noise**2 * inverse @ inverse
            around = np.linalg.inv(everyone[:ends, :ends])
            errors = np.empty_like(coefficients)
            for row in range(width):
                steep = 1.0 + float(slopes[row] @ slopes[row])
                own_error = turn @ (variances[row] * inverse + steep * blurred) @ turn.T
                left = float(onto[row] @ spread @ onto[row]) / max(count, 1.0)
                errors[row] = np.diag(own_error) + max(left, 0.0) * np.diag(around)
            sd = 0.0
            if self._is_number(name):
                left = float(onto[0] @ spread @ onto[0]) / max(count, 1.0)
                sd = math.sqrt(variances[0] + max(left, 0.0))
                sd = min(max(sd, LEAST_SD), LARGEST_SD)
            gaps = min(max(1.0 - own[0, 0] / max(count, 1.0), 0.0), 1.0)
            held = np.clip(np.nan_to_num(coefficients), -LARGEST, LARGEST)
            wrong = np.sqrt(np.clip(np.nan_to_num(errors), 0.0, LARGEST**2))
            parts += [held.ravel(), wrong.ravel(), np.array([sd, gaps])]
        return np.concatenate(parts)

    def read(self, vector: Floats | None) -> dict[str, ColumnModel]:
        """The models of a vector, by feature."""
        if vector is None:
            return {}
        each, start = 1 + len(self.predictors), 0
        found: dict[str, ColumnModel] = {}
        for name, width in self.widths.items():
            count = width * each
            first, second, rest = np.split(
                vector[start : start + 2 * count + 2], [count, 2 * count]
            )
            found[name] = ColumnModel(
                first.reshape(width, each),
                second.reshape(width, each),
                float(rest[0]),
                float(rest[1]),
            )
            start += 2 * count + 2
        return found

    def predicted(self, model: ColumnModel, seen: Rows) -> Floats:
        """Means of a feature's columns, record by record; shares are positive."""
        means = np.empty((len(model.coefficients), seen.count))
        for row, (constant, *slopes) in enumerate(model.coefficients.tolist()):
            total = np.full(seen.count, constant)
            for slope, place in zip(slopes, self.predictors, strict=True):
                total += slope * np.clip(seen.x[place], -REACH, REACH)
            means[row] = total
        if model.sd == 0.0:
            means = np.clip(means, LEAST_SHARE, 1.0 - LEAST_SHARE)
        return means

    def shifted(
        self,
        theta: Floats,
        models: Mapping[str, ColumnModel],
        constants: tuple[int, ...],
        rng: np.random.Generator,
    ) -> Floats:
        """Draws of θ that count how far each column model may be off.

        Where a model says δ(z) too much, a share f of the records (those with gaps)
        has b δ(z) too much in its linear predictor, b the coefficient of the column,
        which the coefficients of z make up for by f b δ: so much they are moved, δ
        drawn with the errors of the model.

        Parameters
        ----------
        theta
            Shape ``(chains, draws, d)``, in units of the seen columns.
        constants
            Parameters that are constant over records, or constant in an interval.
        """
        found = theta.copy()
        value = self.preparation.design.intercept or 1.0
        for name, model in models.items():
            for row, place in enumerate(self._places(name)):
                effect = theta[..., place]
                white = rng.standard_normal((*effect.shape, 1 + len(self.predictors)))
                off = model.gaps * effect[..., None] * white * model.errors[row]
                for constant in constants:
                    found[..., constant] += off[..., 0] / value
                for slope, other in enumerate(self.predictors, start=1):
                    found[..., other] += off[..., slope]
        return found

    def _is_number(self, name: str) -> bool:
        return isinstance(self.preparation.encoders_of(name)[0], Number)

    def _places(self, name: str) -> list[int]:
        """Where a feature's line, or its levels but the first, are in the design."""
        encoder = self.preparation.encoders_of(name)[0]
        if isinstance(encoder, Levels):
            start = encoder.first + encoder.unpaired
            return list(range(start, start + encoder.paired))
        return [encoder.first]


def _solvable(matrix: Floats, noise: float) -> Floats:
    """The matrix with eigenvalues that its noise alone would not have made smaller."""
    values, vectors = np.linalg.eigh(np.nan_to_num(matrix))
    least = max(noise * math.sqrt(len(matrix)), 1e-9 * float(np.abs(values).max()), 1.0)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)
