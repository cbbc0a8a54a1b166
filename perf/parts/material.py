"""Test data of the parts: batches of exact sizes, requests, logs, and the installed engines.

Record batches are real ones, with a header and a valid CRC, because recovery checks them. Their
values are random, so that no engine or file system benefits from compression. Engines are loaded as
plugins, including those of installed plugins.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from kbroker import plugins
from kbroker.errors import OperatorError
from kbroker.formats.batches import Record, build_batch, stamp
from kbroker.protocol.messages import build, encode, request_schema
from kbroker.storage.spi import (
    LogId,
    LogSettings,
    LogStore,
    LogStoreFactory,
    StampedBatch,
    StateStore,
    StateStoreFactory,
)

TOPIC_ID = UUID("01234567-89ab-cdef-0123-456789abcdef")
NOW_MS = 1_700_000_000_000
KIB, MIB = 1 << 10, 1 << 20

_NOT_KEPT = {"memory"}
LOG_ENGINES = plugins.names(plugins.LOG_STORE)
STATE_ENGINES = plugins.names(plugins.STATE_STORE)
KEPT_LOG_ENGINES = [name for name in LOG_ENGINES if name not in _NOT_KEPT]
KEPT_STATE_ENGINES = [name for name in STATE_ENGINES if name not in _NOT_KEPT]
"""The engines that keep data on disk."""


def open_log_store(engine: str, directory: Path) -> LogStore:
    """A log store with the engine's defaults. Skips the test if the plugin cannot be loaded."""
    try:
        factory = cast(LogStoreFactory, plugins.log_store_factory(engine))
    except OperatorError as error:
        pytest.skip(str(error))
    return factory.open(directory, {}, 1)


def open_state_store(engine: str, directory: Path) -> StateStore:
    """A state store, in the same way."""
    try:
        factory = cast(StateStoreFactory, plugins.state_store_factory(engine))
    except OperatorError as error:
        pytest.skip(str(error))
    return factory.open(directory, {}, 1)


def log_id(partition: int = 0) -> LogId:
    return LogId(TOPIC_ID, partition)


def create_logs(store: LogStore, count: int = 1, *, segment_bytes: int = 1 << 30) -> list[LogId]:
    logs = [log_id(partition) for partition in range(count)]
    for log in logs:
        store.create(log, LogSettings(segment_bytes=segment_bytes))
    return logs


@cache
def batch_of(size_bytes: int) -> bytes:
    """A batch of exactly this size, with one record."""
    value_bytes = size_bytes - len(build_batch([Record(0, NOW_MS, None, bytes(size_bytes))])) + size_bytes
    for trimmed in range(8):  # lengths are varints: a shorter value may have shorter ones
        batch = build_batch(
            [Record(0, NOW_MS, None, random.Random(size_bytes).randbytes(value_bytes + trimmed))]
        )
        if len(batch) == size_bytes:
            return batch
    raise AssertionError(f"no batch has {size_bytes} bytes")


def batch_of_records(records: int, value_bytes: int) -> bytes:
    """A batch of this many records."""
    source = random.Random(records)
    return build_batch(
        [Record(0, NOW_MS + number, None, source.randbytes(value_bytes)) for number in range(records)]
    )


def stamped(log: LogId, first_offset: int, count: int, data: bytes) -> list[StampedBatch]:
    """Batches of one record at offsets from `first_offset` on. The bytes are not changed, since an
    engine does not read them when it writes."""
    return [
        StampedBatch(log, offset, offset, NOW_MS, data)
        for offset in range(first_offset, first_offset + count)
    ]


def fill(store: LogStore, log: LogId, size_bytes: int, *, batch_bytes: int, in_a_write: int) -> int:
    """Writes this many bytes of batches, with the right offsets in their headers too, and syncs.
    Returns the end offset."""
    data, end_offset = batch_of(batch_bytes), size_bytes // batch_bytes
    for first in range(0, end_offset, in_a_write):
        batches = []
        for offset in range(first, min(first + in_a_write, end_offset)):
            copy = bytearray(data)
            stamp(copy, base_offset=offset, leader_epoch=0)
            batches.append(StampedBatch(log, offset, offset, NOW_MS, copy))
        store.write(batches, now_ms=NOW_MS)
    store.sync()
    return end_offset


def fill_and_die(engine: str, directory: Path, size_bytes: int, batch_bytes: int) -> None:
    """Runs in a separate process: fills one log, 1 MiB per write, and kills itself."""
    store = open_log_store(engine, directory)
    (log,) = create_logs(store)
    fill(store, log, size_bytes, batch_bytes=batch_bytes, in_a_write=MIB // batch_bytes)
    os.kill(os.getpid(), signal.SIGKILL)


def frame_of(key: tuple[int, int], message: Mapping[str, Any]) -> bytes:
    """A request as it arrives, without its size. Header version 2, like all hot requests."""
    api_key, version = key
    head = (
        b"".join(number.to_bytes(2, "big") for number in (api_key, version))
        + bytes(4)
        + b"\x00\x07rdkafka\x00"
    )
    return head + encode(build(request_schema(api_key, version), message))


def named(size_bytes: int) -> str:
    """1 KiB, 16 KiB, 1 MiB."""
    return f"{size_bytes // MIB} MiB" if size_bytes >= MIB else f"{size_bytes // KIB} KiB"


def total(views: Sequence[memoryview]) -> int:
    return sum(map(len, views))
