"""Homomorphic encryption, signatures, masks and the framing of bytes."""
