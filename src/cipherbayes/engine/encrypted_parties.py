"""The parties of an encrypted update, made from a run's folder.

Beside what every run keeps, the server and each site keep their evaluator's state in
``evaluator.sqlite`` of their own folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cipherbayes.crypto.ckks.keys import CkksKeys
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.protocols.as_printed.csp import PrintedCsp
from cipherbayes.protocols.as_printed.plan import PrintedPlan
from cipherbayes.protocols.as_printed.server import (
    PrintedCourse,
    PrintedServer,
)
from cipherbayes.protocols.as_printed.site import PrintedSite
from cipherbayes.protocols.csp import Csp
from cipherbayes.protocols.encrypted_update.csp import EncryptedCsp
from cipherbayes.protocols.encrypted_update.plan import EncryptedPlan
from cipherbayes.protocols.encrypted_update.server import (
    EncryptedCourse,
    EncryptedServer,
)
from cipherbayes.protocols.encrypted_update.site import EncryptedSite
from cipherbayes.protocols.plan import StudyPlan
from cipherbayes.protocols.rounds import Course
from cipherbayes.protocols.server import Server
from cipherbayes.protocols.site import Site
from cipherbayes.protocols.stores import AnswerStore, Checkpoint

if TYPE_CHECKING:
    from cipherbayes.engine.run_folder import RunFolder


def memory(folder: RunFolder, name: str) -> Checkpoint:
    """Where a party's evaluator is kept."""
    return Checkpoint(folder.home(name) / "evaluator.sqlite")


def trio(folder: RunFolder) -> CkksKeys:
    """The run's keys, made at the first call."""
    plan, keys = folder.plan, folder.keys("csp")
    assert isinstance(plan, EncryptedPlan | PrintedPlan)
    if keys.has_ckks(folder.run):
        return keys.load_ckks(folder.run)
    return keys.create_ckks(folder.run, plan.circuit)


def site(
    folder: RunFolder, name: str, table: PreparedTable, parts: dict[str, Any]
) -> Site:
    """A site, from what every protocol's site is made of."""
    if isinstance(folder.plan, PrintedPlan):
        return PrintedSite(**parts, table=table)
    return EncryptedSite(**parts, memory=memory(folder, name))


def csp(folder: RunFolder) -> Csp:
    """The CSP, with the run's keys made at the first call."""
    from cipherbayes.engine.run_folder import noise_source

    parts: dict[str, Any] = {
        "run": folder.run,
        "plan": folder.plan,
        "keys": trio(folder),
        "key": folder.keys("csp").identity(),
        "store": AnswerStore(folder.home("csp") / "answers.sqlite"),
        "pinned": folder.pinned(),
        "noise": noise_source(folder.study, "csp"),
    }
    if isinstance(folder.plan, PrintedPlan):
        return PrintedCsp(**parts)
    return EncryptedCsp(**parts)


def course(plan: StudyPlan, checkpoint: Checkpoint) -> Course:
    """Where a run stands."""
    if isinstance(plan, PrintedPlan):
        return PrintedCourse(plan, checkpoint)
    return EncryptedCourse(plan, checkpoint)


def server(folder: RunFolder, parts: dict[str, Any]) -> Server:
    """The server, where it stopped."""
    from cipherbayes.engine.run_folder import noise_source

    if isinstance(folder.plan, PrintedPlan):
        return PrintedServer(
            **parts,
            memory=memory(folder, "server"),
            noise=noise_source(folder.study, "server"),
        )
    return EncryptedServer(**parts, memory=memory(folder, "server"))
