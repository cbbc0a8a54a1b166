"""What every test may use: `async def` tests run under trio, and with the fixture `autojump_clock`
time passes by itself.

The clock jumps to the next deadline as soon as all tasks wait, so that a test of a timer of ours
takes no real time and knows no sleeping. It must not be used where a thread or another process has
to do something meanwhile, as the commits of a whole broker do: with `jump_clock` time passes as
ever, and jumps where a test says so.
"""

from __future__ import annotations

import inspect
from functools import partial

import pytest
import trio
import trio.testing


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def jump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(rate=1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function under trio; None leaves every other test to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    clocks = [
        pyfuncitem.funcargs[name] for name in ("autojump_clock", "jump_clock") if name in pyfuncitem.funcargs
    ]
    trio.run(partial(pyfuncitem.obj, **arguments), clock=clocks[0] if clocks else None)
    return True
