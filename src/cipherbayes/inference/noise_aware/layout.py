"""What is known about the information matrix H before anything is released.

Which of its columns are constant, which belong to one site, and how much information
some of them must have. Model and study state it; the estimate of H
(:mod:`~.shrinkage`) and its prior (:mod:`~.information_prior`) use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cipherbayes.typing import Bools, Floats, Integers


@dataclass(frozen=True)
class ExpectedMasses:
    """How much information each constant column is expected to have.

    Attributes
    ----------
    values
        The mass to expect, one for each constant column.
    log_sd
        Standard deviation of the logarithm of the true mass around it.
    """

    values: Floats
    log_sd: Floats


@dataclass(frozen=True)
class SiteLayout:
    """Which site each column belongs to, where sites may differ.

    Attributes
    ----------
    constants, others
        The site of each constant column, and of each other column; -1 for all sites.
    masses
        The masses to expect of the constants; None where they belong to all sites.
    """

    constants: Integers
    others: Integers
    masses: ExpectedMasses | None

    @property
    def kinds(self) -> int:
        """How many constants each site has: one, or one for each baseline interval."""
        if self.masses is None:
            return 1
        return self.constants.size // np.unique(self.constants).size

    @property
    def of_another_site(self) -> Bools:
        """Which means are zero because the column is another site's, ``(b, e)``."""
        one, other = self.constants[:, None], self.others[None, :]
        return np.asarray((one >= 0) & (other >= 0) & (one != other))


@dataclass(frozen=True)
class InformationLayout:
    """What is known about H at one θ before anything is released.

    Attributes
    ----------
    constants
        Which parameters have a constant column, or columns that exclude each other.
    frame
        R such that the columns R z are about uncorrelated; None for the identity.
    along
        The coefficients θ. H may have less information in their direction than in
        others, where a record's weight depends on its linear predictor z'θ.
    shares
        (j, s) for each column j of R z whose information, its mean taken off, is known
        to be about s times the mass of the constant column.
    sites
        Which site each column belongs to, where sites may differ.
    """

    constants: tuple[int, ...] = ()
    frame: Floats | None = None
    along: Floats | None = None
    shares: tuple[tuple[int, float], ...] = ()
    sites: SiteLayout | None = None

    def expected(self, masses: Floats) -> dict[int, float]:
        """Information to expect by ``shares``, by number among the varying columns."""
        before = {j: sum(c < j for c in self.constants) for j, _ in self.shares}
        return {j - before[j]: share * float(masses[0]) for j, share in self.shares}


NOTHING = InformationLayout()
"""A layout of which nothing is known."""
