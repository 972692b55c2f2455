"""Makes the tables of five-hospitals.toml: python examples/five_hospitals.py [FOLDER].

Five invented hospitals of different sizes. Their patients differ in age, and how many
die differs between hospitals for reasons that are in no column (standard deviation 0.6
on the log-odds).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

HOSPITALS = {  # patients, mean age, level
    "avon": (1800, 58, -0.5),
    "brent": (1200, 64, 0.3),
    "calder": (600, 70, 0.9),
    "dart": (300, 61, -0.6),
    "esk": (150, 67, 0.2),
}


def patients(name: str) -> list[tuple[float, str, float, int]]:
    """Age, sex, lactate and death of each patient of a hospital."""
    count, middle, level = HOSPITALS[name]
    rng = np.random.default_rng(sorted(HOSPITALS).index(name))
    age = np.clip(rng.normal(middle, 12, count), 18, 100).round(1)
    male = rng.random(count) < 0.55
    lactate = np.clip(np.exp(rng.normal(0.5, 0.5, count)), 0.2, 20).round(2)
    eta = -1.6 + level + 0.04 * (age - 62) + 0.3 * male + 0.8 * np.log(lactate / 1.6)
    death = rng.random(count) < 1.0 / (1.0 + np.exp(-eta))
    sex = np.where(male, "M", "F").tolist()
    return list(
        zip(
            age.tolist(), sex, lactate.tolist(), death.astype(int).tolist(), strict=True
        )
    )


def main() -> None:
    """Write one CSV file a hospital."""
    here = Path(__file__).parent / "data"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    folder.mkdir(parents=True, exist_ok=True)
    for name in HOSPITALS:
        path = folder / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "sex", "lactate", "death"])
            writer.writerows(patients(name))


if __name__ == "__main__":
    main()
