"""``posterior.nc`` is netCDF-4 as other programs write and read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from cipherbayes.storage.posterior_file import read_posterior, write_posterior


@pytest.fixture(params=[False, True], ids=["sites alike", "sites differ"])
def tree(request: pytest.FixtureRequest) -> xr.DataTree:
    """Names of all lengths and letters, a value that is none, bare dimensions."""
    dims = ("chain", "draw", "parameter")
    theta = np.random.default_rng(1).normal(size=(2, 3, 2))
    theta[0, 0, 0] = np.nan
    coords = {"chain": [0, 1], "draw": [0, 1, 2], "parameter": ["β_age", "sex[M]"]}
    about = {"created_by": "cipherbayes", "version": "0.1.0"}
    fit = xr.Dataset({"theta": (dims, theta)}, coords, about)
    posterior, prepared = fit, fit.copy(deep=True)
    if request.param:
        posterior = fit.assign(of_sites("varying")).assign_coords(
            site=["a", "b"], varying=["intercept"], spread=["τ"]
        )
        prepared = fit.assign(of_sites("place")).assign_coords(site=["a", "b"])
    sizes = {"step_size": (dims[:2], np.full((2, 3), np.nan))}
    counted = {name: coords[name] for name in dims[:2]}
    return xr.DataTree.from_dict(
        {
            "posterior": posterior,
            "prepared": prepared,
            "sample_stats": xr.Dataset(sizes, counted, about),
        }
    )


def of_sites(places: str) -> dict[str, Any]:
    effects = np.random.default_rng(2).normal(size=(2, 3, 2, 1))
    return {
        "site_effect": (("chain", "draw", "site", places), effects),
        "between": (("chain", "draw", "spread"), np.ones((2, 3, 1))),
    }


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
