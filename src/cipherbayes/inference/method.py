"""What an inference method is, and which ones there are.

A method is one object: what it releases, how it moves theta, what it may say about its
result. A study names it; nothing outside this room asks which one it is.
:func:`register` adds another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.installed import load_installed

if TYPE_CHECKING:  # a study file is read without loading samplers
    from cipherbayes.inference.chains import Draws
    from cipherbayes.inference.flags import Flag
    from cipherbayes.inference.released import Recursion
    from cipherbayes.inference.settings import Inference
    from cipherbayes.inference.target import Target
    from cipherbayes.models import Design, Model
    from cipherbayes.models.prior import ResolvedPrior
    from cipherbayes.typing import Floats, Progress


class RoundShares(Protocol):
    """Shares of μ² of one round: of its score sum and of its information sum."""

    @property
    def gradient_share(self) -> float: ...
    @property
    def information_share(self) -> float: ...


class WidthRatio(NamedTuple):
    """Width of an interval over that without privacy.

    ``expected``, and the ``least`` and ``most`` between which it is in most studies.
    """

    expected: float
    least: float
    most: float


@dataclass(frozen=True)
class WidthSetting:
    """What the width of a typical coefficient's interval depends on.

    Attributes
    ----------
    records, dimension
        N and d.
    mu
        μ of Gaussian differential privacy that the whole budget allows.
    sensitivities
        (Δ_g, Δ_H), of a score sum and of an information sum.
    information
        v: a public guess of a record's mean information in a typical coordinate,
        e.g. ``model.curvature(design)`` times the mean square of a column.
    first_information
        The same at the prior mean, where the first round is.
    prior_sd
        Prior standard deviation of a typical coordinate.
    excess
        Variance really present over the certified one, K / (K − c − r).
    levels, mass
        How many constant columns belong to one site each (0 where sites do not differ),
        and a record's information about its constant.
    intervals
        How many intervals a baseline has that all sites share.
    grows
        Whether scores grow with the exponential of the linear predictor.
    """

    records: int
    dimension: int
    mu: float
    sensitivities: tuple[float, float]
    information: float
    first_information: float
    prior_sd: float = 1.0
    excess: float = 1.0
    levels: int = 0
    mass: float = 1.0
    intervals: int = 1
    grows: bool = False


@dataclass(frozen=True)
class SiteRecords:
    """The released number of records of each site, and the sd of its noise."""

    counts: Floats
    noise_sd: float


@dataclass(frozen=True)
class PublicFacts:
    """What a method knows of a private study before its first release.

    Attributes
    ----------
    prior
        Prior of every entry of θ: the model's parameters, or those of all sites.
    records
        N, declared or released with noise.
    site_records
        N of each site, where sites may differ.
    rounds
        Releases that the budget pays for.
    rate
        Probability with which a record takes part in a release.
    bound
        Bound on a record's influence, where weighted sums are released.
    """

    settings: Inference
    prior: ResolvedPrior
    model: Model
    design: Design
    records: float
    rounds: int
    rate: float
    site_records: SiteRecords | None = None
    bound: InfluenceBound | None = None


class Method(ABC):
    """An inference method.

    Attributes
    ----------
    name
        What ``[inference] method`` calls it.
    default_rounds
        Rounds of a private study that names none.
    needs_privacy
        Whether it works with released, noised sums only.
    needs_tables
        Whether it reads the rows themselves, so that it serves no private study.
    needs_hierarchy
        Whether it serves studies of sites that may differ only.
    under_encryption
        Whether an encrypted update may take the place of its own steps.
    multilevel
        Whether it has a posterior of what differs between sites.
    is_point
        Whether it gives a point without intervals.
    samples_at_the_end
        Whether draws are made by a sampler after the last round, so that they need
        not be the same bit for bit on another machine.
    has_chains
        Whether R-hat and effective draws judge its rounds; else its own flags do.
    interval_caution
        Why its draws in a private study are no intervals, None where they are: results
        and reports then show points, and it runs only where a study names it.
    """

    name: ClassVar[str]
    default_rounds: ClassVar[int]
    needs_privacy: ClassVar[bool] = False
    needs_tables: ClassVar[bool] = False
    needs_hierarchy: ClassVar[bool] = False
    under_encryption: ClassVar[bool] = False
    multilevel: ClassVar[bool] = False
    is_point: ClassVar[bool] = False
    samples_at_the_end: ClassVar[bool] = False
    has_chains: ClassVar[bool] = True
    interval_caution: ClassVar[str | None] = None

    def check(self, settings: Inference) -> None:
        """Raise ValueError for settings that contradict the method."""
        if self.round_shares() is not None and settings.chain_settings:
            raise ValueError(
                f"inference.{settings.chain_settings[0]} belongs to a chain: the "
                f"{self.name} method has rounds of its own; remove it or set method = "
                + method_choices(
                    lambda other: other.round_shares() is None and not other.multilevel
                )
            )

    def require(self, model: Model) -> None:
        """Raise ValueError for a model that it does not serve."""
        return

    def cautions(self, model: Model) -> list[str]:
        """Warnings for every plan and result of a private study with this method."""
        return []

    def round_shares(self) -> Sequence[RoundShares] | None:
        """Shares of the budget, round by round, of sums weighted by x.

        None where every round releases clipped gradients, all alike.
        """
        return None

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
        """A wider bound on a row's norm where there is little noise; else ``clip``."""
        return clip

    def influence_bound(
        self,
        model: Model,
        clip: float,
        *,
        records: int | None,
        mu: float,
        excess: float,
    ) -> InfluenceBound:
        """How much a record may contribute, where :meth:`round_shares` is not None."""
        return InfluenceBound(clip)

    def width_ratio(self, setting: WidthSetting) -> WidthRatio | None:
        """Width of an interval over that without privacy; None if it cannot be said.

        It can be where rounds release information matrices.
        """
        return None

    @abstractmethod
    def recursion(self, facts: PublicFacts) -> Recursion:
        """How theta moves from release to release in a private study."""

    @abstractmethod
    def sample(self, target: Target, settings: Inference, progress: Progress) -> Draws:
        """Draws over pooled tables without privacy."""

    def flags(self, public: Design, standardised: Design) -> tuple[Flag, ...]:
        """Warnings about columns that were standardised by released moments."""
        return ()

    def sd_without_privacy(
        self,
        memory: Floats,
        prior: ResolvedPrior,
        model: Model,
        design: Design,
        bound: InfluenceBound | None,
        records: int | None,
    ) -> tuple[float, ...] | None:
        """Posterior sd to expect without privacy, from the sampler's last state.

        ``bound`` is that of weighted sums, ``records`` how many were fitted, where that
        is known. None where the method has not released what
        it takes.
        """
        return None


