"""Prepared records in a file without a name: the same bits, and nothing left behind."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cipherbayes.data import spool
from cipherbayes.data.blocks import BLOCK_ROWS
from cipherbayes.data.preparation import Feature, Preparation
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.rescaled import rescaled
from cipherbayes.data.spool import Spool, Stored, recipes_of
from cipherbayes.data.spooled import SpooledBlocks
from cipherbayes.data.tables import open_table
from cipherbayes.errors import RunError
from cipherbayes.models import Design, Logistic, Poisson, Rows, kernels
from cipherbayes.models.formula import parse_formula
from cipherbayes.typing import Floats

MODEL = Logistic(outcome="death")
FEATURES = {
    "age": Feature(low=18, high=110),
    "lab": Feature(low=0.1, high=50, missing=1.0, indicator=True),
    "dose": Feature(low=0.5, high=9, transform="log"),
    "sex": Feature(levels=["F", "M", "other"]),
}
PREPARATIONS = {
    "numbers and levels": Preparation(FEATURES, intercept=1.0),
    "no constant": Preparation(FEATURES),
    "short rows": Preparation(FEATURES, intercept=1.0, row_norm=1.2),
    "gaps that are drawn": Preparation(
        {**FEATURES, "lab": Feature(low=0.1, high=50, missing="impute")}, intercept=1.0
    ),
    "formula": Preparation(
        {**FEATURES, "dose": Feature(low=0.5, high=9)},
        intercept=1.0,
        formula=parse_formula("death ~ rcs(age, 3) * sex + log(dose) + lab"),
    ),
}


def columns(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    lab = rng.lognormal(size=rows).astype(np.float32)
    lab[::7] = np.nan
    return {
        "age": rng.integers(10, 120, rows).astype(np.int16),
        "lab": lab,
        "dose": rng.uniform(0.4, 10.0, rows),
        "sex": rng.choice(["F", "M", "other"], rows),
        "death": (rng.random(rows) < 0.3).astype(np.int8),
        "patient": [str(k // 3) for k in range(rows)],
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("spool") / "table.parquet"
    table = pa.table(columns(3 * BLOCK_ROWS + 100))
    pyarrow.parquet.write_table(table, file, row_group_size=9_999)
    return file


def opened(path: Path, preparation: Preparation, limit: int = 0) -> PreparedTable:
    return PreparedTable(
        open_table(path), preparation, MODEL, limit, strict=False, person="patient"
    )


def bits(table: PreparedTable) -> list[tuple[bytes, ...]]:
    def of_block(block: Rows) -> tuple[bytes, ...]:
        outcome = [block.outcome[role].tobytes() for role in sorted(block.outcome)]
        return (block.x.tobytes(), block.squared_norms.tobytes(), *outcome)

    return list(table.map(of_block))


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True], ids=["public", "moved"])
@pytest.mark.parametrize("name", PREPARATIONS)
def test_records_have_the_same_bits_held_spooled_and_streamed(
    name: str, moved: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparation = PREPARATIONS[name]
    width = preparation.design.moved
    moments = np.concatenate(
        [np.linspace(-0.3, 0.4, width), np.linspace(0.1, 1, width)]
    )

    def seen(table: PreparedTable) -> list[tuple[bytes, ...]]:
        return bits(rescaled(table, moments if moved else None))

    spooled = opened(path, preparation)
    assert isinstance(spooled._blocks, SpooledBlocks)
    held = opened(path, preparation, 1 << 30)
    assert held.in_memory
    found = seen(spooled)
    assert found == seen(held)
    assert rescaled(spooled, moments).records == held.records < held.count
    monkeypatch.setattr(kernels, "_compiled", None)
    assert seen(spooled) == found
    monkeypatch.setattr(spool, "spool_folder", lambda beside: None)
    assert seen(opened(path, preparation)) == found


def restored(block: Rows, roles: tuple[str, ...], folder: Path) -> list[Rows]:
    """A block that was written, as the compiled loop and numpy read it."""
    file = Spool(folder, block.design.width, constant=False)
    stored: list[Stored] = [file.write(block, roles)]
    recipes = recipes_of(block.design.width + len(roles), None, {})
    blocks = SpooledBlocks(file, stored, block.design, roles, recipes)
    found = list(blocks.blocks())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_compiled", None)
        found += list(blocks.blocks())
    return found


odd = st.sampled_from(
    [0.0, -0.0, 1.0, -128.0, 127.0, 128.0, -129.0, 32767.0, 32768.0, 0.5, 0.1, 1e-310,
     2.0**24 + 1.0, 1e300, float(np.float32(0.1)), 5e-324, 3.4e38, 3.5e38]
)  # fmt: skip


@given(values=arrays(np.float64, (3, 19), elements=odd | st.floats(-200, 200)))
def test_every_number_comes_back_with_its_own_bits(
    values: Floats, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    design = Design(("a", "b"), np.zeros(2), np.ones(2), None)
    with np.errstate(over="ignore"):
        norms = kernels.squared_norms(values[:2])
    block = Rows(design, values[:2], {"y": values[2]}, norms)
    for found in restored(block, ("y",), folder):
        assert found.x.tobytes() == values[:2].tobytes()
        assert found.outcome["y"].tobytes() == values[2].tobytes()
        assert found.squared_norms.tobytes() == norms.tobytes()


def test_columns_take_no_more_room_than_they_need(path: Path) -> None:
    table = opened(path, PREPARATIONS["numbers and levels"])
    assert isinstance(table._blocks, SpooledBlocks)
    # age, lab, its indicator, the logarithm of dose, two levels, death, share
    per_row = table._blocks._stored[0].layout.size / BLOCK_ROWS
    assert per_row == 1 + 4 + 1 + 8 + 1 + 1 + 1 + 4


def test_the_file_has_no_name_and_goes_with_the_table(path: Path) -> None:
    before = sorted(path.parent.iterdir())
    table = opened(path, PREPARATIONS["numbers and levels"])
    assert isinstance(table._blocks, SpooledBlocks)
    file = table._blocks._spool._file
    status = os.fstat(file.fileno())
    assert status.st_nlink == 0
    assert status.st_mode & 0o777 == 0o600
    assert status.st_dev == path.stat().st_dev
    assert sorted(path.parent.iterdir()) == before
    del table
    assert file.closed


def test_all_cores_have_a_block_at_the_same_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIPHERBAYES_THREADS", "2")
    table = opened(path, PREPARATIONS["numbers and levels"])
    together = threading.Barrier(2)

    def meet(block: Rows) -> int:
        together.wait(60)  # raises if no other thread comes
        return block.count

    assert sum(table.map(meet)) == table.count


def test_a_site_may_name_another_disk(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(spool.VARIABLE, str(tmp_path))
    assert spool.spool_folder(path.parent) == tmp_path
    assert isinstance(opened(path, PREPARATIONS["no constant"])._blocks, SpooledBlocks)


@pytest.mark.parametrize("trouble", ["no folder", "full at once", "full later"])
def test_without_room_on_the_disk_every_pass_reads_the_table(
    trouble: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bits(opened(path, PREPARATIONS["no constant"]))
    if trouble == "no folder":
        monkeypatch.setenv(spool.VARIABLE, str(path.parent / "missing"))
    elif trouble == "full at once":
        monkeypatch.setattr(spool, "ROOM", 1 << 62)
    else:
        plain = os.pwrite

        def pwrite(file: int, data: bytes, place: int) -> int:
            if place > 0:
                raise OSError(28, "No space left on device")
            return plain(file, data, place)

        monkeypatch.setattr(os, "pwrite", pwrite)
    table = opened(path, PREPARATIONS["no constant"])
    assert not isinstance(table._blocks, SpooledBlocks)
    assert bits(table) == expected


def test_a_disk_that_is_full_for_one_thread_ends_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.parquet"
    part = 8 * BLOCK_ROWS  # as much as a thread reads at once
    pyarrow.parquet.write_table(pa.table(columns(3 * part)), path, row_group_size=part)
    failed, waited, plain = set[int](), set[int](), Spool.write

    def write(self: Spool, block: Rows, roles: Any) -> Stored:
        if not failed:
            failed.add(threading.get_ident())
            raise OSError(28, "No space left on device")
        if not waited and threading.get_ident() not in failed:
            waited.add(threading.get_ident())
            deadline = time.monotonic() + 0.7
            while not self._file.closed and time.monotonic() < deadline:
                time.sleep(0.01)
        return plain(self, block, roles)

    monkeypatch.setenv("CIPHERBAYES_THREADS", "2")
    monkeypatch.setattr(Spool, "write", write)
    table = opened(path, PREPARATIONS["no constant"])
    assert not isinstance(table._blocks, SpooledBlocks)
    assert table.count == 3 * part


def test_a_disk_that_fails_is_named_and_nothing_of_the_rows(path: Path) -> None:
    table = opened(path, PREPARATIONS["no constant"])
    assert isinstance(table._blocks, SpooledBlocks)
    os.ftruncate(table._blocks._spool._file.fileno(), 1000)
    with pytest.raises(RunError, match="prepared records cannot be read") as refused:
        bits(table)
    assert "resume" in refused.value.remedy


def test_outcomes_that_a_model_fills_in_itself_are_kept_too(tmp_path: Path) -> None:
    """A count without an exposure has an offset of zero, and needs it in every pass."""
    table = tmp_path / "counts.csv"
    table.write_text("age,y\n" + "\n".join(f"{20 + k},{k % 5}" for k in range(50)))
    preparation = Preparation({"age": Feature(low=18, high=100)})
    model = Poisson(outcome="y")
    held, spooled = (
        PreparedTable(open_table(str(table), "t"), preparation, model, limit)
        for limit in (2 << 30, 0)
    )
    assert not spooled.in_memory
    assert set(spooled.outcome()) == set(held.outcome()) == {"y", "offset"}
