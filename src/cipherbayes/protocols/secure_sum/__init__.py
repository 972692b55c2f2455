"""Sums of noised, masked, encrypted vectors; the default."""
