"""FLchain from R's export and from scikit-survival."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest

from cipherbayes.errors import DataError
from cipherbayes_research.datasets.flchain import FEATURES, load_flchain

EXPORT = """"","age","sex","sample.yr","kappa","lambda","flc.grp","creatinine","mgus","futime","death","chapter"
"1",97,"F",1997,5.7,4.86,10,1.7,0,85,1,"Circulatory"
"2",92,"F",2000,0.87,0.683,1,NA,0,1281,1,"Neoplasms"
"3",54,"M",1996,1.1,1.2,4,1,1,0,1,"Circulatory"
"4",60,"M",1996,1.1,1.2,4,0.9,0,4900,0,NA
"""  # noqa: E501


def exported(folder: Path, text: str = EXPORT) -> Path:
    path = folder / "flchain.csv"
    path.write_text(text)
    return path


def test_rs_export_gives_the_seven_features_and_the_outcome(tmp_path: Path) -> None:
    table = load_flchain(exported(tmp_path))
    assert table.column_names == [*FEATURES, "futime", "death"]
    assert table.to_pylist()[1] == {
        "age": 92.0,
        "sex": "F",
        "kappa": 0.87,
        "lambda": 0.683,
        "flc.grp": 1,
        "creatinine": None,
        "mgus": 0,
        "futime": 1281.0,
        "death": 1,
    }


def test_the_row_name_column_is_optional(tmp_path: Path) -> None:
    lines = [line.partition(",")[2] for line in EXPORT.splitlines()]
    bare = load_flchain(exported(tmp_path, "\n".join(lines)))
    assert bare.equals(load_flchain(exported(tmp_path)))


def test_a_death_on_day_zero_becomes_half_a_day(tmp_path: Path) -> None:
    times = load_flchain(exported(tmp_path))["futime"].to_pylist()
    assert times == [85.0, 1281.0, 0.5, 4900.0]


def test_outcomes_other_than_the_endpoint_are_no_features() -> None:
    assert "chapter" not in FEATURES
    assert "sample.yr" not in FEATURES


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('"kappa"', '"cappa"', "kappa"),
        ("5.7", "SECRET", "flchain.csv"),
        ('"1",97,', '"1",', "flchain.csv"),
        ("85,1", "-85,1", "futime"),
        ("85,1", "85,7", "death"),
        ('"1",97', '"1",inf', "age"),
        ('"1",97', '"1",NA', "age"),
        ('97,"F"', '97,"SECRET"', "sex"),
        ("1.7,0", "1.7,3", "mgus"),
    ],
)
def test_a_table_that_is_not_flchain_is_refused_without_its_values(
    tmp_path: Path, old: str, new: str, where: str
) -> None:
    with pytest.raises(DataError, match=where) as caught:
        load_flchain(exported(tmp_path, EXPORT.replace(old, new)))
    assert "SECRET" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", EXPORT.splitlines()[0] + "\n"])
def test_an_empty_table_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError):
        load_flchain(exported(tmp_path, text))


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "flchain.csv"
    path.write_bytes(EXPORT.encode().replace(b'97,"F"', b'97,"\xff\xfe"'))
    with pytest.raises(DataError, match=r"flchain\.csv"):
        load_flchain(path)


@pytest.mark.parametrize("name", ["absent.csv", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot read") as caught:
        load_flchain(tmp_path / name)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sksurv.datasets", None)
    with pytest.raises(
        DataError, match=r"pip install 'cipherbayes-research\[examples\]'"
    ):
        load_flchain()


def test_the_bundled_table_is_the_papers() -> None:
    pytest.importorskip("sksurv.datasets", reason="needs the extra 'examples'")
    table = load_flchain()
    assert table.shape == (7874, 9)
    assert table.column_names == [*FEATURES, "futime", "death"]
    assert table["creatinine"].null_count == 1350
    assert sum(column.null_count for column in table.columns) == 1350
    assert pc.sum(table["death"]).as_py() == 2169
    assert pc.sum(pc.equal(table["futime"], 0.5)).as_py() == 3
    assert pc.min_max(table["futime"]).as_py() == {"min": 0.5, "max": 5215.0}
    assert pc.min_max(table["flc.grp"]).as_py() == {"min": 1, "max": 10}
    assert pc.sum(table["mgus"]).as_py() == 115
