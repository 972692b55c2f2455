"""Bayesian models across sites that may not pool their records."""
