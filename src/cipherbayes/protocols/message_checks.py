"""What fields of messages must satisfy by themselves, whoever sends them."""

from __future__ import annotations

import numpy as np

from cipherbayes.crypto.bfv.parameters import MAX_DIMENSION
from cipherbayes.crypto.wire.transcript import HASH_BYTES, RUN_BYTES, check_bytes
from cipherbayes.errors import ProtocolError
from cipherbayes.typing import Floats, Integers


def check_run(run: object, study: object) -> None:
    """Raise ProtocolError unless these can be a run's id and a study's hash."""
    check_bytes(run, RUN_BYTES, "the run id")
    check_bytes(study, HASH_BYTES, "the study hash")


def check_blob(data: object, most: int, what: str) -> None:
    """Raise ProtocolError unless there are bytes, and no more than ``most``."""
    if type(data) is not bytes or not 1 <= len(data) <= most:
        raise ProtocolError(f"{what} is not 1 to {most} bytes")


def checked_theta(values: Floats, where: str) -> Floats:
    """A read-only copy of θ; raises ProtocolError for what no round can ask."""
    theta = np.array(values, dtype=np.float64)
    if theta.ndim != 1 or not 1 <= len(theta) <= MAX_DIMENSION:
        raise ProtocolError("theta is not a vector of a possible length")
    if not np.isfinite(theta).all():
        raise ProtocolError(
            "theta is not finite",
            where=where,
            remedy="the sampler diverged: use a smaller step or a tighter prior",
        )
    theta.flags.writeable = False
    return theta


def checked_total(values: Integers) -> Integers:
    """A read-only copy of a total; raises ProtocolError for anything else."""
    total = np.array(values)
    if total.dtype != np.int64 or total.ndim != 1:
        raise ProtocolError("the total is not a vector of 64-bit integers")
    if not 1 <= len(total) <= MAX_DIMENSION:
        raise ProtocolError("the total has an impossible length")
    total.flags.writeable = False
    return total
