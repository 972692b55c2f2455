"""The models: one file each, registered there and imported here."""

from __future__ import annotations

from cipherbayes.models.base import Model
from cipherbayes.models.design import Design
from cipherbayes.models.exponential import Exponential
from cipherbayes.models.gaussian import GaussianMean
from cipherbayes.models.gompertz import Gompertz
from cipherbayes.models.linear import Linear
from cipherbayes.models.logistic import Logistic
from cipherbayes.models.negative_binomial import NegativeBinomial
from cipherbayes.models.neural import NeuralLogistic, NeuralWeibull
from cipherbayes.models.ordinal import Ordinal
from cipherbayes.models.piecewise import Piecewise
from cipherbayes.models.poisson import Poisson
from cipherbayes.models.prior import Prior, ResolvedPrior
from cipherbayes.models.registry import AnyModel, register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.models.survival import Survival
from cipherbayes.models.weibull import Weibull

__all__ = [
    "AnyModel",
    "Design",
    "Exponential",
    "GaussianMean",
    "Gompertz",
    "Linear",
    "Logistic",
    "Model",
    "NegativeBinomial",
    "NeuralLogistic",
    "NeuralWeibull",
    "Ordinal",
    "Piecewise",
    "Poisson",
    "Prior",
    "RecordGradients",
    "ResolvedPrior",
    "Rows",
    "Survival",
    "Weibull",
    "register",
]
