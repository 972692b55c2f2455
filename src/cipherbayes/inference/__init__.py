"""Samplers, one module for each algorithm, and passes over a site's records."""

from cipherbayes.inference import methods as methods  # registers them
