"""Types used throughout (arrays, callbacks, open JSON), and what they round by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

UNIT_ROUNDOFF = 2.0**-53
"""The largest relative error of one operation on float64 that does not overflow."""

Progress = Callable[[int, int], None]
"""Is told, as work goes on, how many steps are done and how many there are."""

JsonObject = dict[str, Any]
"""A table of JSON or TOML that others write or read: whoever looks into it checks it.
Records of this package have types of their own."""
