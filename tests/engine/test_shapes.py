"""Runs of every shape: one site or sixty-four, one row, thousands of columns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from crashing import crash_party
from parties import small_study, trajectory, write_tables

import cipherbayes as cb
from cipherbayes.protocols.stores import Checkpoint
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.result import Result
from cipherbayes.results.run import run
from conftest import logistic_frame


def frames(study: cb.Study, rows: dict[str, int] | int) -> dict[str, pd.DataFrame]:
    return {
        name: logistic_frame(rows if isinstance(rows, int) else rows[name], seed=i)
        for i, name in enumerate(study.sites)
    }


def assert_sound(result: Result, rounds: int) -> None:
    assert result.record["rounds"] == rounds
    assert all(np.isfinite(row["mean"]) for row in result.summary())
    assert result.certificate["epsilon"] == 3.0


def test_a_single_site_gets_a_private_posterior() -> None:
    study = small_study(("only",))
    result = run(study, frames(study, 200))
    assert_sound(result, 4)
    assert result.certificate["colluders"] == 0


def test_two_sites_of_which_one_may_collude() -> None:
    study = small_study(("a", "b"), privacy={"colluders": 1, "randomness": "secure"})
    result = run(study, frames(study, 200))
    assert_sound(result, 4)
    assert "any one site" in result.certificate["holds_against"]
    # Each alone must protect itself: its share is the whole noise.
    release = plan_releases(study).last_phase.sums
    assert release.share_scale >= release.noise_multiplier * release.sensitivity


def test_two_sites_with_sizes_four_to_one() -> None:
    study = small_study(("large", "small"))
    assert_sound(run(study, frames(study, {"large": 400, "small": 100})), 4)


def test_a_site_with_one_row() -> None:
    study = small_study(("many", "one"))
    assert_sound(run(study, frames(study, {"many": 300, "one": 1})), 4)


@pytest.mark.slow
def test_sixty_four_sites() -> None:
    names = [f"site-{number:02}" for number in range(64)]
    study = small_study(names, privacy={"records": 2000})
    result = run(study, frames(study, 20))
    assert_sound(result, 4)
    assert result.record["bytes"]["per_round_site"] < 70_000


@pytest.mark.parametrize(
    "width",
    [
        pytest.param(2_000, marks=pytest.mark.slow),
        pytest.param(10_000, marks=pytest.mark.torture),
    ],
)
def test_thousands_of_columns(width: int) -> None:
    rng = np.random.default_rng(1)
    features = {f"x{j}": {"low": 0.0, "high": 1.0} for j in range(width)}
    study = cb.Study(
        study={"protocol": "secure-sum"},
        model=cb.models.Logistic(outcome="death"),
        features=features,
        privacy={"epsilon": 3.0, "records": 100, "randomness": "insecure-repeatable"},
        inference={"method": "psgld", "rounds": 2},
    )
    tables = {}
    for name in ("a", "b"):
        table = pd.DataFrame(rng.random((40, width)), columns=list(features))
        tables[name] = table.assign(death=rng.integers(0, 2, 40))
    result = run(study, tables)
    assert_sound(result, 2)
    assert len(result.summary()) == width + 1


@pytest.mark.parametrize(
    ("early", "late"),
    [
        # A message that is kept is 60,000 bytes a round.
        pytest.param(100, 300, marks=pytest.mark.slow, id="300"),
        pytest.param(1000, 5000, marks=pytest.mark.torture, id="5000"),
    ],
)
def test_many_rounds_with_flat_memory(tmp_path: Path, early: Any, late: int) -> None:
    study = small_study(("a", "b"), inference={"rounds": late})
    resident: dict[int, int] = {}

    def measure(done: int, total: int) -> None:
        if done in (early, late):
            with open("/proc/self/statm") as file:
                pages = int(file.read().split()[1])
            resident[done] = pages * os.sysconf("SC_PAGE_SIZE")

    result = run(study, frames(study, 60), out=tmp_path / "run", progress=measure)
    assert result.record["rounds"] == late
    assert resident[late] - resident[early] < 4 * 2**20


@pytest.mark.slow
def test_a_run_in_processes_goes_on_without_a_killed_site_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    study = write_tables(
        tmp_path,
        small_study(
            ("a", "b", "c"),
            privacy={"dropouts": 1},
            header={"engine": "local-processes"},
        ),
    )
    assert crash_party(study, tmp_path / "run", "b", 2) == 0
    result = cb.Result.load(tmp_path / "run")
    assert result.record["rounds"] == 4
    assert len(trajectory(tmp_path / "run")) == 4
    checkpoint = Checkpoint(tmp_path / "run" / "server" / "checkpoint.sqlite")
    assert checkpoint.lost() == ["b"]
    checkpoint.close()


# -- preparation under encryption -----------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["psgld", pytest.param("averaged", marks=pytest.mark.torture)]
)
def test_private_moments_and_a_noised_count_recover_the_model(method: str) -> None:
    """eta = -3.2 + 0.04 age + 0.5 [M], in the clinic's own units."""
    study = small_study(
        ("a", "b", "c", "d"),
        privacy={"epsilon": 50.0, "records": None, "clip": 3.0},
        preparation={"method": "private-moments"},
        prior={"scale": 5.0},
        inference={"rounds": 150, "method": method},
    )
    result = run(study, frames(study, 20_000))
    moments = np.array(result.record["moments"])
    # Prepared age is (age - 59) / 41 for ages uniform on [20, 90]; sex is ±1.
    assert moments[0] == pytest.approx((55 - 59) / 41, abs=0.02)
    assert moments[2] == pytest.approx(70 / np.sqrt(12) / 41, abs=0.02)
    found = {row["name"]: row["mean"] for row in result.summary()}
    assert found["age"] == pytest.approx(0.04, rel=0.1)
    assert found["sex[M]"] == pytest.approx(0.5, rel=0.15)
    assert found["intercept"] == pytest.approx(-3.2, rel=0.1)


def test_the_released_count_is_near_the_number_of_rows(tmp_path: Path) -> None:
    study = small_study(("a", "b"), privacy={"records": None, "epsilon": 20.0})
    run(study, frames(study, 500), out=tmp_path / "run")
    checkpoint = Checkpoint(tmp_path / "run" / "server" / "checkpoint.sqlite")
    (count,) = np.frombuffer(checkpoint.fact("records"))  # type: ignore[arg-type]
    checkpoint.close()
    noise = plan_releases(study).phases[0].sums.noise_sd(2)
    assert count != 1000
    assert abs(count - 1000) < 6 * noise
    assert count == round(count)


# -- what a result says about its noise -------------------------------------------


def test_repeatable_noise_is_shouted_about_and_certifies_nothing() -> None:
    study = small_study(("a", "b"))
    result = run(study, frames(study, 100))
    assert result.certificate["certified"] is False
    assert result.certificate["holds_against"] == []
    assert any("INSECURE" in warning for warning in result.record["warnings"])


def test_secure_noise_is_certified_and_never_the_same_twice() -> None:
    study = small_study(("a", "b"), privacy={"randomness": "secure"})
    results = [run(study, frames(study, 100)) for _ in range(2)]
    for result in results:
        assert result.certificate["certified"] is True
        assert {"the public", "the server", "the CSP"} <= set(
            result.certificate["holds_against"]
        )
        assert not any("INSECURE" in w for w in result.record["warnings"])
    assert results[0].summary() != results[1].summary()
