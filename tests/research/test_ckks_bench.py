from __future__ import annotations

from functools import lru_cache

import pytest

from cipherbayes.crypto.ckks.key_generation import generate_ckks_keys
from cipherbayes_research.benchmarks import iteration
from cipherbayes_research.benchmarks import scaling as scaling_bench
from cipherbayes_research.benchmarks.circuits import CircuitRace, add_ratios
from cipherbayes_research.benchmarks.iteration import Clock

WARM_UP = 1


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races of the same dimension share their keys, and warm up for one round."""
    made_by = "cipherbayes.crypto.ckks.circuit.generate_ckks_keys"
    monkeypatch.setattr(made_by, lru_cache(generate_ckks_keys))
    monkeypatch.setattr(iteration, "WARM_UP", WARM_UP)
    monkeypatch.setattr(scaling_bench, "WARM_UP", WARM_UP)


@pytest.mark.slow
def test_the_circuits_race_reports_every_field_of_the_contract() -> None:
    race, clock = CircuitRace(184, 2, rounds_before=0), Clock()
    for _ in range(WARM_UP + 3):
        race.round(clock.call)
    rows = race.variants(clock.median, clock.spent, 2)
    add_ratios(rows, 2)
    assert set(rows) == {"literal", "fast", "hardened"}
    for row in rows.values():
        assert min(row["server_ms"], row["encrypt_ms"], row["decrypt_ms"]) > 0.0
        assert row["message_bytes"] > 0
    assert rows["literal"]["server_ratio"] == 1.0
    assert rows["fast"]["server_ratio"] < 0.2  # type: ignore[operator]
    assert rows["hardened"]["server_ratio"] < 0.4  # type: ignore[operator]
    assert rows["fast"]["max_error_over_noise"] < 1e-2
    assert rows["hardened"]["max_error_over_noise"] < 1e-6


@pytest.mark.slow
def test_the_scaling_table_has_every_quantity_for_every_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "DIMENSION": 8,
        "DIMENSIONS": (8, 16),
        "SITE_COUNTS": (2,),
        "ROWS": 50,
        "ROW_COUNTS": (50,),
        "ROUNDS": 1,
        "STEADY": 1,
    }.items():
        monkeypatch.setattr(scaling_bench, name, value)
    rows = scaling_bench.run_scaling()["rows"]
    seen = {(row["quantity"], row["value"], row["protocol"]) for row in rows}
    points = [("d", 8), ("d", 16), ("sites", 2), ("rows", 50), ("round", 1)]
    points.append(("round", 2))
    assert seen == {(*p, name) for p in points for name in scaling_bench.PROTOCOLS}
    assert all(row["server_ms"] > 0.0 and row["csp_ms"] > 0.0 for row in rows)
    assert all(row["site_ms"] > 0.0 for row in rows if row["quantity"] != "round")
