"""From a sampler's draws to a result on the user's own scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cipherbayes.data.rescaled import rescaled_design
from cipherbayes.inference.chains import Draws
from cipherbayes.inference.noise_aware.flags import not_calibrated
from cipherbayes.protocols.certificate import Certificate
from cipherbayes.protocols.protocol import protocol_of
from cipherbayes.results.checking import Checked
from cipherbayes.results.contrasts import Contrasts
from cipherbayes.results.effects import baseline, effects, held_by_prior
from cipherbayes.results.hierarchy import in_units, record_of
from cipherbayes.results.made_up import MadeUp
from cipherbayes.results.parameters import summarise
from cipherbayes.results.posterior import datatree, with_sites
from cipherbayes.results.predictions import thinned
from cipherbayes.results.record import Bytes, ResultRecord, TakingPart, Timing
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
    interval = None if draws.is_point else study.inference.interval
    rows, notes = summarise(names, user, interval)
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
            thinned(flat),
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
        tree = with_sites(tree, draws.sites, units)
    return Result(study, tree, record)


def interval_caution(study: Study) -> str | None:
    """Why a study's draws are no intervals; None where they are."""
    return protocol_of(study).interval_caution(study)
