"""How long the noise-aware posterior takes, with a study's full effort.

    python research/benchmarks/posterior_time.py [D ...]

simulates, for each model and each number D of parameters (10 and 40 by default), a
study of 8,000 records at ε = 1. It prints the seconds of its rounds, all records in one
place and unencrypted, and the seconds of its posterior.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from cipherbayes.inference.noise_aware import sample_posterior
from cipherbayes.validation.simulation import MODELS, release_rounds, simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dimensions", nargs="*", type=int, default=[10, 40])
    for dimension in parser.parse_args().dimensions:
        for kind in MODELS:
            rng = np.random.default_rng(dimension)
            scale = min(1.0, (10.0 / dimension) ** 0.5)
            study = simulate(kind, 8_000, dimension, rng, prior_scale=scale)
            start = time.perf_counter()
            finished = release_rounds(study, 1.0, rng)
            between = time.perf_counter()
            sample_posterior(*finished, seed=1)
            end = time.perf_counter()
            print(
                f"{kind}, {dimension} parameters: rounds {between - start:.1f} s, "
                f"posterior {end - between:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
