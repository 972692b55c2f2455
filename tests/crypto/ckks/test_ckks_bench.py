from __future__ import annotations

import pytest

from cipherbayes.bench import Clock
from cipherbayes.circuit_bench import CircuitRace, add_ratios


@pytest.mark.slow
def test_the_circuits_race_reports_every_field_of_the_contract() -> None:
    race, clock = CircuitRace(184, 2, rounds_before=33), Clock()
    for _ in range(8):
        race.round(clock.call)
    rows = race.variants(clock.median, clock.spent, 2)
    add_ratios(rows, 2)
    assert set(rows) == {"literal", "fast", "hardened"}
    for row in rows.values():
        assert min(row["server_ms"], row["encrypt_ms"], row["decrypt_ms"]) > 0.0
        assert row["message_bytes"] > 0
    assert rows["literal"]["server_ratio"] == 1.0
    assert rows["fast"]["server_ratio"] < 0.2
    assert rows["hardened"]["server_ratio"] < 0.4
    assert rows["fast"]["max_error_over_noise"] < 1e-2
    assert rows["hardened"]["max_error_over_noise"] < 1e-6
