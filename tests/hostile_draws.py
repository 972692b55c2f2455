"""Files of draws that say other things to other readers, or claim more than they hold.

Each function changes an honest ``posterior.nc`` that is open for writing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Change = Callable[[h5py.File], None]


def _attribute(place: str, name: str, value: Any) -> Change:
    def change(file: h5py.File) -> None:
        (file if place == "/" else file[place]).attrs[name] = value

    return change


def _instead(**given: Any) -> Change:
    """θ stored in another way, with the same numbers and the same dimensions."""

    def change(file: h5py.File) -> None:
        options = dict(given)
        place = options.pop("place", "prepared/theta")
        old = file[place]
        values = old[()].astype(options.pop("dtype", "<f8"))
        scales = [axis[0] for axis in old.dims]
        for axis, scale in zip(old.dims, scales, strict=True):
            axis.detach_scale(scale)
        del file[place]
        if options.pop("external", False):
            elsewhere = Path(file.filename).with_suffix(".bin")
            values.tofile(elsewhere)
            options["external"] = [(str(elsewhere), 0, values.nbytes)]
            new = file.create_dataset(
                place, shape=values.shape, dtype=values.dtype, **options
            )
        elif options.pop("virtual", False):
            layout = h5py.VirtualLayout(values.shape, dtype=values.dtype)
            elsewhere = Path(file.filename).with_suffix(".h5")
            with h5py.File(elsewhere, "w") as other:
                other["theta"] = values
            source = h5py.VirtualSource(str(elsewhere), "theta", values.shape)
            layout[...] = source
            new = file.create_virtual_dataset(place, layout)
        elif options.pop("unwritten", False):
            new = file.create_dataset(
                place, shape=values.shape, dtype=values.dtype, **options
            )
        else:
            new = file.create_dataset(place, data=values, **options)
        for axis, scale in zip(new.dims, scales, strict=True):
            axis.attach_scale(scale)

    return change


def _committed(file: h5py.File) -> None:
    file["kind"] = np.dtype("<f8")
    _instead(dtype=file["kind"].dtype)(file)


def _soft_link(file: h5py.File) -> None:
    file.move("prepared", "other")
    file["prepared"] = h5py.SoftLink("/other")


def _hard_link(file: h5py.File) -> None:
    del file["prepared"]
    file["prepared"] = file["posterior"]


def _external_link(file: h5py.File) -> None:
    elsewhere = Path(file.filename).with_suffix(".h5")
    with h5py.File(elsewhere, "w") as other:
        file.copy("prepared", other)
    del file["prepared"]
    file["prepared"] = h5py.ExternalLink(str(elsewhere), "/prepared")


def _other_dimension(file: h5py.File) -> None:
    """Chains and draws change places, for whoever goes by the dimensions' names."""
    theta = file["prepared/theta"]
    chain, draw = theta.dims[0][0], theta.dims[1][0]
    theta.dims[0].detach_scale(chain)
    theta.dims[0].attach_scale(draw)


def _other_numbers(file: h5py.File) -> None:
    draw = file["prepared/draw"]
    draw[...] = draw[()] + 1


def _more(shape: tuple[int, ...], **given: Any) -> Change:
    def change(file: h5py.File) -> None:
        extra = file["posterior"].create_dataset("extra", shape=shape, **given)
        extra.make_scale("extra")

    return change


def _claims(file: h5py.File) -> None:
    """Five thousand billion draws, of which not one is there."""
    del file["sample_stats/draw"]
    large = (5_000_000_000_000,)
    scale = file.create_dataset("sample_stats/draw", shape=large, dtype="<i8")
    scale.make_scale("draw")


def _zeros(file: h5py.File) -> None:
    """Three gigabytes of zeros in a few kilobytes."""
    del file["sample_stats/draw"]
    scale = file.create_dataset(
        "sample_stats/draw", shape=(400_000_000,), dtype="<i8", chunks=(1_000_000,),
        compression="gzip",
    )  # fmt: skip
    scale.make_scale("draw")


def _one_long_name(file: h5py.File) -> None:
    names = file["prepared/parameter"]
    names[0] = "a" * 100_000


HOSTILE: dict[str, Change] = {
    "scale_factor": _attribute("prepared/theta", "scale_factor", np.float64(-3.0)),
    "add_offset": _attribute("posterior/theta", "add_offset", np.float64(1.0)),
    "units": _attribute("posterior/theta", "units", "days since 1970-01-01"),
    "long_name": _attribute("posterior/theta", "long_name", "log odds, audited"),
    "fill value": _attribute("posterior/theta", "_FillValue", np.array([1.0])),
    "scaled dimension": _attribute("posterior/chain", "scale_factor", 2.0),
    "root attribute": _attribute("/", "inference_note", "audited by the CSP"),
    "properties": _attribute("/", "_NCProperties", np.bytes_(b"audited by the CSP")),
    "group attribute": _attribute("posterior", "audited_by", "the CSP"),
    "version": _attribute("posterior", "version", "0.audited.by.the.CSP"),
    "author": _attribute("posterior", "created_by", "the CSP"),
    "step attribute": _attribute("sample_stats/step_size", "missing_value", 0.0),
    "dimension's number": _attribute("posterior/draw", "_Netcdf4Dimid", np.int32(0)),
    "coordinates": _attribute(
        "posterior/theta", "_Netcdf4Coordinates", np.array([1, 0, 2], dtype="<i4")
    ),
    "dimension's name": _attribute("posterior/draw", "NAME", np.bytes_(b"chain")),
    "external storage": _instead(external=True),
    "virtual": _instead(virtual=True),
    "compressed": _instead(chunks=True, compression="gzip"),
    "shuffled bytes": _instead(chunks=True, shuffle=True),
    "checksummed": _instead(chunks=True, fletcher32=True),
    "chunked": _instead(chunks=True),
    "growing": _instead(maxshape=(None, None, None)),
    "never written": _instead(unwritten=True),
    "filled with twos": _instead(unwritten=True, fillvalue=2.0),
    "less precise": _instead(dtype="<f4"),
    "another order of bytes": _instead(dtype=">f8"),
    "committed type": _committed,
    "soft link": _soft_link,
    "hard link": _hard_link,
    "external link": _external_link,
    "other dimensions": _other_dimension,
    "numbered otherwise": _other_numbers,
    "more values": _more((3,), dtype="<f8"),
    "compound": _more((3,), dtype=np.dtype([("a", "<f8")])),
    "five thousand billion": _claims,
    "compressed zeros": _zeros,
    "one long name": _one_long_name,
}
