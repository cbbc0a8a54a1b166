"""The interface of the benchmarks in this folder: pytest-benchmark's fixture, plus a description of
the timed work (conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

_FULL_S = 0.5


class Part:
    """One benchmark.

    - `group`: the benchmarks that are compared with each other.
    - `name`: this one in the table.
    - `things`, `size`: the number of things that a call does, and their bytes in all.
    """

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
        """Times work that can be repeated without preparation, as often as the time allows."""
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
        """Times work that needs new data each time. `prepare` returns its arguments, and `clear_up`
        receives them too; neither is timed."""
        self._note(group, name, things, thing, size)
        count = max(self._least, ceil(rounds * self._share))

        def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
            return prepare(), {}

        self._benchmark.pedantic(work, setup=setup, teardown=clear_up, rounds=count, warmup_rounds=1)

    def _note(self, group: str, name: str, things: int, thing: str, size: int) -> None:
        self._benchmark.group = group
        self._benchmark.extra_info.update(name=name, things=things, thing=thing, bytes=size)
