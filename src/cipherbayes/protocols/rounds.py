"""The rounds of a study: what is asked in each of them, and what becomes of answers.

It sees released totals only, so all of it is post-processing: the same object
moves θ in the server of a federated run and in a pooled private one.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic

import numpy as np

from cipherbayes.errors import ProtocolError, RunError
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.released import Recursion, Release, ServerState
from cipherbayes.protocols.messages import DecryptReply, decode
from cipherbayes.protocols.phase import Phase, Purpose
from cipherbayes.protocols.plan import AnyPlan
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.protocols.study_plan import AnyStudyPlan
from cipherbayes.typing import Floats, Integers


@dataclass(frozen=True)
class Closing:
    """The total of a round after the posterior.

    Attributes
    ----------
    total
        In the units of the records.
    noise
        Standard deviation of the noise that is really in each of its numbers.
    """

    total: Floats
    noise: float


RANGE_ENDS = "range-ends"
"""The name under which :func:`~cipherbayes.data.range_ends.piles` is kept."""
HIDDEN_SCALES = "hidden scales"
"""That of :func:`~cipherbayes.data.windows.hidden_scales`."""


class StudyRounds(ABC, Generic[AnyPlan]):
    """Where a study stands; made over an old checkpoint, it goes on from there."""

    def __init__(self, plan: AnyPlan, checkpoint: Checkpoint) -> None:
        self._plan = plan
        self._checkpoint = checkpoint
        self._state: ServerState | None = None
        self.round = self._rounds_done()

    def _rounds_done(self) -> int:
        last = self._checkpoint.last_state()
        if last is not None:
            number, self._state = last
            names = self._plan.closing_names
            return number + 1 + sum(self._checkpoint.fact(n) is not None for n in names)
        names = self._plan.preparatory_names
        kept = {name for name in names if self._checkpoint.fact(name) is not None}
        return self._plan.rounds_prepared(kept)

    @property
    def finished(self) -> bool:
        """Whether every round has its total."""
        return self.round >= self._plan.rounds

    @property
    def purpose(self) -> str:
        """What the present round is for."""
        purpose = self._plan.purpose(self.round)
        assert purpose is not None  # not finished
        return purpose

    @abstractmethod
    def question(self) -> Floats:
        """The vector that the present round asks every site about."""

    def question_digest(self) -> bytes:
        """SHA-256 of what the present round asks, as ledgers keep it."""
        return hashlib.sha256(self.question().tobytes()).digest()

    def signed_totals(self) -> tuple[DecryptReply, ...]:
        """Totals that the present round's question rests on, as the CSP signed them."""
        return ()

    @abstractmethod
    def check_total(self, values: Integers, what: str, *, where: str) -> None:
        """Raise ProtocolError for a total that no run of the study can have."""

    @abstractmethod
    def take(self, values: Integers, sites: int, lost: tuple[str, ...] = ()) -> None:
        """Take a round's total, in grid units, over ``sites`` shares of noise.

        ``lost`` are the study's sites that are not in it.
        """

    @abstractmethod
    def draws(self) -> Draws | None:
        """What the rounds so far amount to; None before the first gradient."""

    @abstractmethod
    def moments(self) -> Floats | None:
        """Released means and standard deviations, one after the other."""

    def column_models(self) -> Floats | None:
        """Released models of the columns with missing values, if there are any."""
        return None

    def range_ends(self) -> Floats | None:
        """Shares of values that pile up at the lower and upper ends of public ranges,
        and of equal values that hide a column's scale, where released histograms tell
        it (:mod:`cipherbayes.data.range_ends`, :mod:`cipherbayes.data.windows`)."""
        return None

    def closing(self) -> dict[str, Closing]:
        """What the rounds after the posterior released, by their purpose."""
        return {}

    def accept(
        self,
        message: bytes,
        values: Integers,
        sites: int,
        lost: tuple[str, ...] = (),
    ) -> None:
        """Take a round's total, and keep the message that carried it, in one commit."""
        with self._checkpoint.one_commit():
            self._checkpoint.keep_fact(_message(self.round), message)
            self.take(values, sites, lost)

    def messages(self, first: int | None = None) -> list[bytes]:
        """The messages that carried the totals of all rounds, or of the first ones."""
        rounds = self.round if first is None else first
        kept = (self._checkpoint.fact(_message(n)) for n in range(rounds))
        return [message for message in kept if message is not None]


