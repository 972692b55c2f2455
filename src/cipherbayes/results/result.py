"""What a run gives back: what can be asked of a finished study."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cipherbayes.errors import BeyondHorizonWarning, BeyondRangeWarning, RunError
from cipherbayes.inference.flags import FlagRecord
from cipherbayes.models.rows import Rows
from cipherbayes.protocols.certificate import CertificateRecord, promised
from cipherbayes.results.contrasts import Contrasts
from cipherbayes.results.hierarchy import (
    draws_for,
    site_draws,
)
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.parameters import Parameters
from cipherbayes.results.predictions import (
    Predictor,
    beyond_horizon,
    beyond_in_words,
    flags_of_predictions,
    thinned,
)
from cipherbayes.results.record import (
    Baseline,
    BeyondRow,
    ContrastRow,
    DescribeRow,
    EffectRow,
    HierarchyRecord,
    MedianSurvival,
    ParameterRow,
    ResultRecord,
    SubgroupRow,
)
from cipherbayes.results.result_folder import read_result, write_result
from cipherbayes.results.score_tables import (
    CalibrationRow,
    FitRow,
    ScoreRow,
    calibration_rows,
    fit_rows,
    score_rows,
)
from cipherbayes.results.table import CurveTable, Table
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats, JsonObject

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes  # an extra


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run.

    Attributes
    ----------
    posterior
        xarray DataTree in ArviZ's layout: ``posterior/theta`` on the user's own
        units, ``prepared/theta`` on the scale of the design matrix.
    record
        The content of ``result.json``.
    """

    study: Study
    posterior: xr.DataTree
    record: ResultRecord

    def __repr__(self) -> str:
        record, privacy = self.record, self.record["privacy"]
        promise = self.promise + (", certified" if privacy["certified"] else "")
        count = len(self.warnings)
        warned = f", {count} warning{'' if count == 1 else 's'}" if count else ""
        return (
            f"<Result '{record['study']}': {record['model']}, "
            f"{len(record['posterior'])} parameters, {promise}{warned}>"
        )

    def _repr_html_(self) -> str:
        table = (self.effects() or self.summary())._repr_html_()
        warned = "".join(f"<li>{escape(text)}</li>" for text in self.warnings)
        return f"<p>{escape(repr(self))}</p>{table}<ul>{warned}</ul>"

    @property
    def warnings(self) -> list[str]:
        """What a reader of the result must know."""
        return list(self.record["warnings"])

    @property
    def promise(self) -> str:
        """ε and δ in a few words, for a line or a picture that leaves its page."""
        privacy = self.record["privacy"]
        promise = promised(privacy)
        if promise is None:
            return "no privacy"
        word = "" if privacy["certified"] else ", NOT CERTIFIED"
        return f"ε = {promise[0]:g}, δ = {promise[1]:g}{word}"

    @property
    def dataset(self) -> xr.Dataset:
        """The draws on the user's own units, as a Dataset: ``az.summary`` of it names
        every parameter with every release of ArviZ."""
        return self.posterior["posterior"].to_dataset()

    @property
    def certificate(self) -> CertificateRecord:
        """(ε, δ), the relation, the mechanism, whose rows it covers, and against
        whom it holds."""
        return self.record["privacy"].copy()

    @property
    def metrics(self) -> JsonObject:
        """Scores on the held-out rows, where the study asked for them.

        Numbers, or where the rows are protected means with intervals: their types are
        :data:`~cipherbayes.models.metrics.Metrics` and
        :class:`~cipherbayes.results.record.PrivateMetrics`.
        """
        return dict(self.record["metrics"])

    @property
    def flags(self) -> list[FlagRecord]:
        """What speaks against the result, or a part of it."""
        return list(self.record["flags"])

    @property
    def cautions(self) -> list[FlagRecord]:
        """What is wide or leans on the prior, and may be used all the same."""
        return list(self.record.get("cautions", []))

    def describe(self) -> Table[DescribeRow]:
        """The records' characteristics, overall and by group, with intervals for their
        noise and the width of ranges; empty where the study asked for none."""
        return Table(row.copy() for row in self.record.get("describe", []))

    def scores(self) -> Table[ScoreRow]:
        """Scores on the held-out rows, one a row, those at times and of groups of rows
        too; empty where the study holds none out."""
        return Table(score_rows(self.record))

    def calibration(self) -> Table[CalibrationRow]:
        """What was predicted of held-out rows against what happened, by predicted bin;
        empty where there is no such table."""
        return Table(calibration_rows(self.record))

    def fit_groups(self) -> Table[FitRow]:
        """How much the fit misses in every group of records, with the test that the
        group belongs to; empty where nothing was tested."""
        return Table(fit_rows(self.record))

    @property
    def has_intervals(self) -> bool:
        """Whether draws may be read as a posterior; else they are points."""
        return any(row["lower"] is not None for row in self.record["posterior"])

    def summary(self) -> Table[ParameterRow]:
        """Mean, sd and interval of each parameter, on the user's own scale."""
        return Table(row.copy() for row in self.record["posterior"])

    def effects(self) -> Table[EffectRow]:
        """Odds, hazard or rate ratios (or differences) with intervals, per step of
        each feature; empty for a model whose coefficients mean nothing alone."""
        return Table(row.copy() for row in self.record.get("effects", []))

    def baseline(self) -> Baseline | None:
        """Survival curve and median survival of the reference record."""
        return self.record.get("baseline")

    def contrast(
        self,
        feature: str,
        value: Any,
        against: Any,
        at: Mapping[str, Any] | None = None,
    ) -> ContrastRow:
        """What one value of a feature does against another: ``("grade", "III", "II")``.

        Everything else is as in the reference record, but for what ``at`` says: with
        products the answer may depend on it. ``above`` is the posterior probability
        that the change is positive (a ratio above one).
        """
        return self._contrasts().contrast(feature, value, against, at)

    def combination(self, weights: Mapping[str, float]) -> ParameterRow:
        """Mean, sd and interval of Σ weight × parameter, in the user's units."""
        return self._parameters().combination(weights)

    def probability(
        self, positive: Sequence[str] = (), negative: Sequence[str] = ()
    ) -> float:
        """Posterior probability that all these parameters have these signs at once."""
        return self._parameters().probability(positive, negative)

    def curve(self, feature: str, at: Mapping[str, Any] | None = None) -> CurveTable:
        """The effect of every value of a number against the reference record's value,
        with its band."""
        found = self.study.features.get(feature)
        if found is None or found.levels is not None:
            raise RunError(
                f"'{feature}' is no number of the study",
                where=f"study '{self.study.name}'",
                remedy="name a feature with low and high",
            )
        return CurveTable(self._contrasts().curve(feature, at))

    def curves(self) -> list[CurveTable]:
        """The curves of a formula, at the reference record and in each group."""
        formula = self.record.get("formula")
        return [] if formula is None else [CurveTable(c) for c in formula["curves"]]

    def subgroups(self) -> Table[SubgroupRow]:
        """Effects in the groups of the features that they have a product with."""
        formula = self.record.get("formula")
        return Table([] if formula is None else formula["subgroups"])

    def _contrasts(self) -> Contrasts:
        if self.study.model.measure is None:
            raise RunError(
                f"a model of kind '{self.study.model.kind}' has no effects",
                where=f"study '{self.study.name}'",
                remedy="compare predictions instead",
            )
        return Contrasts(self.made_up, self._user_draws(), self._tail)

    @property
    def made_up(self) -> MadeUp:
        """Records that the study's features allow, the reference record first."""
        spread = self.record.get("spread")
        return MadeUp(
            self.study,
            self._moments,
            self.record.get("reference"),
            None if spread is None else np.array(spread),
        )

    def _parameters(self) -> Parameters:
        return Parameters(
            [row["name"] for row in self.record["posterior"]],
            self._user_draws(),
            self.study.inference.interval if self.has_intervals else None,
            f"study '{self.study.name}'",
        )

    def _user_draws(self) -> Floats:
        theta = np.asarray(self.dataset["theta"])
        return theta.reshape(-1, theta.shape[-1])

    @property
    def _moments(self) -> Floats | None:
        moments = self.record["moments"]
        return None if moments is None else np.array(moments)

    @property
    def _tail(self) -> float | None:
        """Probability outside either end of an interval; None without intervals."""
        outside = (1.0 - self.study.inference.interval) / 2.0
        return outside if self.has_intervals else None

    def hierarchy(self) -> HierarchyRecord | None:
        """What differs between sites; None where they were taken to be alike."""
        return self.record.get("hierarchy")

    def draws(self) -> Floats:
        """All draws on the prepared scale, chains joined, shape ``(s, d)``.

        Where sites may differ, of the common parameters.
        """
        theta = np.asarray(self.posterior["prepared"].to_dataset()["theta"])
        return theta.reshape(-1, theta.shape[-1])

    def predict(
        self,
        table: Any,
        *,
        times: Sequence[float] | Floats | None = None,
        site: str | None = None,
        new_site: bool = False,
        counts: bool = False,
        where: str = "table",
    ) -> dict[str, Floats]:
        """Posterior predictive mean and interval for each row of a table.

        Both ends are the mean where the run has points only (:attr:`has_intervals`).
        Values beyond a public range count as its end: :meth:`beyond_ranges`.

        Parameters
        ----------
        table
            A path or a frame with the study's feature columns; outcomes are not
            read.
        times
            Times, in the user's unit, at which survival is wanted. Beyond the horizon
            the model extrapolates, which a BeyondHorizonWarning says.
        site, new_site
            Where sites may differ: the site whose rows these are, or that they are of
            a site that took no part, which is meant where neither is given.
        counts
            Of a model of counts with an exposure: the expected count over each row's
            exposure, whose column the table then has, in the place of a rate per unit.
        """
        draws, predictor = self._draws_at(site, new_site), self._predictor()
        found = predictor.predict(draws, table, times, where)
        self._warn_beyond(table, where)
        if said := beyond_horizon(self.study, times):
            warnings.warn(said, BeyondHorizonWarning, stacklevel=2)
        if not counts:
            return found
        exposures = predictor.exposures(table, where)
        return {key: exposures * rates for key, rates in found.items()}

    def flags_of_predictions(
        self, times: Sequence[float] | Floats | None = None
    ) -> list[FlagRecord]:
        """Flags and cautions of the run that whoever predicts must know, by the latest
        of these times; of survival at any time where left out."""
        reach = None if times is None else float(np.max(np.asarray(times)))
        said = [*self.record["flags"], *self.record.get("cautions", [])]
        return flags_of_predictions(self.study, said, reach)

    def predict_at_common(
        self,
        table: Any,
        *,
        times: Sequence[float] | Floats | None = None,
        where: str = "table",
    ) -> dict[str, Floats]:
        """:meth:`predict` with the common parameters: a site in the middle of all."""
        draws = thinned(self.draws())
        return self._predictor().predict(draws, table, times, where)

    def median_survival(
        self,
        table: Any,
        *,
        site: str | None = None,
        new_site: bool = False,
        where: str = "table",
    ) -> Table[MedianSurvival]:
        """Median survival time of each row of a table, with its interval.

        An end that is not reached by the horizon is None; ``not_reached`` is the
        posterior probability of that. ``site`` and ``new_site`` as in :meth:`predict`.
        """
        draws = self._draws_at(site, new_site)
        found = self._predictor().median_survival(draws, table, where)
        self._warn_beyond(table, where)
        return Table(found)

    def beyond_ranges(self, table: Any, where: str = "table") -> Table[BeyondRow]:
        """Columns of a table with values beyond their public range, with counts.

        A prediction takes such a value as if it were at the end of the range, as the
        fit does, and says so by a BeyondRangeWarning.
        """
        return Table(self._predictor().beyond_ranges(table, where))

    def _warn_beyond(self, table: Any, where: str) -> None:
        for row in self.beyond_ranges(table, where):
            said = f"{where}: {beyond_in_words(row)}"
            warnings.warn(said, BeyondRangeWarning, stacklevel=3)

    def plot(self, ax: Axes | None = None) -> Axes:
        """A forest plot of the effects (of the parameters where there are none).

        Needs matplotlib: ``pip install 'cipherbayes[plots]'``.

        Parameters
        ----------
        ax
            Axes to draw on; new ones where left out.
        """
        from cipherbayes.results.plots import plot_effects

        return plot_effects(self, ax)

    def plot_survival(
        self,
        table: Any = None,
        *,
        labels: Sequence[str] | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """Survival curves with their intervals, of each row of a small table.

        Parameters
        ----------
        table
            As in :meth:`predict`, at most eight rows; left out: the reference record.
        labels
            What the legend calls each row.
        ax
            Axes to draw on; new ones where left out.
        """
        from cipherbayes.results.plots import plot_survival

        return plot_survival(self, table, labels=labels, axes=ax)

    def _draws_at(self, site: str | None, new_site: bool) -> Floats:
        """Draws that hold at a site, as many as a prediction averages over."""
        sites = site_draws(self.study, self.posterior["prepared"].to_dataset())
        return thinned(draws_for(self.study, self.draws(), sites, site, new_site))

    def rows_of(self, table: Any, where: str = "table") -> Iterator[Rows]:
        """A table to predict for, in small blocks."""
        return self._predictor().rows_of(table, where)

    def _predictor(self) -> Predictor:
        learnt = self.record.get("column_models")
        return Predictor(
            self.study,
            self._moments,
            None if learnt is None else np.array(learnt),
            self._tail,
        )

    def save(self, folder: str | Path) -> None:
        """Write the folder; ``result.json`` comes last, in one move."""
        write_result(Path(folder), self.study, self.posterior, self.record)

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read a folder that a run has written."""
        return cls(*read_result(Path(folder)))
