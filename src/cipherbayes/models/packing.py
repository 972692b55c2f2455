"""Symmetric matrices as vectors: the upper triangle, row by row.

Off-diagonal entries are multiplied by √2: the Euclidean norm of the packed vector is
then the Frobenius norm of the matrix, and isotropic noise of standard deviation s on it
is noise of sd s on the diagonal and s/√2 off it.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from cipherbayes.typing import Floats


def packed_length(dimension: int) -> int:
    """Numbers in the upper triangle of a matrix."""
    return dimension * (dimension + 1) // 2


def pack(matrix: Floats) -> Floats:
    """Upper triangle, row by row, off-diagonals times √2; matrices on the last axes."""
    dimension = matrix.shape[-1]
    above, right = np.triu_indices(dimension)
    packed: Floats = matrix[..., above, right] * packed_scales(dimension)
    return packed


def unpack(vector: Floats) -> Floats:
    """The symmetric matrix of a packed upper triangle."""
    dimension = int((np.sqrt(8.0 * vector.size + 1.0) - 1.0) / 2.0 + 0.5)
    above, right = np.triu_indices(dimension)
    values = vector / packed_scales(dimension)
    matrix = np.zeros((dimension, dimension))
    matrix[above, right] = values
    matrix[right, above] = values
    return matrix


@cache
def packed_scales(dimension: int) -> Floats:
    """One for the diagonal of a packed matrix and √2 for the rest."""
    above, right = np.triu_indices(dimension)
    scales: Floats = np.where(above == right, 1.0, np.sqrt(2.0))
    scales.setflags(write=False)
    return scales
