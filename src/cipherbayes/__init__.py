"""Bayesian models across sites that may not pool their records.

>>> import cipherbayes as cb
>>> study = cb.Study.load("study.toml")                        # doctest: +SKIP
>>> result = cb.run(study, {"north": frame_a, "south": frame_b})  # doctest: +SKIP
>>> result.summary()                                           # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import cipherbayes.protocols  # noqa: F401  a study may name any of them
from cipherbayes.version import __version__

if TYPE_CHECKING:
    from cipherbayes import errors, models
    from cipherbayes.results.comparing import compare
    from cipherbayes.results.estimator import PrivateLogistic
    from cipherbayes.results.incidence import cumulative_incidence
    from cipherbayes.results.planning import plan
    from cipherbayes.results.result import Result
    from cipherbayes.results.run import resume, run
    from cipherbayes.study.schema import Study

__all__ = [
    "PrivateLogistic",
    "Result",
    "Study",
    "__version__",
    "compare",
    "cumulative_incidence",
    "errors",
    "models",
    "plan",
    "resume",
    "run",
]

# Loaded on first use: `import cipherbayes` and `cipherbayes --help` stay quick.
_HOMES = {
    "PrivateLogistic": "cipherbayes.results.estimator",
    "Result": "cipherbayes.results.result",
    "Study": "cipherbayes.study.schema",
    "compare": "cipherbayes.results.comparing",
    "cumulative_incidence": "cipherbayes.results.incidence",
    "plan": "cipherbayes.results.planning",
    "resume": "cipherbayes.results.run",
    "run": "cipherbayes.results.run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in ("errors", "models"):
        return import_module(f"cipherbayes.{name}")
    raise AttributeError(f"module 'cipherbayes' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