GROUP = "cipherbayes.methods"
_METHODS: dict[str, Method] = {}


def register(method: Method) -> None:
    """Add a method; its name must be new, and it must say its rounds.

    A method that releases sums weighted by x has a round for each of its shares; of
    any other a study must be able to name none.
    """
    says = type(method).__name__
    if not hasattr(method, "name"):
        raise ValueError(f"{says} does not say its name")
    shares = method.round_shares()
    if not hasattr(method, "default_rounds") and shares is None:
        raise ValueError(f"{says} does not say its default_rounds or round_shares")
    each = [
        share
        for round in shares or ()
        for share in (round.gradient_share, round.information_share)
    ]
    if shares is not None and not (sum(each) > 0.0 and min(each) >= 0.0):
        raise ValueError(f"{says} has round_shares of which none is more than 0")
    if method.name in _METHODS:
        raise ValueError(f"there is a method '{method.name}' already")
    _METHODS[method.name] = method


def unregister(name: str) -> None:
    """Take a method out again."""
    del _METHODS[name]


def methods() -> tuple[Method, ...]:
    """All that are registered."""
    return tuple(_METHODS.values())


def method_choices(fits: Callable[[Method], bool]) -> str:
    """Names of the methods that fit, for a remedy."""
    return " or ".join(f'"{each.name}"' for each in methods() if fits(each))


def method_named(name: str) -> Method:
    """The method of a name; raises ValueError where there is none.

    One that is not known here is looked for among the entry points of the group
    ``cipherbayes.methods``; importing what they name registers it.
    """
    if name not in _METHODS:
        for _ in load_installed(GROUP, name, "method"):
            pass
    if name not in _METHODS:
        known = " or ".join(f"'{each}'" for each in _METHODS)
        raise ValueError(f"no method is called '{name}': use {known}")
    return _METHODS[name]
