"""What a table contributes to a release: bounded sums over its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cipherbayes.data.column_models import ColumnModels
from cipherbayes.data.imputing import DRAWS, Expansion, Imputing
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.rescaled import rescaled, seen_through
from cipherbayes.data.windows import histograms, sums_inside
from cipherbayes.errors import ProtocolError
from cipherbayes.inference import imputed
from cipherbayes.inference.gradient import gradient_sum
from cipherbayes.inference.influence import influence_sums
from cipherbayes.inference.site_slots import SiteSlots
from cipherbayes.models import Design, Model, Rows
from cipherbayes.models.influence import InfluenceBound
from cipherbayes.models.score_difference import difference_sums, log_scores
from cipherbayes.privacy.noise import poisson_sample
from cipherbayes.protocols.phase import Phase
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.releases import QUESTION_DRAWS
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import (
    imputing_of,
    preparation_of,
    rival_study,
    slots_of,
)
from cipherbayes.typing import Floats


@dataclass(frozen=True)
class RivalFit:
    """An earlier fit: its model, its columns and scales, draws of its posterior."""

    model: Model
    design: Design
    scales: Floats | None
    draws: Floats

    @classmethod
    def of(cls, study: Study) -> RivalFit | None:
        """The fit that a study is compared with."""
        earlier, held = rival_study(study), study.evaluation
        if earlier is None or held is None or held.against is None:
            return None
        rival = held.against
        scales = None if rival.scales is None else np.array(rival.scales)
        design = preparation_of(earlier).design
        return cls(earlier.model, design, scales, np.array(rival.draws))


class Contributions:
    """One table's sums, for any release of a study.

    Parameters
    ----------
    model
        Whose gradients are summed.
    table
        The records; where some are held out and protected, the others.
    held_out
        Those; None where there are none.
    slots, site
        Where the parameters of each site stand (None where sites are taken to be
        alike), and whose records these are.
    imputing
        How missing values are drawn; None where none are.
    rival
        The earlier fit that predictions are compared with; None where there is none.

    Formal guarantees
    -----------------
    A record changes the sum of a phase by at most ``phase.sums.clip`` in
    Euclidean norm, whatever the question is: a count changes by one, the moments'
    columns lie in [-1, 1], a record is in at most one bin of a column and inside
    windows within [-1, 1] (:mod:`~cipherbayes.data.windows`), and gradients and
    information matrices are bounded record by record (the latter to
    ``phase.information.clip``). Where a record is a person, each of its rows counts by
    its share (:mod:`~cipherbayes.data.persons`). Where sites may differ, a site's sums
    are those of its own parameters, put in places of their own
    (:class:`~cipherbayes.inference.site_slots.SiteSlots`), which moves no norm. After
    the posterior a record adds one to a bin of each column
    (:mod:`~cipherbayes.data.characteristics`), or, if it is held out, one to a cell of
    predictions and outcomes (:mod:`~cipherbayes.models.held_out`), bounded residuals
    to groups (:mod:`~cipherbayes.data.residual_cells`) and a bounded difference of log
    scores (:mod:`~cipherbayes.models.score_difference`). A record whose missing values
    are drawn adds a mean over its rows (:mod:`~cipherbayes.inference.imputed`), and to
    the sums behind a column's model what :mod:`~cipherbayes.data.column_models`
    bounds. In a Poisson-sampled phase
    every record takes part independently, drawn from the operating system's randomness.

    *Total.* Every θ of the phase's length with finite numbers, and all scales that
    :meth:`~cipherbayes.protocols.study_plan.StudyPlan.facts` can give (places within
    [-1, 1], widths from 10⁻⁴ to 1), get a sum: whether there is an answer does not
    depend on the records. A record whose contribution would not be finite counts zero.
    """

    def __init__(
        self,
        model: Model,
        table: PreparedTable,
        held_out: PreparedTable | None = None,
        *,
        slots: SiteSlots | None = None,
        site: str = "table",
        imputing: Imputing | None = None,
        rival: RivalFit | None = None,
    ) -> None:
        self._model = model
        self._table = table
        self._held_out = held_out
        self._slots = slots
        self._site = site
        self._imputing = imputing
        self._drawn: tuple[bytes, Expansion] | None = None
        self._rival = rival

    @classmethod
    def of_site(
        cls,
        study: Study,
        site: str,
        table: PreparedTable,
        held_out: PreparedTable | None = None,
    ) -> Contributions:
        """The sums of one site of a study."""
        return cls(
            study.model,
            table,
            held_out,
            slots=slots_of(study),
            site=site,
            imputing=imputing_of(study),
            rival=RivalFit.of(study),
        )

    @property
    def count(self) -> int:
        """Records in the table, those held out among them."""
        held = 0 if self._held_out is None else self._held_out.records
        return self._table.records + held

    def total(self, phase: Phase, question: Question) -> Floats:
        """The sum that a phase asks for, before grid and noise."""
        theta = question.theta
        if phase.closing:
            return self._closing(phase, question)
        if phase.purpose == "records":
            # Of the part that the fit sees: a held-out record pays for checks alone.
            return self._counted(float(self._table.records))
        if phase.purpose == "moments":
            return self._columns(phase, _moments)
        if phase.numbers is not None:
            seen = sums_inside if phase.purpose == "scales" else histograms
            numbers, windows = phase.numbers, question.scales
            return self._columns(phase, lambda z, s: seen(z, numbers, windows, s))
        if phase.models is not None:
            return self._column_models(phase, phase.models, question.scales)
        if theta.size != phase.sums.dimension:
            raise ProtocolError("the question does not have the study's length")
        theta = self._own(theta)
        if phase.weighting is not None:
            return self._influence(phase, phase.weighting, theta, question.scales)
        table = rescaled(self._table, question.scales)
        rows = None
        if phase.sums.rate < 1.0:
            rows = poisson_sample(table.count, phase.sums.rate)
        return self._spread(
            gradient_sum(self._model, theta, table, rows=rows, clip=phase.sums.clip)
        )

    def _counted(self, count: float) -> Floats:
        """The number of records, in the site's own place."""
        if self._slots is None:
            return np.array([count])
        own = self._slots.owner(self._site)
        return np.where(np.array(self._slots.sites) == own, count, 0.0)

    def _spread(self, gradient: Floats) -> Floats:
        slots = self._slots
        return gradient if slots is None else slots.spread(self._site, gradient)

    def _own(self, theta: Floats) -> Floats:
        """The site's own parameters, of those of all sites."""
        if self._slots is None:
            return theta
        return theta[..., self._slots.of_site(self._site)]

    def _closing(self, phase: Phase, question: Question) -> Floats:
        """Sums over the records that a phase after the posterior is about."""
        held_out = self._table if self._held_out is None else self._held_out
        scales, site = question.scales, self._site
        imputing = self._imputing
        if imputing is not None:
            scales = imputing.split(scales)[0]
        seen = seen_through(self._table.design, scales)
        nothing = np.zeros(phase.dimension)
        if phase.characteristics is not None:
            table = phase.characteristics
            tables = [self._table] + [held_out] * (self._held_out is not None)
            parts = [
                part
                for each in tables
                for part in each.map(lambda block: table.sums(block, site, scales))
            ]
        elif phase.check is not None:
            check = phase.check
            draws = self._own(question.theta.reshape(QUESTION_DRAWS, -1))

            def checked(block: Rows) -> Floats:
                if imputing is None:
                    return check.sums(draws, seen(block))
                complete, gaps = imputing.parted(block)
                found = nothing
                if complete.count:  # every record of a block may have a gap
                    found = check.sums(draws, seen(complete))
                if gaps is not None:
                    drawn = seen(imputing.drawn(gaps, question.scales))
                    found = found + check.sums(draws, drawn, DRAWS)
                return found

            parts = list(held_out.map(checked))
        elif phase.cells is not None:
            cells, theta = phase.cells, self._own(question.theta)

            def added(block: Rows) -> Floats:
                if imputing is None:
                    return cells.sums(theta, block, seen(block), site, scales)
                complete, gaps = imputing.parted(block)
                found = nothing
                if complete.count:
                    found = cells.sums(theta, complete, seen(complete), site, scales)
                if gaps is not None:
                    prepared = imputing.drawn(gaps, question.scales)
                    drawn = seen(prepared)
                    # A warning of an overflow would depend on the records.
                    with np.errstate(all="ignore"):
                        share = imputed.weights(self._model, theta, drawn, DRAWS)
                    found = found + cells.sums(
                        theta, prepared, drawn, site, scales, share
                    )
                return found

            parts = list(held_out.map(added))
        elif self._rival is not None:
            draws = self._own(question.theta.reshape(QUESTION_DRAWS, -1))
            parts = list(held_out.map(self._differences(self._rival, draws, seen)))
        else:
            raise ValueError("there is no earlier fit to compare with")
        return sum(parts, start=nothing)

    def _differences(
        self, rival: RivalFit, draws: Floats, seen: Callable[[Rows], Rows]
    ) -> Callable[[Rows], Floats]:
        """How much better records are predicted than by the earlier fit."""
        theirs = seen_through(rival.design, rival.scales)

        def of_block(block: Rows) -> Floats:
            first = log_scores(self._model, draws, seen(block))
            other = theirs(block.beside(rival.design))
            second = log_scores(rival.model, rival.draws, other)
            return difference_sums(first, second, block.shares)

        return of_block

    def _columns(
        self, phase: Phase, sums: Callable[[Floats, Floats | None], Floats]
    ) -> Floats:
        """Sums over the records of functions of the columns that are moved."""
        places = self._table.design.moved_places

        def of_block(block: Rows) -> Floats:
            return sums(block.x[places], block.shares)

        return sum(self._table.map(of_block), start=np.zeros(phase.dimension))

    def _column_models(
        self, phase: Phase, models: ColumnModels, scales: Floats | None
    ) -> Floats:
        seen = seen_through(self._table.design, scales)

        def of_block(block: Rows) -> Floats:
            return models.sums(block, seen(block))

        return sum(self._table.map(of_block), start=np.zeros(phase.dimension))

    def _expansion(self, imputing: Imputing, scales: Floats | None) -> Expansion:
        """The drawn rows, kept as long as questions rest on the same scales."""
        told = b"" if scales is None else scales.tobytes()
        if self._drawn is None or self._drawn[0] != told:
            self._drawn = told, Expansion(imputing, [self._table], scales)
        return self._drawn[1]

    def _influence(
        self,
        phase: Phase,
        weighting: InfluenceBound,
        theta: Floats,
        scales: Floats | None,
    ) -> Floats:
        table, expand = self._table, None
        if self._imputing is None:
            table = rescaled(table, scales)
        else:
            expand = self._expansion(self._imputing, scales)
        sums = influence_sums(
            self._model,
            theta,
            table,
            weighting,
            with_information=phase.information is not None,
            expand=expand,
        )
        gradient, information = self._spread(sums.gradient), sums.information
        if information is None:
            return gradient
        if self._slots is not None:
            information = self._slots.spread_packed(self._site, information)
        return np.concatenate([gradient, information])


def _moments(z: Floats, shares: Floats | None) -> Floats:
    parts = np.concatenate([z, z * z])
    if shares is not None:
        parts *= shares
    return np.asarray(parts.sum(axis=1))
