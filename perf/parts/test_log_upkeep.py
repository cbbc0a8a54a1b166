"""Opens a log store, and removes old data from it.

- *open*: the part of a start that waits for the store: 64 MiB in one log, files in the page cache,
  after a clean stop and after kill -9.
- *trim*: removes the older half of a log's segments of 2 MiB, like retention.
- *drop*: removes a whole log, like the deletion of a topic.

Both removals are durable on return. The work left to the engine's background threads is not
measured.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kbroker.storage.spi import LogId, LogSettings, LogStore
from perf.parts.material import (
    KEPT_LOG_ENGINES,
    KIB,
    LOG_ENGINES,
    MIB,
    fill,
    fill_and_die,
    log_id,
    named,
    open_log_store,
)
from perf.parts.part import Part

_STORE_BYTES = 64 * MIB
_LOG_BYTES, _SEGMENT_BYTES = 16 * MIB, 2 * MIB


@pytest.fixture(scope="module", params=KEPT_LOG_ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[KIB, 16 * KIB], ids=named)
def batch_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def stopped(engine: str, batch_bytes: int, module_directory: Path) -> Iterator[tuple[Path, Path]]:
    """The directory of a store that was closed, and one of a store whose process was killed."""
    clean, killed = (module_directory / f"{engine}-{batch_bytes}-{end}" for end in ("clean", "killed"))
    process = multiprocessing.get_context("spawn").Process(
        target=fill_and_die, args=(engine, killed, _STORE_BYTES, batch_bytes)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    copy(killed, clean)
    open_log_store(engine, clean).close()
    yield clean, killed
    shutil.rmtree(clean)
    shutil.rmtree(killed)


def copy(source: Path, target: Path) -> None:
    """Keeps holes: segment files have them where space was reserved."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


@pytest.mark.parametrize("end", ["clean", "killed"])
def test_open(part: Part, engine: str, batch_bytes: int, stopped: tuple[Path, Path], end: str) -> None:
    clean, killed = stopped
    now = clean.parent / "now"
    opened: list[LogStore] = []

    def prepare() -> tuple[Path]:
        if end == "clean":
            return (clean,)
        copy(killed, now)
        return (now,)

    def clear_up(path: Path) -> None:
        store = opened.pop()
        assert store.bounds(log_id()).end_offset == _STORE_BYTES // batch_bytes
        store.close()
        if path == now:
            shutil.rmtree(now)

    part.rounds(
        prepare, lambda path: opened.append(open_log_store(engine, path)), clear_up=clear_up, rounds=5,
        thing="start", size=_STORE_BYTES,
        group=f"open: {named(_STORE_BYTES)} of batches of {named(batch_bytes)}, {end}", name=engine,
    )  # fmt: skip


@pytest.mark.parametrize("what", ["trim", "drop"])
@pytest.mark.parametrize("any_engine", LOG_ENGINES)
def test_remove(part: Part, any_engine: str, directory: Path, what: str) -> None:
    store = open_log_store(any_engine, directory)
    numbers = count()

    def prepare() -> tuple[LogId]:
        log = log_id(next(numbers))
        store.create(log, LogSettings(segment_bytes=_SEGMENT_BYTES))
        fill(store, log, _LOG_BYTES, batch_bytes=16 * KIB, in_a_write=64)
        return (log,)

    def remove(log: LogId) -> None:
        if what == "trim":
            store.trim(log, _LOG_BYTES // (16 * KIB) // 2)
        else:
            store.drop(log)

    removed = _LOG_BYTES // 2 if what == "trim" else _LOG_BYTES
    group = f"{what}: {named(removed)}"
    part.rounds(
        prepare, remove, clear_up=store.drop, rounds=5, thing=what, size=removed, group=group, name=any_engine
    )
    store.close()