class PhasedRounds(StudyRounds[AnyStudyPlan]):
    """The rounds of a study that releases noised sums, in phases."""

    _recursion: Recursion | None = None
    _draws: Draws | None = None

    @property
    def phase(self) -> Phase:
        """The phase of the present round."""
        return self._plan.phase_at(self.round)

    def question(self) -> Floats:
        """Where the present round asks for sums: θ; a zero before the first of them.

        Raises
        ------
        RunError
            Where the sampler left every reasonable place: no site would answer.
        """
        if self.phase.preparatory:
            return np.zeros(1)
        if self.phase.closing:
            return self._closing_question()
        theta = self._ready()[1].theta
        if not self._plan.usable_theta(self.phase, theta):
            raise RunError(
                f"the sampler diverged before round {self.round}",
                where="server",
                remedy="use a smaller inference.step.size or a tighter prior",
            )
        return theta

    def question_digest(self) -> bytes:
        return self.asked().digest

    def signed_totals(self) -> tuple[DecryptReply, ...]:
        count = sum(phase.rounds for phase in self._plan.before(self.phase))
        return tuple(decode(kept, DecryptReply) for kept in self.messages(count))

    def check_total(self, values: Integers, what: str, *, where: str) -> None:
        if values.size != self.phase.dimension:
            raise ProtocolError(f"{what} has another length", where=where)
        if not self.phase.in_range(values):
            raise ProtocolError(f"{what} is outside the range", where=where)

    def asked(self) -> Question:
        """The whole question of the present round, as every table answers it."""
        theta = np.ascontiguousarray(self.question())
        return Question(theta, self._plan.scales(self.phase, self._facts()))

    def take(self, values: Integers, sites: int, lost: tuple[str, ...] = ()) -> None:
        """Take a round's total, in grid units, over ``sites`` shares of noise.

        ``lost`` are the study's sites that are not in it.
        """
        phase = self.phase
        if phase.closing:
            noise = phase.sums.noise_sd(sites)
            kept = np.append(phase.sums.from_grid(values), noise)
            self._checkpoint.keep_fact(phase.purpose, kept.tobytes())
        elif not phase.preparatory:
            recursion, state = self._ready()
            release = _release(phase, values, sites, lost)
            self._state = recursion.advance(state, release)
            self._checkpoint.keep_state(self.round, self._state)
        else:
            total = phase.sums.from_grid(values)
            facts = self._facts()
            kept = self._plan.summarise_release(phase, total, facts)
            self._checkpoint.keep_fact(phase.purpose, kept.tobytes())
            ends = self._plan.piles(phase, total, facts)
            if ends is not None:
                self._checkpoint.keep_fact(RANGE_ENDS, ends.tobytes())
            hidden = self._plan.hidden_scales(phase, total, facts)
            if hidden is not None:
                self._checkpoint.keep_fact(HIDDEN_SCALES, hidden.tobytes())
        self.round += 1

    def draws(self) -> Draws | None:
        """What the rounds so far amount to; None before the first gradient."""
        if self._draws is not None:
            return self._draws
        trajectory = self._checkpoint.trajectory()
        if not trajectory:
            return None
        recursion, state = self._ready()
        draws = recursion.draws(trajectory, state)
        if draws is not None:
            draws = self._plan.with_model_errors(draws, self._facts())
        if self._plan.closing and self.round >= self._plan.closing[0].first:
            self._draws = draws  # which no later round changes
        return draws

    def closing(self) -> dict[str, Closing]:
        found = {}
        for phase in self._plan.closing:
            kept = self._checkpoint.fact(phase.purpose)
            if kept is not None:
                values = np.frombuffer(kept, dtype=np.float64)
                found[str(phase.purpose)] = Closing(values[:-1], float(values[-1]))
        return found

    def _closing_question(self) -> Floats:
        """What the present round asks about: kept once it is known, since a run that
        goes on elsewhere may compute other last digits."""
        name = f"question/{self.round}"
        kept = self._checkpoint.fact(name)
        if kept is not None:
            return np.frombuffer(kept, dtype=np.float64)
        draws = self.draws()
        assert draws is not None  # every sampling round has its total
        theta = draws.theta
        if draws.sites is not None:
            theta = draws.sites.at_all_sites(theta)
        flat = theta.reshape(-1, theta.shape[-1])
        question = self._plan.closing_question(self.phase, flat)
        self._checkpoint.keep_fact(name, question.tobytes())
        return question

    def moments(self) -> Floats | None:
        """Released means and standard deviations, one after the other."""
        return self._plan.moments(self._facts())

    def column_models(self) -> Floats | None:
        return self._plan.column_models(self._facts())

    def range_ends(self) -> Floats | None:
        kept = self._checkpoint.fact(RANGE_ENDS)
        if kept is None:
            return None
        ends = np.frombuffer(kept, dtype=np.float64).reshape(-1, 2)
        kept = self._checkpoint.fact(HIDDEN_SCALES)
        hidden = np.zeros(len(ends)) if kept is None else np.frombuffer(kept)
        return np.column_stack([ends, hidden])

    def _ready(self) -> tuple[Recursion, ServerState]:
        """The sampler and its state, made when N is known."""
        if self._recursion is None:
            self._recursion = self._plan.sampler(self._facts())
        if self._state is None:
            self._state = self._recursion.start()
        return self._recursion, self._state

    def _facts(self) -> dict[Purpose, Floats]:
        """What is kept of the preparatory rounds so far, by their purpose."""
        kept = {
            p.purpose: self._checkpoint.fact(p.purpose) for p in self._plan.preparatory
        }
        return {
            purpose: np.frombuffer(value, dtype=np.float64)
            for purpose, value in kept.items()
            if value is not None
        }


def _message(number: int) -> str:
    """The name under which a round's message is kept."""
    return f"total/{number}"


def _release(
    phase: Phase, values: Integers, sites: int, lost: tuple[str, ...]
) -> Release:
    """A round's total in the units of the records, with the noise really in it."""
    gradient, *rest = phase.split(values)
    total = phase.sums.from_grid(gradient)
    noise = phase.sums.noise_sd(sites)
    if phase.information is None:
        return Release(total, noise, lost=lost)
    (matrix,) = rest
    plan = phase.information
    return Release(total, noise, plan.from_grid(matrix), plan.noise_sd(sites), lost)
