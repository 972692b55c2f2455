"""Speed of one pass of the clipped logistic gradient, as ratios of one run.

Three comparisons, each with its baseline measured in the same run, in turn:

- over a table that is not held in memory, against the fastest way pyarrow has of merely
  scanning the same columns (all of them are tried, whatever memory they take);
- over a table in memory, against numpy reading the same floats once, ``x.sum()``;
- against automatic differentiation record by record: autograd, jitted jax, and, for
  honesty, jax vectorised over the records, which is not record by record.

    python research/benchmarks/gradient_pass.py [--rows N] [--file FILE] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cipherbayes.data.blocks import thread_count
from cipherbayes.data.preparation import Feature, Preparation
from cipherbayes.data.prepared import PreparedTable
from cipherbayes.data.tables import open_table
from cipherbayes.inference.gradient import gradient_sum
from cipherbayes.models import Design, Logistic, kernels
from cipherbayes_research.benchmarks.scans import (
    ROW_GROUP,
    SCANS,
    alone,
    scan,
    seconds_of,
    timed,
)

FEATURES = 20
CLIP = 1.0
MODEL = Logistic(outcome="y")
NAMES = [f"x{j}" for j in range(FEATURES)]
COLUMNS = [*NAMES, "y"]


def write_table(path: Path, rows: int) -> None:
    """A table as pyarrow writes it when it is asked for nothing special."""
    rng = np.random.default_rng(0)
    schema = pa.schema([(name, pa.float64()) for name in COLUMNS])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, ROW_GROUP):
            size = min(ROW_GROUP, rows - start)
            columns = [rng.normal(size=size) for _ in NAMES]
            columns.append((rng.random(size) < 0.3).astype(float))
            writer.write_table(pa.table(columns, schema=schema))


def streamed(path: Path) -> dict[str, float]:
    """The clipped gradient over a table that is not held in memory."""
    features = {name: Feature(low=-3.0, high=3.0) for name in NAMES}
    preparation = Preparation(features, intercept=1.0)
    table = PreparedTable(open_table(path), preparation, MODEL, memory_limit=0)
    theta = np.linspace(-0.3, 0.3, FEATURES + 1)
    return timed(lambda: gradient_sum(MODEL, theta, table, clip=CLIP))


def measure(
    rows: int = 10_000_000, file: Path | None = None, rounds: int = 3
) -> dict[str, Any]:
    """All three comparisons; ``file`` is used if it exists and else written."""
    with tempfile.TemporaryDirectory() as folder:
        path = file or Path(folder) / "table.parquet"
        if not path.exists():
            write_table(path, rows)
        parquet = compare_with_scans(path, rounds)
    return {
        "rows": rows,
        "threads": thread_count(),
        "compiled": kernels.COMPILED,
        "parquet": parquet,
        "memory": alone(in_memory, rows),
        "autodiff": alone(autodiff),
    }


def compare_with_scans(path: Path, rounds: int) -> dict[str, Any]:
    """The streamed pass and every scan, each in a process of its own, in turn."""
    passes, scans = [], {name: [] for name in SCANS}  # type: ignore[var-annotated]
    for _ in range(rounds):
        passes.append(alone(streamed, path))
        for name, times in scans.items():
            times.append(alone(scan, path, name))
    seconds = min(run["seconds"] for run in passes)
    fastest = {
        name: min(run["seconds"] for run in runs) for name, runs in scans.items()
    }
    baseline = min(fastest, key=fastest.__getitem__)
    return {
        "ratio": fastest[baseline] / seconds,
        "seconds": seconds,
        "peak_megabytes": max(run["peak_megabytes"] for run in passes),
        "baseline": baseline,
        "baselines": {
            name: {
                "seconds": fastest[name],
                "peak_megabytes": max(run["peak_megabytes"] for run in runs),
            }
            for name, runs in scans.items()
        },
    }


def in_memory(rows: int) -> dict[str, float]:
    """The clipped gradient and ``x.sum()`` over the same floats, in turn."""
    rng = np.random.default_rng(0)
    x = np.empty((FEATURES, rows))
    for row in x:
        rng.standard_normal(out=row)
    y = (rng.random(rows) < 0.3).astype(float)
    table = PreparedTable.from_arrays(design(), x, {"y": y})
    theta = np.linspace(-0.3, 0.3, FEATURES)
    passed, read = [], []
    for _ in range(15):
        passed.append(seconds_of(lambda: gradient_sum(MODEL, theta, table, clip=CLIP)))
        read.append(seconds_of(x.sum))
    return {
        "ratio": min(read) / min(passed),
        "seconds": min(passed),
        "baseline_seconds": min(read),
        "baseline_gigabytes_per_second": x.nbytes / min(read) / 1e9,
    }


def autodiff(rows: int = 200_000, few: int = 2_000) -> dict[str, Any]:
    """The clipped gradient against autodiff; nanoseconds for each record."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(FEATURES, rows))
    y = (rng.random(rows) < 0.3).astype(float)
    theta = np.linspace(-0.3, 0.3, FEATURES)
    table = PreparedTable.from_arrays(design(), x, {"y": y})
    part = table.subset(np.arange(few))

    def best(function: Callable[[], object], count: int, repeats: int = 5) -> float:
        return min(seconds_of(function) for _ in range(repeats)) / count * 1e9

    ours = best(lambda: gradient_sum(MODEL, theta, table, clip=CLIP), rows, 20)
    ours_few = best(lambda: gradient_sum(MODEL, theta, part, clip=CLIP), few, 20)
    records = [(x[:, i].copy(), float(y[i])) for i in range(few)]
    slow = {
        name: best(lambda f=f: clipped_loop(f, theta, records), few, 2)  # type: ignore[misc]
        for name, f in record_gradients().items()
    }
    answer: dict[str, Any] = {
        "ratio": min(slow.values()) / ours_few,
        "ours_ns": ours,
        "ours_few_records_ns": ours_few,
        "record_by_record_ns": slow,
    }
    if "jax" in slow:
        vectorised = jax_vectorised(theta, x.T.copy(), y)
        answer["jax_vectorised_ns"] = best(vectorised, rows)
        answer["ratio_to_jax_vectorised"] = answer["jax_vectorised_ns"] / ours
    return answer


