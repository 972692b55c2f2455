"""From a sampler's draws to a result on the user's own scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cipherbayes.data.rescaled import rescaled_design
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.flags import Flag, FlagRecord
from cipherbayes.inference.noise_aware.flags import not_calibrated, prior_of_ranges
from cipherbayes.models.design import Design
from cipherbayes.models.metrics import Metrics
from cipherbayes.protocols.certificate import CertificateRecord
from cipherbayes.protocols.protocol import protocol_of
from cipherbayes.results.checking import Checked
from cipherbayes.results.contrasts import Contrasts
from cipherbayes.results.effects import baseline, effects, held_by_prior
from cipherbayes.results.hierarchy import in_units, record_of
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.parameters import summarise
from cipherbayes.results.posterior import datatree, with_site_variables
from cipherbayes.results.predictions import thinned
from cipherbayes.results.range_flags import range_flags
from cipherbayes.results.record import (
    Bytes,
    ParameterRow,
    ResultRecord,
    TakingPart,
    Timing,
)
from cipherbayes.results.result import Result
from cipherbayes.results.result_folder import FORMAT
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of, resolve_prior
from cipherbayes.typing import Floats
from cipherbayes.version import __version__

NO_TIME: Timing = {"site_s": 0.0, "server_s": 0.0, "csp_s": 0.0, "wall_s": 0.0}
NO_BYTES: Bytes = {"per_round_site": 0, "total": 0}


def assemble(
    study: Study,
    draws: Draws,
    *,
    privacy: CertificateRecord,
    timing: Timing = NO_TIME,
    traffic: Bytes = NO_BYTES,
    metrics: Metrics,
    warnings: list[str],
    moments: Floats | None = None,
    column_models: Floats | None = None,
    range_ends: Floats | None = None,
    spread: Floats | None = None,
    taking_part: TakingPart | None = None,
    checked: Checked | None = None,
) -> Result:
    """Turn a sampler's draws into a result on the user's own scale.

    Parameters
    ----------
    column_models
        Learnt models of the columns with missing values; None where there are none.
    range_ends
        Shares of values that pile up at the ends of public ranges, where they are told.
    spread
        Means, then deviations, of the columns that moments would move, where they may
        be known without.
    """
    fit = _Fit(study, draws, moments)
    rows, notes = fit.parameters()
    flags = [*fit.flags(), *range_flags(study, range_ends)]
    flags += [] if checked is None else checked.flags
    cautions = fit.cautions()
    made_up = MadeUp(study, moments, spread=spread)
    terms = study.model.terms
    design, user, tail = fit.design, fit.user, fit.tail
    contrasts = Contrasts(made_up, user.reshape(-1, user.shape[-1]), tail)
    part = taking_part or {}
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
        "privacy": privacy,
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
            thinned(fit.flat),
            tail,
        ),
        "timing": timing,
        "bytes": traffic,
        "run": part.get("run"),
        "encryption": part.get("encryption"),
        "parties": part.get("parties", []),
        "metrics": metrics,
        "warnings": [
            *warnings,
            *(flag["message"] for flag in (*flags, *cautions)),
            *notes,
        ],
        "flags": flags,
        "cautions": cautions,
        "moments": None if moments is None else moments.tolist(),
    }
    if spread is not None:
        record["spread"] = spread.tolist()
    if column_models is not None:
        record["column_models"] = column_models.tolist()
    if checked is not None and checked.metrics:
        record["metrics"] = checked.metrics
    if checked is not None and checked.describe:
        record["describe"] = checked.describe
    if terms is not None:
        record["formula"] = contrasts.summary(terms)
    tree = datatree(fit.names, user, draws)
    if draws.sites is not None:
        units = in_units(study, design, draws.theta, draws.sites)
        record["hierarchy"] = record_of(study, design, draws, units)
        tree = with_site_variables(tree, draws.sites, units)
    return Result(study, tree, record)


@dataclass(frozen=True)
class _Fit:
    """Draws of a study, and what they are in the user's units."""

    study: Study
    draws: Draws
    moments: Floats | None

    @cached_property
    def public(self) -> Design:
        """The design of the public ranges."""
        return preparation_of(self.study).design

    @cached_property
    def design(self) -> Design:
        """The design that the sampler saw, with released scales if there are any."""
        if self.moments is None:
            return self.public
        half = self.moments.size // 2
        return rescaled_design(self.public, self.moments[:half], self.moments[half:])

    @cached_property
    def names(self) -> tuple[str, ...]:
        return self.study.model.parameters(self.design)

    @cached_property
    def user(self) -> Floats:
        """Draws in the user's units, shape ``(chains, draws, d)``."""
        return self.study.model.to_user_scale(self.draws.theta, self.design)

    @property
    def flat(self) -> Floats:
        """Draws on the prepared scale, chains joined."""
        return self.draws.theta.reshape(-1, self.draws.theta.shape[-1])

    @cached_property
    def caution(self) -> str | None:
        """Why draws are no intervals; None where they are, or are one point."""
        return None if self.draws.is_point else interval_caution(self.study)

    @property
    def tail(self) -> float | None:
        """Probability outside either end of an interval; None where there is none."""
        if self.draws.is_point or self.caution is not None:
            return None
        return (1.0 - self.study.inference.interval) / 2.0

    def parameters(self) -> tuple[list[ParameterRow], list[str]]:
        """A row for each parameter, and what to know before reading them."""
        interval = None if self.draws.is_point else self.study.inference.interval
        rows, notes = summarise(self.names, self.user, interval)
        if self.caution is not None:
            rows = [row | {"sd": None, "lower": None, "upper": None} for row in rows]
        if interval is not None and not self.study.inference_method.has_chains:
            notes = []  # its flags say whether it mixed, and it has no rounds to raise
        prior = resolve_prior(self.study, self.design)
        held = held_by_prior(self.names, self.flat, prior.mean, prior.scale)
        if held:
            notes.append(
                f"only the prior stops {len(held)} of {len(self.names)} parameters "
                f"(first: {held[0]}): perfect separation, a group without events, or a "
                "prior that is too narrow; do not read their size"
            )
        return rows, notes

    def flags(self) -> list[FlagRecord]:
        """What speaks against intervals, or against how they may be read."""
        return [f.as_record(self.names) for f in self._found if not f.caution]

    def cautions(self) -> list[FlagRecord]:
        """Where and why intervals are wide."""
        return [f.as_record(self.names) for f in self._found if f.caution]

    @cached_property
    def _found(self) -> list[Flag]:
        """What the sampler, the columns and the method give reason to warn of."""
        found = list(self.draws.flags)
        if self.study.prior_is_of_ranges:
            found = prior_of_ranges(found)
        if self.moments is not None:
            found += self.study.inference_method.flags(self.public, self.design)
        if self.caution is not None:
            found.append(not_calibrated(self.caution, len(self.names)))
        return found


def interval_caution(study: Study) -> str | None:
    """Why a study's draws are no intervals; None where they are."""
    return protocol_of(study).interval_caution(study)
