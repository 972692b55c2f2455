"""What a ``posterior.nc`` may hold: what a run writes, and nothing else.

Readers of netCDF differ in what they take from a file: some scale a variable by its
attributes or follow links and storage in other files, others read the bare numbers. In
a file of this form there is nothing to differ about. It is a list of what is allowed:
groups, variables, dimensions, types, layouts and attributes, each with the values that
a run gives it.

Formal guarantees
-----------------
What is read of a checked file lies in the file itself, uncompressed and once: reading
takes no more memory than the file has bytes, but for its names, each of which is short.

Edge cases
----------
Releases up to 0.1 wrote the file with xarray, which adds attributes of its own; they
are allowed with the values that say nothing (:data:`PROPERTIES`, NaN for what is
missing, numbers of dimensions).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import h5py

PLACE = "_Netcdf4Dimid"
"""Attribute with the number of a dimension."""
WITHOUT_VALUES = "This is a netCDF dimension but not a netCDF variable."
"""How the format names a scale that is a length and nothing else."""
SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""The first bytes: nothing comes before them."""
END_AT = {0: 40, 2: 28, 3: 28}
"""Where a file says how long it is, by the version of its first block."""

_DRAWN = ("chain", "draw")
VARIABLES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "posterior": {
        "theta": (*_DRAWN, "parameter"),
        "site_effect": (*_DRAWN, "site", "varying"),
        "between": (*_DRAWN, "spread"),
    },
    "prepared": {
        "theta": (*_DRAWN, "parameter"),
        "site_effect": (*_DRAWN, "site", "place"),
        "between": (*_DRAWN, "spread"),
    },
    "sample_stats": {"step_size": _DRAWN},
}
"""The groups, their variables, and the dimensions of these."""
ALWAYS = ("theta", "step_size")
"""Variables that every run has; the others are of sites that differ."""
UNNAMED = (("prepared", "place"), ("prepared", "spread"))
"""Dimensions without names for their places, each by its group."""
SHARED = ("chain", "draw", "parameter", "site")
"""Dimensions that are the same in every group that has them."""

MOST_BYTES = 4 << 30
"""The largest file: more draws of more parameters are nobody's posterior."""
MOST_NAME = 1000
"""Letters of a parameter's or a site's name."""
OF_A_TEXT = 16
"""Bytes of a variable for each text, which say where it is and how long."""
MOST_ATTRIBUTE = 4096
"""Bytes of an attribute."""

CREATED_BY = "cipherbayes"
VERSION = re.compile(
    r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}((a|b|rc)[0-9]{1,4})?"
    r"(\.post[0-9]{1,4})?(\.dev[0-9]{1,6})?(\+[0-9a-f]{1,40})?"
)
"""What a release is called: numbers, with no room for words."""
PROPERTIES = re.compile(
    rb"version=2,h5netcdf=[0-9.]{1,20},hdf5=[0-9.]{1,20},h5py=[0-9.]{1,20}"
)
"""Which libraries wrote a file, as xarray says it."""


class ForeignFileError(ValueError):
    """A file is not one that a run writes; says what is in it, never a value."""


def check_ends(content: bytes) -> None:
    """Refuse what is no HDF5 file from its first byte to its last.

    Raises
    ------
    ForeignFileError
        Where bytes are missing, or lie before or after what HDF5 reads.
    """
    place = END_AT.get(content[8]) if len(content) > 8 else None
    if place is None or not content.startswith(SIGNATURE):
        raise ForeignFileError("posterior.nc is damaged, or no file of draws")
    if int.from_bytes(content[place : place + 8], "little") != len(content):
        raise ForeignFileError("posterior.nc is cut, or has bytes after its content")


