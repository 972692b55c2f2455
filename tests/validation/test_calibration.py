"""Coverage is a statement about simulated studies."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cipherbayes.errors import RunError
from cipherbayes.inference.method import WidthSetting
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.inference.noise_aware.width import expected_width_ratio
from cipherbayes.models.influence import InfluenceBound, require_bounded_influence
from cipherbayes.privacy.gaussian import mu_for
from cipherbayes.protocols.forecast import MEAN_SQUARE
from cipherbayes.validation import calibration
from cipherbayes.validation.calibration import Cell, calibrate, grid, replicate
from cipherbayes.validation.simulation import DELTA, simulate


def test_the_grid_has_every_model_size_and_budget() -> None:
    assert len({cell.key for cell in grid()}) == 81


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any draws, where no interval is looked at."""
    effort = Effort(chains=2, warm_up=2, kept=4, doublings=0)
    monkeypatch.setattr(calibration, "EFFORT", effort)


@pytest.mark.usefixtures("hasty")
def test_a_calibration_goes_on_where_it_stopped(tmp_path: Path) -> None:
    cell, results = Cell("logistic", 1_000, 3, 1.0), tmp_path / "results.jsonl"
    calibrate([cell], 1, results=results, processes=1)
    first = results.read_text(encoding="utf-8")
    rows = calibrate([cell], 2, results=results, processes=1)
    assert results.read_text(encoding="utf-8").startswith(first)
    assert rows[0]["replicates"] == 2
    assert replicate(cell, 0) == replicate(cell, 0)


def test_a_damaged_results_file_is_refused(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text("{}\n", encoding="utf-8")
    with pytest.raises(RunError, match="line 1"):
        calibrate([Cell("logistic", 100, 3, 1.0)], 1, results=results, processes=1)


def test_a_results_file_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    results = tmp_path / "missing" / "results.jsonl"
    with pytest.raises(RunError, match="cannot be written"):
        calibrate([Cell("logistic", 100, 3, 1.0)], 1, results=results, processes=1)


EXPONENTIAL = Cell("exponential", 8_000, 7, 1.0)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replicate that one test has computed is not computed by another."""
    return tmp_path_factory.mktemp("calibration") / "results.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "replicates"),
    [
        (Cell("logistic", 3_200, 7, 0.3), 3),
        (Cell("logistic", 8_000, 10, 1.0), 3),
        (EXPONENTIAL, 6),
    ],
    ids=lambda part: part.key if isinstance(part, Cell) else "",
)
def test_the_width_a_plan_expects_is_about_the_width_there_is(
    cell: Cell, replicates: int, results: Path
) -> None:
    study = simulate(cell.model, 500, cell.d, np.random.default_rng(1))
    bounded = require_bounded_influence(study.model)
    sensitivities = bounded.sensitivities(InfluenceBound(study.clip))
    each = study.model.curvature(study.table.design) * MEAN_SQUARE
    setting = WidthSetting(
        records=cell.n,
        dimension=cell.d,
        mu=mu_for(cell.epsilon, DELTA),
        sensitivities=sensitivities,
        information=each,
        first_information=each,
        grows=bounded.multiplicative,
    )
    expected = expected_width_ratio(setting).expected
    (row,) = calibrate([cell], replicates, results=results, processes=1)
    # One study's ratio varies by about a tenth.
    assert abs(math.log(row["width_ratio"] / expected)) < math.log(1.3)


@pytest.mark.slow
def test_with_hardly_any_noise_both_posteriors_hold_the_same_truths() -> None:
    row = calibrate([Cell("logistic", 4_000, 4, 100.0)], 4, processes=1)[0]
    assert row["plain_coverage"] > 0.0
    assert abs(row["coverage"] - row["plain_coverage"]) < 0.1


@pytest.mark.slow
def test_nine_tenths_of_the_intervals_hold_on_a_small_cell(results: Path) -> None:
    rows = calibrate([EXPONENTIAL], 16, results=results, processes=1)
    assert abs(rows[0]["coverage"] - 0.9) < 0.02 + 2.0 * rows[0]["se"]
