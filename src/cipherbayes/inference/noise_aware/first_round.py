"""What the first round's information sum says about how columns are correlated.

It is taken at the prior mean, usually θ = 0, where every record counts: a logistic
information is a quarter for each, and a hazard is that of a record's whole time at
risk. With rare events there is many times as much of it as at θ̄, under the same noise.
Masses, means and sizes are others at θ̄, but correlations change little on the way: if
the columns are about normal, weighting records by e^(z'δ) moves their means and leaves
their covariance as it is.

With R those of B at θ̄ (:mod:`~.coordinates`), R̃ those seen in the first round, n² the
variance of their noise and W = Q diag(λ) Q' an estimate of R,

    Q'(R̃ − R)Q has independent entries N(0, n² + κ² λ_a λ_b):

what changes on the way, W^½ K W^½ with K_ab ~ N(0, κ²), is a share of the information
in each direction, so that a column that almost follows from others may still do so to
another degree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.inference.noise_aware.layout import InformationLayout
from cipherbayes.inference.noise_aware.shrinkage import (
    CLEAR,
    OtherCorrelations,
    seen_correlations,
)
from cipherbayes.typing import Floats

CHANGE = 0.1
"""κ, by how much correlations change between the first round and θ̄, as a share of the
information in a direction. Columns that are skewed change, normal ones do not."""


@dataclass(frozen=True)
class FirstRound:
    """The likelihood of R, up to a constant.

    Attributes
    ----------
    vectors
        Q, one row for each varying parameter; zero for those that are not columns.
    seen
        Q'R̃Q.
    precision
        1 / (n² + κ² λ_a λ_b).
    correlations
        R̃.
    edge
        The largest eigenvalue that noise alone gives R̃.
    """

    vectors: Floats
    seen: Floats
    precision: Floats
    correlations: OtherCorrelations
    edge: float

    @classmethod
    def of(
        cls, noisy: Floats, noise_sd: float, layout: InformationLayout, width: int
    ) -> FirstRound | None:
        """What a first information sum says; None where that is nothing.

        ``width`` is how many of the parameters are coefficients of columns. Where sites
        may differ, or noise hides all masses, means cannot be taken off, and nothing is
        said.
        """
        constants = layout.constants
        columns = tuple(j for j in range(width) if j not in constants)
        # A late interval of a baseline may have too few records to be seen; its means
        # are then the little that is left in B.
        clear = tuple(j for j in constants if noisy[j, j] > CLEAR * noise_sd)
        if layout.sites is not None or len(columns) < 2 or noise_sd <= 0.0:
            return None
        if constants and not clear:
            return None
        found = seen_correlations(noisy, noise_sd, clear, columns)
        values, vectors = np.linalg.eigh(found.estimate)
        rest = [j for j in range(len(noisy)) if j not in constants]
        placed = np.zeros((len(rest), len(columns)))
        placed[[rest.index(j) for j in columns]] = vectors
        variance = found.noise + CHANGE**2 * np.outer(values, values)
        return cls(
            placed,
            vectors.T @ found.seen @ vectors,
            1.0 / variance,
            OtherCorrelations(columns, found.seen, found.noise + CHANGE**2),
            found.edge,
        )

    def log_density(self, correlation: Floats) -> tuple[Floats, Floats]:
        """The log likelihood of a stack of R, and its gradient by R.

        An entry off the diagonal counts once for each half of the matrix.
        """
        turned = self.vectors.T @ correlation @ self.vectors - self.seen
        pull = self.precision * turned
        value = -0.25 * (pull * turned).sum(axis=(1, 2))
        return value, -0.5 * (self.vectors @ pull @ self.vectors.T)

    def slopes(self, changes: Floats) -> Floats:
        """Derivatives of what is seen, in its standard deviations, given those of R.

        For a stack of symmetric changes of R, one row for each; its squares add up to
        the information about it.
        """
        rows, columns = np.triu_indices(len(self.seen))
        turned = (self.vectors.T @ changes @ self.vectors)[:, rows, columns]
        counted = np.where(rows == columns, 0.5, 1.0) * self.precision[rows, columns]
        return np.asarray(np.sqrt(counted) * turned)
