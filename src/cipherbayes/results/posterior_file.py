"""``posterior.nc``: draws as a netCDF-4 file, which xarray, ArviZ and R open.

Such a file is HDF5 with dimension scales: one dataset for each variable, and each
dimension is the dataset that others name as their scale. Written and read here with
h5py alone: of a small file the general libraries take four to ten times as long.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # seldom needed, and slow to import
    import h5py
    import xarray as xr

PLACE = "_Netcdf4Dimid"
"""Attribute with the number of a dimension."""
WITHOUT_VALUES = "This is a netCDF dimension but not a netCDF variable."
"""How the format names a scale that is a length and nothing else."""


def write_posterior(path: Path, posterior: xr.DataTree) -> None:
    """Write a tree of groups that hold no groups.

    Kept are variables, the coordinates of dimensions, and the groups' attributes.
    """
    import h5py

    with h5py.File(path, "w") as file:
        for name, node in posterior.children.items():
            _write_group(file.create_group(name), node.to_dataset())


def read_posterior(path: Path) -> xr.DataTree:
    """The groups of a file.

    Raises
    ------
    OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError
        Where it is no such file: HDF5 and xarray fail in their own ways.
    """
    import h5py
    import xarray as xr

    with h5py.File(path) as file:
        groups = {name: _read_group(group) for name, group in file.items()}
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
    return group.create_dataset(name, data=values)


def _read_group(group: h5py.Group) -> xr.Dataset:
    import xarray as xr

    variables: dict[str, tuple[tuple[str, ...], np.ndarray[Any, Any]]] = {}
    dimensions = set()
    for name, stored in group.items():
        if not stored.is_scale:
            dims = tuple(_last(axis[0].name) for axis in stored.dims)
        elif str(_text(stored.attrs.get("NAME", ""))).startswith(WITHOUT_VALUES):
            continue
        else:
            dims = (name,)
            dimensions.add(name)
        variables[name] = (dims, _values(stored))
    attributes = {name: _text(value) for name, value in group.attrs.items()}
    return xr.Dataset(variables, attrs=attributes).set_coords(sorted(dimensions))


def _last(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _values(stored: h5py.Dataset) -> np.ndarray[Any, Any]:
    if stored.dtype.kind == "O":
        return np.asarray(stored.asstr()[()]).astype(str)
    return np.asarray(stored[()])


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
