"""What a study file must know of a protocol, and the protocols that there are.

The room of the protocols registers its descriptors here, so that a study can be
checked before anything that encrypts is loaded.
"""

from __future__ import annotations

from inspect import get_annotations
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from cipherbayes.study.schema import Study

OWN_NOISE = "in-gradient"


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
        Whether what it releases suffices for the noise-aware method.
    multilevel
        Whether each site's parameters can have slots of their own in its releases.
    """

    name: ClassVar[str]
    noise: ClassVar[str] = OWN_NOISE
    federated: ClassVar[bool] = True
    noise_aware: ClassVar[bool] = True
    multilevel: ClassVar[bool] = False

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
    names = list(dict.fromkeys(known for known, _ in _PROTOCOLS))
    if name not in names:
        raise ValueError(
            f"no protocol is called '{name}': use "
            + " or ".join(f"'{each}'" for each in names)
        )
    return name


def rules_of(name: str, noise: str) -> ProtocolRules:
    """The protocol of a study, by its name and where its noise is added."""
    return _PROTOCOLS.get((name, noise)) or _PROTOCOLS[name, OWN_NOISE]


def refuse_fields_of_others(study: Study) -> None:
    """Raise ValueError for fields that belong to a protocol other than the study's."""
    for protocol in _PROTOCOLS.values():
        if protocol is not study.rules:
            protocol.refuse_elsewhere(study)
