"""Which models a study file may name, by their ``kind``.

Beside those of this package a study may name a model of any installed distribution that
has an entry point of the group ``cipherbayes.models`` called as the kind is. It is
imported when a study names it, and never otherwise.
"""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, TypeVar

from pydantic import Field, PlainValidator, SerializeAsAny, TypeAdapter

from cipherbayes.models.base import Model
from cipherbayes.models.installed import load_installed
from cipherbayes.models.outcomes import FAMILY_RANGES

GROUP = "cipherbayes.models"
AModel = TypeVar("AModel", bound=Model)

registered: dict[str, type[Model]] = {}


def register(model: type[AModel]) -> type[AModel]:
    """Let study files name a model by the default of its field ``kind``.

    A decorator of the class. Only processes that import the class know it: those of
    :mod:`cipherbayes.models`, and of installed distributions with an entry point, are
    known to every party.
    """
    kind = model.model_fields["kind"].default
    if not isinstance(kind, str):
        raise ValueError(
            f"{model.__name__} does not say its kind: give the class a field "
            '`kind: Literal["name"] = "name"`'
        )
    _require_outcome_ranges(model)
    if registered.setdefault(kind, model) is not model:
        raise ValueError(
            f"two models of kind '{kind}': give {model.__name__} another kind"
        )
    return model


def _require_outcome_ranges(model: type[Model]) -> None:
    """Refuse a model of which nobody could say what its outcome columns hold."""
    if model.predicts_over_time and not {"time", "event"} <= set(model.roles):
        raise ValueError(
            f"{model.__name__} predicts over time: it needs the roles 'time' and "
            "'event', by which results and reports find these columns"
        )
    stating = next(each for each in model.__mro__ if "outcome_ranges" in vars(each))
    known = getattr(stating, "roles", {})
    unknown = [role for role in model.roles if role not in known]
    family = getattr(model, "family", None)
    by_family = stating is Model and len(model.roles) == 1 and family in FAMILY_RANGES
    if unknown and not by_family:
        raise ValueError(
            f"{model.__name__} does not say what its outcome '{unknown[0]}' may hold: "
            "give it a property `outcome_ranges` with an OutcomeRange for every role. "
            "Only a model with one outcome, whose family is "
            f"{' or '.join(sorted(FAMILY_RANGES))}, needs none"
        )


def kinds_with_sites_that_differ() -> list[str]:
    """Kinds whose sites may differ, as far as models with their defaults say."""
    found = []
    for kind in sorted(registered):
        try:
            bounded = registered[kind].model_construct(kind=kind).bounded_influence
        except AttributeError:  # it depends on a field that a study must state
            continue
        if bounded is not None and bounded.multilevel:
            found.append(kind)
    return found


def is_known(kind: str) -> bool:
    """Whether there is a model of a kind, here or in an installed distribution."""
    if kind in registered:
        return True
    for _ in load_installed(GROUP, kind, "model"):
        pass  # importing it registers it
    return kind in registered


def _read_model(value: Any) -> Model:
    """A model from the ``[model]`` table of a study, or as it is."""
    if isinstance(value, dict) and isinstance(value.get("kind"), str):
        is_known(value["kind"])  # loads it
    models = [registered[kind] for kind in sorted(registered)]
    return _reader(tuple(models)).validate_python(value)


@cache
def _reader(models: tuple[type[Model], ...]) -> TypeAdapter[Model]:
    """Reads a table by its ``kind``; an unknown kind is an error that lists all."""
    union: Any = reduce(or_, models)
    return TypeAdapter(Annotated[union, Field(discriminator="kind")])


AnyModel = Annotated[SerializeAsAny[Model], PlainValidator(_read_model)]
"""A field that holds any registered model."""
