"""What a run gives back, in memory and in a folder.

The folder holds ``result.json`` (stable and versioned), ``posterior.nc`` (draws
in ArviZ's layout), and ``study.toml`` (the study, defaults filled in).
``result.json`` is written last and in one move: a folder without it is no result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.rescaled import rescaled, rescaled_design
from cipherbayes.data.tables import open_table
from cipherbayes.errors import DataError, RunError
from cipherbayes.inference.between_sites import SiteDraws
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.diagnostics import rhat_and_ess
from cipherbayes.inference.noise_aware.flags import not_calibrated
from cipherbayes.models.base import Rows
from cipherbayes.models.survival import require_survival_curves
from cipherbayes.protocols.certificate import Certificate
from cipherbayes.protocols.protocol import protocol_of
from cipherbayes.results.checking import Checked
from cipherbayes.results.contrasts import Contrasts
from cipherbayes.results.effects import (
    baseline,
    effects,
    held_by_prior,
    median_survival,
)
from cipherbayes.results.hierarchy import (
    SitesInUnits,
    draws_for,
    in_units,
    prepared_variables,
    record_of,
    site_draws,
    variables,
)
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.record import (
    Baseline,
    Bytes,
    ContrastRow,
    Curve,
    DescribeRow,
    EffectRow,
    HierarchyRecord,
    MedianSurvival,
    ParameterRow,
    ResultRecord,
    SubgroupRow,
    TakingPart,
    Timing,
)
from cipherbayes.results.table import Table
from cipherbayes.storage.folders import make_folder
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of, resolve_prior
from cipherbayes.typing import Floats
from cipherbayes.version import __version__

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes  # an extra

FORMAT = 1
PREDICTIVE_DRAWS = 500
"""Most draws that a prediction averages over: its interval's ends need no more."""


