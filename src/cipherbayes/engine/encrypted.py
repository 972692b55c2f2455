"""The parties of an encrypted update, made from a run's folder.

Beside what every run keeps, the server and each site keep their evaluator's state in
``evaluator.sqlite`` of their own folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cipherbayes.crypto.ckks.keys import CkksKeys
from cipherbayes.protocol.course import Course
from cipherbayes.protocol.csp import Csp
from cipherbayes.protocol.encrypted.csp import EncryptedCsp
from cipherbayes.protocol.encrypted.plan import EncryptedPlan
from cipherbayes.protocol.encrypted.server import EncryptedCourse, EncryptedServer
from cipherbayes.protocol.encrypted.site import EncryptedSite
from cipherbayes.protocol.server import Server
from cipherbayes.protocol.site import Site
from cipherbayes.protocol.stores import AnswerStore, Checkpoint

if TYPE_CHECKING:
    from cipherbayes.engine.assembly import RunFolder


def memory(folder: RunFolder, name: str) -> Checkpoint:
    """Where a party's evaluator is kept."""
    return Checkpoint(folder.home(name) / "evaluator.sqlite")


def trio(folder: RunFolder) -> CkksKeys:
    """The run's keys, made at the first call."""
    assert isinstance(folder.plan, EncryptedPlan)
    keys = folder.keys("csp")
    if keys.has_ckks(folder.run):
        return keys.load_ckks(folder.run)
    return keys.create_ckks(folder.run, folder.plan.circuit)


def site(folder: RunFolder, name: str, parts: dict[str, Any]) -> Site:
    """A site, from what every protocol's site is made of."""
    return EncryptedSite(**parts, memory=memory(folder, name))


def csp(folder: RunFolder) -> Csp:
    """The CSP, with the run's keys made at the first call."""
    from cipherbayes.engine.assembly import noise_source

    assert isinstance(folder.plan, EncryptedPlan)
    return EncryptedCsp(
        run=folder.run,
        plan=folder.plan,
        keys=trio(folder),
        key=folder.keys("csp").identity(),
        store=AnswerStore(folder.home("csp") / "answers.sqlite"),
        pinned=folder.pinned(),
        noise=noise_source(folder.study, "csp"),
    )


def course(folder: RunFolder, checkpoint: Checkpoint) -> Course:
    """Where the run stands."""
    return EncryptedCourse(folder.plan, checkpoint)


def server(folder: RunFolder, parts: dict[str, Any]) -> Server:
    """The server, where it stopped."""
    return EncryptedServer(**parts, memory=memory(folder, "server"))
