"""Columns of which one almost follows from the others."""

from __future__ import annotations

import numpy as np

from cipherbayes.inference.noise_aware.evidence import Evidence
from cipherbayes.inference.noise_aware.shrinkage import correlations, without_means
from cipherbayes.typing import Bools, Floats

ALIKE = 10.0
"""Variance inflation factor from which on columns are called alike."""
MOST_EDGE, LOADING = 0.5, 0.3
"""Edge of the noise's spectrum, over a column's information, from which on nothing is
seen of small eigenvalues; and the part in such a direction that a column has at least
to be named."""


def follows_from_others(evidence: Evidence, information: Floats) -> Bools:
    """Whether others explain nine tenths of a column's variance, for a stack of H.

    That is a variance inflation factor of ten: B_jj (B⁻¹)_jj of the information B about
    the columns' effects, their means apart. Never of a constant, nor of a parameter of
    no column. Shape ``(chains, d)``.
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
    """Columns that follow from each other by the information sums themselves.

    The least eigenvalue of their correlations is below a tenth, or above it by no more
    than ``allowance`` standard deviations of its noise.
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