def checked_groups(file: h5py.File, size: int) -> dict[str, h5py.Group]:
    """The groups of a file of ``size`` bytes, each of them and all in it looked at.

    Raises
    ------
    ForeignFileError
        Where there is anything that no run writes, or something is missing.
    """
    import h5py

    for name in _each_once(file.attrs, "the file"):
        said = _attribute(file, name, "posterior.nc")
        if name != "_NCProperties" or not _matches(PROPERTIES, said):
            raise _foreign(f"the attribute {_shown(name)}")
    groups = {
        name: _child(file, name, h5py.Group, VARIABLES)
        for name in _each_once(file, "the file")
    }
    if missing := sorted(set(VARIABLES) - set(groups)):
        raise ForeignFileError(f"posterior.nc lacks the group {missing[0]}")
    lengths: dict[str, np.ndarray[Any, Any]] = {}
    for name, group in groups.items():
        for dimension, values in _Group(name, group, size).check().items():
            if dimension not in SHARED:
                continue
            if not np.array_equal(lengths.setdefault(dimension, values), values):
                raise ForeignFileError(f"groups of posterior.nc differ in {dimension}")
    return groups


class _Group:
    """One group, and what is known of its dimensions."""

    def __init__(self, name: str, group: h5py.Group, size: int) -> None:
        self.name, self.group, self.size = name, group, size
        self.forms = VARIABLES[name]
        self.lengths: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.addresses: dict[str, int] = {}

    def check(self) -> dict[str, np.ndarray[Any, Any]]:
        """Look at everything; gives the values along each dimension that has some."""
        import h5py

        self._check_about()
        known = {*self.forms, *(d for dims in self.forms.values() for d in dims)}
        stored = {
            name: _child(self.group, name, h5py.Dataset, known, self.name)
            for name in _each_once(self.group, self.name)
        }
        there = [name for name in self.forms if name in stored]
        used = {d for name in there for d in self.forms[name]}
        due = {*used, *(name for name in self.forms if name in ALWAYS)}
        if missing := sorted(due - set(stored)):
            raise ForeignFileError(f"posterior.nc lacks {self.name}/{missing[0]}")
        if extra := sorted(set(stored) - used - set(there)):
            raise _foreign(f"{self.name}/{extra[0]}")
        found = {name: self._check_dimension(name, stored[name]) for name in used}
        if len(set(self.numbers.values())) != len(self.numbers):
            raise _foreign(f"two dimensions of one number in {self.name}")
        for name in there:
            self._check_variable(name, stored[name])
        for name in used:
            self._check_attached(name, stored[name], there, stored)
        return {name: values for name, values in found.items() if values is not None}

    def _check_about(self) -> None:
        import h5py

        texts = {}
        for name in _each_once(self.group.attrs, self.name):
            place = f"the attribute {_shown(name)} of {self.name}"
            texts[name] = _attribute(self.group, name, place)
            kind = self.group.attrs.get_id(name).get_type()
            if kind != h5py.h5t.py_create(h5py.string_dtype(), logical=True):
                raise _foreign(place)
        if set(texts) != {"created_by", "version"}:
            raise _foreign(f"other attributes of {self.name} than created_by, version")
        if texts["created_by"] != CREATED_BY or not _matches(VERSION, texts["version"]):
            raise _foreign(f"values in the attributes of {self.name}")

    def _check_dimension(
        self, name: str, stored: h5py.Dataset
    ) -> np.ndarray[Any, Any] | None:
        """A dimension: numbers from zero, names, or a length and nothing else."""
        place = f"{self.name}/{name}"
        bare = (self.name, name) in UNNAMED
        if len(stored.shape) != 1 or not stored.is_scale:
            raise _foreign(f"{place} as another thing than a dimension")
        length = self.lengths[name] = int(stored.shape[0])
        self.addresses[name] = _address(stored)
        kind = ">f4" if bare else "<i8" if name in _DRAWN else "text"
        self._check_storage(place, stored, kind, empty=bare)
        told = self._attributes(
            place, stored, {"CLASS", "NAME", PLACE, "REFERENCE_LIST"}
        )
        label = f"{WITHOUT_VALUES} {length:9d}" if bare else name
        if _text(told["CLASS"]) != "DIMENSION_SCALE" or _text(told["NAME"]) != label:
            raise _foreign(f"values in the attributes of {place}")
        self.numbers[name] = int(told[PLACE])
        coordinates = told.get("_Netcdf4Coordinates")
        if coordinates is not None and list(coordinates) != [self.numbers[name]]:
            raise _foreign(f"values in the attributes of {place}")
        if bare:
            return None
        if kind == "<i8":
            values = np.asarray(stored[()])
            if not np.array_equal(values, np.arange(length)):
                raise _foreign(f"numbers in {place} that do not count from zero")
            return values
        return np.array([_name(stored, k, place) for k in range(length)])

    def _check_variable(self, name: str, stored: h5py.Dataset) -> None:
        place, dims = f"{self.name}/{name}", self.forms[name]
        if stored.shape != tuple(self.lengths[d] for d in dims) or stored.is_scale:
            raise _foreign(f"{place} with other dimensions")
        self._check_storage(place, stored, "<f8")
        told = self._attributes(place, stored, {"DIMENSION_LIST"})
        for axis, dimension in zip(stored.dims, dims, strict=True):
            if len(axis) != 1 or _address(axis[0]) != self.addresses[dimension]:
                raise _foreign(f"{place} with other dimensions")
        numbers = [self.numbers[d] for d in dims]
        if (
            list(told.get("_Netcdf4Coordinates", numbers)) != numbers
            or told.get(PLACE, numbers[0]) != numbers[0]
            or not np.isnan(told.get("_FillValue", np.nan)).all()
        ):
            raise _foreign(f"values in the attributes of {place}")

    def _check_attached(
        self,
        name: str,
        scale: h5py.Dataset,
        there: list[str],
        stored: Mapping[str, h5py.Dataset],
    ) -> None:
        """That a dimension names those variables that name it."""
        due = {
            (_address(stored[each]), axis)
            for each in there
            for axis, dimension in enumerate(self.forms[each])
            if dimension == name
        }
        said = [
            (_address(self.group.file[row["dataset"]]), int(row["dimension"]))
            for row in scale.attrs["REFERENCE_LIST"]
        ]
        if len(said) != len(due) or set(said) != due:
            raise _foreign(f"other uses of {self.name}/{name}")

    def _attributes(
        self, place: str, stored: h5py.Dataset, due: set[str]
    ) -> Mapping[str, Any]:
        """All attributes, where they are those due and have the types that these have.

        Those of xarray may be there besides.
        """
        names = set(_each_once(stored.attrs, place))
        of_xarray = {"_Netcdf4Coordinates"}
        if "DIMENSION_LIST" in due:
            of_xarray |= {PLACE, "_FillValue"}
        if unknown := sorted(names - due - of_xarray):
            raise _foreign(f"the attribute {_shown(unknown[0])} of {place}")
        if missing := sorted(due - names):
            raise ForeignFileError(f"posterior.nc lacks {missing[0]} of {place}")
        found = {}
        for name in names:
            where = f"the attribute {name} of {place}"
            if not _is_kind(name, stored.attrs.get_id(name), stored):
                raise _foreign(f"another type in {where}")
            found[name] = _attribute(stored, name, where)
        return found

    def _check_storage(
        self, place: str, stored: h5py.Dataset, kind: str, *, empty: bool = False
    ) -> None:
        """That values lie here, one after the other, as they are and complete.

        Looked at before anything is read: a shape is a claim, bytes are there.
        """
        import h5py

        own = stored.id.get_type()
        numpy_kind = h5py.string_dtype() if kind == "text" else np.dtype(kind)
        if own.committed() or own != h5py.h5t.py_create(numpy_kind, logical=True):
            raise _foreign(f"another type in {place}")
        plan, space = stored.id.get_create_plist(), stored.id.get_space()
        if (
            plan.get_layout() != h5py.h5d.CONTIGUOUS
            or plan.get_nfilters() != 0
            or plan.get_external_count() != 0
            or space.get_simple_extent_type() != h5py.h5s.SIMPLE
            or stored.maxshape != stored.shape
        ):
            raise _foreign(f"{place} compressed, in pieces, growing or in another file")
        if plan.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED and (
            kind != "<f8" or not np.isnan(stored.fillvalue)
        ):
            raise _foreign(f"a value in place of missing ones in {place}")
        each = OF_A_TEXT if kind == "text" else own.get_size()
        offset, bytes_ = stored.id.get_offset(), math.prod(stored.shape) * each
        if empty and (offset is not None or stored.id.get_storage_size()):
            raise _foreign(f"values in {place}")
        if not empty and (
            offset is None
            or stored.id.get_storage_size() != bytes_
            or offset + bytes_ > self.size
        ):
            raise ForeignFileError(f"posterior.nc holds less of {place} than it says")


