"""The tests' brokers, clocks and checks, as in the checkout's own tests."""

from __future__ import annotations

from tests.api.conftest import (
    connect,
    engine,
    every_engine,
    parks_at_once,
    queues_are_left_alone,
    without_lingering,
)
from tests.conftest import (
    autojump_clock,
    bounded_turns,
    jump_clock,
    page_cache_tells,
    pytest_pyfunc_call,
)

__all__ = [
    "autojump_clock",
    "bounded_turns",
    "connect",
    "engine",
    "every_engine",
    "jump_clock",
    "page_cache_tells",
    "parks_at_once",
    "pytest_pyfunc_call",
    "queues_are_left_alone",
    "without_lingering",
]
