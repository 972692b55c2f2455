"""Effect sizes as ``result.json`` states them, and how clear their direction is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cipherbayes.report.run_contents import Contents


@dataclass(frozen=True)
class Effect:
    """One row of the forest plot.

    Attributes
    ----------
    name, per
        The parameter, and the change of the feature whose effect is shown.
    above
        Posterior probability that the effect is above the reference; None for a
        point estimate.
    """

    name: str
    per: str
    estimate: float
    lower: float | None
    upper: float | None
    above: float | None

    @property
    def direction(self) -> float:
        """Probability of the likelier direction."""
        return 1.0 if self.above is None else max(self.above, 1.0 - self.above)

    def covers(self, reference: float) -> bool:
        """Whether the interval holds the value of no effect."""
        if self.lower is None or self.upper is None:
            return True
        return self.lower <= reference <= self.upper


@dataclass(frozen=True)
class Effects:
    """All effects of a result on one scale: ratios around 1, or differences."""

    measure: str
    rows: tuple[Effect, ...]

    @property
    def ratios(self) -> bool:
        return self.measure.endswith("ratio")

    @property
    def reference(self) -> float:
        """The value of no effect."""
        return 1.0 if self.ratios else 0.0


def effects_of(contents: Contents) -> Effects | None:
    """Effects of a regression; None where coefficients mean nothing alone."""
    entries = contents.record.get("effects", [])
    if not any(entry["estimate"] is not None for entry in entries):
        return None
    theta = np.asarray(contents.result.posterior["posterior"].to_dataset()["theta"])
    flat = theta.reshape(-1, theta.shape[-1])
    place = {row["name"]: j for j, row in enumerate(contents.record["posterior"])}
    rows = []
    for entry in entries:
        if entry["estimate"] is None:
            continue
        above = entry.get("above")
        if above is None and entry["lower"] is not None:
            above = float((flat[:, place[entry["name"]]] > 0.0).mean())
        rows.append(
            Effect(
                name=entry["name"],
                per=entry["per"],
                estimate=entry["estimate"],
                lower=entry["lower"],
                upper=entry["upper"],
                above=above,
            )
        )
    return Effects(entries[0]["measure"], tuple(rows))


def strongest(effects: Sequence[Effect], most: int) -> list[Effect]:
    """The effects whose direction is clearest, in the order of the study."""
    ranked = sorted(effects, key=lambda effect: -effect.direction)[:most]
    kept = {effect.name for effect in ranked}
    return [effect for effect in effects if effect.name in kept]


def own_step(name: str, per: str) -> str:
    """A step beside the name of its feature, which it need not say again."""
    return per.removesuffix(f" of {name}")
