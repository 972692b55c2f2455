"""What differs between sites, in the user's own units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from cipherbayes.errors import RunError
from cipherbayes.inference.between_sites import SiteDraws, SitePrior
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.diagnostics import rhat_and_ess
from cipherbayes.inference.site_comparison import SiteComparison
from cipherbayes.models.design import Design
from cipherbayes.results.record import (
    BetweenRow,
    HierarchyRecord,
    InfluenceRow,
    MetaAnalysisRow,
    SiteRecordsRow,
    SiteRow,
)
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of, resolve_prior, site_prior, slots_of
from cipherbayes.typing import Floats

if TYPE_CHECKING:
    import xarray as xr


def prior_of(study: Study) -> SitePrior | None:
    """The prior of sites that may differ; None where they are taken to be alike."""
    slots = slots_of(study)
    if slots is None:
        return None
    common = resolve_prior(study, preparation_of(study).design)
    return site_prior(study, slots, common)


@dataclass(frozen=True)
class SitesInUnits:
    """Draws of what differs between sites, in the user's own units.

    Attributes
    ----------
    names
        Of what differs; all intervals of a common baseline are one.
    effects
        Shape ``(chains, draws, K, names)``.
    groups, between
        Names of the spreads, and their draws, shape ``(chains, draws, G)``.
    """

    sites: tuple[str, ...]
    names: tuple[str, ...]
    effects: Floats
    groups: tuple[str, ...]
    between: Floats


def in_units(
    study: Study, design: Design, common: Floats, sites: SiteDraws
) -> SitesInUnits:
    """Site effects and spreads on the user's own scale.

    Levels are those of a record at the columns' centres, as τ is: where slopes differ
    too, sites that are alike there may be far apart where every feature is zero.
    """
    model, places = study.model, list(sites.places)
    middle = model.to_user_scale(common, design)
    effects = np.stack(
        [
            (model.to_user_scale(sites.at_site(common, site), design) - middle)[
                ..., places
            ]
            for site in sites.sites
        ],
        axis=-2,
    )
    parameters = model.parameters(design)
    names = [parameters[place] for place in places]
    constants = model.constants(design)
    level = [k for k, place in enumerate(places) if place in constants]
    turned = _turned(study, design)
    for k in level:
        effects[..., k] = sites.effects[..., k] * turned[places[k], places[k]]
    hierarchy = study.stated_hierarchy
    proportional = hierarchy.baseline != "stratified" and hierarchy.effects != "fixed"
    if len(level) > 1 and proportional:
        # The intervals of proportional hazards move together.
        together = effects[..., level].mean(axis=-1, keepdims=True)
        rest = [k for k in range(len(places)) if k not in level]
        effects = np.concatenate([together, effects[..., rest]], axis=-1)
        names = [_stem(parameters[places[0]]), *(names[k] for k in rest)]
    between = sites.between.copy()
    own = [g for g, group in enumerate(sites.groups) if group in parameters]
    where = [parameters.index(sites.groups[g]) for g in own]
    between[..., own] = _spread_of(turned[np.ix_(where, where)], between[..., own])
    return SitesInUnits(sites.sites, tuple(names), effects, sites.groups, between)


def record_of(
    study: Study, design: Design, draws: Draws, units: SitesInUnits
) -> HierarchyRecord:
    """What ``result.json`` says of the hierarchy."""
    compared, own = draws.comparison, draws.sites
    if compared is None or own is None:
        raise ValueError("the draws are of sites that are taken to be alike")
    tail = (1.0 - study.inference.interval) / 2.0
    hierarchy = study.stated_hierarchy
    between = [
        _row(name, units.between[..., g], tail) for g, name in enumerate(units.groups)
    ]
    sites: list[SiteRow] = [
        {"site": site, **_row(name, units.effects[..., k, j], tail)}
        for k, site in enumerate(units.sites)
        for j, name in enumerate(units.names)
    ]
    return {
        "effects": hierarchy.effects,
        "records": _records(units.sites, draws.site_records),
        "between": between,
        "sites": sites,
        "influence": _influence(study, design, own, compared),
        "meta_analysis": _meta_analysis(study, design, draws.theta, own, compared),
    }


def variables(units: SitesInUnits) -> tuple[dict[str, object], dict[str, list[str]]]:
    """Variables and coordinates of the posterior, in ArviZ's layout."""
    dims = ("chain", "draw")
    found: dict[str, object] = {
        "site_effect": ((*dims, "site", "varying"), units.effects)
    }
    coords = {"site": list(units.sites), "varying": list(units.names)}
    if units.groups:
        found["between"] = ((*dims, "spread"), units.between)
        coords["spread"] = list(units.groups)
    return found, coords


def prepared_variables(sites: SiteDraws) -> dict[str, object]:
    """Variables on the prepared scale, one number for each parameter that differs."""
    dims = ("chain", "draw")
    found: dict[str, object] = {
        "site_effect": ((*dims, "site", "place"), sites.effects)
    }
    if sites.groups:
        found["between"] = ((*dims, "spread"), sites.between)
    return found


