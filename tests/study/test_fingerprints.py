"""A study's fingerprint is a contract: parties of two releases agree on it."""

from __future__ import annotations

from typing import Any

import pytest

from cipherbayes.study.schema import Study

SURVIVAL = {"time": "days", "event": "died", "horizon": 40.0}
MODELS: dict[str, dict[str, Any]] = {
    "logistic": {"outcome": "died"},
    "linear": {"outcome": "mmHg", "low": 60.0, "high": 200.0},
    "poisson": {"outcome": "falls", "exposure": "days", "per": 20.0},
    "exponential": SURVIVAL,
    "weibull": SURVIVAL,
    "gompertz": SURVIVAL,
    "piecewise": {**SURVIVAL, "cuts": [10.0, 25.0]},
}
FEATURES = {
    "age": {"low": 20, "high": 90},
    "sex": {"levels": ["F", "M"]},
    "dose": {"low": 1, "high": 16, "transform": "log", "missing": 2.0},
}
PRIVATE = {"epsilon": 1.0, "delta": 1e-5, "records": 800}
SITES: dict[str, Any] = {"north": {"data": "north.csv"}, "south": {"budget": 2.0}}
PAPER = {"batch": 10, "epochs": 2}
SHAPES: dict[str, dict[str, Any]] = {
    "not private": {},
    "secure-sum": {"privacy": PRIVATE, "sites": SITES},
    "pooled": {
        "study": {"protocol": "pooled"},
        "privacy": PRIVATE,
        "sites": SITES,
        "inference": {"method": "averaged"},
    },
    "scales": {
        "privacy": {**PRIVATE, "records": 8000},
        "sites": SITES,
    },
    "moments": {
        "privacy": {"epsilon": 3.0, "colluders": 0},
        "preparation": {"method": "private-moments"},
        "sites": SITES,
        "evaluation": {"holdout": 0.2, "holdout_is_public": True},
    },
    "encrypted-update": {
        "study": {"protocol": "encrypted-update"},
        "privacy": PRIVATE,
        "sites": SITES,
    },
    "as printed": {
        "study": {"protocol": "encrypted-update", "noise": "as-printed"},
        "privacy": PRIVATE,
        "paper": PAPER,
        "sites": SITES,
    },
}


def study_of(kind: str, shape: str) -> Study:
    return Study(
        model={"kind": kind, **MODELS[kind]},
        features=FEATURES,
        **SHAPES[shape],
    )


PINNED = {
    ("logistic", "not private"): (
        "95578ac5842669d6fbcd36b7641ea0d1a2918cefbe9aec6c45523937aeea25c4"
    ),
    ("logistic", "secure-sum"): (
        "3f9746f9702b3e9a4c8ac9fec153c1c092d8f72ee2f73a2959f71327155550db"
    ),
    ("logistic", "pooled"): (
        "99aee3e337a4e3eb114bbea48da6ec885d3b6486fbd6c6df37341d631223fe6d"
    ),
    ("logistic", "scales"): (
        "b61d78346ba424d463469c7c8f8da108daff5a871673b02b9d0589dc18860c3a"
    ),
    ("logistic", "moments"): (
        "57460409d5de2773bdc748f8e727e126da6ad2571b6f533f321973106874f5a8"
    ),
    ("logistic", "encrypted-update"): (
        "dd8afa459fb03c038453f02e6f7f6f2d2436e134e354f9207671d3a86c949317"
    ),
    ("logistic", "as printed"): (
        "89300d39bbce05685eb758e763c670a92171e8dd6598cec03bec076393631d49"
    ),
    ("linear", "secure-sum"): (
        "82c9aabc2452ab6e6d84bec3b9442a8ee2c3eea1fedc66f3d6a4e78587f27e0b"
    ),
    ("poisson", "secure-sum"): (
        "e0c08d8a9ba3d457c30599ad209efd9eef5f21e757202ef422f404d13bd90403"
    ),
    ("exponential", "secure-sum"): (
        "c8e4bc95cae811a6950efed98ea4f45e99d51ac1170397eed3e6f457d64a0da2"
    ),
    ("weibull", "secure-sum"): (
        "e6b1adeaffa38e423335c978baefb200cba5d525462fb15287ef3dfce6d4786e"
    ),
    ("gompertz", "secure-sum"): (
        "0150a1bd9e03576b5d108a73954404789b3b95f4f5947d5219f6b7e493e7c963"
    ),
    ("piecewise", "secure-sum"): (
        "32538bf1e07d6cadc5ecc3b77eb18353007b3212ee20d54450e1b63b8a764634"
    ),
}


WERE_CHAINS = ("linear", "gompertz")
"""Pinned when a private study of these that named no method ran pSGLD. It is
noise-aware now, and parties that would run different methods must not agree."""
HAD_NO_SCALES = ("secure-sum", "pooled")
"""Pinned when 800 records at ε = 1 were too few for private scales. They have them now,
and parties that would prepare columns in different ways must not agree."""
HAD_WIDER_PRIORS: dict[str, dict[str, Any]] = {
    "scales": {"scale": 1.0, "intercept": 5.0},
    "moments": {"scale": 1.0},
}
"""Pinned when this was the default prior where scales are released. Effects have
scale 0.5 now, and parties that would have different priors must not agree."""


@pytest.mark.parametrize(("kind", "shape"), PINNED)
def test_a_fingerprint_stays_what_it_is(kind: str, shape: str) -> None:
    study = study_of(kind, shape)
    if kind in WERE_CHAINS:
        assert study.method == "noise-aware"
        study = with_section(study, inference={"method": "psgld"})
    if shape in HAD_NO_SCALES:
        assert study.preparation_method == "private-scales"
        assert study.fingerprint() != PINNED[kind, shape]
        study = with_section(study, preparation={"method": "public-bounds"})
    if shape in HAD_WIDER_PRIORS:
        assert study.full_prior.scale == 0.5
        assert study.fingerprint() != PINNED[kind, shape]
        study = with_section(study, prior=HAD_WIDER_PRIORS[shape])
    assert study.fingerprint() == PINNED[kind, shape]


def with_section(study: Study, **section: Any) -> Study:
    """The study with another section of its file."""
    return Study.model_validate(study.model_dump(exclude_none=True) | section)


def test_the_fingerprint_of_a_formula_stays_what_it_is() -> None:
    formula = "died ~ rcs(age, 4) * sex + log(dose)"
    features = {**FEATURES, "dose": {"low": 1, "high": 16, "missing": 2.0}}
    study = Study(
        model={"kind": "logistic", "formula": formula},
        features=features,
        reference={"age": 65, "sex": "M"},
        prior=HAD_WIDER_PRIORS["scales"],
        **SHAPES["scales"],
    )
    assert study.fingerprint() == (
        "a2bc8abc67d25d3303933789e8cb4fd1ac6c0c635e1ba554bdd220d92549cfaf"
    )
    # What the formula says may be said twice.
    twice = {"kind": "logistic", "formula": formula, "outcome": "died"}
    again = Study.model_validate(study.model_dump(exclude_none=True) | {"model": twice})
    assert again.fingerprint() == study.fingerprint()
