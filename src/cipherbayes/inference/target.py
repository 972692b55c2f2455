"""The log posterior of pooled tables, with the derivatives that samplers need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.inference.gradient import (
    gradient_sum,
    gradient_sums,
    information_diagonal,
    log_likelihood_sum,
)
from cipherbayes.inference.imputed import Expand
from cipherbayes.models import Model
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.typing import Floats, Integers


@dataclass(frozen=True)
class Target:
    """log p(θ | D) = log p(θ) + Σ_tables Σ_records log p(record | θ).

    ``expand`` draws missing values (:class:`~cipherbayes.data.imputing.Imputing`).
    """

    model: Model
    prior: ResolvedPrior
    tables: Sequence[PreparedTable]
    expand: Expand | None = field(default=None, kw_only=True)
    records: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", sum(t.count for t in self.tables))

    @property
    def start(self) -> Floats:
        """The prior mean, where every run starts."""
        return np.array(self.prior.mean, dtype=np.float64)

    def likelihood_gradient(
        self, theta: Floats, rows: Integers | None = None
    ) -> Floats:
        """Gradient of the log likelihood, over all records or the given rows."""
        total = np.zeros_like(theta)
        first = 0
        for table in self.tables:
            mine = None
            if rows is not None:
                low, high = np.searchsorted(rows, [first, first + table.count])
                mine = rows[low:high] - first
            first += table.count
            if mine is None or mine.size:
                total += gradient_sum(
                    self.model, theta, table, rows=mine, expand=self.expand
                )
        return total

    def likelihood_gradients(self, thetas: Floats) -> Floats:
        """:meth:`likelihood_gradient` of all records at several thetas, a row each."""
        if self.expand is not None:
            return np.array([self.likelihood_gradient(theta) for theta in thetas])
        total = np.zeros_like(thetas)
        for table in self.tables:
            total += gradient_sums(self.model, thetas, table)
        return total

    def gradient(self, theta: Floats) -> Floats:
        """∇ log p(θ | D)."""
        return self.prior.gradient(theta) + self.likelihood_gradient(theta)

    def log_density(self, theta: Floats) -> float:
        """log p(θ | D) up to a constant."""
        data = sum(
            log_likelihood_sum(self.model, theta, table, expand=self.expand)
            for table in self.tables
        )
        return float(self.prior.log_density(theta) + data)

    def mean_information(self, theta: Floats) -> Floats:
        """Diagonal of the mean information −∂²log p(record | θ)/∂θ²."""
        total = np.zeros_like(theta)
        for table in self.tables:
            total += information_diagonal(self.model, theta, table)
        return total / self.records

    def mode(self) -> Floats:
        """The posterior mode, by L-BFGS from the prior mean."""
        from scipy.optimize import minimize

        found = minimize(
            lambda theta: -self.log_density(theta),
            self.start,
            jac=lambda theta: -self.gradient(theta),
            method="L-BFGS-B",
            options={"maxiter": 2000, "maxfun": 10_000},
        )
        return np.asarray(found.x)

    def curvature(self, theta: Floats) -> Floats:
        """−∇² log p(θ | D) by central differences of the gradient.

        Made positive definite by lifting eigenvalues to a small share of the
        largest, since a model need not be log-concave.
        """
        width = theta.size
        step = 1e-4 * (1.0 + np.abs(theta))
        columns = np.empty((width, width))
        for j in range(width):
            ahead, behind = theta.copy(), theta.copy()
            ahead[j] += step[j]
            behind[j] -= step[j]
            columns[j] = self.gradient(behind) - self.gradient(ahead)
            columns[j] /= ahead[j] - behind[j]
        values, vectors = np.linalg.eigh(0.5 * (columns + columns.T))
        values = np.maximum(values, 1e-10 * values.max())
        return np.asarray((vectors * values) @ vectors.T)

    def largest_curvature(self, theta: Floats, scale: Floats) -> float:
        """Largest eigenvalue of G^½ (−∇² log p(θ | D)) G^½, G = diag(scale).

        Power iteration on differences of gradients: exact Hessians are never
        formed, so it costs some twenty passes whatever the dimension.
        """
        root = np.sqrt(scale)
        vector = root / np.linalg.norm(root)
        base = self.gradient(theta)
        value = 0.0
        for _ in range(20):
            direction = root * vector
            h = 1e-4 * (1.0 + np.linalg.norm(theta)) / np.linalg.norm(direction)
            image = root * (base - self.gradient(theta + h * direction)) / h
            previous, value = value, float(np.linalg.norm(image))
            if value == 0.0:
                break
            vector = image / value
            if abs(value - previous) <= 0.01 * value:
                break
        return value
