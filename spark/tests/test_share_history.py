"""History of share state: the share coordinator's writes, in order, as far back as a snapshot is
kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.formats.control_records import ControlType, ShareControl
from kbroker.formats.share_records import ShareSnapshot, ShareUpdate, encode_share_update
from kbroker.share.effects import StateBatch
from kbroker.share.persister import InitializeRequest, ReadRequest, TopicPartition, WriteRequest
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.outcome import ShareStateOutcome
from kbroker.storage.lmdb import state_store as lmdb_state_store
from kbroker.storage.segment_state import store as log_state_store
from kbroker.storage.spi import LogSettings
from kbroker_spark import state_table
from kbroker_spark.share_history import Step, Stored, from_controls, history
from spark.tests.share_work import table
from spark.tests.stored import writing
from tests.brokers import DURABLE_ENGINES

PARTITIONS = 3


def snapshot(epoch: int, start: int = 0) -> bytes:
    return ShareSnapshot(
        snapshot_epoch=epoch,
        state_epoch=1,
        leader_epoch=0,
        start_offset=start,
        create_timestamp=5,
        write_timestamp=6,
        state_batches=(),
    ).encode()


def update(epoch: int, start: int) -> bytes:
    return encode_share_update(epoch, 0, start, 0, [(start, start, 2, 1)])


def told(records: Sequence[tuple[int, bytes | None]]) -> list[tuple[str, int, int, bool]]:
    """Kind, number, place among `records`, and whether it is current."""
    steps = history(Stored(number, value, place) for place, (number, value) in enumerate(records))
    return [(_kind(step), step.number, step.log_offset or 0, step.is_current) for step in steps]


def _kind(step: Step) -> str:
    return (
        "problem"
        if step.problem
        else "deletion"
        if step.message is None
        else type(step.message).__name__[5:].lower()
    )


def test_a_snapshot_takes_its_updates_in() -> None:
    records = [
        (0, snapshot(0)),
        (1, update(0, 1)),
        (2, update(0, 2)),
        (0, snapshot(1, 3)),
        (1, None),
        (2, None),
        (1, update(1, 4)),
    ]
    assert told(records) == [
        ("snapshot", 0, 0, False),
        ("update", 1, 1, False),
        ("update", 2, 2, False),
        ("snapshot", 0, 3, True),
        ("update", 1, 6, True),
    ]


def test_copies_are_no_changes() -> None:
    live = [(0, snapshot(0)), (1, update(0, 1))]
    assert told([*live, *live, (2, update(0, 2)), *live]) == [
        ("snapshot", 0, 0, True),
        ("update", 1, 1, True),
        ("update", 2, 4, True),
    ]


def test_a_log_that_begins_between_a_snapshot_and_its_copy() -> None:
    records = [
        (2, update(7, 2)),
        (3, update(7, 3)),
        (0, snapshot(7)),
        (1, update(7, 1)),
        (2, update(7, 2)),
        (3, update(7, 3)),
    ]
    assert told(records) == [
        ("snapshot", 0, 2, True),
        ("update", 1, 3, True),
        ("update", 2, 0, True),
        ("update", 3, 1, True),
    ]


def test_updates_whose_snapshot_is_gone_are_left_out() -> None:
    assert told([(4, update(6, 2)), (0, snapshot(7)), (4, None)]) == [("snapshot", 0, 1, True)]


def test_what_was_deleted_and_begun_again() -> None:
    records = [(0, snapshot(0)), (1, update(0, 1)), (0, None), (1, None), (0, snapshot(0)), (1, update(0, 9))]
    expected = [
        ("snapshot", 0, 0, False),
        ("update", 1, 1, False),
        ("deletion", 0, 2, False),
        ("snapshot", 0, 4, True),
    ]
    assert told(records) == [*expected, ("update", 1, 5, True)]
    assert told(records[:4]) == expected[:3]
    assert told(records[1:]) == [("snapshot", 0, 3, True), ("update", 1, 4, True)], (
        "the deletion's own update is not the new state's"
    )


def test_what_cannot_be_read_is_a_problem() -> None:
    assert told([(0, snapshot(0)), (1, b"\0\0nonsense")]) == [
        ("snapshot", 0, 0, True),
        ("problem", 1, 1, True),
    ]


def test_control_records_by_group() -> None:
    checkpoint, delta = ControlType.SHARE_CHECKPOINT, ControlType.SHARE_DELTA
    controls = [
        (10, ShareControl(delta, "b", b"lost", 3)),
        (11, ShareControl(checkpoint, "a", b"A")),
        (12, ShareControl(delta, "a", b"1", 11)),
        (13, ShareControl(checkpoint, "b", b"B")),
        (14, ShareControl(delta, "a", b"2", 12)),
        (15, ShareControl(checkpoint, "a", b"")),
    ]
    assert from_controls(controls) == {
        "a": [Stored(0, b"A", 11), Stored(1, b"1", 12), Stored(2, b"2", 14), Stored(0, None, 15)],
        "b": [Stored(0, b"B", 13)],
    }


# --- with the engines ---


class Work:
    """The share coordinator over a store, and everything that it wrote: generations of values, by
    partition."""

    def __init__(self, store: Any, topic_id: UUID, seed: int) -> None:
        self.store, self.topic_id, self.random = store, topic_id, random.Random(seed)
        self.coordinator = ShareStateCoordinator(
            store.scan, lambda topic, number: True, updates_per_snapshot=20
        )
        self.written: dict[int, list[list[bytes]]] = {number: [] for number in range(PARTITIONS)}
        for number in range(PARTITIONS):
            at = TopicPartition(topic_id, number)
            self.save(number, self.coordinator.initialize("g", [InitializeRequest(at, 1, 0)], now_ms=1))
            self.save(number, self.coordinator.read("g", [ReadRequest(at, 1)], now_ms=1))

    def save(self, number: int, outcome: ShareStateOutcome[Any]) -> None:
        assert {result.code.value for result in outcome.results} == {0}
        self.store.write(outcome.changes)
        self.store.sync()
        self.coordinator.states.confirm(outcome)
        for key, value in outcome.changes:
            if value is not None:
                if int.from_bytes(key[-8:], "big") == 0:
                    self.written[number].append([])
                self.written[number][-1].append(value)

    def some(self, count: int) -> None:
        for _ in range(count):
            number = self.random.randrange(PARTITIONS)
            batches = tuple(StateBatch(first, first, 2, 1) for first in range(0, 200, 2))
            request = WriteRequest(
                TopicPartition(self.topic_id, number), 1, 1, -1, self.random.randrange(99), batches
            )
            self.save(number, self.coordinator.write("g", [request], now_ms=2))


def generations(path: Path) -> list[list[list[int]]]:
    """By partition the delivery complete counts in the table, separately for each generation."""
    found: list[list[list[int]]] = [[] for _ in range(PARTITIONS)]
    rows = table(state_table, path, view="history")
    assert {row["problem"] for row in rows} == {None}
    for row in rows:
        mine = found[row["partition"]]
        assert (row["kind"] == "snapshot") == (row["number"] == 0)
        if not row["number"]:
            mine.append([])
        assert row["number"] == len(mine[-1])
        mine[-1].append(row["delivery_complete_count"])
    for number, mine in enumerate(found):
        steps = [(row["step"], row["is_current"]) for row in rows if row["partition"] == number]
        assert steps == [(step, step >= len(steps) - len(mine[-1])) for step in range(len(steps))]
    return found


def counts(values: Sequence[bytes]) -> list[int]:
    kinds: list[Any] = [ShareSnapshot, *[ShareUpdate] * (len(values) - 1)]
    return [kind.decode(value).delivery_complete_count for kind, value in zip(kinds, values, strict=True)]


WAYS = [
    pytest.param(engine, seed, marks=() if engine in ("segment", "lmdb") and not seed else pytest.mark.full)
    for engine, seed in product(DURABLE_ENGINES, range(3))
]


@pytest.mark.parametrize(("engine", "seed"), WAYS)
def test_history_is_what_was_written(
    engine: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the state's log is rewritten repeatedly and trimmed at its beginning: the history
    has whole generations, back to one, and the current state is always there."""
    monkeypatch.setattr(log_state_store, "SMALLEST_DEAD_BYTES", 1 << 18)
    monkeypatch.setattr(log_state_store, "PIECE_BYTES", 1 << 10)
    monkeypatch.setattr(log_state_store, "SETTINGS", LogSettings(segment_bytes=1 << 16, segment_ms=1 << 62))
    monkeypatch.setattr(
        lmdb_state_store, "REDO_SETTINGS", LogSettings(segment_bytes=1 << 15, segment_ms=1 << 62)
    )
    monkeypatch.setattr(lmdb_state_store, "MOST_REDO_BYTES", 1 << 17)
    longest = 0
    with writing(tmp_path, engine) as data:
        work = Work(data.state, data.topic("t", partitions=PARTITIONS), seed)
        for _ in range(8):
            work.some(75)
            for found, written in zip(generations(tmp_path), work.written.values(), strict=True):
                assert found == list(map(counts, written))[-len(found) :]
                longest = max(longest, len(found))
        rewrites = getattr(data.state.statistics(), "rewrites", None)
    if engine == "segment":
        assert rewrites > 1
        assert longest > 1
