"""The checks of posterior.nc: every variable of every group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from cipherbayes.inference.chains import Draws
from cipherbayes.results.result import Result
from cipherbayes.storage.posterior_file import read_posterior
from cipherbayes.storage.posterior_form import ForeignFileError
from cipherbayes.study.schema import Study
from cipherbayes.typing import Floats, JsonObject
from cipherbayes.validation.verify.comparing import ROUNDED, alike
from cipherbayes.validation.verify.findings import Findings
from cipherbayes.validation.verify.sampled_draws import (
    OTHER_BITS,
    TOO_FEW,
    combinations_differ,
    correlations_differ,
    draws_differ,
    mixing_differs,
    only_moved,
)

if TYPE_CHECKING:
    import xarray as xr

Likeness = Literal["same", "rounded", "sampled"]
"""How alike draws are: bit for bit, but for rounding, or of one posterior."""

IN_UNITS = 1e-9
"""Relative difference of draws in the user's units, made of the same prepared ones."""


@dataclass(frozen=True)
class FileDraws:
    """What a posterior.nc holds that follows from the totals.

    Attributes
    ----------
    draws
        Those of the file: what result.json says is made of them.
    result
        What such draws imply.
    """

    draws: Draws
    result: Result
    likeness: Likeness


def check_draws(
    findings: Findings,
    path: Path,
    said: JsonObject,
    study: Study,
    ours: Draws,
    *,
    implied_by: Callable[[Draws], Result],
    exact: bool,
) -> FileDraws | None:
    """Compare posterior.nc with the draws that the totals give.

    On the prepared scale each variable is compared with what is computed here; all that
    the file holds besides must be what a run makes of these.

    Parameters
    ----------
    said
        ``result.json``, which names the file's hash and the release that wrote it.
    implied_by
        The result that draws imply.
    exact
        Whether draws that are not the same bit for bit are others.

    Returns
    -------
    FileDraws or None
        None where there are no such draws.
    """
    try:
        tree, theirs = _opened(path, said.get("posterior_sha256"), ours)
    except OSError:
        findings.fails("posterior", "posterior.nc is missing, or cannot be opened")
        return None
    except ForeignFileError as error:
        findings.fails("posterior", str(error))
        return None
    found, likeness, how = _compared(theirs, ours, study)
    if found is None and exact and likeness != "same":
        found = f"the draws are not the same bit for bit ({how})"
    unsure = found is not None and found.endswith(TOO_FEW) and not exact
    if found is not None:
        findings.fails("posterior", found, open=unsure)
        if not unsure:
            return None
    result = implied_by(theirs)
    differs = _tree_differs(tree, result.posterior, said.get("cipherbayes"))
    if differs is not None or not unsure:
        findings.judge(
            "posterior",
            differs,
            f"the draws in posterior.nc ({', '.join(_names(ours))}) follow from the "
            f"totals, {how}",
        )
    return FileDraws(theirs, result, "sampled" if unsure else likeness)


def _opened(path: Path, digest: object, ours: Draws) -> tuple[xr.DataTree, Draws]:
    """The file, and its draws on the prepared scale."""
    if not isinstance(digest, str):
        raise ForeignFileError("result.json names no hash of posterior.nc")
    tree = read_posterior(path, digest)
    prepared, sizes = tree["prepared"].to_dataset(), tree["sample_stats"]["step_size"]
    if missing := [name for name in _names(ours) if name not in prepared]:
        raise ForeignFileError(f"posterior.nc lacks prepared/{missing[0]}")
    found = {name: np.asarray(prepared[name]) for name in _names(ours)}
    theirs = replace(ours, theta=found["theta"], step_size=np.asarray(sizes))
    if ours.sites is not None:
        between = found.get("between", ours.sites.between)
        sites = replace(ours.sites, effects=found["site_effect"], between=between)
        theirs = replace(theirs, sites=sites)
    return tree, theirs


def _names(draws: Draws) -> list[str]:
    return [name for name, _ in _variables(draws)]


