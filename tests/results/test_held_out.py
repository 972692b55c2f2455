"""A study's tables, split into training and held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cipherbayes as cb
from cipherbayes.protocols.certificate import covers
from cipherbayes.protocols.plan import plan_study
from cipherbayes.study.tables import open_sites, split_tables
from conftest import logistic_frame


def held_out(frame: Any, seed: int = 1, share: float = 0.2) -> Any:
    study = cb.Study(
        model=cb.models.Logistic(outcome="death"),
        features={"age": {"low": 18, "high": 100}, "sex": {"levels": ["F", "M"]}},
        evaluation={"holdout": share, "seed": seed},
        sites={"one": {}},
    )
    train, test = split_tables(study, open_sites(study, {"one": frame}))
    return train["one"], test["one"]


def ages(table: Any) -> list[float]:
    return np.concatenate([rows.x[1] for rows in table.blocks()]).tolist()  # type: ignore[no-any-return]


def test_every_row_is_on_one_side_and_the_share_is_kept() -> None:
    frame = logistic_frame(5000)
    train, test = held_out(frame)
    assert train.count + test.count == 5000
    assert test.count / 5000 == pytest.approx(0.2, abs=0.02)
    assert not set(ages(train)) & set(ages(test))
    assert sorted(ages(train) + ages(test)) == sorted(
        ages(held_out(frame, 7)[0]) + ages(held_out(frame, 7)[1])
    )
    assert ages(test) != ages(held_out(frame, seed=2)[1])


@pytest.mark.parametrize("removed", [0, 137, 499])
def test_removing_a_record_moves_no_other_between_the_sides(removed: int) -> None:
    """Else a private study's promise would not hold for the split table."""
    frame = logistic_frame(500)
    gone = frame.drop(index=removed)
    for before, after in zip(held_out(frame), held_out(gone), strict=True):
        assert set(ages(after)) <= set(ages(before))
        assert before.count - after.count <= 1


def test_sides_do_not_depend_on_the_order_of_rows() -> None:
    frame = logistic_frame(500)
    shuffled = frame.sample(frac=1.0, random_state=3)
    assert sorted(ages(held_out(frame)[1])) == sorted(ages(held_out(shuffled)[1]))


def private(**sections: Any) -> cb.Study:
    return cb.Study(
        study={"protocol": "secure-sum"},
        model=cb.models.Logistic(outcome="death"),
        features={"age": {"low": 18, "high": 100}, "sex": {"levels": ["F", "M"]}},
        sites={"one": {}, "two": {}},
        **sections,
    )


def test_the_certificate_says_that_held_out_rows_are_not_covered() -> None:
    public = {"holdout": 0.2, "holdout_is_public": True}
    study = private(
        privacy={"epsilon": 3.0, "records": 1000},
        evaluation=public,
        inference={"method": "averaged", "rounds": 3},
    )
    frames = {name: logistic_frame(200, seed=k) for k, name in enumerate(study.sites)}
    certificate = cb.run(study, frames).certificate
    assert certificate["unit"] == "row"
    covers = str(certificate["covers"])
    assert covers.startswith("every row that was not held out")
    assert "held-out rows, which the study declares public: they are not" in covers


def test_without_held_out_rows_everything_released_is_covered() -> None:
    said = covers(plan_study(private(privacy={"epsilon": 3.0})))
    assert said.startswith("every row, in everything that this study released")
    assert "held" not in said
    assert "number of rows" not in said
    declared = covers(plan_study(private(privacy={"epsilon": 3.0, "records": 1000})))
    assert "the number of rows, which the study declares public" in declared


def test_what_is_not_certified_covers_nothing() -> None:
    randomness = {"epsilon": 3.0, "randomness": "insecure-repeatable"}
    assert covers(plan_study(private(privacy=randomness))).startswith("nothing")
