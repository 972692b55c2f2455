"""Why private intervals hold what they hold: the same releases, and more known of them.

    python research/benchmarks/known_information.py TABLES/aids.csv ... --rows FILE
        [--studies 40] [--first 0] [--events rare] [--truth prior]

Studies are those of ``spread_coverage.py --exact-scales``, and FILE may be summed up by
it too. Each has three posteriors of one set of releases:

- private, as a study has it;
- known, which is given the information matrix H without its noise;
- ideal, which is given H and the law that effects were simulated from as its prior.

If the likelihood of the scores is right, the ideal posterior holds the truth as often
as it says, whatever the noise. Its draws then stand for truths: the share of them that
the interval of another posterior holds is what that interval covers on average, given
the releases, without the luck of one truth. ``on average`` is that share for the
private interval, ``known`` for that with H known: by how much the second differs from
0.9 is due to the default prior, by how much the first differs from the second is due to
H. ``ideal`` is how often the ideal interval holds the simulated truth, which checks the
likelihood of the scores; beside it stands the posterior without privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cipherbayes.typing import Floats
from cipherbayes.validation.public_columns import Columns
from cipherbayes.validation.trial_records import HALF_RANGE, TRUTHS, Ground
from cipherbayes.validation.trials import to_line
from exact_scales import interval_ends, release_with_exact_scales
from spread_coverage import FACTORS, table_options, written


def study(columns: Columns, ground: Ground, number: int) -> dict[str, Any]:
    """The line of one study."""
    released = release_with_exact_scales(columns, ground, number)
    scale = TRUTHS[ground.truth]
    if ground.kind == "linear":
        scale /= HALF_RANGE
    quiet = released.with_known_information()
    posterior, private = released.posterior(number)
    known = quiet.posterior(number)[1]
    ideal = quiet.under(scale).posterior(number)[1]
    line = to_line(
        (columns, ground, number), released.trial(posterior, private, ground.events)
    )
    records = released.records
    width = records.high - records.low
    line["on_average"] = _held(private, ideal)
    line["known"] = _held(known, ideal)
    line["known_ratio"] = (np.subtract(*interval_ends(known)[::-1]) / width).tolist()
    line["ideal"] = _held(ideal, records.want[None])
    return line


def _held(draws: Floats, others: Floats) -> list[float]:
    """The share of other draws that the 90 % interval of each parameter holds."""
    below, above = interval_ends(draws)
    inside = (below <= others) & (others <= above)
    return [round(float(share), 4) for share in inside.mean(axis=0)]


def tell(rows: Sequence[Mapping[str, Any]]) -> None:
    """What intervals hold, by every level of every factor."""
    groups: dict[str, list[Mapping[str, Any]]] = {"all": list(rows)}
    for factor in ("table", *(name for name in FACTORS if name != "wider")):
        for row in rows:
            groups.setdefault(f"{factor} {row['study'][factor]}", []).append(row)
    for row in rows:
        name = f"{row['study']['events']}, epsilon {row['study']['epsilon']:g}"
        groups.setdefault(name, []).append(row)
    print(f"{'group':20} held, plain, difference, ideal, known, on average, width, n")
    for name, group in groups.items():
        held, plain, ideal, known, average = (
            np.array([np.mean(row[part]) for row in group])
            for part in ("held", "plain", "ideal", "known", "on_average")
        )
        wide = np.median([np.median(row["ratio"]) for row in group])
        less = np.median([np.median(row["known_ratio"]) for row in group])
        print(
            f"{name:20} {_with_error(held)}  {plain.mean():.3f}  "
            f"{_with_error(held - plain)}  {_with_error(ideal)}  {_with_error(known)}  "
            f"{_with_error(average)}  {wide:.2f} ({less:.2f} if H were known)  "
            f"{len(group)}"
        )
    every = np.concatenate([row["on_average"] for row in rows])
    print(f"on average below 0.8: {np.mean(every < 0.8):.3f} of {every.size} intervals")


def _with_error(values: Floats) -> str:
    error = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else np.nan
    return f"{values.mean():.3f} ± {error:.3f}"


def main() -> None:
    parser = table_options(__doc__)
    parser.add_argument("--truth", choices=tuple(TRUTHS), default="clinical")
    given = parser.parse_args()
    tell(written(given, study, given.truth))


if __name__ == "__main__":
    main()
