"""Samplers: one file per algorithm, each with a State, an Info, init and step."""

from cipherbayes.inference import methods as methods  # registers them
