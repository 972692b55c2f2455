"""Draws in ArviZ's layout, as ``posterior.nc`` holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cipherbayes.inference.between_sites import SiteDraws
from cipherbayes.inference.chains import Draws
from cipherbayes.results.hierarchy import SitesInUnits, prepared_variables, variables
from cipherbayes.typing import Floats
from cipherbayes.version import __version__

if TYPE_CHECKING:
    import xarray as xr


def datatree(names: tuple[str, ...], user: Floats, draws: Draws) -> xr.DataTree:
    """Draws in ArviZ's layout: dimensions chain, draw and parameter."""
    import xarray as xr

    chains, count, _ = user.shape
    coords = {
        "chain": np.arange(chains),
        "draw": np.arange(count),
        "parameter": list(names),
    }
    dims = ("chain", "draw", "parameter")
    attributes = {"created_by": "cipherbayes", "version": __version__}
    groups = {
        "posterior": xr.Dataset({"theta": (dims, user)}, coords, attributes),
        "prepared": xr.Dataset({"theta": (dims, draws.theta)}, coords, attributes),
        "sample_stats": xr.Dataset(
            {"step_size": (dims[:2], draws.step_size)},
            {key: coords[key] for key in dims[:2]},
            attributes,
        ),
    }
    return xr.DataTree.from_dict(groups)


def with_site_variables(
    tree: xr.DataTree, sites: SiteDraws, units: SitesInUnits
) -> xr.DataTree:
    """The posterior with what differs between sites."""
    import xarray as xr

    groups = {name: node.to_dataset() for name, node in tree.children.items()}
    found, coords = variables(units)
    groups["posterior"] = groups["posterior"].assign(found).assign_coords(coords)
    prepared = groups["prepared"].assign(prepared_variables(sites))
    groups["prepared"] = prepared.assign_coords(site=list(sites.sites))
    return xr.DataTree.from_dict(groups)
