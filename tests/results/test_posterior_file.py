"""``posterior.nc`` is netCDF-4 as other programs write and read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from cipherbayes.results.posterior_file import read_posterior, write_posterior


@pytest.fixture
def tree() -> xr.DataTree:
    """Names of all lengths and letters, a value that is none, a bare dimension."""
    dims = ("chain", "draw", "parameter")
    theta = np.random.default_rng(1).normal(size=(2, 3, 2))
    theta[0, 0, 0] = np.nan
    coords = {"chain": [0, 1], "draw": [0, 1, 2], "parameter": ["β_age", "sex[M]"]}
    effects = {"site_effect": (("chain", "site", "place"), theta)}
    about = {"created_by": "cipherbayes", "version": "1"}
    return xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"theta": (dims, theta)}, coords, about),
            "prepared": xr.Dataset(effects, {"chain": [0, 1]}, about),
        }
    )


def test_xarray_reads_what_was_written(tree: xr.DataTree, tmp_path: Path) -> None:
    write_posterior(tmp_path / "posterior.nc", tree)
    with xr.open_datatree(tmp_path / "posterior.nc", engine="h5netcdf") as other:
        assert other.load().identical(tree)


def test_what_xarray_wrote_is_read(tree: xr.DataTree, tmp_path: Path) -> None:
    """As releases up to 0.1 did."""
    tree.to_netcdf(tmp_path / "posterior.nc", engine="h5netcdf")
    assert read_posterior(tmp_path / "posterior.nc").identical(tree)


def test_what_was_written_is_read(tree: xr.DataTree, tmp_path: Path) -> None:
    write_posterior(tmp_path / "posterior.nc", tree)
    assert read_posterior(tmp_path / "posterior.nc").identical(tree)
