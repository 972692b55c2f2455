"""An earlier fit that a study is compared with must be able to score any record."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from cipherbayes import models
from cipherbayes.models import Design, Model, kernels
from cipherbayes.models.rows import Rows
from cipherbayes.models.score_difference import log_scores
from cipherbayes.study.checking_rules import (
    _require_scores_of_any_record,
    outcome_of,
)

OUTCOME = {"time": "t", "event": "y", "horizon": 5.0}
KINDS: dict[str, dict[str, Any]] = {
    "exponential": OUTCOME,
    "weibull": OUTCOME,
    "gompertz": OUTCOME,
    "piecewise": {**OUTCOME, "cuts": (1.0, 2.0)},
}


DESIGN = Design(("age",), np.zeros(1), np.ones(1), None)


def model(kind: str, **settings: Any) -> Model:
    found: Model = getattr(models, kind.capitalize())(**{**KINDS[kind], **settings})
    return found


@pytest.mark.parametrize(("own", "earlier"), list(product(KINDS, KINDS)))
def test_survival_models_score_each_others_records(own: str, earlier: str) -> None:
    """Also those with a role for late entry, where nobody enters late."""
    first, second = model(own), model(earlier)
    assert outcome_of(first) == outcome_of(second)
    _require_scores_of_any_record(first, second, DESIGN, "earlier")
    raw = {"time": np.array([0.5, 4.0]), "event": np.array([1.0, 0.0])}
    x = np.ones((DESIGN.width, 2))
    rows = Rows(DESIGN, x, first.prepare_outcome(raw), kernels.squared_norms(x))
    draws = np.zeros((3, len(second.parameters(DESIGN))))
    assert np.isfinite(log_scores(second, draws, rows)).all()


def test_a_model_that_needs_what_the_study_does_not_prepare_is_refused() -> None:
    """And not when a round is computed: that would tell who has held-out records."""
    late = model("piecewise", entry="from")
    assert outcome_of(late) != outcome_of(model("exponential"))
    with pytest.raises(ValueError, match="reads outcomes in another way"):
        _require_scores_of_any_record(model("exponential"), late, DESIGN, "late")
