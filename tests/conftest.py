"""Common to all tests: `async def` tests run under trio, and the fixture `autojump_clock` lets time
pass by itself.

The clock jumps to the next deadline as soon as all tasks wait, so that kbroker's timers take no
real time and no test sleeps. It must not be used while a thread or another process has work to do,
such as the commits of a whole broker. With `jump_clock` time passes as usual, and jumps when a test
says so.

hypothesis is imported first. Its plugin imports it at the end of each session otherwise, and warns
of trio's random generator if a broker has frozen the objects of this process (gc.freeze).
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import hypothesis  # noqa: F401
import pytest
import trio
import trio.testing

from kbroker.storage.files import Files
from tests import turns

turns.install()
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # The brokers that tests start would inherit that from a run below nohup.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def bounded_turns() -> Iterator[None]:
    """Fails a test in which a turn of the loop opened more than kbroker/formats/turns.py allows."""
    turns.watch.found.clear()
    yield
    assert not turns.watch.found, "\n".join(turns.watch.found[:3])


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def jump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(rate=1)


@pytest.fixture
def page_cache_tells(tmp_path: Path) -> None:
    """Skips the test where a read cannot find out what is cached, as on tmpfs."""
    path = tmp_path / "cached"
    path.write_bytes(b"x")
    if not Files().is_cached(path, 0, 1):
        pytest.skip("the file system does not tell what is cached")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function under trio; None leaves all other tests to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    clocks = [
        pyfuncitem.funcargs[name] for name in ("autojump_clock", "jump_clock") if name in pyfuncitem.funcargs
    ]
    trio.run(partial(pyfuncitem.obj, **arguments), clock=clocks[0] if clocks else None)
    return True
