"""Where a run stands, read from the server's checkpoint."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

import numpy as np

from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.errors import RunError
from cipherbayes.protocols.plan import Plan
from cipherbayes.protocols.stores import CheckpointReader, checkpoint_file
from cipherbayes.study.tables import preparation_of, slots_of

RECENT = 30
"""Rounds that the pace is taken from."""
LATE_SECONDS, LATE_FACTOR = 10.0, 10.0
"""A round is late after so long, and so many times the pace."""

Lost = tuple[tuple[str, int], ...]
Times = tuple[tuple[int, float], ...]


class LostRecord(TypedDict):
    """A site that dropped out, and in which round."""

    site: str
    round: int


class SnapshotRecord(TypedDict):
    """Where a run stands, as ``state.json`` has it; see :class:`Snapshot`."""

    study: str
    round: int
    rounds: int
    epsilon_spent: float
    epsilon: float
    delta: float
    certified: bool
    theta: dict[str, list[float]]
    lost: list[LostRecord]
    finished: bool
    drawing: bool
    seconds_a_round: float | None
    seconds_left: float | None
    round_seconds: list[float]
    seconds_since_last_answer: float | None
    late: bool


@dataclass(frozen=True)
class Snapshot:
    """Where a run stands.

    Attributes
    ----------
    done, rounds
        Rounds finished and planned.
    spent, budget
        ε of the rounds finished, and the ε that the study asks for.
    certified
        Whether a run of this study promises anything.
    theta
        θ after each round of the fit on the prepared scale, one list a parameter.
    lost
        Sites that dropped out, and in which round.
    seconds
        How long each round took, as the server's checkpoint has it, resumed rounds
        and the first one left out.
    answered
        Seconds since the last round ended: since every party taking part, the CSP
        included, last answered. None before that.
    parties
        Whether there are a server and a CSP.
    """

    study: str
    names: tuple[str, ...]
    sites: tuple[str, ...]
    done: int
    rounds: int
    spent: float
    budget: float
    delta: float
    theta: tuple[tuple[float, ...], ...]
    lost: tuple[tuple[str, int], ...]
    finished: bool
    seconds: tuple[float, ...]
    answered: float | None
    parties: bool
    certified: bool

    @property
    def pace(self) -> float | None:
        """Seconds a round, the median of the last thirty; None before there are two."""
        return median(self.seconds[-RECENT:]) if self.seconds else None

    @property
    def drawing(self) -> bool:
        """Whether all rounds are done and the posterior is being drawn from them."""
        return not self.finished and self.done >= self.rounds

    @property
    def left(self) -> float | None:
        """Seconds to the last round at this pace; not known of the drawing after it."""
        if self.pace is None or self.drawing:
            return None
        return self.pace * (self.rounds - self.done)

    @property
    def late(self) -> bool:
        """Whether the round that is under way takes far longer than those before."""
        if self.finished or self.drawing:
            return False
        if self.answered is None or self.pace is None:
            return False
        return self.answered > LATE_SECONDS + LATE_FACTOR * self.pace

    def document(self) -> SnapshotRecord:
        """For programs."""
        return {
            "study": self.study,
            "round": self.done,
            "rounds": self.rounds,
            "epsilon_spent": self.spent,
            "epsilon": self.budget,
            "delta": self.delta,
            "certified": self.certified,
            "theta": {n: list(t) for n, t in zip(self.names, self.theta, strict=True)},
            "lost": [{"site": site, "round": number} for site, number in self.lost],
            "finished": self.finished,
            "drawing": self.drawing,
            "seconds_a_round": self.pace,
            "seconds_left": self.left,
            "round_seconds": list(self.seconds),
            "seconds_since_last_answer": self.answered,
            "late": self.late,
        }


@dataclass
class Watcher:
    """Looks at a run's folder again and again."""

    folder: Path
    plan: Plan
    _known: dict[int, float] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Watcher:
        """Watch a private run; its folder is made when the run begins."""
        return cls(path, RunFolder.open(path).plan)

    def look(self) -> Snapshot:
        """The run as it stands now."""
        study = self.plan.study
        privacy = study.privacy
        done, theta, lost, times = self._checkpoint()
        names = study.model.parameters(preparation_of(study).design)
        slots = slots_of(study)
        names = names if slots is None else slots.names(names)
        finished = (self.folder / "result.json").exists()
        return Snapshot(
            study=study.name,
            names=names,
            sites=tuple(sorted(study.sites)),
            done=done,
            rounds=self.plan.rounds,
            spent=self._spent(done),
            budget=privacy.epsilon,
            delta=privacy.delta,
            theta=tuple(tuple(column.tolist()) for column in theta.T)
            if theta.size
            else tuple(() for _ in names),
            lost=lost,
            finished=finished,
            seconds=_durations(times),
            answered=max(time.time() - times[-1][1], 0.0) if times else None,
            parties=self.plan.protocol.federated,
            certified=self.plan.certified,
        )

    def _checkpoint(self) -> tuple[int, Any, Lost, Times]:
        path = checkpoint_file(self.folder)
        empty = np.zeros((0, 0))
        if not path.is_file():
            return 0, empty, (), ()
        try:
            with CheckpointReader(path) as checkpoint:
                trajectory, kept = checkpoint.trajectory(), checkpoint.fact_names()
                lost, times = checkpoint.lost(), checkpoint.round_times()
        except sqlite3.OperationalError:
            return 0, empty, (), ()  # not laid out yet
        except sqlite3.DatabaseError:
            raise RunError(
                "the server's checkpoint cannot be read",
                where=str(path),
                remedy="see run.log in the same folder",
            ) from None
        if not trajectory:
            return self.plan.rounds_prepared(kept), empty, lost, ()
        theta = np.array([theta for _, theta in trajectory])
        closed = sum(name in kept for name in self.plan.closing_names)
        return trajectory[-1][0] + 1 + closed, theta, lost, times

    def _spent(self, done: int) -> float:
        if done not in self._known:
            self._known[done] = self.plan.epsilon_after(done)
        return self._known[done]


def _durations(times: Times) -> tuple[float, ...]:
    """How long each round took; not the ones a clock that was set back spoils."""
    pairs = pairwise(times)
    return tuple(b - a for (k, a), (j, b) in pairs if j == k + 1 and b >= a)
