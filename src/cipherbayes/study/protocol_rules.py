"""What a study file must know of a protocol, and the protocols that there are.

The room of the protocols registers its descriptors here, so that a study can be
checked before anything that encrypts is loaded. Beside them a study may name a protocol
of any installed distribution that has an entry point of the group
``cipherbayes.protocols`` called as the protocol is. It is imported when a study names
it, and never otherwise; no distribution replaces a protocol of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import get_annotations
from typing import TYPE_CHECKING, ClassVar

from cipherbayes.errors import StudyError

if TYPE_CHECKING:
    from cipherbayes.study.schema import Study

GROUP = "cipherbayes.protocols"
OWN_NOISE = "in-gradient"
FEDERATED_DEFAULT, CURATED_DEFAULT = "secure-sum", "pooled"
"""Protocols of studies that name none: private ones with sites, and all others."""


class ProtocolRules:
    """A protocol, as far as a study file goes.

    Attributes
    ----------
    name
        What ``[study] protocol`` calls it.
    noise
        ``[study] noise`` of its studies.
    federated
        Whether tables stay at sites, which talk through a server and a CSP.
    noise_aware
        Whether it releases sums with noise, which the noise-aware method, checks of
        held-out rows and descriptions are made of.
    multilevel
        Whether each site's parameters can have slots of their own in its releases.
    why_not_noise_aware, why_not_multilevel
        Why not, in the words of a refusal.
    distribution
        The installed distribution that it comes from; None where it is this one.
    """

    name: ClassVar[str]
    noise: ClassVar[str] = OWN_NOISE
    federated: ClassVar[bool] = True
    noise_aware: ClassVar[bool] = True
    multilevel: ClassVar[bool] = False
    why_not_noise_aware: ClassVar[str] = "it releases no sums with noise"
    why_not_multilevel: ClassVar[str] = "its releases do not keep sites apart"
    distribution: str | None = None

    def check(self, study: Study) -> None:
        """Raise ValueError for a private study that it cannot run."""

    def refuse_elsewhere(self, study: Study) -> None:
        """Raise ValueError for fields of its own in a study of another protocol."""

    def defaults(self, study: Study) -> dict[str, str]:
        """Keys of ``[study]`` that it fills in where they are left out."""
        return {}


_PROTOCOLS: dict[tuple[str, str], ProtocolRules] = {}


def register(protocol: ProtocolRules) -> None:
    """Add a protocol; its name and noise together must be new."""
    named = [n for each in type(protocol).__mro__ for n in get_annotations(each)]
    if missing := [name for name in named if not hasattr(protocol, name)]:
        raise ValueError(
            f"{type(protocol).__name__} does not say its {' or '.join(missing)}"
        )
    key = protocol.name, protocol.noise
    if key in _PROTOCOLS:
        raise ValueError(f"there is a protocol '{protocol.name}' already")
    _PROTOCOLS[key] = protocol


def unregister(protocol: ProtocolRules) -> None:
    """Take a protocol out again."""
    del _PROTOCOLS[protocol.name, protocol.noise]


def known_protocol(name: str) -> str:
    """The name itself; raises ValueError where no protocol has it."""
    if name not in _names():
        _register_installed(name)
    names = _names()
    if name not in names:
        raise ValueError(
            f"no protocol is called '{name}': use "
            + " or ".join(f"'{each}'" for each in names)
        )
    return name


def _names() -> list[str]:
    return list(dict.fromkeys(known for known, _ in _PROTOCOLS))


def _register_installed(name: str) -> None:
    """Add the protocol of that name, where an installed distribution has one."""
    from cipherbayes.models.installed import load_installed

    for distribution, found in load_installed(GROUP, name, "protocol"):
        if not isinstance(found, ProtocolRules) or found.name != name:
            raise StudyError(
                f"{distribution} has no protocol called '{name}' where it says so",
                where=f"the entry points of the group {GROUP}",
                remedy="let the entry point name the protocol's descriptor, an "
                "instance of a class derived from Protocol with that name",
            )
        found.distribution = distribution
        if found not in _PROTOCOLS.values():  # its module may register it
            register(found)


def known_noise(noise: str) -> str:
    """The noise itself; raises ValueError where no protocol has it."""
    noises = list(dict.fromkeys([OWN_NOISE, *(known for _, known in _PROTOCOLS)]))
    if noise not in noises:
        raise ValueError(
            f"no protocol has the noise '{noise}': use "
            + " or ".join(f"'{each}'" for each in noises)
        )
    return noise


def protocols() -> tuple[ProtocolRules, ...]:
    """All that are registered."""
    return tuple(_PROTOCOLS.values())


def choices(fits: Callable[[ProtocolRules], bool]) -> str:
    """Names of the protocols that fit, for a remedy; defaults come first."""
    names = {each.name for each in protocols() if fits(each)}
    defaults = [FEDERATED_DEFAULT, CURATED_DEFAULT]
    ranked = [name for name in defaults if name in names]
    ranked += sorted(names.difference(defaults))
    return " or ".join(f'"{name}"' for name in ranked)


def rules_of(name: str, noise: str) -> ProtocolRules:
    """The protocol of a study, by its name and where its noise is added.

    Raises ValueError where the name goes with a noise that the study does not have.
    """
    found = _PROTOCOLS.get((name, noise)) or _PROTOCOLS.get((name, OWN_NOISE))
    if found is None:
        needed = [f'"{own}"' for known, own in _PROTOCOLS if known == name]
        raise ValueError(
            f'protocol = "{name}" needs a noise of its own: set study.noise = '
            + " or ".join(needed)
        )
    return found


def refuse_fields_of_others(study: Study) -> None:
    """Raise ValueError for fields that belong to a protocol other than the study's."""
    noise = study.study.noise
    if noise not in (OWN_NOISE, study.rules.noise):
        owners = choices(lambda protocol: protocol.noise == noise)
        raise ValueError(f'study.noise = "{noise}" belongs to protocol = {owners}')
    for protocol in _PROTOCOLS.values():
        if protocol is not study.rules:
            protocol.refuse_elsewhere(study)
