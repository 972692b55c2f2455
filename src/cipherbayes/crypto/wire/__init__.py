"""Bytes: frames, fields of messages, and what is signed."""
