"""A formula and its public ranges and levels, compiled into columns of the design.

Main effects come first, in the order of the formula, each from one raw column; then
the products, each of the columns that its factors have among the main effects. As a
product's margins are in the formula too, moving or scaling the main effects changes
coefficients but not what the model can say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from pydantic import ValidationError

from cipherbayes.data.curves import basis_of, spread_knots
from cipherbayes.data.encoders import Curved, Levels, Number
from cipherbayes.data.features import Feature, level_name
from cipherbayes.models.formula import Curve, Factor, Formula

MOST_COLUMNS = 300
"""Columns of a design that a formula may ask for."""

Encoder = Number | Levels


@dataclass(frozen=True)
class Terms:
    """The columns of a formula.

    Attributes
    ----------
    encoders
        One for each main effect.
    names, products
        Names of the products' columns, and of which columns of the design each is
        the product.
    """

    encoders: tuple[Encoder, ...]
    names: tuple[str, ...]
    products: tuple[tuple[int, ...], ...]


def compile_terms(
    formula: Formula, features: Mapping[str, Feature], first: int, *, constant: bool
) -> Terms:
    """The columns of a formula's terms, the first of them at place ``first``.

    ValueError, with a remedy, where formula and features do not fit together.

    Parameters
    ----------
    constant
        Whether something else in the model is constant (an intercept, a baseline).
        If not, the first category has a column for every level, and numbers keep
        their zero.
    """
    _require_same_columns(formula, features)
    mains = [term[0] for term in formula.terms if len(term) == 1]
    _require_different(mains)
    encoders: dict[str, Encoder] = {}
    seen: set[str] = set()
    full = not constant
    for factor in mains:
        feature = features[factor.column]
        if factor.column in seen:  # one indicator of missing values is enough
            feature = feature.model_copy(update={"indicator": False})
        seen.add(factor.column)
        place = first + sum(len(each.names) for each in encoders.values())
        made: Encoder
        if feature.levels is not None:
            made = Levels(
                factor.column,
                _ordered(factor, feature),
                place,
                full=full,
                stated=feature.levels,
            )
            full = False
        else:
            made = _number(factor, feature, place, centred=constant)
        encoders[factor.text] = made
    if not constant and full and any(factor.curve for factor in mains):
        raise ValueError(
            "a curve needs a constant: remove - 1 from the formula, or name a category"
        )
    names, products = _products(formula, encoders)
    if (
        first + sum(len(each.names) for each in encoders.values()) + len(names)
        > MOST_COLUMNS
    ):
        raise ValueError(f"the formula asks for more than {MOST_COLUMNS} columns")
    return Terms(tuple(encoders.values()), names, products)


def _products(
    formula: Formula, encoders: Mapping[str, Encoder]
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Names and parents of the products' columns, shorter products first."""
    columns = {text: _columns(each) for text, each in encoders.items()}
    names: list[str] = []
    parents: list[tuple[int, ...]] = []
    for term in sorted((t for t in formula.terms if len(t) > 1), key=len):
        for parts in product(*(columns[factor.text] for factor in term)):
            names.append(":".join(name for _, name in parts))
            parents.append(tuple(sorted(place for place, _ in parts)))
    return tuple(names), tuple(parents)


def _columns(encoder: Encoder) -> list[tuple[int, str]]:
    """Places and names of the columns that enter products: no indicator of missing
    values, and no reference level."""
    places = range(encoder.first, encoder.first + len(encoder.names))
    found = list(zip(places, encoder.names, strict=True))
    return found[encoder.unpaired : encoder.unpaired + encoder.paired]


def _number(factor: Factor, feature: Feature, place: int, *, centred: bool) -> Number:
    if factor.categorical:
        raise ValueError(
            f"'{factor.text}': {factor.column} is a number; give features."
            f"{factor.column} its levels instead of low and high"
        )
    seen = _transformed(factor, feature)
    if factor.curve is None:
        return Number(factor.column, seen, place, name=factor.text, centred=centred)
    try:
        knots = _knots(factor, factor.curve, seen)
        basis = basis_of(factor.curve, factor.degree, knots)
    except ValueError as error:
        raise ValueError(f"'{factor.text}': {error}") from None
    return Curved(factor.column, seen, place, name=factor.text, basis=basis)


def _knots(factor: Factor, curve: Curve, feature: Feature) -> tuple[float, ...]:
    """Knots on [-1, 1]."""
    if factor.knots is None:
        return spread_knots(curve, factor.size, factor.degree)
    low, high = feature.ends
    if not (low < factor.knots[0] and factor.knots[-1] < high):
        raise ValueError("knots must lie between low and high")
    centre, half = feature.affine()
    places = (feature.transformed(np.array(factor.knots)) - centre) / half
    return tuple(places.tolist())


def _transformed(factor: Factor, feature: Feature) -> Feature:
    """The feature with the factor's transform, checked against its range."""
    if feature.transform is not None:
        raise ValueError(
            f"features.{factor.column}.transform: write {feature.transform}"
            f"({factor.column}) in the formula instead"
        )
    if factor.transform is None:
        return feature
    known = feature.model_dump(exclude={"per"}) | {"transform": factor.transform}
    if feature.imputed:  # what is drawn is drawn before it is transformed
        known["missing"] = feature.stand_in
    try:
        return Feature.model_validate(known)
    except ValidationError as error:
        said = error.errors(include_url=False)[0]["ctx"]["error"]
        raise ValueError(f"'{factor.text}': features.{factor.column}: {said}") from None


def _ordered(factor: Factor, feature: Feature) -> Feature:
    """The feature with the factor's reference level first."""
    if factor.transform or factor.curve:
        raise ValueError(f"'{factor.text}': {factor.column} is a category")
    if factor.reference is None:
        return feature
    wanted = level_name(factor.reference)
    names, levels = feature.level_names, feature.levels or ()
    if wanted not in names:
        raise ValueError(
            f"'{factor.text}': the levels of {factor.column} are {', '.join(names)}"
        )
    place = names.index(wanted)
    first = (levels[place], *levels[:place], *levels[place + 1 :])
    return feature.model_copy(update={"levels": first})


def _require_same_columns(formula: Formula, features: Mapping[str, Feature]) -> None:
    for column in formula.columns:
        if column not in features:
            raise ValueError(
                f"the formula names '{column}', of which [features] says nothing: add "
                f"its public range or levels as features.{column}"
            )
    for column in features:
        if column not in formula.columns:
            raise ValueError(
                f"features.{column} is not in the formula: add it there, or remove it"
            )


def _require_different(mains: list[Factor]) -> None:
    """Refuse main effects of which one holds the other."""
    by_line: dict[tuple[str, str | None], Factor] = {}
    for factor in mains:
        line = (factor.column, factor.transform)
        other = by_line.setdefault(line, factor)
        if other is not factor:
            raise ValueError(
                f"'{other.text}' and '{factor.text}' say the same of {factor.column}: "
                "a curve has its straight line already, and a category one reference"
            )
