"""A table's ledger: what has been released about it, and what its budget still allows.

One SQLite file for each table, since a budget belongs to the data and not to a
study. A charge is in the file before its answer is computed, and both are on disk
before the answer leaves: the same round asked again gets the same vector, never a
fresh one.

The rules are here. The file is in ``ledger_records`` (open), ``ledger_custody``
(begun, opened, adopted) and ``ledger_file`` (tables, chain, seal); what releases add up
to is in ``ledger_balance``.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cipherbayes.errors import BudgetError, PrivacyError
from cipherbayes.privacy import ledger_custody
from cipherbayes.privacy.events import Event, from_json
from cipherbayes.privacy.ledger_balance import (
    Budget,
    ChargedEvent,
    UpperBounds,
    epsilon_of_charges,
    event_text,
)
from cipherbayes.privacy.ledger_records import LedgerRecords, ReleaseKey, ReleaseTerms
from cipherbayes.storage.custody import Head


@dataclass(frozen=True)
class Entry:
    """One release, as the ledger shows it.

    Attributes
    ----------
    kept
        Whether its answer is still here: not before it is given, and not after the
        run is over.
    """

    number: int
    time: str
    run: str
    site: str
    round: int
    purpose: str
    study: str
    event: Event
    epsilon: float
    kept: bool


class Ledger:
    """The releases of one table, and the only way to make another.

    Formal guarantees
    -----------------
    Let ε(E) be the figure of
    :func:`~cipherbayes.privacy.filters.filter_epsilon` for all entries E at the
    ledger's δ. (1) After every call, exception, crash or kill, ε(E) is at most the
    budget, and E has an entry for every answer that was ever begun. (2)
    :meth:`release` computes an answer only after its entry is in the file, and returns
    it, or raises what went wrong, only after all that was written is on disk; no error
    and no end of the process takes the entry back. Where the machine stops, E has an
    entry for every call that returned or raised. (3) For one (run, site, round,
    purpose) one answer leaves, the same for ever; a call with another study, question
    or event is refused, and so is every call once the run is over. (4) All this holds
    for any number of processes: a write lock is held from reading the balance to the
    entry's commit, and of two processes that compute one answer both return the one
    that was stored first. (5) A ledger that is behind its mark, or has other records
    than its mark has seen, is not opened; a budget that was changed is a record too.

    Edge cases
    ----------
    Records are chained by hashes and sealed together with the budget under the owner's
    key (:class:`~cipherbayes.storage.custody.Custody`), so a file that was edited, cut
    or damaged is refused. Whoever has the owner's account has the key and can forge it.
    A compute that fails may be tried again with the same question, for the one charge:
    until it succeeds nothing was released but that it failed. Where the disk fails as
    well, what went wrong is raised although the entry may be in the file only.
    """

    def __init__(self, records: LedgerRecords) -> None:
        self.path = records.path
        self.dataset = records.dataset
        self.id = records.id
        self._records = records
        self._upper_bounds = UpperBounds()
        self._expected: tuple[object, float] | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        dataset: str,
        epsilon: float,
        delta: float,
        lasting: bool = True,
    ) -> Ledger:
        """Open a table's ledger, or begin one with this budget.

        A ledger that exists keeps its own budget: see :meth:`set_budget`.

        Parameters
        ----------
        lasting
            False for a ledger that goes with its run: no mark is kept of it.
        """
        if not path.exists():
            if not (epsilon > 0.0 and 0.0 < delta < 1.0):
                raise PrivacyError(
                    "a budget needs epsilon > 0 and 0 < delta < 1", where=str(path)
                )
            budget = Budget(epsilon, delta)
            ledger_custody.begin(path, dataset, budget, lasting=lasting)
        ledger = cls.read(path)
        if ledger.dataset != dataset:
            ledger.close()
            raise PrivacyError(
                f"is the ledger of another table ('{ledger.dataset}'), or of this one "
                "under another name or address",
                where=str(path),
                remedy="if the same people are in both, its owner says so, and what "
                "was spent stays spent: `cipherbayes ledger "
                f"{shlex.quote(str(path))} --table {shlex.quote(dataset)}`; only "
                "if nobody is in both, name another ledger",
            )
        return ledger

    @classmethod
    def read(cls, path: Path, *, adopt: bool = False) -> Ledger:
        """Open a ledger that exists, and check every record.

        Parameters
        ----------
        adopt
            Seal with this user's key a ledger that was sealed with another, or one of
            version 1, whose seal needed no key: the owner's word that it is the newest
            copy and that nobody changed it.
        """
        return cls(ledger_custody.open_records(path, adopt=adopt))

    def close(self) -> None:
        """Release the file."""
        self._records.close()

    def remember(self) -> None:
        """Keep outside the file how far it has come, so that no older one is opened."""
        self._records.settle()

    def name_table(self, dataset: str) -> None:
        """The owner says that the table has another name now; all charges stay."""
        self._change("dataset", dataset)
        self.dataset = dataset

    # -- the budget --------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """The budget's ε."""
        return float(self._records.fact("epsilon"))

    @property
    def delta(self) -> float:
        """The budget's δ."""
        return float(self._records.fact("delta"))

    def set_budget(self, epsilon: float) -> None:
        """The owner of the data sets another budget; what is spent stays spent."""
        if not 0.0 < epsilon < math.inf:
            raise PrivacyError(
                "a budget needs epsilon > 0", where=str(self.path), remedy="raise it"
            )
        self._change("epsilon", repr(float(epsilon)))

    def budget_with(self, standing: float | None) -> float:
        """The budget that holds where a study or ``site.toml`` gives one.

        It is the one given, except that a ledger put back from a copy that nothing
        shows to be the newest is raised by no such line: it was written before the
        loss. There only :meth:`set_budget` raises it.
        """
        if standing is None:
            return self.epsilon
        return min(standing, self.epsilon) if self.put_back else standing

    @property
    def put_back(self) -> bool:
        """Whether this came from a copy that nothing showed to be the newest."""
        return self._records.fact("put back", "no") == "yes"

    def _change(self, name: str, value: str) -> None:
        """Write a fact that the owner changed, so that no older file is believed."""
        with self._records.locked():
            self._records.refresh()
            if self._records.fact(name) == value:
                return
            self._records.change(_now(), name, value)
        self._records.settle()

    def spent(self) -> float:
        """ε of everything released so far."""
        self._records.refresh()
        return epsilon_of_charges(self._records.charges, self._budget)

    def charges(self) -> Counter[ChargedEvent]:
        """How often each run was charged for each event."""
        self._records.refresh()
        return self._records.charges.copy()

    def expect(self, run: bytes, event: Event) -> None:
        """Compute now the ε that :meth:`release` of this event will need."""
        with suppress(PrivacyError):  # which release itself will raise
            self._at_most(run, event_text(event))

    @property
    def _budget(self) -> Budget:
        """The budget, as of the last refresh."""
        facts = self._records.facts
        return Budget(float(facts["epsilon"]), float(facts["delta"]))

    def _at_most(self, run: bytes, event: str) -> float:
        """An upper bound of ε with one more release; the last one is remembered.

        The head's link stands for all charges so far.
        """
        budget = self._budget
        asked = (self._records.head, run, event, budget)
        if self._expected is None or self._expected[0] != asked:
            figure = self._upper_bounds.epsilon(self._with(run, event), budget)
            self._expected = (asked, figure)
        return self._expected[1]

    def _with(self, run: bytes, event: str) -> Counter[ChargedEvent]:
        """What is charged with one more release."""
        return self._records.charges + Counter({ChargedEvent(run, event): 1})

    def _epsilon_after(self, key: ReleaseKey, event: str) -> float:
        """ε with one more release, or a refusal."""
        budget, epsilon = self._budget, self._at_most(key.run, event)
        if budget.allows(epsilon):
            return epsilon
        epsilon = epsilon_of_charges(self._with(key.run, event), budget)
        if budget.allows(epsilon):
            return epsilon
        left = max(
            budget.epsilon - epsilon_of_charges(self._records.charges, budget), 0.0
        )
        raise BudgetError(
            f"round {key.round} would exceed this table's budget of "
            f"ε = {budget.epsilon:g} (ε = {left:.3g} is left)",
            where=str(self.path),
            remedy=f"the data's owner may raise it: {self._ways_to_raise(key.site)}",
        )

    def _ways_to_raise(self, site: str) -> str:
        """Where the owner sets another budget."""
        command = f"`cipherbayes ledger {self.path} --budget EPSILON`"
        if self.put_back:
            return f"{command}, once it is known what was released after the copy"
        return (
            f"sites.{site}.budget in the study file of a run on one machine, budget in "
            f"site.toml of a kit, or {command}"
        )

    # -- releases ----------------------------------------------------------

    def release(
        self,
        *,
        run: bytes,
        site: str,
        round: int,
        purpose: str,
        study: bytes,
        question: bytes,
        event: Event,
        compute: Callable[[], bytes],
    ) -> bytes:
        """The answer to a round: charged, then computed and stored, then repeated.

        Parameters
        ----------
        run, site, round, purpose
            Which release this is.
        study, question
            Hashes of the study and of what was asked, which may not change.
        event
            What the answer costs.
        compute
            Draws the noise and returns the answer's bytes; not called once there is
            an answer.
        """
        key = ReleaseKey(run, site, round, purpose)
        terms = ReleaseTerms(study, question, event_text(event))
        # Until something leaves, a power failure may take the charge back.
        with self._records.locked():
            self._records.refresh()
            number, answer = self._known(key, terms)
            if number is None:
                number = self._charge(key, terms)
        if answer is None:
            try:
                answer = compute()
            except BaseException:
                # What went wrong may tell something of the records: it is paid for.
                with suppress(PrivacyError):
                    self._records.settle()
                raise
            answer = self._keep(key, number, answer)
        self._records.settle()
        return answer

    def _known(
        self, key: ReleaseKey, terms: ReleaseTerms
    ) -> tuple[int | None, bytes | None]:
        """Number and answer of a release, as far as there are any."""
        self._refuse_what_is_over(key)
        found = self._records.find(key)
        if found is None:
            return None, None
        number, known = found
        if known != terms:
            raise PrivacyError(
                f"round {key.round} was answered for another question",
                where=str(self.path),
                remedy="a round has one question: start a new run",
            )
        return number, self._records.answer(number)

    def _refuse_what_is_over(self, key: ReleaseKey) -> None:
        """Raise PrivacyError where the run has ended, maybe while this one computed."""
        if self._records.is_over(key.run, key.site):
            raise PrivacyError(
                "the run is over, and its answers are erased",
                where=str(self.path),
                remedy="start a new run",
            )

    def _charge(self, key: ReleaseKey, terms: ReleaseTerms) -> int:
        """Write the charge of a release; its number."""
        begun_with = self._records.study_of(key.run)
        if begun_with is not None and begun_with != terms.study:
            raise PrivacyError(
                "the run was begun with another study",
                where=str(self.path),
                remedy="a changed study is a new run",
            )
        epsilon = self._epsilon_after(key, terms.event)
        return self._records.charge(_now(), key, terms, epsilon)

    def _keep(self, key: ReleaseKey, number: int, answer: bytes) -> bytes:
        """Store an answer; where another process was first, its answer."""
        with self._records.locked():
            self._records.refresh()
            self._refuse_what_is_over(key)
            stored = self._records.answer(number)
            if stored is not None:
                return stored
            self._records.keep(number, answer)
        return answer

    def end(self, run: bytes, site: str) -> None:
        """A run is over here: erase its answers, and refuse it from now on.

        Charges stay, and the chain with the answers' digests. Nothing happens where
        the run has no entry, or is over already.
        """
        with self._records.locked():
            self._records.refresh()
            if not self._records.knows(run, site) or self._records.is_over(run, site):
                return
            self._records.end(_now(), run, site)
        self._records.settle()

    # -- what was released -------------------------------------------------

    @property
    def head(self) -> Head:
        """How far the ledger has come; two numbers that tell nothing of the table."""
        self._records.refresh()
        return self._records.head

    def is_over(self, run: bytes, site: str) -> bool:
        """Whether a run has ended at a site."""
        self._records.refresh()
        return self._records.is_over(run, site)

    def has_charged(self, run: bytes, site: str) -> bool:
        """Whether a run was charged for anything at a site, answered or not."""
        return self._records.knows(run, site)

    def rounds(self, run: bytes, site: str) -> int:
        """How many rounds of a run were answered: they are answered in order."""
        last = self._records.last_answered_round(run, site)
        return 0 if last is None else last + 1

    def questions(self, run: bytes) -> dict[tuple[int, str], bytes]:
        """Hash of what each round of a run asked, by round and purpose."""
        return self._records.questions(run)

    def entries(self) -> Iterator[Entry]:
        """All releases, the oldest first."""
        for charge, kept in self._records.all_charges():
            yield Entry(
                number=charge.number,
                time=charge.time,
                run=charge.run.hex(),
                site=charge.site,
                round=charge.round,
                purpose=charge.purpose,
                study=charge.study.hex(),
                event=from_json(charge.event),
                epsilon=charge.epsilon,
                kept=kept,
            )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
