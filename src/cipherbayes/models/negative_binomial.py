"""Negative binomial regression: counts that vary more than a Poisson's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from scipy.special import digamma, gammaln

from cipherbayes.models.counts import CountModel, mean_of
from cipherbayes.models.enumerated_influence import EnumeratedInfluence, PossibleOutcome
from cipherbayes.models.held_out_numbers import OverdispersedCheck
from cipherbayes.models.registry import register
from cipherbayes.models.rows import RecordGradients, Rows
from cipherbayes.typing import Floats

LARGEST_LOG_DISPERSION = 12.0
"""log alpha is held within ± this: from there on a Poisson's, or all but one count."""

LARGEST_LOG_MEAN = 600.0
"""As in a Poisson regression, and so that a mean over r does not overflow either."""

CAP = 100
"""A count counts up to here in bounded scores; so it does from three standard
deviations above its mean."""


@register
class NegativeBinomial(CountModel):
    """A count y with mean m = exp(eta + o) and variance m + alpha m², o an offset.

    With r = 1 / alpha, log p(y) = log Γ(y + r) - log Γ(r) - log y! + r log(r / (r + m))
    + y log(m / (r + m)); gradient x (y - m) r / (r + m), and in log alpha

        -r (ψ(y + r) - ψ(r) + log(r / (r + m)) + (m - y) / (r + m)).

    alpha = exp(log_dispersion); a Poisson is alpha = 0 (NB2 of Cameron and Trivedi
    2013, Regression analysis of count data, section 3.3).

    Parameters
    ----------
    outcome, exposure, offset, per
        As in a Poisson regression.
    """

    title: ClassVar[str | None] = "negative-binomial regression"
    kind: Literal["negative-binomial"] = "negative-binomial"

    def extra_parameters(self) -> tuple[str, ...]:
        return ("log_dispersion",)

    def log_likelihood(self, theta: Floats, rows: Rows) -> Floats:
        y, mean, r = rows.outcome["y"], self.mean(theta, rows), _size(theta)
        log_mean = np.minimum(self.log_mean(theta, rows), LARGEST_LOG_MEAN)
        result: Floats = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
        result += y * (log_mean - np.log(r + mean)) - r * np.log1p(mean / r)
        return result

    def gradients(self, theta: Floats, rows: Rows) -> RecordGradients:
        y, mean, r = rows.outcome["y"], self.mean(theta, rows), _size(theta)
        score = (y - mean) / (1.0 + mean / r)
        extra = -r * (
            digamma(y + r) - digamma(r) - np.log1p(mean / r) + (mean - y) / (r + mean)
        )
        return RecordGradients(rows, score=score, extra=extra[None])

    @property
    def held_out_check(self) -> OverdispersedCheck:
        return OverdispersedCheck(self)

    @property
    def bounded_influence(self) -> NegativeBinomialInfluence:
        return NegativeBinomialInfluence(self)

    def mean(self, theta: Floats, rows: Rows) -> Floats:
        """m of each record, shape ``(m,)``."""
        return mean_of(self.log_mean(theta, rows), LARGEST_LOG_MEAN)


class NegativeBinomialInfluence(EnumeratedInfluence):
    """Scores of the count held at a cap: min(y, c), c = ⌈m + 3 sd⌉ + 1 or 100.

    c depends on x and theta alone. P(y), its derivatives and the sum of reciprocals in
    the digamma functions follow from those of y - 1; what is left is P(Y ≥ c), and as
    probabilities add up to one its score is minus the sum of the others' over it.
    """

    model: NegativeBinomial

    most_score: ClassVar[float] = 2.0
    most_information: ClassVar[float] = 1.5
    extra_unit: ClassVar[float] = 2.0

    def outcomes(self, theta: Floats, rows: Rows) -> Iterator[PossibleOutcome]:
        mean, r = self.model.mean(theta, rows), _size(theta)
        held = np.minimum(mean, 1e6)  # beyond, every count is at the cap
        spread = np.sqrt(held * (1.0 + held / r))
        cap = np.minimum(np.ceil(held + 3.0 * spread) + 1.0, CAP)
        y = np.minimum(rows.outcome["y"], cap)
        usual = r / (r + held)
        probability = np.exp(-r * np.log1p(held / r))
        rest, pull, pull_extra = np.ones_like(held), np.zeros_like(held), 0.0 * held
        sums = np.zeros_like(held)
        for count in range(int(cap.max(initial=0.0))):
            inside = count < cap
            known = np.where(inside, probability, 0.0)
            score = (count - held) * usual
            extra = -r * (sums - np.log1p(held / r) + (held - count) / (r + held))
            extra = np.where(inside, extra, 0.0)
            score = np.where(inside, score, 0.0)
            rest = np.where(inside, rest - probability, rest)
            pull -= known * score
            pull_extra = pull_extra - known * extra
            yield PossibleOutcome(known, score, extra[None], y == count)
            sums = sums + 1.0 / (r + count)
            probability = (
                probability * ((count + r) / (count + 1.0)) * (held / (r + held))
            )
        # Where next to nothing is left the quotient would be one of rounding errors.
        tail = np.maximum(rest, 1e-9)
        left = rest > 1e-9
        yield PossibleOutcome(
            np.where(left, rest, 0.0),
            np.where(left, pull / tail, 0.0),
            np.where(left, pull_extra / tail, 0.0)[None],
            y >= cap,
        )


def _size(theta: Floats) -> float:
    """r = 1 / alpha."""
    held = np.clip(theta[-1], -LARGEST_LOG_DISPERSION, LARGEST_LOG_DISPERSION)
    return float(np.exp(-held))