def _variables(draws: Draws) -> Iterator[tuple[str, Floats]]:
    """What a sampler drew, by its name in the file."""
    yield "theta", draws.theta
    if draws.sites is not None:
        yield "site_effect", draws.sites.effects
        if draws.sites.groups:
            yield "between", draws.sites.between


def _compared(
    theirs: Draws, ours: Draws, study: Study
) -> tuple[str | None, Likeness, str]:
    """What differs or None, how alike all draws are, and that in words."""
    sampled = study.inference_method.samples_at_the_end
    tail = (1.0 - study.inference.interval) / 2.0
    likeness: Likeness = "same"
    pairs: list[tuple[Floats, Floats]] = []
    for (name, one), (_, other) in zip(
        _variables(theirs), _variables(ours), strict=True
    ):
        if one.shape != other.shape:
            return f"{name}: other draws than the totals give", likeness, ""
        pair = _columns(one), _columns(other)
        found, same, _ = draws_differ(*pair, sampled=sampled, tail=tail)
        if found is not None:
            return f"{name}: {found}", likeness, ""
        if not same and likeness != "sampled":
            likeness = "rounded" if alike(*pair) else "sampled"
        pairs.append(pair)
    sizes = theirs.step_size, ours.step_size
    if sizes[0].shape != sizes[1].shape or not alike(*sizes):
        return "step_size: not that of the study and the totals", likeness, ""
    if likeness == "same" and not np.array_equal(*sizes, equal_nan=True):
        likeness = "rounded"
    if likeness != "sampled":
        return None, likeness, "bit for bit" if likeness == "same" else ROUNDED
    said, implied = (np.concatenate(all_, axis=-1) for all_ in zip(*pairs, strict=True))
    words = draws_differ(said, implied, sampled=sampled, tail=tail)[2]
    if only_moved(said, implied):
        found = "the draws are those that the totals give, in another order"
        return found, likeness, ""
    found, together = combinations_differ(said, implied)
    found = found or correlations_differ(said, implied)
    found = found or mixing_differs(said, implied)
    return found, likeness, f"{words}; {together}; {OTHER_BITS}"


def _columns(draws: Floats) -> Floats:
    """Shape ``(chains, draws, d)``, whatever a draw's own shape is."""
    return draws.reshape(*draws.shape[:2], -1)


# -- everything else in the file -------------------------------------------


def _tree_differs(
    said: xr.DataTree, implied: xr.DataTree, release: object
) -> str | None:
    """Where a file holds something else than a run writes for these draws."""
    groups = sorted({*said.children, *implied.children})
    for group in groups:
        if group not in said.children or group not in implied.children:
            return f"the group {group} {_has(group not in said.children)}"
        one, other = said[group].to_dataset(), implied[group].to_dataset()
        # The release is the one that result.json names, whichever that is.
        if one.attrs != {**other.attrs, "version": release}:
            return f"the attributes of {group} are others"
        names = sorted({*map(str, one.variables), *map(str, other.variables)})
        for name in names:
            if name not in one.variables or name not in other.variables:
                return f"{group}/{name} {_has(name not in one.variables)}"
            if not _same_variable(one.variables[name], other.variables[name]):
                return _words(group, name)
    return None


def _has(missing: bool) -> str:
    return "is missing" if missing else "does not belong there"


def _words(group: str, name: str) -> str:
    if name == "parameter":
        return f"the draws' parameters in {group} have other names"
    if group == "posterior" and name == "theta":
        return "the draws on your units are not those prepared"
    return f"{group}/{name} is not what these draws imply"


def _same_variable(one: xr.Variable, other: xr.Variable) -> bool:
    if one.dims != other.dims or one.shape != other.shape:
        return False
    said, implied = np.asarray(one.values), np.asarray(other.values)
    if implied.dtype.kind != "f":
        return bool(np.array_equal(said, implied))
    if said.dtype != implied.dtype:
        return False
    # By the size of each column: a difference of large numbers may be nearly zero.
    size = np.abs(np.nan_to_num(implied)).max(axis=(0, 1), initial=0.0)
    near = IN_UNITS * size
    return bool(np.allclose(said, implied, rtol=IN_UNITS, atol=near, equal_nan=True))
