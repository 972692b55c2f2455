"""PhysioNet 2012 from small files in the official layout, and from the real set."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cipherbayes.errors import DataError
from cipherbayes_research.datasets import physionet_archive
from cipherbayes_research.datasets.physionet2012 import (
    FEATURES,
    OUTCOME,
    SERIES,
    STATIC,
    load_physionet2012,
)

FIRST = """Time,Parameter,Value
00:00,RecordID,132539
00:00,Age,54
00:00,Gender,0
00:00,Height,-1
00:00,ICUType,4
00:00,Weight,-1
00:07,HR,73
00:07,Temp,-17.8
00:37,HR,77
10:05,HR,60
02:37,HR,62.5
48:00,Weight,80
48:00,MechVent,1
"""
SECOND = """Time,Parameter,Value
00:00,RecordID,132540
00:00,Age,76
00:00,Gender,-1
00:00,Height,175.3
00:00,ICUType,2
00:00,Weight,76
01:11,HR,90
01:11,HR,91
"""
OUTCOMES = """RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death
132539,6,1,5,-1,0
132540,16,8,8,3,1
"""
STAYS = {"set-a/132540.txt": SECOND, "set-a/132539.txt": FIRST}


def folder(root: Path, stays: dict[str, str] = STAYS, outcomes: str = OUTCOMES) -> Path:
    """The set as a folder, the outcomes beside it."""
    (root / "set-a").mkdir()
    for name, text in stays.items():
        (root / name).write_text(text)
    (root / "Outcomes-a.txt").write_text(outcomes)
    return root / "set-a"


def tar(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def complete(rng: random.Random, stay: int) -> str:
    """A stay with measurements of every kind."""
    lines = [f"00:00,RecordID,{stay}"]
    lines += [f"00:00,{name},{rng.randint(1, 90)}" for name in STATIC]
    for name in SERIES:
        for hour in range(rng.randint(1, 4)):
            lines.append(f"{hour:02}:30,{name},{rng.randint(1, 99) / 4}")
    return "\n".join(["Time,Parameter,Value", *lines]) + "\n"


def refusal(source: Path) -> str:
    with pytest.raises(DataError) as caught:
        load_physionet2012(source, "keep")
    assert "\n" not in str(caught.value)
    assert "SECRET" not in str(caught.value)
    return str(caught.value)


def test_the_papers_features_are_184() -> None:
    assert len(SERIES) == 37
    assert len(FEATURES) == len(set(FEATURES)) == 184
    assert not any(name.startswith("MechVent") for name in FEATURES)


def test_each_series_gives_five_statistics_in_order_of_time(tmp_path: Path) -> None:
    table = load_physionet2012(folder(tmp_path), "keep")
    assert table.column_names == ["RecordID", *FEATURES, OUTCOME]
    first, second = table.to_pylist()
    assert (first["RecordID"], second["RecordID"]) == (132539, 132540)
    assert (first[OUTCOME], second[OUTCOME]) == (0, 1)
    statistics = [first[f"HR_{s}"] for s in ("min", "max", "mean", "first", "last")]
    assert statistics == [60.0, 77.0, 68.125, 73.0, 60.0]
    assert (second["HR_first"], second["HR_last"]) == (90.0, 91.0)
    assert (first["Age"], first["ICUType"], second["Height"]) == (54.0, 4.0, 175.3)


def test_minus_one_is_missing_only_where_it_codes_that(tmp_path: Path) -> None:
    text = FIRST.replace("Temp,-17.8", "Temp,-1")
    stays = {**STAYS, "set-a/132539.txt": text}
    first, second = load_physionet2012(folder(tmp_path, stays), "keep").to_pylist()
    assert first["Height"] is None
    assert second["Gender"] is None
    assert first["Weight_first"] == first["Weight_min"] == 80.0
    assert first["Temp_min"] == -1.0
    assert first["pH_min"] is None


def test_missing_values_become_the_mean_of_their_column(tmp_path: Path) -> None:
    rng = random.Random(3)
    stays = {f"set-a/{stay}.txt": complete(rng, stay) for stay in (5, 6, 7)}
    lines = stays["set-a/6.txt"].splitlines()
    stays["set-a/6.txt"] = "\n".join(line for line in lines if ",pH," not in line)
    outcomes = f"RecordID,{OUTCOME}\n5,0\n6,1\n7,0\n"
    source = folder(tmp_path, stays, outcomes)
    kept = load_physionet2012(source, "keep")
    filled = load_physionet2012(source, "mean")
    assert kept["pH_max"].null_count == 1
    assert sum(column.null_count for column in filled.columns) == 0
    known = [v for v in kept["pH_max"].to_pylist() if v is not None]
    assert filled["pH_max"].to_pylist()[1] == pytest.approx(sum(known) / 2)


def test_a_column_without_any_value_has_no_mean_to_fill_with(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="use missing = 'keep'"):
        load_physionet2012(folder(tmp_path), "mean")


def test_archives_and_folders_give_the_same_table(tmp_path: Path) -> None:
    source = folder(tmp_path)
    expected = load_physionet2012(source, "keep")
    inside = {**STAYS, "Outcomes-a.txt": OUTCOMES}
    beside = tar(tmp_path / "beside.tar.gz", STAYS)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    within = tar(elsewhere / "within.tar.gz", inside)
    zipped = elsewhere / "set-a.zip"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("set-a")
        for name, text in inside.items():
            archive.writestr(name, text)
    for place in (beside, within, zipped, tmp_path, elsewhere):
        assert load_physionet2012(place, "keep").equals(expected)


def test_windows_line_ends_and_a_last_empty_line_are_read(tmp_path: Path) -> None:
    source = folder(tmp_path)
    expected = load_physionet2012(source, "keep")
    (source / "132539.txt").write_bytes(FIRST.replace("\n", "\r\n").encode() + b"\r\n")
    assert load_physionet2012(source, "keep").equals(expected)


def test_files_that_are_no_stays_are_passed_over(tmp_path: Path) -> None:
    source = folder(tmp_path)
    expected = load_physionet2012(source, "keep")
    for name in ("._132539.txt", "README.txt", "132541.csv"):
        (source / name).write_text("SECRET")
    assert load_physionet2012(source, "keep").equals(expected)


def test_a_member_with_a_climbing_path_writes_nothing(tmp_path: Path) -> None:
    files = {f"../../{name}": text for name, text in STAYS.items()}
    source = tmp_path / "here" / "odd"
    source.mkdir(parents=True)
    path = tar(source / "odd.tar.gz", {**files, "Outcomes-a.txt": OUTCOMES})
    before = sorted(tmp_path.rglob("*"))
    assert load_physionet2012(path, "keep").num_rows == 2
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_link_or_device_in_the_place_of_a_stay_is_refused(
    tmp_path: Path, kind: bytes
) -> None:
    path = tmp_path / "set-a.tar.gz"
    (tmp_path / "Outcomes-a.txt").write_text(OUTCOMES)
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("set-a/132539.txt")
        info.type, info.linkname = kind, "../../secret.txt"
        archive.addfile(info)
    assert "not set A" in refusal(path)


def test_an_archive_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tar(tmp_path / "a.tar.gz", {"1.txt": "0" * 2_000_000})
    assert "not set A" in refusal(path)
    monkeypatch.setattr(physionet_archive, "_MOST_FILES", 1)
    assert "not set A" in refusal(folder(tmp_path))


def test_the_same_stay_twice_is_refused(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar.gz", {**STAYS, "again/132539.txt": FIRST})
    assert "not set A" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"SECRET", b"\x1f\x8b\x08garbage", b"PK\x03"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "set-a.tar.gz"
    path.write_bytes(content)
    assert "set-a.tar.gz" in refusal(path)


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    rng = random.Random(1)
    files = {f"set-a/{i}.txt": complete(rng, i) for i in range(20)}
    path = tar(tmp_path / "set-a.tar.gz", files)
    (tmp_path / "Outcomes-a.txt").write_text(OUTCOMES)
    whole = path.read_bytes()
    for size in (len(whole) // 2, len(whole) - 20):
        path.write_bytes(whole[:size])
        assert "set-a.tar.gz" in refusal(path)


def test_an_empty_or_absent_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "not set A" in refusal(tmp_path / "empty")
    assert "cannot read" in refusal(tmp_path / "absent")


def test_missing_outcomes_are_asked_for(tmp_path: Path) -> None:
    source = folder(tmp_path)
    (tmp_path / "Outcomes-a.txt").unlink()
    assert "put the Outcomes-a.txt of the challenge beside it" in refusal(source)


@pytest.mark.parametrize(
    "outcomes",
    [
        "",
        "RecordID,SECRET\n132539,0\n",
        OUTCOMES.replace("3,1", "3,2"),
        OUTCOMES.replace("3,1", "3,SECRET"),
        OUTCOMES.replace("132540", "132539"),
        OUTCOMES.replace("132540,", ""),
    ],
)
def test_malformed_outcomes_are_refused(tmp_path: Path, outcomes: str) -> None:
    assert "Outcomes-a.txt" in refusal(folder(tmp_path, outcomes=outcomes))


def test_outcomes_of_other_stays_are_refused(tmp_path: Path) -> None:
    more = OUTCOMES + "132541,1,1,1,1,0\n"
    assert "3 outcomes do not match 2 stays" in refusal(folder(tmp_path, outcomes=more))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("Time,Parameter,Value", "Time,Value,Parameter", 1),
        ("00:00,Age,54", "00:00,Age", 3),
        ("00:00,Age,54", "00:00,Age,54,55", 3),
        ("00:00,Age,54", "00:00,Age,SECRET", 3),
        ("00:00,Age,54", "00:00,Age,nan", 3),
        ("00:00,Age,54", "00:00,Age,", 3),
        ("00:00,Age,54", "", 3),
        ("00:00,Age,54", "00:00,Aeg,54", 3),
        ("00:00,Age,54", "0:0,Age,54", 3),
        ("00:07,HR,73", '"00:07",HR,73', 8),
        ("00:07,HR,73", "00:99,HR,73", 8),
    ],
)
def test_a_malformed_line_is_named_without_its_values(
    tmp_path: Path, old: str, new: str, line: int
) -> None:
    stays = {**STAYS, "set-a/132539.txt": FIRST.replace(old, new)}
    assert f"132539.txt, line {line}:" in refusal(folder(tmp_path, stays))


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    source = folder(tmp_path)
    (source / "132539.txt").write_bytes(FIRST.encode().replace(b"Age", b"\xff\xfe"))
    assert "132539.txt, line 3:" in refusal(source)


@pytest.mark.parametrize("identifier", ["", "00:00,RecordID,132540"])
def test_a_stay_under_a_wrong_name_is_refused(tmp_path: Path, identifier: str) -> None:
    text = FIRST.replace("00:00,RecordID,132539\n", identifier and identifier + "\n")
    stays = {**STAYS, "set-a/132539.txt": text}
    assert "RecordID" in refusal(folder(tmp_path, stays))


def test_a_treatment_of_missing_values_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'mean' or 'keep'"):
        load_physionet2012(folder(tmp_path), "median")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def real(physionet_archive: Path) -> dict[str, pa.Table]:
    """The paper's table, and the one for private studies."""
    return {
        "mean": load_physionet2012(physionet_archive, "mean"),
        "keep": load_physionet2012(physionet_archive.parent, "keep"),
    }


@pytest.mark.realdata
@pytest.mark.slow
def test_the_real_set_is_the_papers_4000_by_184(real: dict[str, pa.Table]) -> None:
    table = real["mean"]
    assert table.num_rows == 4000
    assert table.num_columns - 2 == 184
    assert sum(table[OUTCOME].to_pylist()) == 554
    values = np.column_stack([table[name].to_numpy() for name in FEATURES])
    assert np.isfinite(values).all()
    assert (values.std(axis=0) > 0.0).all()


@pytest.mark.realdata
@pytest.mark.slow
def test_keeping_missing_values_changes_nothing_else(real: dict[str, pa.Table]) -> None:
    for name in FEATURES:
        kept = real["keep"][name].to_numpy()
        filled = real["mean"][name].to_numpy()
        empty = np.isnan(kept)
        np.testing.assert_array_equal(kept[~empty], filled[~empty])
        np.testing.assert_allclose(filled[empty], kept[~empty].mean())
    assert real["keep"]["Height"].null_count == 1894
    assert real["keep"]["Gender"].null_count == 3
