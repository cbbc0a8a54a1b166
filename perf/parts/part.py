"""One benchmark as the files here write it: over pytest-benchmark's fixture, with what is done told
beside the time (conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

_FULL_S = 0.5


class Part:
    """One benchmark. `group`: what is compared; `name`: who this is, in the table; `things` of
    `size` bytes in all are done by a call."""

    def __init__(self, benchmark: Any, config: pytest.Config) -> None:  # noqa: ANN401
        self._benchmark = benchmark
        self._share = min(1.0, float(config.getoption("benchmark_max_time")) / _FULL_S)
        self._least = int(config.getoption("benchmark_min_rounds"))

    def repeat(
        self,
        work: Callable[[], object],
        *,
        group: str,
        name: str,
        things: int = 1,
        thing: str = "",
        size: int = 0,
    ) -> None:
        """Work that can be repeated at once, as often as fits into the time."""
        self._note(group, name, things, thing, size)
        self._benchmark(work)

    def rounds(
        self,
        prepare: Callable[[], tuple[Any, ...]],
        work: Callable[..., object],
        *,
        clear_up: Callable[..., object] | None = None,
        rounds: int,
        group: str,
        name: str,
        things: int = 1,
        thing: str = "",
        size: int = 0,
    ) -> None:
        """Work that needs something new each time: `prepare` gives its arguments, and `clear_up`
        gets them too; neither is timed."""
        self._note(group, name, things, thing, size)
        count = max(self._least, ceil(rounds * self._share))

        def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
            return prepare(), {}

        self._benchmark.pedantic(work, setup=setup, teardown=clear_up, rounds=count, warmup_rounds=1)

    def _note(self, group: str, name: str, things: int, thing: str, size: int) -> None:
        self._benchmark.group = group
        self._benchmark.extra_info.update(name=name, things=things, thing=thing, bytes=size)
