"""The models: one file each, one line here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cipherbayes.models.base import Design, Model, RecordGradients, Rows
from cipherbayes.models.logistic import Logistic

AnyModel = Annotated[Logistic, Field(discriminator="kind")]

__all__ = ["AnyModel", "Design", "Logistic", "Model", "RecordGradients", "Rows"]
