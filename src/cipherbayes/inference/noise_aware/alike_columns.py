"""Which columns almost follow from the others.

Column j does where its variance inflation factor B_jj (B⁻¹)_jj is above ten, B being
the information about the columns' effects, their means taken off. It is judged for each
drawn H (:func:`follows_from_others`) and from the released sums alone
(:func:`alike_by_sums`).
"""

from __future__ import annotations

import numpy as np

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.shrinkage import correlations, without_means
from cipherbayes.typing import Bools, Floats

ALIKE = 10.0
"""Variance inflation factor above which a column is said to follow from the others:
they explain nine tenths of its variance."""
MOST_EDGE = 0.5
"""Largest eigenvalue of the correlations' noise above which small eigenvalues cannot be
seen, and nothing is said."""
LOADING = 0.3
"""Smallest entry in the eigenvector of the least eigenvalue for which a column is
named."""


def follows_from_others(evidence: Evidence, information: Floats) -> Bools:
    """Whether the other columns explain nine tenths of each column's variance.

    For a stack of H, shape ``(chains, d)``. Always false for constants and for
    parameters that are not coefficients of columns.
    """
    constants = list(evidence.layout.constants)
    columns = [
        j for j in range(evidence.dimension - evidence.extra) if j not in constants
    ]
    found = np.zeros(information.shape[:2], dtype=bool)
    if len(columns) < 2:
        return found
    own = information[:, columns][:, :, columns]
    if constants:
        mixed = information[:, constants][:, :, columns]
        held = information[:, constants][:, :, constants]
        own = own - mixed.transpose(0, 2, 1) @ np.linalg.solve(held, mixed)
    inverse = np.linalg.inv(own)
    inflation = np.diagonal(own, axis1=1, axis2=2) * np.diagonal(
        inverse, axis1=1, axis2=2
    )
    found[:, columns] = inflation > ALIKE
    return found


def alike_by_sums(evidence: Evidence, allowance: float) -> list[int]:
    """Columns that follow from each other according to the released information sums.

    There are some where the least eigenvalue of the columns' correlations is below a
    tenth, or above it by at most ``allowance`` standard deviations of its noise.
    """
    constants = evidence.layout.constants
    rest = [j for j in range(evidence.dimension) if j not in constants]
    columns = [k for k, j in enumerate(rest) if j < evidence.dimension - evidence.extra]
    if evidence.layout.sites is not None or len(columns) < 2:
        return []
    noisy, known = (
        without_means(each, noise, constants)[1][np.ix_(columns, columns)]
        for each, noise in (
            (evidence.information, evidence.information_sd),
            (evidence.estimate, 0.0),
        )
    )
    root, noise = np.sqrt(np.diag(known)), evidence.information_sd
    correlation, edge = correlations(noisy, noise, root)
    values, vectors = np.linalg.eigh(correlation)
    most = 1.0 / ALIKE + allowance * noise * np.mean(root**-2.0)
    if edge > MOST_EDGE or values[0] > most:
        return []
    return [rest[columns[k]] for k in np.flatnonzero(abs(vectors[:, 0]) > LOADING)]