def clipped_loop(
    gradient: Callable[..., Any],
    theta: np.ndarray,
    records: list[tuple[np.ndarray, float]],
) -> np.ndarray:
    total = np.zeros_like(theta)
    for x, y in records:
        g = np.asarray(gradient(theta, x, y))
        norm = np.sqrt(g @ g)
        total += g * min(1.0, CLIP / norm) if norm > 0.0 else g
    return total


def record_gradients() -> dict[str, Callable[..., Any]]:
    """Gradients of one record's log-likelihood by the libraries that are here."""
    found: dict[str, Callable[..., Any]] = {}
    try:
        import autograd
        import autograd.numpy as anp

        def plain(theta: Any, x: Any, y: Any) -> Any:
            eta = anp.dot(theta, x)
            return y * eta - anp.logaddexp(0.0, eta)

        found["autograd"] = autograd.grad(plain)
    except ImportError:
        pass
    try:
        import jax

        jax.config.update("jax_enable_x64", True)
        found["jax"] = jax.jit(jax.grad(jax_log_likelihood))
    except ImportError:
        pass
    return found


def jax_log_likelihood(theta: Any, x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    eta = jnp.dot(theta, x)
    return y * eta - jnp.logaddexp(0.0, eta)


def jax_vectorised(
    theta: np.ndarray, x: np.ndarray, y: np.ndarray
) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    each = jax.vmap(jax.grad(jax_log_likelihood), in_axes=(None, 0, 0))

    @jax.jit  # type: ignore[untyped-decorator]
    def total(theta: Any, x: Any, y: Any) -> Any:
        g = each(theta, x, y)
        norms = jnp.sqrt((g * g).sum(axis=1))
        return (g * jnp.minimum(1.0, CLIP / norms)[:, None]).sum(axis=0)

    arguments = [jax.device_put(a) for a in (theta, x, y)]
    return lambda: total(*arguments).block_until_ready()


def design() -> Design:
    return Design(tuple(NAMES), np.zeros(FEATURES), np.ones(FEATURES), None)


def show(answer: dict[str, Any]) -> None:
    """The ratios, one line each."""
    parquet, memory, auto = answer["parquet"], answer["memory"], answer["autodiff"]
    print(
        f"clipped logistic gradient, {answer['rows']:,} x {FEATURES} records, "
        f"{answer['threads']} threads, "
        f"{'compiled' if answer['compiled'] else 'numpy'} loops"
    )
    print(
        f"  Parquet: {parquet['ratio']:.2f} of the speed of pyarrow's fastest scan "
        f"({parquet['baseline']}); {parquet['seconds']:.3f} s, "
        f"peak {parquet['peak_megabytes']:.0f} MB"
    )
    for name, run in parquet["baselines"].items():
        print(
            f"    scan: {name}: {run['seconds']:.3f} s, "
            f"peak {run['peak_megabytes']:.0f} MB"
        )
    print(
        f"  memory: {memory['ratio']:.2f} of the speed of x.sum() "
        f"({memory['seconds']:.4f} s against {memory['baseline_seconds']:.4f} s, "
        f"{memory['baseline_gigabytes_per_second']:.1f} GB/s)"
    )
    each = auto["record_by_record_ns"]
    print(
        f"  autodiff: {auto['ratio']:.0f} times as fast as record by record ("
        + ", ".join(f"{name} {ns:,.0f} ns" for name, ns in each.items())
        + f" a record; ours {auto['ours_few_records_ns']:.1f} ns)"
    )
    if "ratio_to_jax_vectorised" in auto:
        print(
            f"    jax vectorised over records: {auto['jax_vectorised_ns']:.1f} ns, "
            f"{auto['ratio_to_jax_vectorised']:.1f} times ours "
            f"({auto['ours_ns']:.1f} ns)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--file", type=Path, help="keep and use this Parquet file")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    answer = measure(arguments.rows, arguments.file)
    if arguments.json:
        print(json.dumps(answer, indent=2))
    else:
        show(answer)


if __name__ == "__main__":
    main()
