"""FLchain: free light chains and survival in Olmsted County.

Dispenzieri et al. (2012), Mayo Clinic Proceedings 87; distributed with R's
``survival`` package and with scikit-survival. 7,874 subjects, 2,169 deaths.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from cipherbayes.errors import DataError

FEATURES = ("age", "sex", "kappa", "lambda", "flc.grp", "creatinine", "mgus")
"""The paper's seven. ``sample.yr`` is left out as in the paper; ``chapter`` is the
cause of death, an outcome that must never be a feature."""

HALF_A_DAY = 0.5
"""Follow-up of the three subjects who died on the day of their blood sample: the
table counts whole days and says 0, survival models need a positive time."""

_SCHEMA = pa.schema(
    [
        ("age", pa.float64()),
        ("sex", pa.string()),
        ("kappa", pa.float64()),
        ("lambda", pa.float64()),
        ("flc.grp", pa.int64()),
        ("creatinine", pa.float64()),
        ("mgus", pa.int64()),
        ("futime", pa.float64()),
        ("death", pa.int64()),
    ]
)
_LEVELS: dict[str, tuple[object, object]] = {
    "sex": ("F", "M"),
    "mgus": (0, 1),
    "death": (0, 1),
}


def load_flchain(source: Path | None = None) -> pa.Table:
    """The seven features, ``futime`` in days and ``death`` (0 or 1).

    ``sex`` is F or M, ``flc.grp`` 1 to 10, ``mgus`` 0 or 1; ``creatinine`` is
    missing for 1,350 subjects and left empty; a ``futime`` of 0 becomes half a
    day.

    Parameters
    ----------
    source
        A CSV of R's ``survival::flchain`` as ``write.csv`` writes it; the copy
        that comes with scikit-survival where None.
    """
    table = _bundled() if source is None else _exported(source)
    where = "flchain" if source is None else str(source)
    for name in _SCHEMA.names:
        problem = _problem(name, table[name])
        if problem:
            raise DataError(
                problem,
                where=f"{where}, column '{name}'",
                remedy="export the table again from R's survival package",
            )
    days = pc.if_else(pc.equal(table["futime"], 0.0), HALF_A_DAY, table["futime"])
    return table.set_column(table.schema.get_field_index("futime"), "futime", days)


def _problem(name: str, column: pa.ChunkedArray) -> str:
    """What is wrong with a column, without a value of it; empty where nothing."""
    if not len(column):
        return "the table has no rows"
    if column.null_count and name != "creatinine":
        return "missing values, of which the original has none"
    if column.type == pa.float64() and not _all(pc.is_finite(column)):
        return "infinite or undefined values"
    if name == "futime" and not _all(pc.greater_equal(column, 0.0)):
        return "negative follow-up times"
    levels = _LEVELS.get(name)
    if levels is not None and not _all(pc.is_in(column, pa.array(levels))):
        return f"values other than {levels[0]} and {levels[1]}"
    return ""


def _all(truths: pa.ChunkedArray) -> bool:
    return bool(pc.all(truths, min_count=0).as_py())


def _bundled() -> pa.Table:
    try:
        from sksurv.datasets import load_flchain as sksurv_flchain
    except ImportError:
        raise DataError(
            "the FLchain table comes with scikit-survival, which is not installed",
            where="flchain",
            remedy="pip install 'cipherbayes-research[examples]', or give a CSV of R's "
            "survival::flchain",
        ) from None
    frame, outcome = sksurv_flchain()
    columns = {name: frame[name].to_numpy() for name in FEATURES}
    columns["mgus"] = (columns["mgus"] == "yes").astype(int)
    columns["flc.grp"] = columns["flc.grp"].astype(int)
    columns["futime"] = outcome["futime"]
    columns["death"] = outcome["death"].astype(int)
    return pa.table(
        {
            field.name: pa.array(columns[field.name], field.type, from_pandas=True)
            for field in _SCHEMA
        }
    )


def _exported(source: Path) -> pa.Table:
    try:
        return pyarrow.csv.read_csv(
            source,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=_SCHEMA,
                include_columns=_SCHEMA.names,
                null_values=["NA", ""],
                strings_can_be_null=True,
            ),
        )
    except OSError as error:
        raise DataError(
            f"cannot read the file ({error.strerror or 'input/output error'})",
            where=str(source),
            remedy="give a CSV of R's survival::flchain",
        ) from None
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        raise DataError(
            "not a CSV of R's survival::flchain",
            where=str(source),
            remedy=f"it must have the columns {', '.join(_SCHEMA.names)}, with "
            "numbers in all but sex",
        ) from None
