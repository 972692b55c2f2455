"""A study in plain words, for whoever decides whether it may run at their party."""

from __future__ import annotations

from cipherbayes.data.features import Feature
from cipherbayes.planning import plan_study
from cipherbayes.study import Study


def in_words(study: Study) -> list[str]:
    """What a study reads, spends and sends, one line each."""
    plan = plan_study(study)
    privacy = study.privacy
    assert privacy is not None
    release = plan.gradient.privacy
    model = study.model
    reads = sorted(set(model.outcome_columns().values()))
    lines = [
        f"study       {study.name}, {study.protocol}, sites {', '.join(study.sites)}",
        f"model       {model.kind}; outcome columns {', '.join(reads)}",
    ]
    lines += [
        f"feature     {name}: {_known(feature)}"
        for name, feature in study.features.items()
    ]
    records = (
        f"at most {privacy.records:,}" if privacy.records else "counted with noise"
    )
    lines += [
        f"records     {records} over all sites",
        f"promise     epsilon {privacy.epsilon:g}, delta {privacy.delta:g}, for every "
        f"record, against the server, the CSP and {release.colluders} other site(s)",
        f"rounds      {plan.rounds}, each charged to the table's ledger before its "
        "answer leaves",
        f"what leaves in each round one vector of {release.dimension} numbers: a sum "
        f"over rows, each at most {release.clip:.3g} long, plus this site's noise; "
        "masked, encrypted, signed",
        "what opens  only the total over all sites, never one site's vector",
    ]
    if study.insecure:
        lines.append(
            "noise       INSECURE: drawn from a seed that everyone knows. It protects "
            "nobody, and is for tests on one machine"
        )
    if study.as_printed:
        lines.append(
            "NOT CERTIFIED: the paper's method as printed does not keep its promise"
        )
    return lines


def _known(feature: Feature) -> str:
    if feature.levels is not None:
        known = f"one of {', '.join(str(level) for level in feature.levels)}"
    else:
        known = f"a number from {feature.low:g} to {feature.high:g}"
        if feature.transform is not None:
            known += f" ({feature.transform})"
    if feature.missing is not None:
        known += f"; {feature.missing} where it is missing"
    return known