def _child(
    group: h5py.Group, name: str, kind: type, known: Any, within: str = ""
) -> Any:
    """What a group holds under a name, where it is there itself and nowhere else."""
    import h5py

    place = f"{within}/{_shown(name)}" if within else _shown(name)
    if name not in known or group.get(name, getclass=True, getlink=True) is not (
        h5py.HardLink
    ):
        raise _foreign(place)
    found = group[name]
    if type(found) is not kind or h5py.h5o.get_info(group[name].id).rc != 1:
        raise _foreign(place)
    return found


def _each_once(names: Iterable[str], place: str) -> list[str]:
    """All of them; readers differ in which of two of one name they take."""
    found = list(names)
    if len(set(found)) < len(found):
        raise _foreign(f"two things of one name in {place}")
    return found


def _is_kind(name: str, own: h5py.h5a.AttrID, stored: h5py.Dataset) -> bool:
    """Whether an attribute has the type and shape that the format gives it."""
    import h5py

    kind, shape = own.get_type(), own.shape
    if name in ("CLASS", "NAME"):
        fixed = kind.get_class() == h5py.h5t.STRING and not kind.is_variable_str()
        return bool(fixed and shape == ())
    if name == "DIMENSION_LIST":
        return bool(
            kind.get_class() == h5py.h5t.VLEN
            and kind.get_super() == h5py.h5t.STD_REF_OBJ
            and shape == (len(stored.shape),)
        )
    if name == "REFERENCE_LIST":
        return bool(
            kind.get_class() == h5py.h5t.COMPOUND
            and [kind.get_member_name(k) for k in range(kind.get_nmembers())]
            == [b"dataset", b"dimension"]
            and kind.get_member_type(0) == h5py.h5t.STD_REF_OBJ
            and kind.get_member_class(1) == h5py.h5t.INTEGER
            and len(shape) == 1
        )
    number = "<f8" if name == "_FillValue" else "<i4"
    of_shape = {PLACE: (), "_FillValue": (1,)}.get(name, (len(stored.shape),))
    same_kind: bool = kind == h5py.h5t.py_create(np.dtype(number), logical=True)
    return same_kind and shape == of_shape


def _attribute(holder: Any, name: str, place: str) -> Any:
    if holder.attrs.get_id(name).get_storage_size() > MOST_ATTRIBUTE:
        raise _foreign(place)
    return holder.attrs[name]


def _address(stored: h5py.Dataset) -> int:
    import h5py

    return int(h5py.h5o.get_info(stored.id).addr)


def _name(stored: h5py.Dataset, index: int, place: str) -> str:
    """One name: many of them could be one long text that the file holds once."""
    found = str(stored.asstr()[index])
    if len(found) > MOST_NAME:
        raise _foreign(f"a name of more than {MOST_NAME} letters in {place}")
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _matches(pattern: re.Pattern[Any], value: Any) -> bool:
    """Whether a text is whole of this form; false for what is no text of its kind."""
    if not isinstance(value, type(pattern.pattern)):
        return False
    return pattern.fullmatch(value) is not None


def _shown(name: str) -> str:
    """A name that somebody else gave, for a message."""
    return name[:80].encode("ascii", "backslashreplace").decode()


def _foreign(what: str) -> ForeignFileError:
    return ForeignFileError(f"posterior.nc has what no run writes: {what}")
