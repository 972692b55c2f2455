"""PhysioNet/CinC Challenge 2012, set A: deaths in intensive care.

Goldberger et al. (2000), Circulation 101; Silva et al. (2012), Computing in
Cardiology 39. 4,000 stays, one ``set-a/<RecordID>.txt`` each with lines
``Time,Parameter,Value``, and ``Outcomes-a.txt`` with ``In-hospital_death``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv

from cipherbayes.errors import DataError
from cipherbayes.typing import Floats, Integers
from cipherbayes_research.datasets.physionet_archive import OUTCOMES_FILE, read_set

# fmt: off
SERIES = (
    "ALP", "ALT", "AST", "Albumin", "BUN", "Bilirubin", "Cholesterol", "Creatinine",
    "DiasABP", "FiO2", "GCS", "Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP",
    "MechVent", "Mg", "NIDiasABP", "NIMAP", "NISysABP", "Na", "PaCO2", "PaO2",
    "Platelets", "RespRate", "SaO2", "SysABP", "Temp", "TroponinI", "TroponinT",
    "Urine", "WBC", "Weight", "pH",
)
# fmt: on
STATISTICS = ("min", "max", "mean", "first", "last")
STATIC = ("Age", "Gender", "Height", "ICUType")
IDENTIFIER = "RecordID"
OUTCOME = "In-hospital_death"

CONSTANT_SERIES = "MechVent"
"""Only ever recorded as 1, so its five columns say nothing and are left out."""

FEATURES = (
    *(f"{name}_{s}" for name in SERIES if name != CONSTANT_SERIES for s in STATISTICS),
    *STATIC,
)
"""The paper's 184: 37 series of 5 statistics, less the 5 constant, and 4 static."""

_HEADER = b"Time,Parameter,Value"
_PARAMETERS = (*SERIES, *STATIC, IDENTIFIER)
_TIME = re.compile(r"\d\d:[0-5]\d", re.ASCII)
_MISSING = -1.0  # of a static value or a weight


def load_physionet2012(
    source: Path, missing: Literal["mean", "keep"] = "mean"
) -> pa.Table:
    """``RecordID``, the 184 features and ``In-hospital_death``, by ``RecordID``.

    Each series gives its smallest, largest, mean, first and last value
    (``HR_min``, ...). A static value or a weight of -1 means missing.

    Parameters
    ----------
    source
        ``set-a.tar.gz``, ``set-a.zip`` or a folder of the stays' files, with
        ``Outcomes-a.txt`` inside it or beside it.
    missing
        ``"mean"`` fills a missing value with the mean of its column, as the paper
        does; ``"keep"`` leaves it empty, which is what a private study wants:
        the means of private rows are not private.
    """
    if missing not in ("mean", "keep"):
        raise DataError(
            "unknown treatment of missing values",
            where="physionet2012",
            remedy="say 'mean' or 'keep'",
        )
    files, outcomes = read_set(source)
    deaths = _deaths(outcomes)
    if files.keys() != deaths.keys():
        raise DataError(
            f"{len(deaths)} outcomes do not match {len(files)} stays",
            where=f"{source}, {OUTCOMES_FILE}",
            remedy="use the complete set and the outcomes that belong to it",
        )
    stays = sorted(files)
    features = _features(_parse(stays, [files[stay] for stay in stays]), len(stays))
    if missing == "mean":
        _fill_with_means(features, str(source))
    columns = [pa.array(stays, pa.int64())]
    columns += [pa.array(column, from_pandas=True) for column in features.T]
    columns += [pa.array([deaths[stay] for stay in stays], pa.int64())]
    return pa.table(columns, names=[IDENTIFIER, *FEATURES, OUTCOME])


def _deaths(content: bytes) -> dict[int, int]:
    """In-hospital death by stay."""
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(content),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={IDENTIFIER: pa.int64(), OUTCOME: pa.int64()},
                include_columns=[IDENTIFIER, OUTCOME],
                null_values=[],
            ),
        )
        stays, deaths = (table[name].to_pylist() for name in (IDENTIFIER, OUTCOME))
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        stays, deaths = [], []
    if not stays or len(set(stays)) != len(stays) or not set(deaths) <= {0, 1}:
        raise DataError(
            f"needs the columns {IDENTIFIER}, each once, and {OUTCOME}, 0 or 1",
            where=OUTCOMES_FILE,
            remedy="download it again",
        )
    return dict(zip(stays, deaths, strict=True))


@dataclass(frozen=True)
class _Lines:
    """All lines of all stays; ``parameter`` indexes ``_PARAMETERS``."""

    stay: Integers
    parameter: Integers
    minute: Integers
    value: Floats


