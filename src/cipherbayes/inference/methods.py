"""The inference methods that come with the package, registered on import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cipherbayes.inference.method import (
    Method,
    PublicFacts,
    RoundShares,
    WidthRatio,
    WidthSetting,
    register,
)
from cipherbayes.models.influence import LinearPredictorInfluence

if TYPE_CHECKING:
    from cipherbayes.inference.chains import Draws
    from cipherbayes.inference.flags import Flag
    from cipherbayes.inference.released import Recursion
    from cipherbayes.inference.settings import Inference
    from cipherbayes.inference.target import Target
    from cipherbayes.models import Design, Model
    from cipherbayes.models.influence import InfluenceBound
    from cipherbayes.models.prior import ResolvedPrior
    from cipherbayes.typing import Floats, Progress

PRIVATE_DEFAULT = "noise-aware"
"""Method of a private study that names none."""
CHAIN_DEFAULT = "psgld"
"""Method of a study without privacy that names none."""
MULTILEVEL = "multilevel"
"""Method of a study without privacy that names none and whose sites may differ."""
POINT = "this method gives a point estimate without intervals"
"""What is said where a method has no intervals."""


class NoiseAwareMethod(Method):
    """A posterior that accounts for the privacy noise."""

    name = PRIVATE_DEFAULT
    needs_privacy = True
    multilevel = True
    samples_at_the_end = True
    has_chains = False

    def require(self, model: Model) -> None:
        if model.bounded_influence is None:
            raise ValueError(
                f"a private study of kind '{model.kind}' has no calibrated intervals: "
                f'set inference.method = "{CHAIN_DEFAULT}" or "averaged" to run it all '
                "the same, for points without intervals, or choose another model"
            )
        more = model.extra_parameters()
        if more and isinstance(model.bounded_influence, LinearPredictorInfluence):
            raise ValueError(
                f"the bounded influence of a model of kind '{model.kind}' is that of a "
                f"linear predictor and says nothing of {', '.join(more)}: derive it "
                "from BoundedInfluence"
            )

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

    def width_ratio(self, setting: WidthSetting) -> WidthRatio:
        from cipherbayes.inference.noise_aware.width import expected_width_ratio

        return expected_width_ratio(setting)

    def recursion(self, facts: PublicFacts) -> Recursion:
        from cipherbayes.inference.noise_aware.released import NoiseAwareRounds

        return NoiseAwareRounds(facts)

    def sample(self, target: Target, settings: Inference, progress: Progress) -> Draws:
        raise NotImplementedError("there is no noise to be aware of")

    def flags(self, public: Design, standardised: Design) -> tuple[Flag, ...]:
        from cipherbayes.inference.noise_aware.flags import rare_levels

        return rare_levels(public, standardised)

    def sd_without_privacy(
        self,
        memory: Floats,
        prior: ResolvedPrior,
        model: Model,
        design: Design,
        bound: InfluenceBound | None,
        records: int | None,
    ) -> tuple[float, ...] | None:
        from cipherbayes.inference.noise_aware import without_privacy

        return without_privacy.expected_sd(memory, prior, model, design, bound, records)


class ChainMethod(Method):
    """Draws from a chain of preconditioned Langevin steps, as in the paper."""

    name = CHAIN_DEFAULT
    default_rounds = 400
    under_encryption = True
    interval_caution = (
        "Its draws count the privacy noise but not the bias of clipping: they describe "
        "the chain, not how far the points may be from the truth. The noise-aware "
        "method counts both."
    )

    def cautions(self, model: Model) -> list[str]:
        if model.bounded_influence is not None:
            return []
        return [
            f"a model of kind '{model.kind}' has no noise-aware posterior: pSGLD gives "
            "points without intervals"
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
    under_encryption = is_point = True

    def recursion(self, facts: PublicFacts) -> Recursion:
        from cipherbayes.inference.released import PrivateAverage

        return PrivateAverage.of(facts)

    def sample(self, target: Target, settings: Inference, progress: Progress) -> Draws:
        from cipherbayes.inference.chains import average

        return average(target, settings, progress)


class MultilevelMethod(Method):
    """Slices of the posterior of sites that may differ, over tables in one place."""

    name = MULTILEVEL
    default_rounds = 1_000
    needs_tables = needs_hierarchy = multilevel = True

    def require(self, model: Model) -> None:
        if model.bounded_influence is None or not model.bounded_influence.multilevel:
            raise ValueError(
                f'inference.method = "{self.name}" does not serve a model of kind '
                f"'{model.kind}': remove it"
            )

    def recursion(self, facts: PublicFacts) -> Recursion:
        raise NotImplementedError("it reads tables, not releases")

    def sample(self, target: Target, settings: Inference, progress: Progress) -> Draws:
        from cipherbayes.inference.multilevel import SiteTarget, sample

        assert isinstance(target, SiteTarget)
        return sample(target, settings, progress)


for _method in (
    NoiseAwareMethod(),
    ChainMethod(),
    AveragedMethod(),
    MultilevelMethod(),
):
    register(_method)