def site_draws(study: Study, prepared: xr.Dataset) -> SiteDraws | None:
    """What differs between sites, as a saved posterior has it, chains joined."""
    prior = prior_of(study)
    if prior is None:
        return None
    effects = np.asarray(prepared["site_effect"])
    effects = effects.reshape(-1, *effects.shape[2:])
    groups = tuple(group.name for group in prior.groups)
    between = np.zeros((len(effects), 0))
    if groups:
        between = np.asarray(prepared["between"]).reshape(-1, len(groups))
    return SiteDraws(prior.slots.sites, prior.slots.places, effects, groups, between)


def draws_for(
    study: Study, common: Floats, sites: SiteDraws | None, site: str | None, new: bool
) -> Floats:
    """Draws to predict with: of a known site, or of one that took no part.

    Raises
    ------
    RunError
        Where the study knows no such site, or none at all.
    """
    prior = prior_of(study)
    if sites is None or prior is None:
        if site is None and not new:
            return common
        raise RunError(
            "takes its sites to be alike",
            where=f"study '{study.name}'",
            remedy="leave the site out, or fit a study with a [hierarchy] table",
        )
    if site is not None and new:
        raise RunError(
            "a site is known or new", where=f"site '{site}'", remedy="give one of them"
        )
    if site is not None:
        known = dict.fromkeys([*study.sites, *sites.sites])
        if site not in known:
            raise RunError(
                f"no site is called '{site}'",
                where=f"study '{study.name}'",
                remedy=f"give one of {', '.join(known)}, or ask for a new one",
            )
        return sites.at_site(common, study.stated_hierarchy.owner(site))
    if not sites.groups:
        raise RunError(
            "says nothing of a site that took no part: its sites are fixed",
            where=f"study '{study.name}'",
            remedy=f"name a site: {', '.join(sites.sites)}",
        )
    rng = np.random.default_rng([study.inference.seed, len(sites.sites)])
    return prior.at_new_site(rng, common, sites.between)


def _records(sites: tuple[str, ...], counts: Floats | None) -> list[SiteRecordsRow]:
    if counts is None:
        return []
    return [
        {"site": site, "records": float(count)}
        for site, count in zip(sites, counts, strict=True)
    ]


def _influence(
    study: Study, design: Design, sites: SiteDraws, compared: SiteComparison
) -> list[InfluenceRow]:
    if not sites.groups:
        return []
    names = study.model.parameters(design)
    return [
        {"site": site, "name": name, "shift": float(compared.influence[k, j])}
        for k, site in enumerate(sites.sites)
        for j, name in enumerate(names)
    ]


def _meta_analysis(
    study: Study,
    design: Design,
    theta: Floats,
    sites: SiteDraws,
    compared: SiteComparison,
) -> list[MetaAnalysisRow]:
    tail = (1.0 - study.inference.interval) / 2.0
    names = study.model.parameters(design)
    places = list(sites.places)
    turned = _turned(study, design)[np.ix_(places, places)]
    errors = _spread_of(turned, np.asarray(compared.standard_errors, dtype=float))
    between = _spread_of(turned, np.asarray(compared.between, dtype=float))
    user = _at_centres(study, design, compared.common)
    joint = _at_centres(study, design, theta)
    half = -float(ndtri(tail))
    rows: list[MetaAnalysisRow] = []
    for k, place in enumerate(sites.places):
        estimate, error = float(user[place]), float(errors[k])
        lower, upper = np.quantile(joint[..., place], [tail, 1.0 - tail])
        rows.append(
            {
                "name": names[place],
                "estimate": estimate,
                "se": error,
                "lower": estimate - half * error,
                "upper": estimate + half * error,
                "between": float(between[k]),
                "posterior": {
                    "mean": float(joint[..., place].mean()),
                    "lower": float(lower),
                    "upper": float(upper),
                },
            }
        )
    return rows


def _at_centres(study: Study, design: Design, theta: Floats) -> Floats:
    """Parameters in the user's units, levels those of a record at the centres."""
    model = study.model
    user, alone = model.to_user_scale(theta, design), theta.copy()
    levels = list(model.constants(design))
    columns = [place for place in range(design.width) if place not in levels]
    alone[..., columns] = 0.0
    user[..., levels] = model.to_user_scale(alone, design)[..., levels]
    return user


def _turned(study: Study, design: Design) -> Floats:
    """What a unit of each prepared parameter (a row) adds to those of the user."""
    every = np.eye(len(study.model.parameters(design)))
    user = _at_centres(study, design, every)
    return np.asarray(user - _at_centres(study, design, np.zeros_like(every)))


def _spread_of(turned: Floats, spreads: Floats) -> Floats:
    """sds in the user's units of parameters that vary by themselves with these sds.

    A curve's coefficients in the user's units are sums of its prepared ones.
    """
    return np.asarray(np.sqrt(spreads**2 @ turned**2))


def _stem(name: str) -> str:
    """``log_hazard`` of ``log_hazard[0-1]``."""
    return name.partition("[")[0]


def _row(name: str, values: Floats, tail: float) -> BetweenRow:
    lower, upper = np.quantile(values, [tail, 1.0 - tail])
    rhat, ess = (float(each[0]) for each in rhat_and_ess(values[..., None]))
    return {
        "name": name,
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=1)),
        "lower": float(lower),
        "upper": float(upper),
        "rhat": None if np.isnan(rhat) else rhat,
        "ess": None if np.isnan(ess) else ess,
    }
