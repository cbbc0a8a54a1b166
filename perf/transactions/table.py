"""A compacted topic, and passes over it that begin on request.

Every key is written once. Before a pass, records of a sixteenth of the keys follow, spread over the
whole log: so the pass rewrites every segment, and each pass has about the same work.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from kbroker.client import admin
from kbroker.client.broker_process import RunningBroker
from kbroker.client.rpc import Connection
from perf.measuring.processes import memory
from perf.suite.candidates import KINDS, Broker, Candidate
from perf.suite.rows import Run
from perf.suite.runner import calm_down
from perf.workloads.client_process import WorkloadFailed
from perf.workloads.payload import values
from perf.workloads.produce import Refusals, batching, outstanding_records
from perf.workloads.settings import base

TABLE = "table"
BYTES, OTHER_BYTES, QUICK_BYTES = 2 << 30, 256 << 20, 128 << 20
"""Of the table: on the segment engine, on the others with their slower passes, and with --quick."""
_RECORD_BYTES = 1_000
_STORED_BYTES = 1 << 10
"""About what a record takes in a log: with its key, and its part of a batch."""
_SEGMENTS = 32
_LEAST_SEGMENT_BYTES = 1 << 20
_OVERWRITTEN = 16
"""One of so many keys is written again before each pass."""
_STRIDE = 1_000_003
_KEY = struct.Struct(">q")
_RATIO = "min.cleanable.dirty.ratio"
_NEVER, _AT_ONCE = "1.0", "0.0"
_BACKOFF, _BACKOFF_MS = "log.cleaner.backoff.ms", 100
_FIRST_LOOK_S = 15.5
"""The cleaner looks first when its default backoff is over."""
_LOOK_S = 0.02
_LONGEST_PASS_S = 400.0
_CHUNK_RECORDS = 1_000
_FLUSH_S = 60.0


@dataclass
class _Cleaner:
    """`looks_from_s`: the monotonic time from which on the cleaner looks often. `passes`: so many
    were made due."""

    looks_from_s: float
    passes: int = 0


_cleaners: WeakKeyDictionary[Broker, _Cleaner] = WeakKeyDictionary()


class PassReading(NamedTuple):
    """Times of the monotonic clock. `before_mb`, `peak_mb`: anonymous memory. `size_bytes`: of the
    segments before the pass."""

    began_s: float
    ended_s: float
    before_mb: float
    peak_mb: float
    size_bytes: int

    @property
    def mb_per_s(self) -> float:
        return self.size_bytes / 1e6 / (self.ended_s - self.began_s)


class Place(NamedTuple):
    """What another process needs to have a pass done."""

    bootstrap: str
    pid: int
    log_file: Path


def prepare(run: Run) -> None:
    """Fills the table, which is not compacted yet."""
    config = {"cleanup.policy": "compact", _RATIO: _NEVER, "segment.bytes": str(_segment_bytes(run))}
    run.kept_topic(TABLE, lambda bootstrap, _: _write(bootstrap, range(_keys(run))), config=config)
    if run.candidate.broker not in _cleaners:
        _cleaners[run.candidate.broker] = _Cleaner(time.monotonic() + _FIRST_LOOK_S)
        with run.candidate.connect() as connection:
            kind, settings = admin.ResourceType.BROKER, {_BACKOFF: str(_BACKOFF_MS)}
            admin.alter_configs(connection, kind, "", set_configs=settings)


def make_due(run: Run) -> Place:
    """Writes the records that make a pass worth while, and waits until all is on the disk."""
    prepare(run)
    candidate = run.candidate
    # At least two segments of them: one is closed then, and the pass knows its keys.
    count = max(_keys(run) // _OVERWRITTEN, 2 * _segment_bytes(run) // _STORED_BYTES)
    cleaner = _cleaners[candidate.broker]
    first = cleaner.passes * count
    cleaner.passes += 1
    _write(candidate.bootstrap, (at * _STRIDE % _keys(run) for at in range(first, first + count)))
    time.sleep(max(0.0, cleaner.looks_from_s - time.monotonic()))
    calm_down()
    return Place(candidate.bootstrap, candidate.pid, _log_file(candidate))


def clean(place: Place) -> PassReading:
    """Has one pass done, and returns at its end. Raises WorkloadFailed."""
    host, _, port = place.bootstrap.rpartition(":")
    before_mb = peak_mb = memory(place.pid).anonymous_mb
    with Connection(host, int(port), client_id="perf") as connection, place.log_file.open("rb") as log:
        log.seek(0, os.SEEK_END)
        began_s, text = time.monotonic(), ""
        _set_ratio(connection, _AT_ONCE)
        while (size_bytes := _size_of_pass(text)) is None:
            if time.monotonic() > began_s + _LONGEST_PASS_S:
                raise WorkloadFailed(f"the pass took more than {_LONGEST_PASS_S:.0f} s")
            time.sleep(_LOOK_S)
            peak_mb = max(peak_mb, memory(place.pid).anonymous_mb)
            text += log.read().decode(errors="replace")
        ended_s = time.monotonic()
        _set_ratio(connection, _NEVER)
    return PassReading(began_s, ended_s, before_mb, peak_mb, size_bytes)


def _size_of_pass(text: str) -> int | None:
    """From the broker's log; None before the pass has ended."""
    if failed := re.search(rf"(?:compaction of )?{TABLE}-0 (?:has to wait|is not compacted)[^\n]*", text):
        raise WorkloadFailed(failed[0])
    done = re.search(rf"compacted {TABLE}-0 up to [^\n]*, (\d+) bytes before, [^\n]*\n", text)
    return int(done[1]) if done else None


def _set_ratio(connection: Connection, ratio: str) -> None:
    admin.alter_configs(connection, admin.ResourceType.TOPIC, TABLE, set_configs={_RATIO: ratio})


def _log_file(candidate: Candidate) -> Path:
    assert isinstance(candidate.broker, RunningBroker), f"{candidate.key} is no kbroker"
    return candidate.broker.log_file


def _total(run: Run) -> int:
    if run.quick:
        return QUICK_BYTES
    return BYTES if KINDS[run.candidate.key].engine == "segment" else OTHER_BYTES


def _segment_bytes(run: Run) -> int:
    return max(_LEAST_SEGMENT_BYTES, _total(run) // _SEGMENTS)


def _keys(run: Run) -> int:
    return _total(run) // _STORED_BYTES


def _write(bootstrap: str, keys: Iterable[int]) -> None:
    """A record for each key, in batches of 1 MB. Raises WorkloadFailed."""
    from confluent_kafka import Producer

    refusals = Refusals()
    own = batching(batch_bytes=1_000_000, linger_ms=50, compression="none")
    producer = Producer({**base(bootstrap, {}), **own, "acks": "all", "on_delivery": refusals})
    pool, limit = cycle(values(_RECORD_BYTES)), outstanding_records(_RECORD_BYTES)
    left = iter(keys)
    while chunk := list(islice(left, _CHUNK_RECORDS)):
        producer.produce_batch(TABLE, [{"key": _KEY.pack(key), "value": next(pool)} for key in chunk])
        while len(producer) > limit:
            producer.poll(0.001)
            refusals.check()
    unconfirmed = producer.flush(_FLUSH_S)
    refusals.check()
    if unconfirmed:
        raise WorkloadFailed(f"{unconfirmed} records were not confirmed within {_FLUSH_S:.0f} s")
