"""What draws say of the parameters: a row for each, sums of several, their signs.

All draws here are in the user's own units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cipherbayes.errors import RunError
from cipherbayes.inference.diagnostics import ESS_LIMIT, RHAT_LIMIT, rhat_and_ess
from cipherbayes.inference.methods import POINT
from cipherbayes.results.record import ParameterRow
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class Parameters:
    """Draws of named parameters.

    Attributes
    ----------
    names
        Of the parameters, in the order of the draws' last axis.
    draws
        Chains joined, shape ``(s, d)``.
    interval
        Probability inside an interval; None where the draws are no posterior.
    where
        What they belong to, for errors.
    """

    names: Sequence[str]
    draws: Floats
    interval: float | None
    where: str

    def combination(self, weights: Mapping[str, float]) -> ParameterRow:
        """Mean, sd and interval of Σ weight × parameter."""
        values = self._of(weights)
        total = values @ np.array([float(weights[name]) for name in weights])
        name = " + ".join(f"{weight:g} {each}" for each, weight in weights.items())
        rows, _ = summarise((name,), total.reshape(1, -1, 1), self.interval)
        return rows[0] | {"rhat": None, "ess": None}

    def probability(
        self, positive: Sequence[str] = (), negative: Sequence[str] = ()
    ) -> float:
        """Posterior probability that all these parameters have these signs at once."""
        if self.interval is None:
            raise RunError(
                "has points, no draws of a posterior",
                where=self.where,
                remedy="fit it with a method that gives intervals",
            )
        above, below = self._of(positive) > 0.0, self._of(negative) < 0.0
        return float((above.all(axis=1) & below.all(axis=1)).mean())

    def _of(self, names: Iterable[str]) -> Floats:
        """Draws of some of the parameters, shape ``(s, n)``."""
        wanted = list(names)
        for name in wanted:
            if name not in self.names:
                raise RunError(
                    f"no parameter is called '{name}'",
                    where=self.where,
                    remedy=f"the parameters are {', '.join(self.names)}",
                )
        return self.draws[:, [self.names.index(name) for name in wanted]]


def summarise(
    names: tuple[str, ...], user: Floats, interval: float | None
) -> tuple[list[ParameterRow], list[str]]:
    """One row per parameter, and warnings about chains that did not mix.

    Parameters
    ----------
    user
        Draws, shape ``(chains, draws, d)``.
    interval
        Probability inside an interval; None where the draws are one point.
    """
    rows: list[ParameterRow]
    if interval is None:
        rows = [
            {
                "name": name,
                "mean": float(value),
                "sd": None,
                "lower": None,
                "upper": None,
                "rhat": None,
                "ess": None,
            }
            for name, value in zip(names, user[0, 0], strict=True)
        ]
        return rows, [POINT]
    tail = (1.0 - interval) / 2.0
    flat = user.reshape(-1, user.shape[-1])
    lower, upper = np.quantile(flat, [tail, 1.0 - tail], axis=0)
    rhat, ess = rhat_and_ess(user)
    rows = [
        {
            "name": name,
            "mean": float(flat[:, j].mean()),
            "sd": float(flat[:, j].std(ddof=1)) if len(flat) > 1 else None,
            "lower": float(lower[j]),
            "upper": float(upper[j]),
            "rhat": None if np.isnan(rhat[j]) else float(rhat[j]),
            "ess": None if np.isnan(ess[j]) else float(ess[j]),
        }
        for j, name in enumerate(names)
    ]
    notes = []
    slow = [r["name"] for r in rows if (r["rhat"] or 0.0) > RHAT_LIMIT]
    if slow:
        notes.append(
            f"chains have not mixed for {len(slow)} of {len(rows)} parameters "
            f"(R-hat above {RHAT_LIMIT:g}, first: {slow[0]}): raise inference.rounds"
        )
    few = min((r["ess"] for r in rows if r["ess"] is not None), default=None)
    if few is not None and few < ESS_LIMIT:
        notes.append(
            f"only {few:.0f} effective draws in the worst parameter: "
            + ("do not use its interval" if few < 20 else "its interval is rough")
            + "; raise inference.rounds"
        )
    return rows, notes
