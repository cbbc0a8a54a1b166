"""Records that wait outside the in-flight window, in kbroker-state: every engine, both persisters,
the share coordinator's own bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from kbroker.formats.control_records import ControlType, ShareControl, build_control_batch
from kbroker.formats.state import PERSISTER, ControlChain, ControlHint, ControlHintKey, PersisterName
from kbroker.share.effects import StateBatch
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.persister import InitializeRequest, ReadRequest, TopicPartition, WriteRequest
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.parked import ParkingStore
from kbroker.storage.spi import Change
from kbroker_spark import share_states, state_table
from spark.tests.share_work import table
from spark.tests.stored import Stored, batch, records, writing
from tests.brokers import DURABLE_ENGINES

DUE_MS = 5000
PARKED = [
    Parked(1, Lane.REDELIVERY, DUE_MS, 3, 4, kept=True),
    Parked(2, Lane.SCHEDULE, DUE_MS - 1, 0, 4),
    Parked(6, Lane.ARCHIVING, 0, 5, 4, rejected=True),
]


def changes_of(at: TopicPartition, parked: Sequence[Parked]) -> list[Change]:
    """The broker's writes for a group that has parked these, and starts at 5 of 10."""
    stored: dict[bytes, bytes] = {}
    coordinator = ShareStateCoordinator(
        lambda prefix: sorted(item for item in stored.items() if item[0].startswith(prefix)),
        lambda *_: True,
        parking=ParkingStore(stored.get, count(77)),
    )
    changes = [ParkingChange(each.offset, (), each, b"a batch" if each.kept else None) for each in parked]
    write = WriteRequest(at, 1, 4, 5, 1, [StateBatch(6, 6, 4, 5)], changes, len(parked))
    for outcome in (
        coordinator.initialize("g", [InitializeRequest(at, 1, 0)], now_ms=1),
        coordinator.read("g", [ReadRequest(at, 4)], now_ms=1),
        coordinator.write("g", [write], now_ms=1),
    ):
        coordinator.states.confirm(outcome)
        for key, value in outcome.changes:
            if value is None:
                stored.pop(key, None)
            else:
                stored[key] = value
    return list(stored.items())


def store(data: Stored, persister: str, parked: Sequence[Parked] = PARKED) -> TopicPartition:
    at = TopicPartition(data.topic("jobs"), 0)
    data.append(at.topic_id, 0, *(batch(records(1), offset) for offset in range(10)))
    changes = changes_of(at, parked)
    if persister == "control-records":
        (snapshot,) = [value for key, value in changes if key.startswith(b"share/")]
        assert snapshot is not None
        changes = [change for change in changes if not change[0].startswith(b"share/")]
        control = build_control_batch([ShareControl(ControlType.SHARE_CHECKPOINT, "g", snapshot)])
        data.append(at.topic_id, 0, struct.pack(">q", 10) + control[8:])
        changes.append(
            (ControlHintKey(*at).encode(), ControlHint(11, False, {"g": ControlChain(10, 10)}).encode())
        )
    data.state.write([*changes, (PERSISTER.encode(), PersisterName(persister).encode())])
    return at


@pytest.mark.parametrize("persister", ["default", "control-records"])
@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_what_waits_is_shown_and_is_lag(
    tmp_path: Path, engine: str, persister: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_states, "_PIECE", 2)
    for directory, log_start in ((tmp_path / "a", 0), (tmp_path / "b", 2)):
        with writing(directory, engine) as data:
            at = store(data, persister)
            data.log_start(at.topic_id, 0, log_start)
    rows = table(state_table, tmp_path / "b", view="waiting")
    head = {
        "group": "g",
        "topic": "jobs",
        "topic_id": str(at.topic_id),
        "partition": 0,
        "problem": None,
        "leader_epoch": 4,
    }
    alive = {"rejected": False, "expired": False, "kept": False}
    assert rows == [
        head
        | {
            "offset": 1,
            "waits_for": "redelivery",
            "due": 1000 * DUE_MS,
            "delivery_count": 3,
            **alive,
            "kept": True,
        },
        head
        | {"offset": 2, "waits_for": "schedule", "due": 1000 * (DUE_MS - 1), "delivery_count": 0, **alive},
        head
        | {
            "offset": 6,
            "waits_for": "dead letter",
            "due": None,
            "delivery_count": 5,
            **alive,
            "rejected": True,
        },
    ]
    assert [
        (row["first_offset"], row["state"], row["parked"]) for row in table(state_table, tmp_path / "b")
    ] == [(6, "archived", 1)]
    (row,) = table(state_table, tmp_path / "a", view="share-partitions")
    assert (row["waiting_records"], row["next_due"], row["lag"], row["problem"]) == (3, 0, 5 - 1 + 3, None)
    (row,) = table(state_table, tmp_path / "b", view="share-partitions")
    assert (row["waiting_records"], row["lag"]) == (3, 5 - 1 + 3), (
        "the log has one of them no more, and the state keeps it"
    )


def test_nothing_waits_and_nothing_can_be_read(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        store(data, "default", ())
    assert table(state_table, tmp_path, view="waiting") == []
    (row,) = table(state_table, tmp_path, view="share-partitions")
    assert (row["waiting_records"], row["next_due"], row["lag"]) == (0, None, 4)


def test_what_is_damaged_is_a_problem_of_its_own(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        store(data, "default")
        damaged = [(key, b"\0") for key, _ in data.state.scan(b"parked/")]
        data.state.write(damaged)
    (row,) = table(state_table, tmp_path, view="waiting")
    assert row["offset"] is None
    assert str(row["problem"]).startswith(
        "its parked records cannot be read: not the value of a parked record"
    )
    (row,) = table(state_table, tmp_path, view="share-partitions")
    assert str(row["problem"]).startswith("its lag is not known: not the value of a parked record")
