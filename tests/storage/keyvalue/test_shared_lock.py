"""The readers-writer lock: a changer is alone, and wakes up when the last reader leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from kbroker.storage.keyvalue.shared_lock import SharedLock

PATIENCE_S = 30


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def change(lock: SharedLock) -> None:
    with lock.alone():
        pass


def has_to_wait(future: Future[None], lock: SharedLock) -> bool:
    """Whether the changer has begun to wait, or is done."""
    while not future.done():
        if lock._waiting_changers:
            return True
    return False


def test_a_changer_waits_for_the_last_reader(threads: ThreadPoolExecutor) -> None:
    lock = SharedLock()
    with lock, lock:
        changer = threads.submit(change, lock)
        assert has_to_wait(changer, lock)
    changer.result(PATIENCE_S)
    with lock.alone_if_free() as is_free:
        assert is_free


def test_a_reader_waits_for_the_changer(threads: ThreadPoolExecutor) -> None:
    lock, began = SharedLock(), threading.Event()

    def read() -> None:
        began.set()
        with lock:
            pass

    with lock.alone():
        reader = threads.submit(read)
        assert began.wait(PATIENCE_S)
        assert not reader.done()
    reader.result(PATIENCE_S)


def test_one_that_does_not_wait_leaves_readers_alone(threads: ThreadPoolExecutor) -> None:
    lock = SharedLock()
    with lock:
        with lock.alone_if_free() as is_free:
            assert not is_free
        with lock:
            pass
    change(lock)


def test_nobody_is_there_beside_a_changer(threads: ThreadPoolExecutor) -> None:
    """Readers and changers by turns, in four threads."""
    lock, inside, wrong = SharedLock(), [0, 0], list[tuple[int, int]]()

    def work(number: int) -> None:
        for step in range(2000):
            if (step + number) % 5:
                with lock:
                    inside[0] += 1
                    if inside[1]:
                        wrong.append((number, step))
                    inside[0] -= 1
            else:
                with lock.alone():
                    inside[1] += 1
                    if inside[1] != 1:
                        wrong.append((number, step))
                    inside[1] -= 1

    for each in [threads.submit(work, number) for number in range(4)]:
        each.result(PATIENCE_S)
    assert not wrong
    assert inside[1] == 0
