"""What released histograms say of a public range: too narrow, or all that is known."""

from __future__ import annotations

from cipherbayes.inference.flags import FlagRecord, flag_record
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import preparation_of
from cipherbayes.typing import Floats


def range_flags(study: Study, ends: Floats | None) -> list[FlagRecord]:
    """A flag for every end of a range at which values pile up, and for every column
    of nearly equal values whose scale noise hides.

    Zero as a lower end is taken for what it usually is, the least that can be.

    Parameters
    ----------
    ends
        For each number the shares at its lower and upper end, as
        :func:`cipherbayes.data.range_ends.piles` gives them, and that of equal values,
        as :func:`cipherbayes.data.windows.hidden_scales` does; None where no histogram
        was released.
    """
    if ends is None:
        return []
    found: list[FlagRecord] = []
    prepared = preparation_of(study)
    places = prepared.numbers(bins=1).places
    for name, feature in study.features.items():
        if feature.levels is not None:
            continue
        column, _ = prepared.line(name)
        *shares, equal = ends[places.index(prepared.moved.index(column))]
        names = [prepared.design.names[j] for j in prepared.owners[name]]
        if equal > 0.0:
            text = (
                f"about {100 * equal:.0f} % of the values of '{name}' are equal, and "
                "noise hides how far the others lie: its scale stays that of "
                "its public range. Where that is much wider than the values, the prior "
                "denies the effect, and the interval is too narrow around nothing. Do "
                "not use it: give a range as narrow as the values, declare levels in "
                "[features], raise epsilon or leave the column out"
            )
            found.append(
                flag_record("scale-hidden", text, unusable=True, parameters=names)
            )
        for side, share in enumerate(shares):
            value = feature.ends[side]
            if share == 0.0 or (side == 0 and value == 0.0):
                continue
            which, further = ("upper", "above") if side else ("lower", "below")
            text = (
                f"many values of '{name}' are at the {which} end of its public range: "
                f"about {100 * share:.0f} % of them in its last part (a 32nd or less), "
                f"which ends at {value:g}, or {further} that, where all count as "
                f"{value:g}. If patients have values {further} {value:g}, widen the "
                "range in [features] and run again, which spends anew; if none can, or "
                "values only lie close together there, this is as it should be"
            )
            found.append(
                flag_record("range-end", text, unusable=False, parameters=names)
            )
    return found
