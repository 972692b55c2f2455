"""The models: one file each, one line in ``AnyModel``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cipherbayes.models.base import Design, Model, RecordGradients, Rows
from cipherbayes.models.exponential import Exponential
from cipherbayes.models.gaussian import GaussianMean
from cipherbayes.models.logistic import Logistic
from cipherbayes.models.prior import Prior, ResolvedPrior
from cipherbayes.models.survival import Survival

AnyModel = Annotated[
    GaussianMean | Logistic | Exponential,
    Field(discriminator="kind"),
]

__all__ = [
    "AnyModel",
    "Design",
    "Exponential",
    "GaussianMean",
    "Logistic",
    "Model",
    "Prior",
    "RecordGradients",
    "ResolvedPrior",
    "Rows",
    "Survival",
]
