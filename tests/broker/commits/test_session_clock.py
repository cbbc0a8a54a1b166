"""The session clock while the wall clock is set: it stays monotonic and tracks the difference."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kbroker.broker.commits import session_clock
from kbroker.broker.commits.session_clock import SessionClock

HOUR_MS = 3_600_000


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
async def test_it_goes_on_and_what_is_stored_steps(
    step_ms: int, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall_ms = 1_700_000_000_000
    monkeypatch.setattr(session_clock, "wall_clock_ms", lambda: wall_ms)
    clock = SessionClock()
    assert (clock.now_ms(), clock.times.to_store(clock.now_ms())) == (wall_ms, wall_ms)
    began_ms = wall_ms
    await trio.sleep(2)
    wall_ms += 2000 + step_ms
    assert clock.now_ms() == began_ms + 2000
    assert clock.times.to_store(clock.now_ms()) == wall_ms
    assert clock.times.loaded(wall_ms - 10, clock.now_ms()) == began_ms + 1990
