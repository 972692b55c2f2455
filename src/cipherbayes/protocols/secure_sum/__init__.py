"""Sums of noised, masked, encrypted vectors; the default."""

from cipherbayes.protocols.secure_sum.protocol import SecureSum

PROTOCOL = SecureSum()
