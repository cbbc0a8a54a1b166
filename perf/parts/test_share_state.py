"""The share coordinator without a store: the cost of deciding a write of share state, of encoding
and decoding it, and of loading it.

- *write*: the cost of every acknowledgement before its changes are committed:
  `ShareStateCoordinator.write()` and `confirm()`, for one run of offsets and for 100 (alternating
  types). After 500 updates of a share-partition the write is a snapshot, which is timed separately.
- *load*: the state of one share-partition from its snapshot and updates, as in the first fetch
  after a start.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from kbroker.formats.share_records import (
    ShareSnapshot,
    ShareUpdate,
    StateBatchRecord,
    encode_share_snapshot,
    encode_share_update,
)
from kbroker.share.effects import StateBatch
from kbroker.share.persister import InitializeRequest, TopicPartition, WriteRequest
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.loading import load
from kbroker.share_state.states import UPDATES_PER_SNAPSHOT
from perf.parts.material import NOW_MS, TOPIC_ID, open_state_store
from perf.parts.part import Part

_KEY = TopicPartition(TOPIC_ID, 0)
_GROUP = "workers"
_RECORDS = [(way, what) for way in ("encode", "encode by kio", "decode") for what in ("snapshot", "update")]


class Kept:
    """A coordinator with an in-memory store and one share-partition."""

    def __init__(
        self, directory: Path, updates: int = 0, *, per_snapshot: int = UPDATES_PER_SNAPSHOT
    ) -> None:
        self.store = open_state_store("memory", directory)
        self.coordinator = ShareStateCoordinator(
            self.store.scan, lambda *_: True, updates_per_snapshot=per_snapshot
        )
        initialized = self.coordinator.initialize(_GROUP, [InitializeRequest(_KEY, 0, 0)], now_ms=NOW_MS)
        self.store.write(initialized.changes)
        self.coordinator.states.confirm(initialized)
        for number in range(updates):
            self.write(number * 10, runs=1)

    def write(self, first: int, runs: int) -> None:
        batches = [StateBatch(first + 2 * at, first + 2 * at, 2, 1) for at in range(runs)]
        outcome = self.coordinator.write(_GROUP, [WriteRequest(_KEY, 0, 0, first, 0, batches)], now_ms=NOW_MS)
        self.store.write(outcome.changes)
        self.coordinator.states.confirm(outcome)


@pytest.mark.parametrize("runs", [1, 100])
def test_write(part: Part, directory: Path, runs: int) -> None:
    kept = Kept(directory, per_snapshot=1 << 40)
    numbers = count(0, 2 * runs)
    part.repeat(
        lambda: kept.write(next(numbers), runs),
        thing="write",
        group=f"share state, write: {runs} runs",
        name="update",
    )


def test_write_snapshot(part: Part, directory: Path) -> None:
    """The write of a snapshot that merges 500 updates."""
    numbers = count()

    def prepare() -> tuple[Kept]:
        return (Kept(directory / str(next(numbers)), UPDATES_PER_SNAPSHOT),)

    def write(kept: Kept) -> None:
        kept.write(UPDATES_PER_SNAPSHOT * 10, 1)

    part.rounds(
        prepare,
        write,
        rounds=10,
        thing="write",
        group="share state, write: snapshot",
        name="after 500 updates",
    )


@pytest.mark.parametrize("updates", [0, 5, 20, 500])
def test_load(part: Part, directory: Path, updates: int) -> None:
    records = list(Kept(directory, updates).store.scan(b""))
    assert len(records) == updates + 1
    part.repeat(lambda: load(records), thing="load", group="share state, load", name=f"{updates} updates")


@pytest.mark.parametrize("runs", [1, 20, 200])
@pytest.mark.parametrize(("way", "what"), _RECORDS)
def test_records(part: Part, way: str, what: str, runs: int) -> None:
    batches = [StateBatch(2 * at, 2 * at, 2, 1) for at in range(runs)]
    rows = tuple(StateBatchRecord(*batch) for batch in batches)
    snapshot = ShareSnapshot(
        snapshot_epoch=1,
        state_epoch=0,
        leader_epoch=1,
        start_offset=0,
        create_timestamp=NOW_MS,
        write_timestamp=NOW_MS,
        state_batches=rows,
    )
    update = ShareUpdate(snapshot_epoch=1, leader_epoch=1, start_offset=0, state_batches=rows)
    group = f"share state, {way}: {runs} runs"
    if way == "decode":
        decode, encoded = (
            (ShareSnapshot.decode, snapshot.encode())
            if what == "snapshot"
            else (ShareUpdate.decode, update.encode())
        )
        part.repeat(lambda: decode(encoded), thing="record", group=group, name=what)
    elif way == "encode by kio":
        part.repeat(
            snapshot.encode if what == "snapshot" else update.encode, thing="record", group=group, name=what
        )
    elif what == "update":
        part.repeat(lambda: encode_share_update(1, 1, 0, -1, batches), thing="record", group=group, name=what)
    else:
        part.repeat(
            lambda: encode_share_snapshot(1, 0, 1, 0, NOW_MS, NOW_MS, -1, -1, batches),
            thing="record",
            group=group,
            name=what,
        )
