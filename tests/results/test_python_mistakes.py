"""Mistakes in a study that is stated in Python: what is wrong, and what was meant."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from quick_studies import FEATURES, study

import cipherbayes as cb
from cipherbayes.errors import RecordsWarning, StudyError
from cipherbayes.results.declared_records import warn_of_records
from conftest import logistic_frame


def test_one_frame_for_several_sites_is_refused() -> None:
    with pytest.raises(StudyError, match="dictionary"):
        cb.run(study(sites={"a": {}, "b": {}}), logistic_frame(50))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"privacy": {"epsilon": -1.0}}, "'privacy.epsilon'"),
        ({"privacyy": {}}, "unknown key 'privacyy'"),
        ({"prior": {"scale": "wide"}}, "'prior.scale'"),
    ],
)
def test_a_wrong_study_is_one_line_without_an_address(
    sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        study(**sections)
    assert isinstance(refused.value, StudyError)
    assert "http" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Weibull: missing key 'time'; add it"),
        ({"time": "t", "event": "e", "horizon": -1}, "Weibull: 'horizon'"),
        ({"times": "t"}, "Weibull: unknown key 'times'; did you mean 'time'"),
        ({"time": "t", "x": 1}, "Weibull: unknown key 'x'; known here: kind,"),
    ],
)
def test_a_wrong_model_is_one_line_without_an_address(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(StudyError, match=words) as refused:
        cb.models.Weibull(**fields)
    assert isinstance(refused.value, ValueError)
    assert "http" not in str(refused.value)


def test_what_is_no_study_is_refused_with_how_to_read_one() -> None:
    with pytest.raises(StudyError, match=r"Study\.load"):
        cb.run("study.toml")  # type: ignore[arg-type]


def test_a_misspelt_key_is_named_and_not_the_one_that_is_missing_for_it() -> None:
    with pytest.raises(
        StudyError, match=r"unknown key 'model.outcom'; did you mean 'outcome'\?"
    ):
        cb.Study(model={"kind": "logistic", "outcom": "death"}, features=FEATURES)


@pytest.mark.parametrize(
    ("sections", "remedy"),
    [
        ({"featurs": {}}, "did you mean 'features'?"),
        ({"privacy": {"epsilon": 1.0, "deltaa": 1e-6}}, "did you mean 'delta'?"),
        ({"features": {"age": {"low": 1, "high": 9, "pr": 2}}}, "did you mean 'per'?"),
        ({"model": {"kind": "poisson", "outcome": "y", "ofset": 1}}, "'offset'?"),
        ({"sites": {"north": {"dta": "n.csv"}}}, "did you mean 'data'?"),
        ({"hierarchy": {"slope": ["age"]}}, "did you mean 'slopes'?"),
        ({"study": {"epsilon": 1.0}}, "it belongs in [privacy]"),
        ({"evaluation": {"zzz": 1.0}}, "known here: holdout,"),
    ],
)
def test_every_unknown_key_has_a_suggestion_or_the_known_ones(
    sections: dict[str, Any], remedy: str
) -> None:
    whole: Any = {
        "model": {"kind": "logistic", "outcome": "death"},
        "features": FEATURES,
        **sections,
    }
    with pytest.raises(StudyError) as refused:
        cb.Study(**whole)
    assert remedy in str(refused.value)


def test_a_wrong_number_of_records_is_warned_of_before_anything_is_spent() -> None:
    frame = pd.DataFrame({"age": [50.0] * 30, "death": [0, 1] * 15})
    declared = study(privacy={"epsilon": 1.0, "records": 61})
    with pytest.warns(RecordsWarning, match="61 and the tables have 30 rows"):
        warn_of_records(declared, {"north": frame})
    close = study(privacy={"epsilon": 1.0, "records": 40})
    warn_of_records(close, {"north": frame.head(10), "south": frame.tail(20)})


def test_all_wrong_keys_are_named_the_misspelt_one_first_and_its_meaning_once() -> None:
    with pytest.raises(StudyError) as refused:
        study(privacy={"epsilom": 3.0, "recods": 9}, sites={"north": {}})
    assert str(refused.value).startswith(
        "Study: unknown key 'privacy.epsilom'; did you mean 'epsilon'? (also: unknown "
        "key 'privacy.recods'"
    )
    assert "'privacy.epsilon'" not in str(refused.value)
    with pytest.raises(StudyError) as refused:
        study(privacy={f"k{n}": 1 for n in range(9)}, sites={"north": {}})
    assert str(refused.value).count("unknown key") == 7
    assert "more)" in str(refused.value)
