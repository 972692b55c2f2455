"""All tables in one place, every total noised."""

from cipherbayes.protocols.pooled.protocol import Pooled

PROTOCOL = Pooled()
