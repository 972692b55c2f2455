"""Coordinates of A whose every value gives a positive definite matrix.

Constant columns come first: the intercept, or the intervals of a baseline hazard, of
which one is not zero in each record. With P their masses, U the means of the other
columns where each of them is not zero, and B the information that is left about the
others,

    A = [P, PU; U'P, U'PU + B],   B = D^½ R D^½,   P = diag(exp p),   D = diag(exp ℓ),
    R_ij = E_ij / √(E_ii E_jj),   E = exp(S),   S symmetric with zero diagonal,

and the coordinates are (p, U, ℓ, S): exp ℓ is the diagonal of B and R its correlations,
each free of the other. Means are coordinates of their own because a column whose mean
is far from zero looks almost like the intercept. Without means in the model that would
be a very small eigenvalue of A, which noise hides and a prior would make larger.

References
----------
Leonard and Hsu (1992), Bayesian inference for a covariance matrix. Archakov and
Hansen (2021), A new parametrization of correlation matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.models.packing import pack
from cipherbayes.typing import Floats, Integers

LARGEST_LOG = 12.0
"""Largest distance of p and ℓ from the reference's, and of an eigenvalue of S from
zero: beyond it a trajectory that has gone astray would overflow."""


@dataclass(frozen=True)
class Built:
    """A of every chain, and what its derivatives are computed from.

    Attributes
    ----------
    matrix
        A.
    masses, means, rest
        P, U and B.
    root
        The factors by which rows and columns of exp(S) are multiplied to give B.
    values, vectors
        Eigenvalues and eigenvectors of S.
    """

    matrix: Floats
    masses: Floats
    means: Floats
    rest: Floats
    root: Floats
    values: Floats
    vectors: Floats


class Coordinates:
    """The map from the coordinates (p, U, ℓ, S) to A, and back.

    Parameters
    ----------
    reference
        A matrix of the size that A is expected to have: coordinates are kept within
        bounds around its own.
    constants
        Which parameters have a constant column, or columns that exclude each other.
    correlated
        Whether S is among the coordinates; otherwise S is that of ``reference``.
    frame
        R, where the blocks above are those of R A R' and not of A.

    Attributes
    ----------
    masses, means, diagonal, entries
        Where p, U, ℓ and S stand in a vector of coordinates.
    reference
        The coordinates of the matrix ``reference``.
    """

    def __init__(
        self,
        reference: Floats,
        constants: tuple[int, ...],
        *,
        correlated: bool = True,
        frame: Floats | None = None,
    ) -> None:
        d = len(reference)
        self.constants = constants if len(constants) < d else ()
        b = len(self.constants)
        others = [j for j in range(d) if j not in self.constants]
        order = np.array([*self.constants, *others], dtype=np.intp)
        self.order, self.framed = order, frame is not None
        # A = F blocks F', F the inverse of the frame's rows in the blocks' order.
        self._into = (np.eye(d) if frame is None else frame)[order]
        self._from = np.linalg.inv(self._into)
        self._others = tuple(others)
        self._above = np.triu_indices(d - b, 1)
        self.correlated = correlated
        ends = np.cumsum([b, b * (d - b), d - b, correlated * self._above[0].size])
        self.masses, self.means, self.diagonal, self.entries = (
            slice(int(start), int(end))
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        )
        self.size = int(ends[-1])
        self._shape = (b, d - b)
        parts, logarithm = self._split(reference)
        self.reference = self._joined(*parts, logarithm[self._above])
        self._fixed_eigen: tuple[Floats, Floats] | None = None
        self._fixed_power: Floats | None = None
        if not correlated:
            values, vectors = self._fixed_eigen = np.linalg.eigh(logarithm[None])
            powers = np.exp(values)[:, None, :]
            self._fixed_power = (vectors * powers) @ vectors.transpose(0, 2, 1)

    @property
    def others(self) -> int:
        """How many parameters have a column that varies."""
        return self._shape[1]

    @property
    def from_blocks(self) -> Floats:
        """F of A = F blocks F', the blocks being those of the module's equation."""
        return np.asarray(self._from, dtype=np.float64)

    @property
    def power(self) -> Floats | None:
        """exp(S) where S is fixed; None where it is among the coordinates."""
        return None if self._fixed_power is None else self._fixed_power[0]

    def of(self, matrix: Floats) -> Floats:
        """The coordinates of a positive definite matrix."""
        parts, logarithm = self._split(matrix)
        return self._joined(*parts, logarithm[self._above])

    def _joined(self, p: Floats, u: Floats, diagonal: Floats, s: Floats) -> Floats:
        """One vector of all coordinates, without S where that is fixed."""
        return np.concatenate([p, u.ravel(), diagonal, s])[: self.size]

    def _split(self, matrix: Floats) -> tuple[tuple[Floats, Floats, Floats], Floats]:
        """((p, U, ℓ), S) of a positive definite matrix."""
        masses, means, remainder = self.blocks(matrix)
        logarithm = log_parts(remainder)[1]
        return (np.log(masses), means, np.log(np.diag(remainder))), logarithm

    def blocks(self, matrix: Floats) -> tuple[Floats, Floats, Floats]:
        """(P, U, B) of a positive definite matrix."""
        b = self._shape[0]
        ordered = self._into @ matrix @ self._into.T
        masses = np.diag(ordered)[:b]
        means = ordered[:b, b:] / masses[:, None]
        return masses, means, ordered[b:, b:] - (means.T * masses) @ means

    def diagonals_of(self, parameters: tuple[int, ...]) -> Integers:
        """Indices of the coordinates ℓ of these parameters; constants have none."""
        found = [k for k, j in enumerate(self._others) if j in parameters]
        return np.array(found, dtype=np.int64) + self.diagonal.start

    def build(self, place: Floats) -> Built:
        """A for every row of coordinates."""
        (b, e), chains = self._shape, len(place)
        middle = self.reference
        held = np.clip(place, middle - LARGEST_LOG, middle + LARGEST_LOG)
        masses = np.exp(held[:, self.masses])
        means = place[:, self.means].reshape(chains, b, e)
        values, vectors = self._eigen(place)
        rest = self._fixed_power
        if rest is None:
            rest = (vectors * np.exp(values)[:, None, :]) @ vectors.transpose(0, 2, 1)
        root = np.exp(0.5 * held[:, self.diagonal])
        root = root / np.sqrt(np.diagonal(rest, axis1=1, axis2=2))
        rest = rest * root[:, :, None] * root[:, None, :]
        mixed = masses[:, :, None] * means
        matrix = np.empty((chains, b + e, b + e))
        matrix[:, :b, :b] = masses[:, :, None] * np.eye(b)
        matrix[:, :b, b:] = mixed
        matrix[:, b:, :b] = mixed.transpose(0, 2, 1)
        matrix[:, b:, b:] = means.transpose(0, 2, 1) @ mixed + rest
        matrix = self._from @ matrix @ self._from.T
        return Built(matrix, masses, means, rest, root, values, vectors)

    def _eigen(self, place: Floats) -> tuple[Floats, Floats]:
        """Eigenvalues and eigenvectors of S."""
        if self._fixed_eigen is not None:
            return self._fixed_eigen
        logarithm = np.zeros((len(place), self.others, self.others))
        logarithm[:, self._above[0], self._above[1]] = place[:, self.entries]
        logarithm[:, self._above[1], self._above[0]] = place[:, self.entries]
        values, vectors = np.linalg.eigh(logarithm)
        return np.clip(values, -LARGEST_LOG, LARGEST_LOG), vectors

    def pulled_back(
        self, built: Built, gradient: Floats, by_rest: Floats | None = None
    ) -> Floats:
        """The gradient by the coordinates of something whose gradient by A is known.

        ``gradient`` is G, symmetric, with d log p = tr(G dA); ``by_rest`` is the same
        of what depends on B alone and is not in G.
        """
        b = self._shape[0]
        ordered = self._from.T @ gradient @ self._from
        corner, mixed, rest = (
            ordered[:, :b, :b],
            ordered[:, :b, b:],
            ordered[:, b:, b:],
        )
        masses, means = built.masses, built.means
        along = means @ rest
        for_masses = np.diagonal(corner, axis1=1, axis2=2)
        for_masses = for_masses + ((2.0 * mixed + along) * means).sum(axis=2)
        for_means = 2.0 * masses[:, :, None] * (mixed + along)
        parts = [masses * for_masses, for_means.reshape(len(masses), -1)]
        if by_rest is not None:
            rest = rest + by_rest
        # By ℓ_j, half from each factor D^½: the diagonal of B G.
        by_diagonal = (built.rest * rest).sum(axis=2)
        parts.append(by_diagonal)
        if self.correlated:
            # Daleckii–Krein: the derivative of exp(S) in the basis of S.
            root, values, vectors = built.root, built.values, built.vectors
            scaled = rest * root[:, :, None] * root[:, None, :]
            # R is divided by √(E_ii E_jj), which S changes too; E_jj = B_jj / root_j².
            index = np.arange(len(self._others))
            own = root**2 / built.rest[:, index, index]
            scaled[:, index, index] -= by_diagonal * own
            turned = vectors.transpose(0, 2, 1) @ scaled @ vectors
            inner = turned * divided_differences(values)
            inner = vectors @ inner @ vectors.transpose(0, 2, 1)
            parts.append(2.0 * inner[:, self._above[0], self._above[1]])
        return np.concatenate(parts, axis=1)

    def jacobian(self, place: Floats) -> Floats:
        """Derivatives of the packed A at one place, one row for each coordinate."""
        (b, e), built = self._shape, self.build(place[None])
        d = b + e
        masses, means = built.masses[0], built.means[0]
        moved = np.zeros((self.size, d, d))
        for j in range(b):
            row = np.concatenate([np.eye(b)[j], means[j]])
            moved[j] = masses[j] * np.outer(row, row)
            block = moved[self.means][j * e : (j + 1) * e]
            index = np.arange(e)
            block[index, b + index] += masses[j] * row
            block[index, :, b + index] += masses[j] * row
        rest, index = built.rest[0], np.arange(e)
        half = moved[self.diagonal]
        half[index, b + index, b:] += 0.5 * rest
        half[index, b:, b + index] += 0.5 * rest
        if self.correlated:
            moved[self.entries, b:, b:] = self._by_entries(built)
        if self.framed:
            return pack(self._from @ moved @ self._from.T)
        back = np.argsort(self.order)
        return pack(moved[:, back[:, None], back])

    def correlation_jacobian(self, place: Floats) -> Floats:
        """Derivatives of the correlations R at one place, one for each coordinate."""
        built, e = self.build(place[None]), self.others
        found = np.zeros((self.size, e, e))
        if self.correlated:
            found[self.entries] = correlations_of(
                built.rest[0], self._by_entries(built)
            )
        return found

    def _by_entries(self, built: Built) -> Floats:
        """Derivatives of B by the entries of S, its diagonal unchanged."""
        values, vectors = built.values[0], built.vectors[0]
        rest, root, index = built.rest[0], built.root[0], np.arange(self.others)
        first, second = vectors[self._above[0]], vectors[self._above[1]]
        inner = first[:, :, None] * second[:, None, :]
        inner = (inner + inner.transpose(0, 2, 1)) * divided_differences(values[None])
        turned = vectors @ inner @ vectors.T
        own = turned[:, index, index] * (root**2 / np.diag(rest))
        grown = 0.5 * (own[:, :, None] + own[:, None, :]) * rest
        return np.asarray(turned * root[:, None] * root - grown)


def correlations_of(rest: Floats, matrix: Floats) -> Floats:
    """D^-½ M D^-½ of a stack of M, with D the diagonal of B or of a stack of them."""
    root = np.sqrt(np.diagonal(rest, axis1=-2, axis2=-1))
    return np.asarray(matrix / (root[..., :, None] * root[..., None, :]))


def divided_differences(values: Floats) -> Floats:
    """(e^a − e^b) / (a − b) for all pairs of values, e^a where a = b."""
    half = 0.5 * (values[:, :, None] - values[:, None, :])
    middle = np.exp(0.5 * (values[:, :, None] + values[:, None, :]))
    small = np.abs(half) < 1e-4
    safe = np.where(small, 1.0, half)
    ratio = np.where(small, 1.0 + half**2 / 6.0, np.sinh(safe) / safe)
    return np.asarray(middle * ratio)


def log_parts(matrix: Floats) -> tuple[Floats, Floats]:
    """(log D, S) with B = D^½ exp(S) D^½ and a zero diagonal of S.

    By fixed-point iteration (Archakov and Hansen 2021, section 3, who show that it
    converges).
    """
    log_diagonal = np.log(np.diag(matrix))
    logarithm = np.zeros_like(matrix)
    for _ in range(100):
        root = np.exp(0.5 * log_diagonal)
        values, vectors = np.linalg.eigh(matrix / np.outer(root, root))
        logarithm = (vectors * np.log(np.maximum(values, 1e-12))) @ vectors.T
        log_diagonal = log_diagonal + np.diag(logarithm)
        if np.abs(np.diag(logarithm)).max(initial=0.0) < 1e-9:
            break
    np.fill_diagonal(logarithm, 0.0)
    return log_diagonal, logarithm
