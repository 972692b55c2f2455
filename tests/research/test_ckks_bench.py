from __future__ import annotations

import pytest

from cipherbayes_research.benchmarks import scaling as scaling_bench
from cipherbayes_research.benchmarks.circuits import CircuitRace, add_ratios
from cipherbayes_research.benchmarks.iteration import Clock


@pytest.mark.slow
def test_the_circuits_race_reports_every_field_of_the_contract() -> None:
    race, clock = CircuitRace(184, 2, rounds_before=0), Clock()
    for _ in range(6):
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
