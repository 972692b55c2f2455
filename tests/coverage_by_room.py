"""Which share of its statements the tests ran, room by room: ``make coverage``."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from coverage import Coverage

PACKAGES = ("cipherbayes", "cipherbayes_research")


def main() -> None:
    """Print a line for each room, and for the whole, of what .coverage holds."""
    measured = Coverage()
    measured.load()
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file in measured.get_data().measured_files():
        _, statements, _, missing, _ = measured.analysis2(file)
        parts = Path(file).parts
        package = max(i for i, part in enumerate(parts) if part in PACKAGES)
        inside = parts[package + 1 : -1]
        room = "/".join([parts[package], *inside[:1]])
        for name in (room, "all"):
            counts[name][0] += len(statements)
            counts[name][1] += len(statements) - len(missing)
    width = max(map(len, counts))
    whole = counts.pop("all")
    print(f"{'room':{width}}  statements  run")
    for name, (all_of_it, run) in [*sorted(counts.items()), ("all", whole)]:
        print(f"{name:{width}}  {all_of_it:10}  {100.0 * run / all_of_it:5.1f} %")


if __name__ == "__main__":
    main()
