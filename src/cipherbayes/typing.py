"""Types used throughout: arrays, and JSON that is open."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

JsonObject = dict[str, Any]
"""A table of JSON or TOML that others write or read: whoever looks into it checks it.
Records of this package have types of their own."""
