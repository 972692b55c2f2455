"""The paper reproduced, its data sets, and benchmarks: what no hospital needs."""

__version__ = "0.1.0"
