"""Timing of parts with pytest-benchmark: the fixture `part`, the number of rounds, and a table of
the results.

A timed call may do several equal things (write ten batches). The table and `extra_info` in the JSON
file have their number and their bytes, from which the time per thing and MB/s follow. Parts that
are compared have the same `group`.

    --quick                     fewer and shorter rounds, for a first look
    --benchmark-max-time=S      time for work that can be repeated without preparation; the number
                                of rounds with preparation is proportional to it (0.5: all of them)
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker.commits.process import SWITCH_INTERVAL_S, settle_memory
from perf.parts.part import Part


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="fewer and shorter rounds")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        config.option.benchmark_max_time = "0.1"
        config.option.benchmark_min_rounds = 3


@pytest.fixture
def part(benchmark: Any, pytestconfig: pytest.Config) -> Part:  # noqa: ANN401
    """As in a broker, the garbage collector ignores start-up objects, and threads get the
    interpreter soon."""
    settle_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return Part(benchmark, pytestconfig)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for one test, removed after it. The tests write gigabytes in all, and pytest's
    `tmp_path` would keep three runs of them."""
    yield from _directory()


@pytest.fixture(scope="module")
def module_directory() -> Iterator[Path]:
    yield from _directory()


def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kbroker-parts-"))
    yield path
    shutil.rmtree(path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """By group, fastest first: the median time per thing, its spread (half the interquartile
    range), the minimum, and MB/s."""
    found = [each for each in getattr(config, "_benchmarksession").benchmarks if each.stats.rounds]  # noqa: B009
    order = {group: at for at, group in reversed(list(enumerate(each.group for each in found)))}
    found.sort(key=lambda each: (order[each.group], each.stats.median / each.extra_info["things"]))
    for group, members in groupby(found, key=lambda each: each.group):
        terminalreporter.write_sep("-", group)
        best = None
        for each in members:
            things, size = each.extra_info["things"], each.extra_info["bytes"]
            least, us, spread = (
                each.stats.min / things * 1e6,
                each.stats.median / things * 1e6,
                each.stats.iqr / each.stats.median * 50,
            )
            best = best or us
            rate = f"{size / each.stats.median / 1e6:9.0f} MB/s" if size else " " * 14
            thing = f" a {each.extra_info['thing']}" if each.extra_info["thing"] else ""
            line = (
                f"{each.extra_info['name']:<42}{us:12.2f} us{thing:<9} ±{spread:3.0f} %, "
                f"least{least:12.2f}{rate}{us / best:9.2f} x"
            )
            terminalreporter.write_line(f"{line}{each.stats.rounds:7} rounds")
