"""Time as the broker sees it: milliseconds, always passed as an argument and never read inside an
engine."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Milliseconds since the epoch, UTC: for timestamps that are stored or sent."""
    return time.time_ns() // 1_000_000
