"""Does a report say how much wider privacy made an interval?

    python research/benchmarks/told_costs.py TABLES/aids.csv ... --rows FILE
        [--studies 40] [--first 0] [--events rare]

Studies are those of ``spread_coverage.py --exact-scales``. From what a study released a
report tells how wide a fit of its rows would be, without noise and without bounds on
any record. Here that fit is made too. A line holds, for each parameter, the private
interval's width over that of the fit (``ratio``) and over what is told (``told``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cipherbayes.inference.noise_aware.without_privacy import sd_of
from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.trial_records import Ground
from cipherbayes.validation.trials import to_line
from exact_scales import release_with_exact_scales
from spread_coverage import table_options, written


def study(columns: Columns, ground: Ground, number: int) -> dict[str, Any]:
    """The line of one study."""
    released = release_with_exact_scales(columns, ground, number)
    posterior, private = released.posterior(number)
    trial = released.trial(posterior, private, ground.events)
    free = np.array(sd_of(released.recursion, released.state, ground.rows))
    theta = posterior.draws.theta
    found = theta.reshape(-1, theta.shape[-1]).std(axis=0, ddof=1) / free
    line = to_line((columns, ground, number), trial)
    line["told"] = np.round(found, 4).tolist()
    return line


def tell(rows: Sequence[Mapping[str, Any]]) -> None:
    """How near what is told comes, by every level of some factors."""
    groups: dict[str, list[Mapping[str, Any]]] = {"all": list(rows)}
    for factor in ("kind", "epsilon", "events", "rows", "table"):
        for row in rows:
            groups.setdefault(f"{factor} {row['study'][factor]}", []).append(row)
    print(f"{'group':20} told, is (medians), told / is (median), within 1.1, 1.3, n")
    for name, group in groups.items():
        told, true = (
            np.array([np.median(row[part]) for row in group])
            for part in ("told", "ratio")
        )
        off = np.log(told / true)
        print(
            f"{name:20} {np.median(told):.2f} {np.median(true):.2f} "
            f"{np.exp(np.median(off)):.2f} "
            f"{np.sum(np.abs(off) < np.log(1.1))} {np.sum(np.abs(off) < np.log(1.3))} "
            f"{len(group)}"
        )
    told = np.concatenate([row["told"] for row in rows])
    off = np.abs(np.log(told / np.concatenate([row["ratio"] for row in rows])))
    near, twice = np.mean(off < np.log(1.3)), np.mean(off < np.log(2.0))
    print(f"of {told.size} intervals {near:.2f} within 1.3, {twice:.2f} within 2")


def main() -> None:
    given = table_options(__doc__).parse_args()
    tell(written(given, study))


if __name__ == "__main__":
    main()
