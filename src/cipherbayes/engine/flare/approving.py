"""A study in plain words, for whoever decides whether it may run at their party."""

from __future__ import annotations

from cipherbayes.data.features import Feature
from cipherbayes.protocols.plan import plan_study
from cipherbayes.results.run import covers, holds_against
from cipherbayes.study.schema import Study


def in_words(study: Study) -> list[str]:
    """What a study reads, spends and sends, one line each.

    Edge cases
    ----------
    Names of columns and levels are the lead's: characters that do not print, which
    could hide or move other words in a terminal, are shown as question marks.
    """
    return [
        "".join(sign if sign.isprintable() else "?" for sign in line)
        for line in _lines(study)
    ]


def _lines(study: Study) -> list[str]:
    reads = sorted(set(study.model.outcome_columns().values()))
    features = [
        f"feature     {name}: {_known(feature)}"
        for name, feature in study.features.items()
    ]
    return [
        f"study       {study.name}, {study.protocol}, sites {', '.join(study.sites)}",
        f"model       {study.model.kind}; outcome columns {', '.join(reads)}",
        *features,
        *_as_printed(study),
        *_private(study),
    ]


def _private(study: Study) -> list[str]:
    """What is spent and sent."""
    plan, privacy = plan_study(study), study.privacy
    assert privacy is not None
    lines = [f"rounds      {plan.rounds}, charged to the table's ledger first"]
    if not study.as_printed:
        widest = max(phase.dimension for phase in plan.phases)
        records = privacy.records
        against = "; ".join(holds_against(study)) or "nobody"
        masked = "masked, " if study.protocol == "secure-sum" else ""
        lines = [
            f"records     {f'{records:,}' if records else 'counted with noise'}, the "
            "most that all sites together may have",
            f"promise     epsilon {privacy.epsilon:g}, delta {privacy.delta:g}; holds "
            f"against {against}",
            f"covers      {covers(study)}",
            *lines,
            f"leaves here in each round one vector of at most {widest} numbers: a sum "
            f"over rows, each bounded, plus noise drawn here; {masked}encrypted, "
            "signed",
            "is opened   what the vectors of all sites give together"
            + (", or of all but the lost" if privacy.dropouts else ""),
        ]
    if study.insecure:
        lines.append(
            "noise       INSECURE: from a seed that everyone knows. It protects "
            "nobody and is for tests on one machine"
        )
    return lines


def _as_printed(study: Study) -> list[str]:
    if not study.as_printed:
        return []
    return ["promise     NONE: the paper's method as printed is not certified"]


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
