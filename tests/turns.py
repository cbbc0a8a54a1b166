"""Counts what each turn of a trio loop opens of record payloads, in all tests: `watch` has the
turns that opened more than kbroker/formats/turns.py allows, and tests/conftest.py fails their
tests.

It replaces the functions that inflate payloads and walk over records. Counted are calls of the
broker's code on a thread that runs a loop; tests and clients may open what they like there. Brokers
in processes of their own are not watched.
"""

from __future__ import annotations

import sys
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import trio

import kbroker
from kbroker.broker.logs import payload_check
from kbroker.broker.queues import record_places
from kbroker.broker.queues.record_places import STRIDE, Places
from kbroker.formats import batches, compacted_batches, compression
from kbroker.formats.turns import TURN_BYTES, TURN_RECORDS

_PACKAGE = str(Path(kbroker.__file__).parent)
_FORMATS = f"{_PACKAGE}/formats/"
_CLIENTS = tuple(f"{_PACKAGE}/{name}/" for name in ("cli", "client", "redrive", "testing"))


class Watch:
    """- `found`: a line for each turn that opened too much
    - `inflated_bytes`, `walked_records`: of all turns"""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.inflated_bytes = self.walked_records = 0
        self._turn: object = None
        self._bytes = self._records = 0
        self._is_found = False

    def begin_request(self) -> None:
        """A request that a test hands to the broker is a turn of its own: the server ends a burst
        of requests by the clock."""
        self._turn = None

    def note(self, plain_bytes: int, records: int, caller: FrameType | None = None) -> None:
        """`caller`: the frame of the replaced function's caller; None: that of this one's."""
        try:
            task = trio.lowlevel.current_task()
        except RuntimeError:
            return
        frame = _outside_of_formats(caller or sys._getframe(2))
        if frame is None:
            return
        turn = (task, task._schedule_points)
        if turn != self._turn:
            self._turn, self._bytes, self._records, self._is_found = turn, 0, 0, False
        self._bytes += plain_bytes
        self._records += records
        self.inflated_bytes += plain_bytes
        self.walked_records += records
        if not self._is_found and (self._bytes > TURN_BYTES or self._records > TURN_RECORDS):
            self._is_found = True
            where = "".join(traceback.format_stack(frame, limit=4))
            self.found.append(f"{self._bytes} bytes and {self._records} records in one turn:\n{where}")


watch = Watch()


def _outside_of_formats(frame: FrameType | None) -> FrameType | None:
    """The broker's function that asked; None: a test or a client did."""
    while frame is not None and frame.f_code.co_filename.startswith(_FORMATS):
        frame = frame.f_back
    if frame is None:
        return None
    name = frame.f_code.co_filename
    return frame if name.startswith(_PACKAGE) and not name.startswith(_CLIENTS) else None


def install() -> None:
    inflate = compression.inflate

    def watched_inflate(codec: compression.Codec, *arguments: Any, **more: Any) -> compression.Inflated:
        is_plain = codec is compression.Codec.NONE
        try:
            inflated = inflate(codec, *arguments, **more)
        except compression.TooLarge:
            watch.note(0 if is_plain else more.get("max_bytes", compression.DEFAULT_MAX_BYTES), 0)
            raise
        watch.note(0 if is_plain else len(inflated.plain), 0)
        return inflated

    _replace(compression, "inflate", watched_inflate)
    iter_records = batches.iter_records

    def watched_records(*arguments: Any, **more: Any) -> Iterator[batches.Record]:
        caller, count = sys._getframe(1), 0
        try:
            for record in iter_records(*arguments, **more):
                count += 1
                yield record
        finally:
            watch.note(0, count, caller)

    _replace(batches, "iter_records", watched_records)
    _count_header(record_places, "runs_of_payload")
    _count_header(compacted_batches, "read_stored")
    _count_header(payload_check, "_check_records")
    _watch_places()


def _count_header(module: Any, name: str) -> None:
    """Of a function whose second argument is the header of what it walks over."""
    original = getattr(module, name)

    def watched(payload: bytes, header: batches.BatchHeader, *arguments: Any) -> Any:
        watch.note(0, header.record_count)
        return original(payload, header, *arguments)

    _replace(module, name, watched)


def _watch_places() -> None:
    walk_all, find = Places.walk_all, Places.find

    def watched_walk(places: Places, payload: bytes, record_count: int, last_delta: int) -> None:
        watch.note(0, record_count)
        walk_all(places, payload, record_count, last_delta)

    def watched_find(places: Places, payload: bytes | memoryview, delta: int) -> tuple[int, int]:
        start = (bisect_right(places._deltas, delta) - 1) * STRIDE
        if places._last[0] <= delta:
            start = max(start, places._last[1])
        found = find(places, payload, delta)
        watch.note(0, found[0] - start)
        return found

    Places.walk_all = watched_walk  # type: ignore[method-assign]
    Places.find = watched_find  # type: ignore[method-assign]


def _replace(module: Any, name: str, function: Callable[..., Any]) -> None:
    """In each module that has imported it."""
    original = getattr(module, name)
    for each in list(sys.modules.values()):
        if getattr(each, "__name__", "").startswith("kbroker") and vars(each).get(name) is original:
            setattr(each, name, function)
