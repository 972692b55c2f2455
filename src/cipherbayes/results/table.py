"""A small table: rows that print well and become a frame of the user's library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, TypeVar

import narwhals as nw

from cipherbayes.errors import RunError
from cipherbayes.results.record import Curve, CurvePoint

SHOWN = 13
"""Points of a curve that are printed."""

Row = TypeVar("Row", bound=Mapping[str, Any])


class Table(list[Row]):
    """Rows as dictionaries with the same keys, in order.

    It is a list: code that goes through the rows does not notice. In a terminal and in
    a notebook it shows as a table, and :meth:`to_frame` gives a frame.

    Examples
    --------
    >>> Table([{"name": "age", "mean": 0.0412345}, {"name": "sex[M]", "mean": 0.5}])
    name       mean
    age     0.04123
    sex[M]      0.5
    """

    def __init__(self, rows: Iterable[Row] = (), *, title: str = "") -> None:
        super().__init__(rows)
        self.title = title

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self[0]) if self else ()

    def to_frame(self, native: str = "pandas") -> Any:
        """The rows as a frame of a library that you have installed.

        Parameters
        ----------
        native
            ``"pandas"``, ``"polars"``, ``"pyarrow"`` or another that narwhals knows.
        """
        columns = {name: [row[name] for row in self] for name in self.columns}
        try:
            return nw.from_dict(columns, backend=native).to_native()
        except (ModuleNotFoundError, ValueError):
            raise RunError(
                "is no library of frames that can be used here",
                where=f"to_frame('{native}')",
                remedy='install it, or use "pyarrow", which is always here',
            ) from None

    def __repr__(self) -> str:
        if not self:
            return "(no rows)"
        cells = [list(self.columns), *([_text(v) for v in r.values()] for r in self)]
        words = [isinstance(value, str) for value in self[0].values()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if word else cell.rjust(width)
                for cell, width, word in zip(row, widths, words, strict=True)
            ).rstrip()
            for row in cells
        ]
        return "\n".join([self.title, *lines] if self.title else lines)

    def _repr_html_(self) -> str:
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>"
            + "".join(f"<td>{escape(_text(value))}</td>" for value in row.values())
            + "</tr>"
            for row in self
        )
        head = f"<thead><tr>{head}</tr></thead>"
        return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


class CurveTable(Table[CurvePoint]):
    """The points of a curve: values of a number, each with its effect against the
    reference value. A dozen of them are printed; the list and the frame have all.

    Attributes
    ----------
    feature, reference
        Of what it is, and the value that all others are compared with.
    measure
        What an effect is, e.g. ``"hazard ratio"``.
    by, level
        The group that it holds in, where it is one of several.
    """

    def __init__(self, curve: Curve) -> None:
        self.feature, self.measure = curve["feature"], curve["measure"]
        self.reference = curve["reference"]
        self.by, self.level = curve["by"], curve["level"]
        group = "" if self.by is None else f" where {self.by} is {self.level}"
        title = f"{self.measure} of {self.feature} against {self.reference:.4g}{group}"
        points = (point.copy() for point in curve["points"])
        super().__init__(points, title=title)

    def __repr__(self) -> str:
        return repr(self._shown())

    def _repr_html_(self) -> str:
        return self._shown()._repr_html_()

    def _shown(self) -> Table[CurvePoint]:
        step = max((len(self) - 1) // (SHOWN - 1), 1)
        rows = [
            point
            for k, point in enumerate(self)
            if k % step == 0 or point["value"] == self.reference
        ]
        title = self.title
        if len(rows) < len(self):
            title += f" ({len(rows)} of {len(self)} points; to_frame() has all)"
        return Table(rows, title=title)


def _text(value: object) -> str:
    """Four digits of a number; a dash for what there is none of."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
