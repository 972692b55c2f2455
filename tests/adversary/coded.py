"""A study of one feature with many levels: a round is hundreds of draws of noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from parties import Consortium

from cipherbayes.protocols.contributions import Contributions
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site

LEVELS = [f"code-{k}" for k in range(400)]


def coded(study: Study) -> Study:
    """The study with a rare diagnosis, each of which has a coordinate of its own."""
    document = study.model_dump(mode="json", exclude_none=True)
    return Study.model_validate({**document, "features": {"code": {"levels": LEVELS}}})


def coded_table(study: Study, name: str, canary: bool = False) -> Contributions:
    codes = [LEVELS[(31 * ord(name) + k) % len(LEVELS)] for k in range(50)]
    frame = pd.DataFrame({"code": codes, "death": [k % 2 for k in range(50)]})
    if canary:
        frame.loc[len(frame)] = [LEVELS[7], 1]
    return Contributions(study.model, open_site(study, name, frame))


class Coded(Consortium):
    """Sites with such tables."""

    def contributions(self, name: str) -> Contributions:
        return coded_table(self.study, name)

    @property
    def zero(self) -> Any:
        """θ at which all rounds are asked."""
        return np.zeros(self.plan.last_phase.dimension)
