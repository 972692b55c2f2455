"""Posteriors of models written in NumPyro, without a sampler that must converge.

Draws around the mode are weighted by NumPyro's density over that of their proposal:
exact for as many draws as the weights are worth, and quicker than to compile a sampler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

FREEDOM = 8.0
"""Degrees of freedom of the proposal: its tails are wider than a posterior's."""


@dataclass(frozen=True)
class Weighted:
    """Draws, a row each, with weights that make them those of a posterior."""

    draws: np.ndarray
    weights: np.ndarray

    @property
    def worth(self) -> float:
        """As many draws of the posterior itself would say as much."""
        return float(1.0 / np.sum(self.weights**2))

    def of(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Posterior mean and sd of what each draw says."""
        mean = self.weights @ values
        return mean, np.sqrt(self.weights @ (values - mean) ** 2)


def weighted(
    model: Callable[[], None],
    named: Callable[[Any], tuple[dict[str, Any], Any]],
    width: int,
    count: int = 20_000,
) -> Weighted:
    """Draws of the posterior of a NumPyro model.

    Parameters
    ----------
    model
        Without arguments; what is observed is in it.
    named
        Of ``width`` unbounded numbers: the model's parameters by name, and the
        logarithm of the Jacobian.
    """
    import jax
    from numpyro.infer.util import log_density
    from scipy.optimize import minimize

    def density(place: Any) -> Any:
        parameters, jacobian = named(place)
        return log_density(model, (), {}, parameters)[0] + jacobian

    slope = jax.jit(jax.value_and_grad(density))

    def lost(place: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = slope(place)
        return -float(value), -np.asarray(gradient, dtype=np.float64)

    # At zero NumPyro's logistic density has a kink.
    mode = minimize(lost, np.full(width, 0.1), jac=True, method="L-BFGS-B").x
    steps = 1e-2 * np.eye(width)
    bend = [(lost(mode + step)[1] - lost(mode - step)[1]) / 2e-2 for step in steps]
    covariance = np.linalg.inv(0.5 * (np.array(bend) + np.transpose(bend)))
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((count, width))
    stretch = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, (count, 1)))
    white = normal * stretch
    draws = mode + white @ np.linalg.cholesky(covariance).T
    tail = np.log1p(np.sum(white**2, axis=1) / FREEDOM)
    found = jax.jit(jax.vmap(density))(draws)
    log_weights = np.asarray(found, dtype=np.float64) + 0.5 * (FREEDOM + width) * tail
    weights = np.exp(log_weights - log_weights.max())
    return Weighted(draws, weights / weights.sum())
