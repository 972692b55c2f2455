"""Ways to run a protocol: in one process, in several, on several machines."""
