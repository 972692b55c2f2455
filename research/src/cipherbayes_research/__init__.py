"""The paper reproduced, its data sets, and benchmarks: what runs at no hospital."""

__version__ = "0.2.0.dev0"
