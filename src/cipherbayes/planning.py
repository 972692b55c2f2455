"""What a study implies before any data is read: releases, noise, bytes, prospects.

Every party derives the same plan from the study alone, so nobody has to be
believed about the noise, the grid or the number of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from cipherbayes.crypto.parameters import ParameterSet, choose
from cipherbayes.crypto.signatures import Identity
from cipherbayes.errors import ProtocolError, StudyError
from cipherbayes.inference.gradient import summation_depth
from cipherbayes.inference.released import DEFAULT_ROUNDS, RECURSIONS, Recursion
from cipherbayes.models import Design
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.privacy.accountant import epsilon_spent, noise_for
from cipherbayes.privacy.events import Composed, Event, PoissonSampled, Repeated
from cipherbayes.privacy.plan import PrivacyPlan, plan_release
from cipherbayes.protocol.messages import RunManifest
from cipherbayes.study import Study
from cipherbayes.tables import preparation_of
from cipherbayes.typing import Floats

Purpose = Literal["records", "moments", "gradient"]

MOST_RECORDS = 10_000_000
"""Records a study may have if it does not declare its number."""

SHARES = {"records": 0.01, "moments": 0.1}
"""Share of μ² that each preparatory release takes; gradients get the rest."""


@dataclass(frozen=True)
class Phase:
    """Releases of one kind, one a round.

    Attributes
    ----------
    purpose
        What is summed over the records.
    rounds, first
        How many, and the number of the first.
    dimension
        Length of the vector.
    rate
        Probability with which a record takes part.
    privacy
        Clipping norm, grid, noise and range, coupled.
    """

    purpose: Purpose
    rounds: int
    first: int
    dimension: int
    rate: float
    privacy: PrivacyPlan

    @property
    def event(self) -> Event:
        """All rounds of the phase, for the accountant."""
        return Repeated(self.privacy.event, self.rounds)


@dataclass(frozen=True)
class StudyPlan:
    """What all parties of a study agree on without talking to each other."""

    study: Study
    phases: tuple[Phase, ...]
    parameters: ParameterSet | None
    warnings: tuple[str, ...]
