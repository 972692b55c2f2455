"""From a finished private run to its result: scores, certificate, who took part."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from cipherbayes.data.imputing import DRAWS, Imputing, joined
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.rescaled import rescaled
from cipherbayes.engine.local import Finished
from cipherbayes.engine.round_loop import Traffic
from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.inference.chains import Draws
from cipherbayes.models.metrics import Metrics, evaluate_each
from cipherbayes.models.rows import Rows
from cipherbayes.protocols.plan import Plan
from cipherbayes.results.checking import check_fit
from cipherbayes.results.from_draws import assemble
from cipherbayes.results.record import TakingPart, Timing
from cipherbayes.results.result import Result
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import imputing_of
from cipherbayes.typing import Floats

INSECURE = (
    "INSECURE-REPEATABLE NOISE: drawn from a seed, for tests only; "
    "this result protects nobody and is not certified"
)
FRAME_LEDGER = (
    "the ledger of a frame lasts for one run only: give files to keep a budget across "
    "studies"
)
NOT_SCORED = (
    "held-out rows stay at their sites and are not scored: use `cipherbayes predict` "
    "there"
)


def assemble_private(
    folder: RunFolder,
    finished: Finished,
    started: float,
    test: Mapping[str, PreparedTable],
) -> Result:
    """The result of a private run, with its certificate."""
    study, traffic = folder.study, finished.traffic
    warnings = cautions_of(folder.plan)
    if finished.stopped is not None:
        warnings.append(f"{stopped_after(finished.rounds)}{finished.stopped}")
    if folder.holds_frames():
        warnings.append(FRAME_LEDGER)
    messages = max(traffic.site_messages, 1)
    timing: Timing = {
        "site_s": max(traffic.site_seconds.values(), default=0.0),
        "server_s": traffic.server_seconds,
        "csp_s": traffic.csp_seconds,
        "wall_s": time.perf_counter() - started,
    }
    return assemble(
        study,
        finished.draws,
        privacy=folder.protocol.certificate(folder.plan, finished.rounds),
        timing=timing,
        traffic={
            "per_round_site": traffic.site_bytes // messages,
            "total": traffic.total_bytes,
        },
        metrics=score(
            study,
            finished.draws,
            test,
            finished.moments,
            learnt=finished.column_models,
        ),
        warnings=warnings,
        moments=finished.moments,
        column_models=finished.column_models,
        range_ends=finished.range_ends,
        taking_part=taking_part(folder, traffic),
        checked=check_fit(
            folder.plan, finished.draws, finished.moments, finished.closing
        ),
    )


def cautions_of(plan: Plan) -> list[str]:
    """What every result of a private study must warn of, whatever its rounds gave."""
    study = plan.study
    warnings = [INSECURE] if study.insecure else []
    warnings.extend(study.inference_method.cautions(study.model))
    return [*warnings, *plan.cautions()]


def stopped_after(rounds: int) -> str:
    """How the warning of a run begins that ended before its last round."""
    return f"stopped after {rounds} rounds: "


def taking_part(folder: RunFolder, traffic: Traffic) -> TakingPart:
    """Who took part in a run: keys by their public ids, time and bytes of each."""
    scheme = folder.plan.scheme
    if scheme is None:
        return {}
    seconds = {
        "csp": traffic.csp_seconds,
        "server": traffic.server_seconds,
        **traffic.site_seconds,
    }
    pinned = folder.pinned()
    return {
        "run": folder.run.hex(),
        "encryption": {"parameters": scheme, "key": folder.key_id()},
        "parties": [
            {
                "name": name,
                "identity": pinned[name].id if name in pinned else None,
                "seconds": seconds.get(name, 0.0),
                "bytes": traffic.sent.get(name, 0),
            }
            for name in ("csp", "server", *sorted(folder.study.sites))
        ],
    }


def score(
    study: Study,
    draws: Draws,
    test: Mapping[str, PreparedTable],
    moments: Floats | None = None,
    *,
    learnt: Floats | None = None,
) -> Metrics:
    """Metrics on the held-out rows; none where the study holds none out."""
    if not test:
        return {}
    flat = draws.theta.reshape(-1, draws.theta.shape[-1])
    imputing, several = imputing_of(study), None
    held = {name: rescaled(table, moments) for name, table in test.items()}
    if imputing is not None:
        held = dict(test)
        scales = joined(moments, learnt)
        several = partial(_pieces, imputing, scales)
    own = dict.fromkeys(held, flat)
    if draws.sites is not None:
        owner = study.stated_hierarchy.owner
        own = {
            name: draws.sites.at_site(draws.theta, owner(name)).reshape(flat.shape)
            for name in held
        }
    return evaluate_each(
        study.model, [(own[name], table) for name, table in held.items()], several
    )


def _pieces(
    imputing: Imputing, scales: Floats | None, block: Rows
) -> list[tuple[Rows, int]]:
    """Rows of a block, and how many of them are one record's."""
    complete, drawn = imputing.expanded(block, scales)
    return [(complete, 1)] + ([] if drawn is None else [(drawn, DRAWS)])
