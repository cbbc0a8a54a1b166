"""Reads record batches in the page cache: 1 MiB of small batches, 1 MiB of larger ones, and one
batch.

Calls `LogReader.read()` for one offset after the other. The segment engine returns views of a
mapping, so nothing is copied or touched; the other engines copy. Engines that store the batches of
a write in one value read these with less work. Batches written one by one are therefore compared
with batches written 64 at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from kbroker.storage.spi import LogId, LogStore
from perf.parts.material import KIB, LOG_ENGINES, MIB, create_logs, fill, log_id, named, open_log_store, total
from perf.parts.part import Part

_LOG_BYTES = 2 * MIB
_LAYOUTS = [(KIB, 1), (KIB, 64), (16 * KIB, 1), (16 * KIB, 64)]


@pytest.fixture(scope="module", params=LOG_ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def store(engine: str, module_directory: Path) -> Iterator[LogStore]:
    """A store with a log for each layout, in their order."""
    store = open_log_store(engine, module_directory / engine)
    for log, (size, in_a_write) in zip(create_logs(store, len(_LAYOUTS)), _LAYOUTS, strict=True):
        fill(store, log, _LOG_BYTES, batch_bytes=size, in_a_write=in_a_write)
    yield store
    store.close()


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_read_a_mebibyte(part: Part, engine: str, store: LogStore, layout: tuple[int, int]) -> None:
    size, in_a_write = layout
    group = f"read: 1 MiB of batches of {named(size)}, written {in_a_write} at a time"
    read(part, store, log_id(_LAYOUTS.index(layout)), size, MIB, group=group, engine=engine)


@pytest.mark.parametrize("layout", [(16 * KIB, 1), (16 * KIB, 64)])
def test_read_one_batch(part: Part, engine: str, store: LogStore, layout: tuple[int, int]) -> None:
    size, in_a_write = layout
    group = f"read: one batch of {named(size)}, written {in_a_write} at a time"
    read(part, store, log_id(_LAYOUTS.index(layout)), size, size, group=group, engine=engine)


def read(
    part: Part, store: LogStore, log: LogId, size: int, max_bytes: int, *, group: str, engine: str
) -> None:
    end_offset = store.bounds(log).end_offset
    offsets = cycle(range(0, end_offset, max_bytes // size))
    assert total(store.read(log, 0, max_bytes=max_bytes, end_offset=end_offset)) == max_bytes
    part.repeat(
        lambda: store.read(log, next(offsets), max_bytes=max_bytes, end_offset=end_offset),
        thing="read", size=max_bytes, group=group, name=engine,
    )  # fmt: skip