NO_TIME: Timing = {"site_s": 0.0, "server_s": 0.0, "csp_s": 0.0, "wall_s": 0.0}
NO_BYTES: Bytes = {"per_round_site": 0, "total": 0}


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
        warned = f", {len(self.warnings)} warnings" if self.warnings else ""
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
        if privacy["epsilon"] is None:
            return "no privacy"
        word = "" if privacy["certified"] else ", NOT CERTIFIED"
        return f"ε = {privacy['epsilon']:g}, δ = {privacy['delta']:g}{word}"

    @property
    def dataset(self) -> xr.Dataset:
        """The draws on the user's own units, as a Dataset: ``az.summary`` of it names
        every parameter with every release of ArviZ."""
        return self.posterior["posterior"].to_dataset()

    @property
    def certificate(self) -> dict[str, Any]:
        """(ε, δ), the relation, the mechanism, whose rows it covers, and against
        whom it holds."""
        return dict(self.record["privacy"])

    @property
    def metrics(self) -> dict[str, Any]:
        """Scores on the held-out rows, where the study asked for them."""
        return dict(self.record["metrics"])

    def describe(self) -> Table[DescribeRow]:
        """The records' characteristics, overall and by group, with intervals for their
        noise and the width of ranges; empty where the study asked for none."""
        return Table(row.copy() for row in self.record.get("describe", []))

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
        values = self._named(weights)
        total = values @ np.array([float(weights[name]) for name in weights])
        name = " + ".join(f"{weight:g} {each}" for each, weight in weights.items())
        rows, _ = summarise(
            (name,),
            total.reshape(1, -1, 1),
            not self.has_intervals,
            self.study.inference.interval,
        )
        return rows[0] | {"rhat": None, "ess": None}

    def probability(
        self, positive: Sequence[str] = (), negative: Sequence[str] = ()
    ) -> float:
        """Posterior probability that all these parameters have these signs at once."""
        if not self.has_intervals:
            raise RunError(
                "has points, no draws of a posterior",
                where=f"study '{self.study.name}'",
                remedy="fit it with a method that gives intervals",
            )
        above, below = self._named(positive) > 0.0, self._named(negative) < 0.0
        return float((above.all(axis=1) & below.all(axis=1)).mean())

    def curve(self, feature: str, at: Mapping[str, Any] | None = None) -> Curve:
        """The effect of every value of a number against the reference record's value,
        with its band."""
        found = self.study.features.get(feature)
        if found is None or found.levels is not None:
            raise RunError(
                f"'{feature}' is no number of the study",
                where=f"study '{self.study.name}'",
                remedy="name a feature with low and high",
            )
        return self._contrasts().curve(feature, at)

    def curves(self) -> list[Curve]:
        """The curves of a formula, at the reference record and in each group."""
        formula = self.record.get("formula")
        return [] if formula is None else list(formula["curves"])

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
        moments = self.record["moments"]
        made_up = MadeUp(
            self.study,
            None if moments is None else np.array(moments),
            self.record.get("reference"),
        )
        tail = (1.0 - self.study.inference.interval) / 2.0
        return Contrasts(
            made_up, self._user_draws(), tail if self.has_intervals else None
        )

    def _user_draws(self) -> Floats:
        theta = np.asarray(self.dataset["theta"])
        return theta.reshape(-1, theta.shape[-1])

    def _named(self, names: Iterable[str]) -> Floats:
        """Draws of some parameters in the user's units, shape ``(s, n)``."""
        known = [row["name"] for row in self.record["posterior"]]
        wanted = list(names)
        for name in wanted:
            if name not in known:
                raise RunError(
                    f"no parameter is called '{name}'",
                    where=f"study '{self.study.name}'",
                    remedy=f"the parameters are {', '.join(known)}",
                )
        return self._user_draws()[:, [known.index(name) for name in wanted]]

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
        where: str = "table",
    ) -> dict[str, Floats]:
        """Posterior predictive mean and interval for each row of a table.

        Both ends are the mean where the run has points only (:attr:`has_intervals`).

        Parameters
        ----------
        table
            A path or a frame with the study's feature columns; outcomes are not
            read.
        times
            Times, in the user's unit, at which survival is wanted.
        site, new_site
            Where sites may differ: the site whose rows these are, or that they are of
            a site that took no part, which is meant where neither is given.
        """
        return self._predicted(self._draws_at(site, new_site), table, times, where)

    def predict_at_common(
        self,
        table: Any,
        *,
        times: Sequence[float] | Floats | None = None,
        where: str = "table",
    ) -> dict[str, Floats]:
        """:meth:`predict` with the common parameters: a site in the middle of all."""
        return self._predicted(_thinned(self.draws()), table, times, where)

    def _predicted(
        self,
        draws: Floats,
        table: Any,
        times: Sequence[float] | Floats | None,
        where: str,
    ) -> dict[str, Floats]:
        model = self.study.model
        self._require_times(times is not None)
        tail = (1.0 - self.study.inference.interval) / 2.0
        at = None if times is None else np.asarray(times, dtype=float)
        parts: list[Floats] = []
        for rows in self.rows_of(table, where):
            values = model.predict(draws, rows, at)
            mean = lower = upper = values.mean(axis=0)
            if self.has_intervals:
                lower, upper = np.quantile(values, [tail, 1.0 - tail], axis=0)
            parts.append(np.stack([mean, lower, upper]))
        joined = np.concatenate(parts, axis=1)
        return {"mean": joined[0], "lower": joined[1], "upper": joined[2]}

    def _require_times(self, given: bool) -> None:
        """Refuse times for one number a row, and curves without times."""
        model, where = self.study.model, f"study '{self.study.name}'"
        if given and not model.predicts_over_time:
            raise RunError(
                f"a model of kind '{model.kind}' predicts one number for a row, not a "
                "curve over time",
                where=where,
                remedy="leave the times out",
            )
        if not given and model.predicts_over_time:
            raise RunError(
                "a survival model predicts at times",
                where=where,
                remedy="give some in the unit of the time column, e.g. times=[365]",
            )

    def median_survival(
        self,
        table: Any,
        *,
        site: str | None = None,
        new_site: bool = False,
        where: str = "table",
    ) -> list[MedianSurvival]:
        """Median survival time of each row of a table, with its interval.

        An end that is not reached by the horizon is None; ``not_reached`` is the
        posterior probability of that. ``site`` and ``new_site`` as in :meth:`predict`.
        """
        model, draws = self.study.model, self._draws_at(site, new_site)
        outside = (1.0 - self.study.inference.interval) / 2.0
        tail = outside if self.has_intervals else None
        return [
            median_survival(times, tail)
            for rows in self.rows_of(table, where)
            for times in require_survival_curves(model).median(draws, rows).T
        ]

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
        return _thinned(draws_for(self.study, self.draws(), sites, site, new_site))

    def rows_of(self, table: Any, where: str = "table") -> Iterator[Rows]:
        """A table to predict for, in small blocks."""
        try:
            yield from _slices(self._prepared(table, where))
        except DataError as error:
            # A finished study has its levels and columns for good.
            remedy = error.remedy
            if ".levels" in remedy:
                remedy = (
                    "the study knows no other: correct it, leave such rows out, or fit "
                    "a study with this level"
                )
            raise DataError(error.what, where=error.where, remedy=remedy) from None

    def _prepared(self, table: Any, where: str) -> PreparedTable:
        raw = PreparedTable.for_prediction(
            open_table(table, where), preparation_of(self.study)
        )
        moments = self.record["moments"]
        return rescaled(raw, None if moments is None else np.array(moments))

    def save(self, folder: Path) -> None:
        """Write the folder; ``result.json`` comes last, in one move."""
        make_folder(folder)
        partial = folder / ".posterior.partial"
        self.posterior.to_netcdf(partial, engine="h5netcdf")
        digest = hashlib.sha256(partial.read_bytes()).hexdigest()
        os.replace(partial, folder / "posterior.nc")
        _replace(folder / "study.toml", self.study.without_paths().to_toml())
        content = {**self.record, "posterior_sha256": digest}
        record = json.dumps(content, indent=2, allow_nan=False)
        _replace(folder / "result.json", record + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read a folder that a run has written."""
        folder = Path(folder)
        try:
            record = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            if not isinstance(record, dict) or record.get("version") != FORMAT:
                raise RunError(
                    "result.json has a version that this cipherbayes does not read",
                    where=str(folder),
                    remedy="read it with the cipherbayes that wrote it",
                )
            study = Study.load(folder / "study.toml")
            draws = folder / "posterior.nc"
            digest = record.pop("posterior_sha256", None)
            # First: HDF5 takes its time over a damaged file.
            if digest not in (None, hashlib.sha256(draws.read_bytes()).hexdigest()):
                raise ValueError
            import xarray as xr

            with xr.open_datatree(draws, engine="h5netcdf") as posterior:
                return cls(study, posterior.load(), cast(ResultRecord, record))
        except FileNotFoundError:
            raise RunError(
                "holds no finished run",
                where=str(folder),
                remedy="give the folder that `cipherbayes run --out` wrote",
            ) from None
        except (OSError, ValueError, KeyError, RecursionError):
            raise RunError(
                "the result's files cannot be read",
                where=str(folder),
                remedy="run the study again into a new folder",
            ) from None


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _slices(table: PreparedTable) -> Iterator[Rows]:
    """Blocks small enough that draws × rows × times stay in memory."""
    for block in table.blocks():
        for start in range(0, block.count, 1024):
            part = slice(start, start + 1024)
            yield Rows(block.design, block.x[:, part], {}, block.squared_norms[part])


def _thinned(draws: Floats) -> Floats:
    """At most ``PREDICTIVE_DRAWS`` of them."""
    return draws[:: -(-len(draws) // PREDICTIVE_DRAWS)]


def assemble(
    study: Study,
    draws: Draws,
    *,
    privacy: Certificate,
    timing: Timing = NO_TIME,
    traffic: Bytes = NO_BYTES,
    metrics: Mapping[str, Any],
    warnings: list[str],
    moments: Floats | None = None,
    means: Floats | None = None,
    taking_part: TakingPart | None = None,
    checked: Checked | None = None,
) -> Result:
    """Turn a sampler's draws into a result on the user's own scale.

    Parameters
    ----------
    means
        Of the prepared columns, where they may be known without moments.
    """
    public = design = preparation_of(study).design
    if moments is not None:
        half = moments.size // 2
        design = rescaled_design(public, moments[:half], moments[half:])
    names = study.model.parameters(design)
    user = study.model.to_user_scale(draws.theta, design)
    rows, notes = summarise(names, user, draws.is_point, study.inference.interval)
    caution = None if draws.is_point else interval_caution(study)
    if caution is not None:
        rows = [row | {"sd": None, "lower": None, "upper": None} for row in rows]
    if not study.inference_method.has_chains:
        notes = []  # its flags say whether it mixed, and it has no rounds to raise
    flat = draws.theta.reshape(-1, draws.theta.shape[-1])
    prior = resolve_prior(study, design)
    held = held_by_prior(names, flat, prior.mean, prior.scale)
    if held:
        notes.append(
            f"only the prior stops {len(held)} of {len(names)} parameters (first: "
            f"{held[0]}): perfect separation, a group without events, or a prior "
            "that is too narrow; do not read their size"
        )
    spread = not draws.is_point and caution is None
    tail = (1.0 - study.inference.interval) / 2.0 if spread else None
    known = None
    if means is not None and moments is None:
        known = MadeUp(study, None).around(means)
    made_up = MadeUp(study, moments, known)
    terms = study.model.terms
    contrasts = Contrasts(made_up, user.reshape(-1, user.shape[-1]), tail)
    part = taking_part or {}
    flags = [flag.as_record(names) for flag in draws.flags]
    if moments is not None:
        columns = study.inference_method.flags(public, design)
        flags += [flag.as_record(names) for flag in columns]
    if caution is not None:
        flags.append(not_calibrated(caution, len(names)).as_record(names))
    if checked is not None:
        flags += checked.flags
    record: ResultRecord = {
        "version": FORMAT,
        "cipherbayes": __version__,
        "study": study.name,
        "study_hash": study.fingerprint(),
        "protocol": study.protocol,
        "model": study.model.kind,
        "method": study.method,
        "sites": sorted(study.sites),
        "rounds": draws.rounds,
        "privacy": privacy.record(),
        "interval": study.inference.interval,
        "posterior": rows,
        "effects": effects(study.model, study.features, design, user, tail)
        if terms is None
        else contrasts.effects(terms),
        "reference": made_up.reference,
        "baseline": baseline(
            study.model,
            made_up.reference,
            made_up.rows([made_up.reference]),
            _thinned(flat),
            tail,
        ),
        "timing": timing,
        "bytes": traffic,
        "run": part.get("run"),
        "encryption": part.get("encryption"),
        "parties": part.get("parties", []),
        "metrics": dict(metrics),
        "warnings": [*warnings, *(flag["message"] for flag in flags), *notes],
        "flags": flags,
        "moments": None if moments is None else moments.tolist(),
    }
    if checked is not None and checked.metrics:
        record["metrics"] = dict(checked.metrics)
    if checked is not None and checked.describe:
        record["describe"] = checked.describe
    if terms is not None:
        record["formula"] = contrasts.summary(terms)
    tree = datatree(names, user, draws)
    if draws.sites is not None:
        units = in_units(study, design, draws.theta, draws.sites)
        record["hierarchy"] = record_of(study, design, draws, units)
        tree = _with_sites(tree, draws.sites, units)
    return Result(study, tree, record)


def _with_sites(
    tree: xr.DataTree, sites: SiteDraws, units: SitesInUnits
) -> xr.DataTree:
    """The posterior with what differs between sites."""
    import xarray as xr

    groups = {name: node.to_dataset() for name, node in tree.children.items()}
    found, coords = variables(units)
    groups["posterior"] = groups["posterior"].assign(found).assign_coords(coords)
    prepared = groups["prepared"].assign(prepared_variables(sites))
    groups["prepared"] = prepared.assign_coords(site=list(sites.sites))
    return xr.DataTree.from_dict(groups)


def interval_caution(study: Study) -> str | None:
    """Why a study's draws are no intervals; None where they are."""
    return protocol_of(study).interval_caution(study)


def datatree(names: tuple[str, ...], user: Floats, draws: Draws) -> xr.DataTree:
    """Draws in ArviZ's layout: dimensions chain, draw and parameter."""
    import xarray as xr

    chains, count, _ = user.shape
    coords = {
        "chain": np.arange(chains),
        "draw": np.arange(count),
        "parameter": list(names),
    }
    dims = ("chain", "draw", "parameter")
    attributes = {"created_by": "cipherbayes", "version": __version__}
    groups = {
        "posterior": xr.Dataset({"theta": (dims, user)}, coords, attributes),
        "prepared": xr.Dataset({"theta": (dims, draws.theta)}, coords, attributes),
        "sample_stats": xr.Dataset(
            {"step_size": (dims[:2], draws.step_size)},
            {key: coords[key] for key in dims[:2]},
            attributes,
        ),
    }
    return xr.DataTree.from_dict(groups)


def summarise(
    names: tuple[str, ...], user: Floats, is_point: bool, interval: float
) -> tuple[list[ParameterRow], list[str]]:
    """One row per parameter, and warnings about chains that did not mix."""
    rows: list[ParameterRow]
    if is_point:
        rows = [
            {
                "name": name,
                "mean": float(value),
                "sd": None,
                "lower": None,
                "upper": None,
                "rhat": None,
                "ess": None,
            }
            for name, value in zip(names, user[0, 0], strict=True)
        ]
        return rows, ["a point estimate: this method gives no intervals"]
    tail = (1.0 - interval) / 2.0
    flat = user.reshape(-1, user.shape[-1])
    lower, upper = np.quantile(flat, [tail, 1.0 - tail], axis=0)
    rhat, ess = rhat_and_ess(user)
    rows = [
        {
            "name": name,
            "mean": float(flat[:, j].mean()),
            "sd": float(flat[:, j].std(ddof=1)) if len(flat) > 1 else None,
            "lower": float(lower[j]),
            "upper": float(upper[j]),
            "rhat": None if np.isnan(rhat[j]) else float(rhat[j]),
            "ess": None if np.isnan(ess[j]) else float(ess[j]),
        }
        for j, name in enumerate(names)
    ]
    notes = []
    slow = [r["name"] for r in rows if r["rhat"] is not None and r["rhat"] > 1.05]
    if slow:
        notes.append(
            f"chains have not mixed for {len(slow)} of {len(rows)} parameters "
            f"(R-hat above 1.05, first: {slow[0]}): raise inference.rounds"
        )
    few = min((r["ess"] for r in rows if r["ess"] is not None), default=None)
    if few is not None and few < 100:
        notes.append(
            f"only {few:.0f} effective draws in the worst parameter: "
            + ("do not use its interval" if few < 20 else "its interval is rough")
            + "; raise inference.rounds"
        )
    return rows, notes
