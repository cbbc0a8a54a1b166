"""The watch over what a turn of the loop opens finds what is too much, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from kbroker.broker.queues.opened_batches import open_batch
from kbroker.formats.batches import Record, build_batch, stored_records
from kbroker.formats.compression import Codec
from kbroker.formats.turns import TURN_BYTES, TURN_RECORDS
from tests.turns import watch

_HALF = memoryview(build_batch([Record(0, 1, None, bytes(TURN_BYTES * 2 // 3))], codec=Codec.ZSTD))
_MANY = memoryview(build_batch([Record(0, 1, None, b"")] * (TURN_RECORDS * 2 // 3)))


@pytest.fixture
def found() -> Callable[[], list[str]]:
    """The lines so far, which are then forgotten."""

    def taken() -> list[str]:
        lines = list(watch.found)
        watch.found.clear()
        return lines

    return taken


@pytest.mark.parametrize("batch", [_HALF, _MANY], ids=["bytes", "records"])
async def test_the_sum_of_a_turn_counts(batch: memoryview, found: Callable[[], list[str]]) -> None:
    open_batch(batch)
    assert not found()
    open_batch(batch)
    (line,) = found()
    assert "opened_batches.py" in line
    await trio.lowlevel.checkpoint()
    open_batch(batch)
    await trio.to_thread.run_sync(open_batch, batch)
    assert not found()


async def test_what_tests_open_does_not_count(found: Callable[[], list[str]]) -> None:
    for _ in range(3):
        list(stored_records(_MANY))
        list(stored_records(_HALF))
    assert not found()


def test_what_is_opened_without_a_loop_does_not_count(found: Callable[[], list[str]]) -> None:
    for _ in range(3):
        open_batch(_MANY)
    assert not found()
