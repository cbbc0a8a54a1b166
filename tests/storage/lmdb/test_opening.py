"""Sub-databases that are opened while another thread writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import lmdb
import pytest

from kbroker.errors import StoreFailed
from kbroker.storage.lmdb.environment import LmdbEnvironment, open_environment


def test_opening_a_sub_database_waits_for_a_writer_without_the_gil(tmp_path: Path) -> None:
    """Regression: a broker deadlocked when a read of an older segment met a commit. The reader
    waited for LMDB's writer lock with the GIL held, and the writer, between two calls of its
    transaction, waited for the GIL."""
    env = open_environment(tmp_path, read_only=False, map_bytes=1 << 30, max_handles=128)
    with env.write() as transaction:
        transaction.put(b"key", b"was there", db=env.handle_in(transaction, b"s1"))
    env.close()
    command = [sys.executable, "-m", "tests.storage.lmdb.opening", str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == "b'was there'\nb'written'\n"


def opened_by_a_read(env: LmdbEnvironment) -> None:
    def work(transaction: lmdb.Transaction[memoryview]) -> object:
        return transaction.cursor(env.handle(b"s1"))

    env.read(work)


def made_by_a_write(env: LmdbEnvironment) -> None:
    with env.write() as transaction:
        env.handle_in(transaction, b"s1")


@pytest.mark.parametrize("other", [opened_by_a_read, made_by_a_write])
def test_a_sub_database_that_another_thread_opens_meanwhile(
    tmp_path: Path, other: Callable[[LmdbEnvironment], None]
) -> None:
    """LMDB gives the read transaction no cursor there, since it began earlier."""
    env = open_environment(tmp_path, read_only=False, map_bytes=1 << 30, max_handles=128)
    with env.write() as transaction:
        transaction.put(b"key", b"was there", db=env.handle_in(transaction, b"s1"))
    env.close()
    env = open_environment(tmp_path, read_only=False, map_bytes=1 << 30, max_handles=128)
    times = 0

    def work(transaction: lmdb.Transaction[memoryview]) -> bytes:
        nonlocal times
        times += 1
        if times == 1:
            thread = Thread(target=other, args=(env,))
            thread.start()
            thread.join()
        return bytes(transaction.get(b"key", b"", db=env.handle(b"s1")))

    assert (env.read(work), times) == (b"was there", 2)

    def wrong(_: lmdb.Transaction[memoryview]) -> object:
        raise lmdb.InvalidParameterError("for a test")

    with pytest.raises(StoreFailed, match="for a test"):
        env.read(wrong)
    env.close()
