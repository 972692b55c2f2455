"""The paper reproduced, its data sets, and benchmarks: what no hospital needs."""

from cipherbayes_research.version import __version__

__all__ = ["__version__"]
