"""Exact sums of integers under encryption."""
