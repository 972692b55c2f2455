"""``posterior.nc``: draws as a netCDF-4 file, which xarray, ArviZ and R open.

Such a file is HDF5 with dimension scales: one dataset for each variable, and each
dimension is the dataset that others name as their scale. Written and read here with
h5py alone: of a small file the general libraries take four to ten times as long.

Whoever reads a posterior reads it here, so that nobody takes other numbers from a file
than those that were checked. What may be in one is in :mod:`~.posterior_form`.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cipherbayes.storage.posterior_form import (
    MOST_BYTES,
    PLACE,
    UNNAMED,
    VARIABLES,
    WITHOUT_VALUES,
    ForeignFileError,
    check_ends,
    checked_groups,
)

if TYPE_CHECKING:  # seldom needed, and slow to import
    import h5py
    import xarray as xr

DAMAGED = "posterior.nc is damaged, or no file of draws"
NOT_THE_FILE = "posterior.nc is not the file whose hash result.json names"


def write_posterior(path: Path, posterior: xr.DataTree) -> None:
    """Write a tree of groups that hold no groups.

    Kept are variables, the coordinates of dimensions, and the groups' attributes.
    """
    import h5py

    with h5py.File(path, "w") as file:
        for name, node in posterior.children.items():
            _write_group(file.create_group(name), node.to_dataset())


def read_posterior(path: Path, sha256: object = None) -> xr.DataTree:
    """The groups of a file that :func:`write_posterior` wrote, and of no other.

    Parameters
    ----------
    sha256
        What ``result.json`` says is the file's hash; None where it says nothing.

    Raises
    ------
    OSError
        Where there is no file.
    ForeignFileError
        Where the file is not one that a run writes, or another than was named.
    """
    import h5py
    import xarray as xr

    with path.open("rb") as stored:
        size = os.fstat(stored.fileno()).st_size
        if size > MOST_BYTES:
            raise ForeignFileError(f"posterior.nc has more than {MOST_BYTES >> 30} GiB")
        content = stored.read(size)
    # First: HDF5 takes its time over a damaged file. And once: the bytes that have the
    # hash are those that are read.
    if sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise ForeignFileError(NOT_THE_FILE)
    check_ends(content)
    try:
        with h5py.File(io.BytesIO(content), "r") as file:
            checked = checked_groups(file, len(content))
            groups = {name: _read_group(name, group) for name, group in checked.items()}
    except ForeignFileError:
        raise
    # Damaged bytes: HDF5 and h5py fail in their own ways.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError,
            IndexError, MemoryError, OverflowError):  # fmt: skip
        raise ForeignFileError(DAMAGED) from None
    return xr.DataTree.from_dict(groups)


def _write_group(group: h5py.Group, dataset: xr.Dataset) -> None:
    for name, value in dataset.attrs.items():
        group.attrs[str(name)] = value
    scales: dict[Any, h5py.Dataset] = {}
    for number, (name, size) in enumerate(dataset.sizes.items()):
        if name in dataset.coords:
            scale = _dataset(group, str(name), dataset[name].values)
            scale.make_scale(str(name))
        else:
            scale = group.create_dataset(str(name), shape=(size,), dtype=">f4")
            scale.make_scale(f"{WITHOUT_VALUES} {size:9d}")
        scale.attrs[PLACE] = np.int32(number)
        scales[name] = scale
    for name, variable in dataset.variables.items():
        if name in scales:
            continue
        values = _dataset(group, str(name), variable.values)
        for axis, dimension in enumerate(variable.dims):
            values.dims[axis].attach_scale(scales[dimension])


def _dataset(
    group: h5py.Group, name: str, values: np.ndarray[Any, Any]
) -> h5py.Dataset:
    import h5py

    if values.dtype.kind in "OU":
        text = values.astype(object)
        return group.create_dataset(name, data=text, dtype=h5py.string_dtype())
    # The same file on every machine.
    kind = "<i8" if values.dtype.kind in "iu" else "<f8"
    return group.create_dataset(name, data=values.astype(kind))


def _read_group(name: str, group: h5py.Group) -> xr.Dataset:
    import xarray as xr

    variables: dict[str, tuple[tuple[str, ...], np.ndarray[Any, Any]]] = {}
    dimensions = []
    for each, stored in group.items():
        if each in VARIABLES[name]:
            variables[each] = (VARIABLES[name][each], _values(stored))
        elif (name, each) not in UNNAMED:
            variables[each] = ((each,), _values(stored))
            dimensions.append(each)
    attributes = {each: str(group.attrs[each]) for each in group.attrs}
    return xr.Dataset(variables, attrs=attributes).set_coords(sorted(dimensions))


def _values(stored: h5py.Dataset) -> np.ndarray[Any, Any]:
    if stored.dtype.kind == "O":
        return np.asarray(stored.asstr()[()]).astype(str)
    return np.asarray(stored[()])
