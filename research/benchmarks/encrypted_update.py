"""The encrypted update beside secure-sum pSGLD: test AUC on the same splits.

    python research/benchmarks/encrypted_update.py ARCHIVE [--splits N]

runs PhysioNet 2012 (ARCHIVE is its set-a.tar.gz; last values and static variables) over
five sites at a certified ε = 1: ten encrypted rounds on the hardened circuit, and pSGLD
on secure sums, both with the default settings.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import cipherbayes as cb
from cipherbayes.study.schema import Study
from cipherbayes_research.datasets.physionet2012 import load_physionet2012

ROOT = Path(__file__).resolve().parents[2]
SITES = 5
VARIANTS: dict[str, dict[str, Any]] = {
    "encrypted-update": {"study": {"protocol": "encrypted-update"}, "inference": {}},
    "secure-sum": {
        "study": {"protocol": "secure-sum"},
        "inference": {"method": "psgld"},
    },
}


def compare(archive: Path, splits: int) -> dict[str, list[float]]:
    """AUC of each variant on each split."""
    document = Study.load(ROOT / "examples" / "physionet.toml").document()
    frame = load_physionet2012(archive, missing="keep").to_pandas()
    order = np.random.default_rng(0).permutation(len(frame))
    tables = {
        f"site-{k}": frame.iloc[rows]
        for k, rows in enumerate(np.array_split(order, SITES))
    }
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for seed in range(splits):
        for name, changes in VARIANTS.items():
            study = Study.model_validate(
                document
                | changes
                | {
                    "privacy": {"epsilon": 1.0, "records": len(frame)},
                    "evaluation": {
                        "holdout": 0.2,
                        "seed": seed,
                        "holdout_is_public": True,
                    },
                    "sites": {},
                }
            )
            found[name].append(cb.run(study, tables).metrics["auc"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path)
    parser.add_argument("--splits", type=int, default=5)
    given = parser.parse_args()
    found = compare(given.archive, given.splits)
    for name, values in found.items():
        print(f"{name}: mean AUC {np.mean(values):.4f} over {given.splits} splits")
    differences = np.subtract(found["encrypted-update"], found["secure-sum"])
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    print(f"encrypted-update - secure-sum: {differences.mean():+.4f} ± {error:.4f}")


if __name__ == "__main__":
    main()
