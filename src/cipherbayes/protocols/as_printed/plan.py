"""The paper's own method as a plan: Algorithms 3, 4 and 5 as printed. Not certified.

Three things are mended, without which nothing is learnt: the sign of the drift, the
floor max(g, 10⁻³), which as printed turns negative gradients positive, and the bound L
on a scaled gradient, which the proof assumes and no step enforces. The claim (Theorem
4) is false; the ledger and the certificate carry the honest figure of
:mod:`cipherbayes.protocols.paper_claim`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cipherbayes.crypto.ckks.parameters import ckks_set
from cipherbayes.errors import DataError, StudyError
from cipherbayes.models.prior import ResolvedPrior
from cipherbayes.privacy.events import Event, GaussianSum
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.protocols.as_printed.certificate import NAME
from cipherbayes.protocols.paper_claim import PaperClaim, PaperSetting, paper_claim
from cipherbayes.protocols.plan import Encryption, Plan
from cipherbayes.study.schema import PrivateStudy
from cipherbayes.study.tables import preparation_of, resolve_prior
from cipherbayes.typing import Floats

if TYPE_CHECKING:  # loads the encryption library
    from cipherbayes.crypto.ckks.stored_literal import StoredLiteral

PREPARATION = ("means", "variances", "maximum")
"""Rounds of Algorithms 4 and 5."""
INTERVAL_START = 1e-3
ALPHA = 0.9
LARGEST_DRIFT = 0.25
UNIT = 2.0**-40
"""Grid of what sites encrypt and of what the CSP returns: fixed-point numbers."""


@dataclass(frozen=True)
class PrintedPlan(Plan):
    """What the paper's own method implies for every party."""

    @cached_property
    def setting(self) -> PaperSetting:
        """N, τ, T, c, L, γ, λ and the claim."""
        return paper_setting(self.study)

    @cached_property
    def claim(self) -> PaperClaim:
        """The claimed ε beside the honest one."""
        return paper_claim(self.setting)

    @property
    def prepared(self) -> int:
        """Rounds before the first gradient."""
        exact = self.study.preparation.method == NAME
        return len(PREPARATION) if exact else 0

    @property
    def rounds(self) -> int:
        return self.prepared + self.setting.rounds

    def charges(self) -> Counter[Event]:
        """Nothing: the ledger is charged with :attr:`charge`, for the whole run."""
        return Counter()

    @property
    def scheme(self) -> str:
        return "ckks-16384-literal"

    @property
    def encryption(self) -> Encryption:
        parameters = ckks_set(self.scheme)
        # Two polynomials, modulo each prime, in 64-bit words.
        message = 2 * parameters.ring * parameters.levels * 8
        return Encryption(
            scheme="CKKS",
            parameters=parameters,
            message_bytes=message,
            # Sites send theirs to the server, which sends the CSP their sum.
            total_bytes=self.rounds * (len(self.study.sites) + 1) * message,
        )

    def purpose(self, number: int) -> str | None:
        if not 0 <= number < self.rounds:
            return None
        return PREPARATION[number] if number < self.prepared else "gradient"

    @property
    def preparatory_names(self) -> tuple[str, ...]:
        return PREPARATION[: self.prepared]

    @cached_property
    def prior(self) -> ResolvedPrior:
        return resolve_prior(self.study, preparation_of(self.study).design)

    @property
    def dimension(self) -> int:
        return int(self.prior.mean.size)

    @property
    def columns(self) -> int:
        """Columns that are standardised: all but the intercept."""
        design = preparation_of(self.study).design
        return design.width - (design.intercept is not None)

    @cached_property
    def charge(self) -> GaussianSum:
        """The whole run as one release: the Gaussian one with the honest ε.

        It is charged before the first answer. Theorem 4's ε never is.
        """
        delta = self.setting.delta
        return GaussianSum(1.0 / mu_for(self.claim.honest_epsilon, delta))

    def rounds_prepared(self, kept: Container[str]) -> int:
        return sum(name in kept for name in self.preparatory_names)

    def epsilon_after(self, rounds: int) -> float:
        """The honest ε of the whole run from its first round on: as it is charged."""
        return self.claim.honest_epsilon if rounds > 0 else 0.0

    def gain(self, t: int) -> float:
        """A power of two that the step is divided by where the circuit needs it.

        So that the factor of h is at most one, and z within nine deviations (and
        as much again for the prior) within the drift that the circuit allows.
        """
        noise = 18.0 * self._spread(t) / LARGEST_DRIFT
        return 2.0 ** max(0, math.ceil(math.log2(max(self._factor(t), noise))))

    def _spread(self, t: int) -> float:
        """η'_t = √((λ + L) η_t)."""
        setting = self.setting
        return math.sqrt((setting.floor + setting.lipschitz) * setting.step_size(t))

    def _factor(self, t: int) -> float:
        return self.setting.step_size(t) * self.setting.records / 2.0

    @cached_property
    def circuit(self) -> StoredLiteral:
        """The paper's circuit with its Chebyshev polynomial and its steps."""
        from cipherbayes.crypto.ckks.circuit import Update
        from cipherbayes.crypto.ckks.polynomial import chebyshev
        from cipherbayes.crypto.ckks.stored_literal import StoredLiteral

        update = Update(
            dimension=self.dimension,
            sites=len(self.study.sites),
            unit=UNIT,
            polynomial=chebyshev(INTERVAL_START, self.setting.floor),
            alpha=ALPHA,
            initial=0.0,
            drift=LARGEST_DRIFT,
        )
        return StoredLiteral(update, lambda t: self._factor(t) / self.gain(t))

    def drift(self, t: int, theta: Floats, z: Floats) -> Floats:
        """(η_t/2) ∇log p(θ) + η'_t z, over the gain."""
        eta = self.setting.step_size(t)
        pull = eta / 2.0 * self.prior.gradient(theta) + self._spread(t) * z
        return np.asarray(pull / self.gain(t))

    def check_site(self, name: str, count: int) -> None:
        if not 1 <= count <= self.setting.records:
            raise DataError(
                f"the table is empty or has more rows than {self.setting.records}",
                where=f"site {name}",
                remedy="correct privacy.records, the number of rows over all sites",
            )


def paper_setting(study: PrivateStudy) -> PaperSetting:
    """What Theorem 4 depends on, from a study in the paper's own mode."""
    privacy, paper = study.privacy, study.stated_paper
    if privacy.records is None:
        raise StudyError(
            "the paper's claim depends on the number of records",
            where=f"study '{study.name}'",
            remedy="set privacy.records",
        )
    return PaperSetting(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        records=privacy.records,
        batch=paper.batch,
        epochs=paper.epochs,
        scale=paper.scale,
        lipschitz=paper.lipschitz,
        gamma=paper.gamma,
        floor=paper.floor,
    )


def plan_as_printed(study: PrivateStudy) -> PrintedPlan:
    """Lay out the paper's own method."""
    plan = PrintedPlan(study)
    if plan.setting.rounds < 1:
        raise StudyError(
            "the paper's method has no round here",
            where=f"study '{study.name}'",
            remedy="raise paper.epochs or lower paper.batch",
        )
    if plan.setting.lipschitz > 1.0:
        raise StudyError(
            "gradients up to L leave the interval [0.001, 1] of the paper's polynomial",
            where=f"study '{study.name}'",
            remedy="set paper.lipschitz to 1 or less",
        )
    return plan
