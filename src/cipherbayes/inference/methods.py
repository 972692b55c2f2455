"""The methods that come with the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cipherbayes.inference.method import (
    Method,
    Progress,
    PublicFacts,
    RoundShares,
    register,
)

if TYPE_CHECKING:
    from cipherbayes.inference.chains import Draws
    from cipherbayes.inference.noise_aware.flags import Flag
    from cipherbayes.inference.released import Recursion
    from cipherbayes.inference.settings import Inference
    from cipherbayes.inference.target import Target
    from cipherbayes.models import Design, Model
    from cipherbayes.models.influence import InfluenceBound
    from cipherbayes.models.prior import ResolvedPrior
    from cipherbayes.typing import Floats

PRIVATE_DEFAULT, CHAIN_DEFAULT = "noise-aware", "psgld"
"""Methods of studies that name none: private ones, and all others."""
POINT = "this method gives a point estimate without intervals"


class NoiseAwareMethod(Method):
    """A posterior that knows of the privacy noise."""

    name = PRIVATE_DEFAULT
    needs_privacy = True
    samples_at_the_end = True
    has_chains = False

    def check(self, settings: Inference) -> None:
        if settings.chain_settings:
            raise ValueError(
                f"inference.{settings.chain_settings[0]} belongs to a chain: the "
                "noise-aware method has rounds of its own; remove it or set "
                'method = "psgld"'
            )

    def substitute(self, model: Model) -> str:
        return self.name if model.bounded_influence is not None else CHAIN_DEFAULT

    def round_shares(self) -> Sequence[RoundShares]:
        from cipherbayes.inference.noise_aware import schedule

        return schedule.rounds()

    def loosened(
        self,
        model: Model,
        clip: float,
        *,
        curvature: float,
        records: int,
        mu: float,
        excess: float,
    ) -> float:
        from cipherbayes.inference.noise_aware import schedule

        return schedule.loosened(
            model, clip, curvature=curvature, records=records, mu=mu, excess=excess
        )

    def influence_bound(
        self,
        model: Model,
        clip: float,
        *,
        records: int | None,
        mu: float,
        excess: float,
    ) -> InfluenceBound:
        from cipherbayes.inference.noise_aware import schedule

        return schedule.influence_bound(
            model, clip, records=records, mu=mu, excess=excess
        )

    def recursion(self, facts: PublicFacts) -> Recursion:
        from cipherbayes.inference.noise_aware.released import NoiseAwareRounds

        return NoiseAwareRounds(facts.settings, facts.prior, facts.model, facts.design)

    def sample(self, target: Target, settings: Inference, progress: Progress) -> Draws:
        raise NotImplementedError("there is no noise to be aware of")

    def flags(self, public: Design, standardised: Design) -> tuple[Flag, ...]:
        from cipherbayes.inference.noise_aware.flags import rare_levels

        return rare_levels(public, standardised)

    def sd_without_privacy(
        self, memory: Floats, prior: ResolvedPrior, model: Model, design: Design
    ) -> tuple[float, ...] | None:
        from cipherbayes.inference.noise_aware import without_privacy

        return without_privacy.expected_sd(memory, prior, model, design)


class ChainMethod(Method):
    """Draws from a chain of preconditioned Langevin steps, as in the paper."""

    name = CHAIN_DEFAULT
    default_rounds = 400
    interval_caution = (
        "These intervals count the privacy noise but not the bias of clipping: read "
        "them as a description of the chain. The noise-aware method counts both."
    )

    def cautions(self, model: Model) -> list[str]:
        if model.bounded_influence is not None:
            return []
        return [
            f"a model of kind '{model.kind}' has no noise-aware posterior: pSGLD is "
            "used, whose intervals ignore what clipping does"
        ]

    def recursion(self, facts: PublicFacts) -> Recursion:
        from cipherbayes.inference.released import PrivatePsgld

        return PrivatePsgld.of(facts)

    def sample(self, target: Target, settings: Inference, progress: Progress) -> Draws:
        from cipherbayes.inference.chains import sample

        return sample(target, settings, progress)


class AveragedMethod(Method):
    """Gradient ascent, averaged over its last half: a point."""

    name = "averaged"
    default_rounds = 20
    is_point = True

    def recursion(self, facts: PublicFacts) -> Recursion:
        from cipherbayes.inference.released import PrivateAverage

        return PrivateAverage.of(facts)

    def sample(self, target: Target, settings: Inference, progress: Progress) -> Draws:
        from cipherbayes.inference.chains import average

        return average(target, settings, progress)


for _method in (NoiseAwareMethod(), ChainMethod(), AveragedMethod()):
    register(_method)
