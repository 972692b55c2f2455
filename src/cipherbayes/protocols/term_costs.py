"""What each term of a formula costs: columns, and the width of all other intervals."""

from __future__ import annotations

from typing import TypedDict

from cipherbayes.errors import CipherbayesError
from cipherbayes.models.formula import Factor, Formula
from cipherbayes.study.schema import PrivateStudy, Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import JsonObject


class TermCost(TypedDict):
    """A term, the columns that are lost without it, and the expected width of the other
    intervals with it over that without it (None where it is the only one)."""

    term: str
    columns: int
    width: float | None


def without_term(
    study: PrivateStudy, terms: Formula, dropped: tuple[Factor, ...]
) -> Study | None:
    """The study without one of its terms and the products of that; None where nothing
    would be left."""
    lost = {factor.text for factor in dropped}
    kept = [t for t in terms.terms if not lost <= {factor.text for factor in t}]
    if not kept:
        return None
    columns = {factor.column for term in kept for factor in term}
    document = study.model_dump(mode="json", exclude_none=True)
    document["model"]["formula"] = _written(terms, kept)
    for table in ("features", "reference"):
        if table in document:
            known = document[table].items()
            document[table] = {name: each for name, each in known if name in columns}
    document.get("prior", {}).pop("parameters", None)
    _without_features(document, set(study.features) - columns)
    try:
        return Study(**document)
    except CipherbayesError:
        return None


def columns_lost(study: PrivateStudy, smaller: Study) -> int:
    """Columns of a study that a smaller one does not have."""
    return preparation_of(study).design.width - preparation_of(smaller).design.width


def _without_features(document: JsonObject, gone: set[str]) -> None:
    """Take features out of the groups to describe and of the slopes that differ."""
    describe, hierarchy = document.get("describe"), document.get("hierarchy")
    if describe is not None:
        describe["by"] = [name for name in describe["by"] if name not in gone]
    if hierarchy is not None:
        slopes = [name for name in hierarchy["slopes"] if name not in gone]
        hierarchy["slopes"] = slopes
        if not slopes and not hierarchy["intercept"]:
            del document["hierarchy"]


def _written(formula: Formula, terms: list[tuple[Factor, ...]]) -> str:
    """A formula of some of the terms."""
    response = ", ".join(f"`{column}`" for column in formula.response)
    left = f"Surv({response})" if formula.survival else response
    parts = [":".join(_quoted(factor) for factor in term) for term in terms]
    if not formula.intercept:
        parts.insert(0, "0")
    if formula.exposure is not None:
        parts.append(f"offset(log(`{formula.exposure}`))")
    if formula.offset is not None:
        parts.append(f"offset(`{formula.offset}`)")
    return f"{left} ~ {' + '.join(parts)}"


def _quoted(factor: Factor) -> str:
    return f"`{factor.text}`" if factor.text == factor.column else factor.text