def _parse(stays: Sequence[int], contents: Sequence[bytes]) -> _Lines:
    bodies = []
    for stay, content in zip(stays, contents, strict=True):
        text = content.replace(b"\r\n", b"\n").rstrip(b"\n")
        header, _, body = text.partition(b"\n")
        if header != _HEADER or not body:
            raise _malformed(stay, 1)
        bodies.append(body)
    lines = _read_lines(bodies)
    if lines is None:
        raise _first_malformed(stays, bodies)
    identifier = lines.parameter == _PARAMETERS.index(IDENTIFIER)
    if not np.array_equal(lines.stay[identifier], np.arange(len(stays))):
        raise DataError(
            f"a stay does not state its {IDENTIFIER} exactly once",
            where="the stays' files",
            remedy="download the set again",
        )
    wrong = np.flatnonzero(lines.value[identifier] != np.array(stays))
    if wrong.size:
        raise DataError(
            f"the {IDENTIFIER} inside is not the one of the file's name",
            where=f"{stays[wrong[0]]}.txt",
            remedy="download the set again",
        )
    return lines


def _read_lines(bodies: Sequence[bytes]) -> _Lines | None:
    """All files in one pass, or None where a line is malformed."""
    text = pa.dictionary(pa.int32(), pa.string())
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(b"\n".join(bodies)),
            pyarrow.csv.ReadOptions(column_names=["time", "parameter", "value"]),
            pyarrow.csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(
                column_types={"time": text, "parameter": text, "value": pa.float64()},
                null_values=[],
            ),
        )
    except pa.ArrowInvalid:
        return None
    times, parameters = (
        table[name].unify_dictionaries().combine_chunks()
        for name in ("time", "parameter")
    )
    names = parameters.dictionary.to_pylist()
    clocks = times.dictionary.to_pylist()
    value = table["value"].to_numpy()
    counts = [body.count(b"\n") + 1 for body in bodies]
    if (
        sum(counts) != value.size
        or not set(names) <= set(_PARAMETERS)
        or not all(_TIME.fullmatch(clock) for clock in clocks)
        or not np.isfinite(value).all()
    ):
        return None
    minutes = [int(clock[:2]) * 60 + int(clock[3:]) for clock in clocks]
    codes = [_PARAMETERS.index(name) for name in names]
    return _Lines(
        stay=np.repeat(np.arange(len(bodies)), counts),
        parameter=np.array(codes)[parameters.indices.to_numpy()],
        minute=np.array(minutes)[times.indices.to_numpy()],
        value=value,
    )


def _first_malformed(stays: Sequence[int], bodies: Sequence[bytes]) -> DataError:
    """The slow way through the files, taken only to name the line."""
    for stay, body in zip(stays, bodies, strict=True):
        for number, line in enumerate(body.split(b"\n"), start=2):
            fields = line.decode(errors="replace").split(",")
            try:
                clock, name, value = fields
                known = name in _PARAMETERS and _TIME.fullmatch(clock) is not None
                sound = known and math.isfinite(float(value))
            except ValueError:
                sound = False
            if not sound:
                return _malformed(stay, number)
    return _malformed(None, None)


def _malformed(stay: int | None, number: int | None) -> DataError:
    return DataError(
        "malformed line",
        where="the stays' files" if stay is None else f"{stay}.txt, line {number}",
        remedy=f"after {_HEADER.decode()} each line is HH:MM, a parameter of the "
        "challenge and a number; download the set again",
    )


def _features(lines: _Lines, stays: int) -> Floats:
    """One row of ``FEATURES`` for each stay, NaN where there is no measurement."""
    weight = lines.parameter == SERIES.index("Weight")
    measured = lines.parameter < len(SERIES)
    measured &= ~(weight & (lines.value == _MISSING))
    series = np.full((stays * len(SERIES), len(STATISTICS)), np.nan)
    group = (lines.stay * len(SERIES) + lines.parameter)[measured]
    # Stable: of two values at one minute the later line counts as the later.
    order = np.lexsort((lines.minute[measured], group))
    group, value = group[order], lines.value[measured][order]
    if value.size:
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        sizes = np.diff(starts, append=value.size)
        series[group[starts]] = np.column_stack(
            [
                np.minimum.reduceat(value, starts),
                np.maximum.reduceat(value, starts),
                np.add.reduceat(value, starts) / sizes,
                value[starts],
                value[starts + sizes - 1],
            ]
        )
    static = np.full((stays, len(STATIC)), np.nan)
    for column, name in enumerate(STATIC):
        lines_of = lines.parameter == _PARAMETERS.index(name)
        stated = lines_of & (lines.value != _MISSING)
        static[lines.stay[stated], column] = lines.value[stated]
    kept = np.array([name != CONSTANT_SERIES for name in SERIES])
    varying = series.reshape(stays, len(SERIES), len(STATISTICS))[:, kept]
    return np.column_stack([varying.reshape(stays, -1), static])


def _fill_with_means(features: Floats, where: str) -> None:
    for name, column in zip(FEATURES, features.T, strict=True):
        empty = np.isnan(column)
        if empty.all():
            raise DataError(
                f"no stay has a value of '{name}', so there is no mean to fill with",
                where=where,
                remedy="use missing = 'keep'",
            )
        column[empty] = column[~empty].mean()
