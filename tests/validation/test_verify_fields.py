"""Nothing in result.json or posterior.nc goes by `cipherbayes verify` unseen."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from verified_runs import (
    Recomputed,
    change_draws,
    change_record,
    recomputed,
    shared,
    states,
)

from cipherbayes.results.record import ResultRecord
from cipherbayes.validation.verify import result_checks
from cipherbayes.validation.verify.fields import FIELDS
from finished_runs import runs

__all__ = ["recomputed", "runs", "shared"]

TOLD = ("timing", "bytes", "cipherbayes")
"""Fields whose numbers are the parties' word."""

Place = tuple[str | int, ...]


@pytest.fixture
def quickly(recomputed: Recomputed, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the honest draws imply is computed once for many changes to result.json."""
    made = recomputed.implied
    monkeypatch.setattr(result_checks, "_assembled", lambda *_: made)


def test_each_field_of_a_result_belongs_to_one_check() -> None:
    """A new field of the record is compared, or said not to be."""
    looked_at = Counter(name for names in FIELDS.values() for name in names)
    assert looked_at == Counter(list(ResultRecord.__annotations__))


def test_a_run_with_everything_in_it_holds(
    recomputed: Recomputed, shared: Path
) -> None:
    findings = recomputed.check(shared, exact=True)
    assert findings.failed == []
    assert {finding.check for finding in findings.unchecked} == {"cost", "release"}
    assert set(FIELDS) <= {finding.check for finding in findings}
    record = json.loads((shared / "result.json").read_text())
    for name in ("hierarchy", "formula", "reference", "describe", "metrics"):
        assert record[name], name


def leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    """One place of each kind: the last of a list stands for all."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from leaves(each, (*place, key))
    elif isinstance(value, list) and value:
        yield from leaves(value[-1], (*place, len(value) - 1))
    else:
        yield place


def changed(record: dict[str, Any], place: Place, *, remove: bool) -> dict[str, Any]:
    """The record with another value at a place, or without what is there."""
    found = copy.deepcopy(record)
    inner: Any = found
    for step in place[:-1]:
        inner = inner[step]
    old = inner[place[-1]]
    if remove:
        del inner[place[-1]]
    elif isinstance(old, bool) or old is None:
        inner[place[-1]] = not old
    elif isinstance(old, int | float):
        inner[place[-1]] = old * 1.01 + 0.01 if isinstance(old, float) else old + 1
    else:
        inner[place[-1]] = "another"
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("remove", [False, True])
def test_no_value_can_be_changed_or_left_out(
    recomputed: Recomputed, shared: Path, remove: bool
) -> None:
    path = shared / "result.json"
    record = json.loads(path.read_text())
    unseen = []
    for place in leaves(record):
        path.write_text(json.dumps(changed(record, place, remove=remove)))
        if not recomputed.check(shared).failed:
            unseen.append(place)
    said = [p for p in unseen if p[0] not in TOLD and p[-1] not in ("seconds", "bytes")]
    assert said == []
    if remove:  # the shape of what is told is seen all the same
        assert [place for place in unseen if place[0] in TOLD] == []


@pytest.mark.usefixtures("quickly")
def test_nothing_can_be_added(recomputed: Recomputed, shared: Path) -> None:
    path = shared / "result.json"
    record = json.loads(path.read_text())
    places: list[Place] = [
        (), ("privacy",), ("hierarchy",), ("hierarchy", "sites", 0), ("reference",),
        ("formula", "curves", 0, "points", 0), ("metrics",), ("describe", 0),
        ("parties", 0), ("timing",), ("bytes",), ("encryption",),
    ]  # fmt: skip
    for place in places:
        more = copy.deepcopy(record)
        inner: Any = more
        for step in place:
            inner = inner[step]
        inner["audited"] = "by the CSP"
        path.write_text(json.dumps(more))
        said = " ".join(f.said for f in recomputed.check(shared).failed)
        assert said, place
    for name in ("warnings", "flags", "cautions", "parties", "describe"):
        more = copy.deepcopy(record)
        more[name].append("This result covers all patients.")
        path.write_text(json.dumps(more))
        assert recomputed.check(shared).failed, name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"version"', '{"effects": [], "version"'),
        ('"hierarchy": {', '"hierarchy": {"sites": [], '),
    ],
)
def test_a_key_given_twice_is_a_failure(
    recomputed: Recomputed, shared: Path, old: str, new: str
) -> None:
    """Readers differ in which of the two they take."""
    path = shared / "result.json"
    text = json.dumps(json.loads(path.read_text()))
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert "a key twice" in " ".join(f.said for f in recomputed.check(shared).failed)


# -- posterior.nc ----------------------------------------------------------


def variables(folder: Path) -> list[str]:
    found: list[str] = []
    with h5py.File(folder / "posterior.nc") as file:
        for group in file.values():
            found += [
                each.name
                for each in group.values()
                if not each.attrs.get("NAME", b"").startswith(b"This is a netCDF dim")
            ]
    return found


@pytest.mark.usefixtures("quickly")
def test_each_variable_of_each_group_is_compared(
    recomputed: Recomputed, shared: Path
) -> None:
    names = variables(shared)
    for group in ("posterior", "prepared"):
        for name in ("theta", "site_effect", "between", "site"):
            assert f"/{group}/{name}" in names
    honest = {p.name: p.read_bytes() for p in shared.iterdir()}
    for name in names:

        def change(file: h5py.File, name: str = name) -> None:
            values = file[name][()]
            if values.dtype.kind == "O":
                file[name][...] = "another"
            elif values.dtype.kind == "i":
                file[name][...] = values + 1
            else:
                file[name][...] = np.nan_to_num(values) + 3.0

        change_draws(shared, change)
        assert states(recomputed.check(shared), "posterior") == {"fails"}, name
        for kept, data in honest.items():
            (shared / kept).write_bytes(data)


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("name", ["posterior/sites_alike", "approved/theta", "note"])
def test_nothing_can_be_added_to_the_draws(
    recomputed: Recomputed, shared: Path, name: str
) -> None:
    def change(file: h5py.File) -> None:
        group, _, own = name.rpartition("/")
        added = file.require_group(group) if group else file
        scale = added.create_dataset(own, data=np.zeros(3))
        scale.make_scale(own)

    change_draws(shared, change)
    assert states(recomputed.check(shared), "posterior") == {"fails"}


def test_where_draws_are_others_the_rest_is_looked_at_or_named(
    recomputed: Recomputed, shared: Path
) -> None:
    def change(file: h5py.File) -> None:
        file["prepared/theta"][...] += 9.0

    change_draws(shared, change)
    change_record(shared, lambda record: record["describe"][0].update(mean=1.0))
    findings = recomputed.check(shared)
    assert {f.check for f in findings.failed} == {"posterior", "characteristics"}
    said = " ".join(finding.said for finding in findings.unchecked)
    for check in ("numbers", "scores", "flags", "warnings"):
        assert all(name in said for name in FIELDS[check])
