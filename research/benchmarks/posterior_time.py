"""How long the noise-aware posterior takes, with a study's full effort.

    python research/benchmarks/posterior_time.py [D ...] [--numpy]

simulates, for each model and each number D of parameters (10 and 40 by default), a
study of 8,000 records at ε = 1. It prints the seconds of its rounds, all records in one
place and unencrypted, the seconds of its posterior (by the clock, and of all cores
together), and the smallest bulk ESS of its parameters; with ``--numpy`` also those of
the posterior without the compiled loops.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from threadpoolctl import threadpool_limits

from cipherbayes.inference.diagnostics import rhat_and_ess
from cipherbayes.inference.noise_aware import compiled, sample_posterior
from cipherbayes.inference.noise_aware.recursion import NoiseAware, NoiseAwareState
from cipherbayes.validation.calibration import MODELS
from cipherbayes.validation.simulation import release_rounds, simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dimensions", nargs="*", type=int, default=[10, 40])
    parser.add_argument("--numpy", action="store_true", help="also without C")
    options = parser.parse_args()
    ways = {"compiled": True} if compiled.COMPILED else {}
    if options.numpy or not ways:
        ways["numpy"] = False
    for dimension in options.dimensions:
        for kind in MODELS:
            rng = np.random.default_rng(dimension)
            scale = min(1.0, (10.0 / dimension) ** 0.5)
            study = simulate(kind, 8_000, dimension, rng, prior_scale=scale)
            start = time.perf_counter()
            finished = release_rounds(study, 1.0, rng)
            seconds = time.perf_counter() - start
            print(f"{kind}, {dimension} parameters: rounds {seconds:.1f} s", flush=True)
            for name, compiled.COMPILED in ways.items():
                print(f"  {name}: {measured(finished)}", flush=True)


def measured(finished: tuple[NoiseAware, NoiseAwareState]) -> str:
    start, work = time.perf_counter(), time.process_time()
    with threadpool_limits(1, "blas"):  # as in a run
        draws = sample_posterior(*finished, seed=1).draws.theta
    seconds, work = time.perf_counter() - start, time.process_time() - work
    rhat, ess = rhat_and_ess(draws)
    return (
        f"posterior {seconds:.1f} s, {work:.1f} s of all cores together, "
        f"least ESS {ess.min():.0f} of {draws.shape[0] * draws.shape[1]} draws, "
        f"largest R-hat {rhat.max():.3f}"
    )


if __name__ == "__main__":
    main()
