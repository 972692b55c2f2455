"""The paper reproduced, its data sets, and benchmarks: what no hospital needs."""

__version__ = "0.2.0.dev0"
