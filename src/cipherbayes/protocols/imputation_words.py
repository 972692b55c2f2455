"""What drawing missing values costs, for whoever plans or approves a study."""

from __future__ import annotations

from typing import TypedDict

from cipherbayes.data.imputing import DRAWS
from cipherbayes.privacy.accountant import epsilon
from cipherbayes.protocols.forecast import forecast_of
from cipherbayes.protocols.releases import HELD_OUT
from cipherbayes.protocols.study_plan import StudyPlan
from cipherbayes.study.schema import Study


class ImputationCost(TypedDict):
    """What ``plan --json`` says of missing values that are drawn.

    ``epsilon_alone`` and ``share`` (of μ²) are of the models that the study learns,
    ``width`` is that of intervals over those of the same study without such models;
    None where the number of records is not declared.
    """

    public: list[str]
    learnt: list[str]
    draws: int
    epsilon_alone: float
    share: float
    width: float | None


def _without_imputation(study: Study) -> Study:
    """The same study with a fixed value in the place of each missing one."""
    features = {
        name: known.model_copy(update={"missing": known.stand_in})
        for name, known in study.features.items()
    }
    return study.model_copy(update={"features": features})


def imputation_cost(plan: StudyPlan) -> ImputationCost | None:
    """The cost; None where nothing is drawn."""
    known = plan.study.features
    drawn = [name for name, feature in known.items() if feature.imputed]
    if not drawn:
        return None
    width = None
    if plan.study.privacy.records is not None:
        smaller = plan.protocol.plan(_without_imputation(plan.study).with_privacy())
        assert isinstance(smaller, StudyPlan)
        width = forecast_of(plan).width_ratio / forecast_of(smaller).width_ratio
    spent, share = 0.0, 0.0
    for phase in plan.phases:
        if phase.models is not None:
            spent = epsilon(phase.event, plan.study.privacy.delta)
            share = phase.sums.noise_multiplier**-2.0
    total = sum(
        part.noise_multiplier**-2.0 * phase.rounds
        for phase in plan.phases
        if phase.rows != HELD_OUT  # checks are made of other records
        for part in phase.parts
    )
    return {
        "public": [name for name in drawn if not known[name].learns],
        "learnt": [name for name in drawn if known[name].learns],
        "draws": DRAWS,
        "epsilon_alone": spent,
        "share": share / total,
        "width": width,
    }


def imputation_lines(cost: ImputationCost | None) -> list[str]:
    """The cost in words."""
    if cost is None:
        return []
    said, wider = [], cost["width"]
    if cost["public"]:
        said.append(
            f"{', '.join(cost['public'])}: missing values are drawn {cost['draws']} "
            "times from what the study states; that costs no budget"
        )
    if cost["learnt"]:
        said.append(
            f"{', '.join(cost['learnt'])}: missing values are drawn {cost['draws']} "
            "times from a model of the column, learnt with ε = "
            f"{cost['epsilon_alone']:.2g} alone ({100 * cost['share']:.2g} % of the "
            "budget)" + (f": intervals {wider:.3f} × as wide for it" if wider else "")
        )
    said.append(
        "what is missing is not known: where a share f of a column's values is, its "
        "own interval is about 1 / √(1 − f) × as wide"
    )
    return [f"{'imputed' if k == 0 else '':<12}{line}" for k, line in enumerate(said)]
