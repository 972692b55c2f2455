"""Numbers as people read them, and the axes that hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

NONE = "–"
"""Stands where there is no number."""


def number(value: float | None, digits: int = 3) -> str:
    """A number to some significant digits, without an exponent where it can be."""
    if value is None or math.isnan(value):
        return NONE
    if value == 0.0:
        return "0"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = math.floor(math.log10(abs(value)))
    if -5 <= size < 7:
        decimals = max(digits - 1 - size, 0)
        text = f"{value:,.{decimals}f}"
    else:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        text = f"{mantissa} × 10{superscript(int(exponent))}"
    return text.replace("-", "−")


def interval(lower: float | None, upper: float | None, digits: int = 3) -> str:
    """An interval in words."""
    if lower is None or upper is None:
        return NONE
    return f"{number(lower, digits)} to {number(upper, digits)}"


def resolved(
    value: float | None, lower: float | None, upper: float | None, digits: int = 3
) -> str:
    """A number, with more digits where the interval around it is so short that its
    ends would look alike: 1.002 to 1.026, not 1.00 to 1.03."""
    if value and lower is not None and upper is not None and lower < upper < math.inf:
        steps = math.floor(math.log10(abs(value)))
        steps -= math.floor(math.log10(upper - lower))
        digits = max(digits, min(steps + 2, 6))
    return number(value, digits)


def superscript(value: int) -> str:
    """An exponent."""
    return str(value).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def short(value: float | None) -> str:
    """ε and δ as the study wrote them: 1, 0.3, 10⁻⁵."""
    if value is None:
        return NONE
    if value and abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:e}".partition("e")
        head = f"{float(mantissa):g}"
        power = f"10{superscript(int(exponent))}"
        return power if head == "1" else f"{head} × {power}"
    return f"{value:.4g}".replace("-", "−")


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{100.0 * share:g} %"


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1000.0 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000.0
    raise AssertionError


def duration(seconds: float) -> str:
    """Seconds in the unit that fits."""
    if seconds < 1.0:
        return f"{1000.0 * seconds:.3g} ms"
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.3g} min"
    return f"{seconds / 3600.0:.3g} h"


@dataclass(frozen=True)
class Axis:
    """A range of numbers laid out from 0 to 100 %."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def around(
        cls, values: Iterable[float], *, log: bool = False, include: float | None = None
    ) -> Axis:
        """An axis over values, with a little air at both ends."""
        known = [v for v in values if math.isfinite(v) and (v > 0.0 or not log)]
        if include is not None:
            known.append(include)
        if not known:
            return cls(0.1, 10.0, True) if log else cls(0.0, 1.0)
        low, high = min(known), max(known)
        if log:
            air = max(math.log(high / low) * 0.06, 0.01)
            return cls(low * math.exp(-air), high * math.exp(air), True)
        air = (high - low) * 0.06 or max(abs(high), 1.0) * 0.06
        return cls(low - air, high + air)

    def place(self, value: float) -> float:
        """Where a value lies, in per cent of the axis, kept on it."""
        if self.log:
            value = max(value, 1e-300)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(100.0 * min(max(share, 0.0), 1.0), 3)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers on the axis."""
        if self.log and self.high / self.low > 4.0:
            found = self._decades(most)
            if len(found) > 2 or self.high / self.low > 10.0:
                return found
        step = round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]

    def _decades(self, most: int) -> list[float]:
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [
                m * 10.0**e
                for e in range(
                    math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
                )
                for m in steps
                if self.low <= m * 10.0**e <= self.high
            ]
            if len(found) <= most + 1:
                return found
        every = -(-len(found) // most)
        return found[::every]

    def label(self, value: float) -> str:
        """A tick's text."""
        if self.log and not 1e-3 <= value < 1e5:
            mantissa, _, exponent = f"{value:.0e}".partition("e")
            head = "" if mantissa == "1" else f"{mantissa} × "
            return f"{head}10{superscript(int(exponent))}"
        return f"{value:,.6g}".replace("-", "−")


def round_step(step: float) -> float:
    """The next of 1, 2, 5 and 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= step * 0.999)


def round_up(value: float) -> float:
    """The next number with one digit."""
    step = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return math.ceil(value / step - 1e-9) * step
