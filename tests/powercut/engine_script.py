"""Random but repeatable work for one storage engine, and the contents that a power cut may leave.

A script is derived from a seed. The recorded process executes it and marks the begin and the end of
each step. The verifying process derives the same script. From the number of steps begun and done
before the cut it computes what a store must and may hold. The promises are those of
kbroker.storage.spi.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple
from uuid import UUID

from kbroker.storage.spi import (
    ON_DISK,
    Change,
    LogId,
    LogReader,
    LogSettings,
    LogStore,
    StampedBatch,
    StateReader,
    StateStore,
)
from kbroker.testing.log_store_model import joined, read_all, sized_batch

NOW_MS = 1_700_000_000_000
SEGMENT_BYTES = 20_000
SETTINGS = LogSettings(segment_bytes=SEGMENT_BYTES)


class Marks(NamedTuple):
    """The marks before a cut. `starts`: where each trimmed log began after its last trim."""

    begun: int
    done: int
    starts: dict[int, int]


class Step(NamedTuple):
    """`log` is the number of a log; `batches` and `offset` as the step needs them."""

    what: str
    log: int = 0
    batches: Sequence[StampedBatch] = ()
    offset: int = 0


def log_id(number: int) -> LogId:
    return LogId(UUID(int=0x1000 + number // 2), number % 2)


@dataclass(slots=True)
class LogModel:
    """The allowed content of one log: at least the first `safe` of `batches`, at most all."""

    batches: list[StampedBatch] = field(default_factory=list)
    safe: int = 0
    trimmed: int = 0
    may_be_missing: bool = False
    may_be_anything: bool = False

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def truncate(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.base_offset < offset]
        self.safe = min(self.safe, len(self.batches))


class Logs:
    """The logs of one script, step by step."""

    def __init__(self) -> None:
        self.logs: dict[int, LogModel] = {}

    def apply(self, step: Step, *, done: bool) -> None:
        model = self.logs.get(step.log)
        match step.what:
            case "create":
                self.logs.setdefault(step.log, LogModel(may_be_missing=True)).may_be_missing = not done
            case "write":
                for batch in step.batches:
                    self.of(batch).batches.append(batch)
            case "sync" if done:
                for each in self.logs.values():
                    each.safe = len(each.batches)
            case "drop" if done:
                del self.logs[step.log]
            case "drop" if model:
                model.may_be_missing = model.may_be_anything = True
            case "truncate" if model and done:
                model.truncate(step.offset)
            case "truncate" if model:
                model.safe = min(model.safe, sum(batch.base_offset < step.offset for batch in model.batches))
            case "trim" if model:
                model.trimmed = max(model.trimmed, step.offset)

    def of(self, batch: StampedBatch) -> LogModel:
        return next(model for number, model in self.logs.items() if log_id(number) == batch.log)


@cache
def log_script(seed: int, steps: int, least: int = 2, most: int = 5) -> list[Step]:
    """Starts with `least` logs, and keeps nearly as many; has at most `most` of them."""
    chooser, logs, made = random.Random(seed), Logs(), 0
    script: list[Step] = []

    def add(step: Step) -> None:
        script.append(step)
        logs.apply(step, done=True)

    while len(script) < steps:
        alive = sorted(logs.logs)
        roll = chooser.random()
        if len(alive) < least or (roll < 0.03 and len(alive) < most):
            add(Step("create", made))
            made += 1
            continue
        number = chooser.choice(alive)
        model = logs.logs[number]
        if roll < 0.55:
            add(Step("write", batches=_some_batches(chooser, logs)))
        elif roll < 0.85:
            add(Step("sync"))
        elif roll < 0.90:
            add(Step("trim", number, offset=chooser.randint(0, model.end_offset)))
        elif roll < 0.95 and model.batches:
            removed = chooser.choice(model.batches[-3:]).base_offset
            if removed > model.trimmed:
                add(Step("truncate", number, offset=removed))
        elif roll < 0.97:
            add(Step("drop", number))
        else:
            add(Step("reopen"))
    return script


def _some_batches(chooser: random.Random, logs: Logs) -> list[StampedBatch]:
    batches = []
    for number in chooser.sample(sorted(logs.logs), chooser.randint(1, len(logs.logs))):
        end_offset = logs.logs[number].end_offset
        for _ in range(chooser.choice([1, 1, 1, 2, 5])):
            size_bytes = chooser.choice([100, 500, 3000, 9000])
            batches.append(
                sized_batch(end_offset, size_bytes, log=log_id(number), timestamp_ms=NOW_MS + end_offset)
            )
            end_offset += 1
    return batches


def work_on_logs(store: LogStore, step: Step) -> dict[str, int]:
    """One step on the real engine; returns the content of its done-mark."""
    match step.what:
        case "create":
            store.create(log_id(step.log), SETTINGS)
        case "write":
            store.write(step.batches, now_ms=NOW_MS)
        case "sync":
            store.sync()
        case "trim":
            store.trim(log_id(step.log), step.offset)
            return {"log": step.log, "start": store.bounds(log_id(step.log)).start_offset}
        case "truncate":
            store.truncate(log_id(step.log), step.offset)
        case "drop":
            store.drop(log_id(step.log))
    return {}


def check_logs(reader: LogReader, script: Sequence[Step], marks: Marks) -> None:
    """Raises AssertionError if the store breaks a promise."""
    logs = Logs()
    for place, step in enumerate(script[: marks.begun]):
        logs.apply(step, done=place < marks.done)
    found = set(reader.logs())
    for number, model in logs.logs.items():
        if log_id(number) in found:
            if not model.may_be_anything:
                _check_log(reader, number, model, marks.starts.get(number))
            found.remove(log_id(number))
        else:
            assert model.may_be_missing, f"log {number} is gone"
    assert not found, f"logs that were dropped, or never made, are there: {found}"


def _check_log(reader: LogReader, number: int, model: LogModel, start: int | None) -> None:
    bounds, data = reader.bounds(log_id(number)), read_all(reader, log_id(number))
    safe = model.batches[: model.safe]
    needed = [batch for batch in safe if batch.base_offset >= max(model.trimmed, bounds.start_offset)]
    assert bounds.start_offset <= max(model.trimmed, 0), (
        f"log {number} begins at {bounds.start_offset}, trimmed to {model.trimmed} only"
    )
    assert start is None or bounds.start_offset >= start, (
        f"log {number} begins at {bounds.start_offset}, trimmed segments before {start} are back"
    )
    least = max([batch.last_offset + 1 for batch in safe], default=0)
    assert bounds.end_offset >= least, (
        f"log {number} ends at {bounds.end_offset}, synced were offsets up to {least}"
    )
    kept = [
        batch
        for batch in model.batches
        if bounds.start_offset <= batch.base_offset and batch.last_offset < bounds.end_offset
    ]
    assert data == joined(kept), f"log {number} {bounds}: the bytes are not those written"
    assert len(kept) >= len(needed)
    assert bounds.end_offset == (kept[-1].last_offset + 1 if kept else max(least, bounds.start_offset)), (
        f"log {number} ends in nothing: {bounds}"
    )


def go_on_with_logs(store: LogStore) -> None:
    """A recovered store accepts new logs, and new batches at the end of the existing ones."""
    store.create(log_id(999), SETTINGS)
    ends = {log: store.bounds(log).end_offset for log in store.logs()}
    batches = [sized_batch(end_offset, 200, log=log) for log, end_offset in ends.items()]
    store.write(batches, now_ms=NOW_MS)
    store.sync()
    for batch in batches:
        assert read_all(store, batch.log, batch.base_offset) == bytes(batch.data), (
            "a recovered log does not take what is appended"
        )


@cache
def state_script(seed: int, steps: int) -> list[Sequence[Change] | None]:
    """Writes; None is a sync. Half of the keys are of ON_DISK, most writes have both kinds."""
    chooser = random.Random(seed)
    script: list[Sequence[Change] | None] = []
    for step in range(steps):
        if chooser.random() < 0.4:
            script.append(None)
            continue
        changes: list[Change] = []
        for _ in range(chooser.choice([1, 2, 3, 20])):
            number = chooser.randrange(120)
            key = b"k%03d" % number if number < 60 else b"%sk%03d" % (ON_DISK, number)
            value = b"%06d" % step + bytes(chooser.choice([10, 200, 5000]))
            changes.append((key, None if chooser.random() < 0.2 else value))
        script.append(changes)
    return script


def work_on_state(store: StateStore, step: Sequence[Change] | None) -> None:
    if step is None:
        store.sync()
    else:
        store.write(step)


def check_state(reader: StateReader, script: Sequence[Sequence[Change] | None], marks: Marks) -> None:
    """The store holds all writes up to some moment, each whole, and at least those that were
    synced."""
    found = dict(reader.scan(b""))
    if reader.keeps_keys_on_disk:
        expected = sorted(entry for entry in found.items() if entry[0].startswith(ON_DISK))
        assert list(reader.scan_range(ON_DISK, ON_DISK[:-1] + b"0")) == expected
    safe = max([place for place, step in enumerate(script[: marks.done]) if step is None], default=-1)
    state: dict[bytes, bytes] = {}
    states = 0
    for place, step in enumerate(script[: marks.begun]):
        if place >= safe:
            states += 1
            if state == found:
                return
        for key, value in step or ():
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
    assert state == found, f"after {states + 1} possible moments: {_difference(state, found)}"


def _difference(state: dict[bytes, bytes], found: dict[bytes, bytes]) -> str:
    def short(values: dict[bytes, bytes], key: bytes) -> str:
        return values[key][:6].decode() if key in values else "absent"

    keys = sorted(key for key in state.keys() | found.keys() if state.get(key) != found.get(key))
    return "; ".join(
        f"{key.decode()} is {short(found, key)}, last written {short(state, key)}" for key in keys[:10]
    )


def go_on_with_state(store: StateStore) -> None:
    keys = [b"new", ON_DISK + b"new"]
    store.write([(key, b"value") for key in keys])
    store.sync()
    assert [store.get(key) for key in keys] == [b"value"] * 2
