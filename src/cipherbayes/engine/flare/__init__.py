"""The same protocol between machines, carried by NVIDIA FLARE."""
