"""``cipherbayes bench --growth --over …``: points and the exponents fitted to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cipherbayes.storage.custody import VARIABLE
from cipherbayes_research.benchmarks import growth_axes
from cipherbayes_research.benchmarks.growth_axes import MEASURES, Point, exponents
from terminal import cipherbayes


def point(value: int, power: float) -> Point:
    """A made-up point whose measures all grow with the same power."""
    measured = dict.fromkeys(MEASURES, 3.0 * value**power)
    sizes = {"d": 1, "sites": value, "rows": 1, "rounds": 1}
    return {"axis": "sites", "value": value, **sizes, **measured}  # type: ignore[typeddict-item]


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5])
def test_the_exponent_of_a_power_is_that_power(power: float) -> None:
    fitted = exponents([point(value, power) for value in (2, 8, 32, 128)])["sites"]
    assert fitted == pytest.approx(dict.fromkeys(MEASURES, power))


def test_only_the_end_of_an_axis_counts() -> None:
    """A fixed cost hides the growth at its beginning."""
    points = [point(2, 0.0), point(8, 0.0), point(32, 1.0), point(128, 1.0)]
    assert exponents(points)["sites"]["site_ms"] == pytest.approx(1.0)


@pytest.mark.slow
def test_a_run_of_each_point_is_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth_axes, "alone", lambda function, *given: function(*given))
    monkeypatch.setattr(growth_axes, "AXES", {"sites": (2, 3)})
    base = {"d": 4, "sites": 2, "rows": 20, "rounds": 4}
    monkeypatch.setattr(growth_axes, "BASE", base)
    monkeypatch.setenv(VARIABLE, str(tmp_path))  # put back after the runs' own
    picture = tmp_path / "growth.svg"
    command = ["bench", "--growth", "--over", "sites", "--json", "--folder", tmp_path]
    done = cipherbayes(*command, "--picture", picture)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [each["value"] for each in document["points"]] == [2, 3]
    assert all(each[name] > 0 for each in document["points"] for name in MEASURES)
    assert set(document["exponents"]["sites"]) == set(MEASURES)
    assert picture.read_text().lstrip().startswith("<?xml")
