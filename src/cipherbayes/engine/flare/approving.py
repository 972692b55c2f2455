"""A study in plain words, for whoever decides whether it may run at their party."""

from __future__ import annotations

from cipherbayes.data.features import Feature
from cipherbayes.protocols.plan import plan_study
from cipherbayes.study.schema import Study


def study_in_words(study: Study) -> list[str]:
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
    plan = plan_study(study)
    reads = sorted(set(study.model.outcome_columns().values()))
    features = [
        f"feature     {name}: {_known(feature)}"
        for name, feature in study.features.items()
    ]
    return [
        f"study       {study.name}, {study.protocol}, sites {', '.join(study.sites)}",
        f"model       {study.model.kind}; outcome columns {', '.join(reads)}",
        *(f"formula     {text}" for text in [study.model.formula] if text is not None),
        *features,
        *plan.protocol.approval(plan),
        *(
            f"of others   the {what} is of {whose}, which answers for its promises"
            for what, whose in plan.parts_of_others()
        ),
    ]


def _known(feature: Feature) -> str:
    if feature.levels is not None:
        known = f"one of {', '.join(str(level) for level in feature.levels)}"
    else:
        known = f"a number from {feature.low:g} to {feature.high:g}"
        if feature.transform is not None:
            known += f" ({feature.transform})"
    if feature.imputed:
        how = "a model learnt with noise" if feature.learns else "a stated distribution"
        known += f"; drawn from {how} where it is missing"
    elif feature.missing is not None:
        known += f"; {feature.missing} where it is missing"
    return known
