"""Share state in control records, read from the log: hints that are closed, open or wrong, and
damage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from kbroker.formats.batches import stamp
from kbroker.formats.control_records import ControlType, ShareControl, build_control_batch
from kbroker.formats.share_records import ShareSnapshot, StateBatchRecord, encode_share_update
from kbroker.formats.state import PERSISTER, ControlChain, ControlHint, ControlHintKey, PersisterName
from kbroker.formats.transactions import MarkerType, build_marker
from kbroker.storage.segment.reader import SegmentLogReader
from kbroker.storage.spi import LogId
from kbroker_spark import control_log, state_table
from kbroker_spark.offsets import Bounds
from kbroker_spark.share_states import LogView
from spark.tests.share_work import table
from spark.tests.stored import Stored, batch, records, writing

CHECKPOINT, DELTA = ControlType.SHARE_CHECKPOINT, ControlType.SHARE_DELTA


def snapshot(start: int) -> bytes:
    batches = (StateBatchRecord(start, start, 2, 1),)
    return ShareSnapshot(
        snapshot_epoch=0, state_epoch=1, leader_epoch=0, start_offset=start, create_timestamp=1,
        write_timestamp=2, state_batches=batches,
        delivery_complete_count=1,
    ).encode()  # fmt: skip


def update(first: int) -> bytes:
    return encode_share_update(0, 0, -1, 2, [(first, first, 2, 1)])


class Chain(NamedTuple):
    checkpoint: int
    newest: int


class Log:
    """A topic `t` whose log has four records, and then what a test appends."""

    def __init__(self, data: Stored) -> None:
        self.data, self.topic, self.end = data, data.topic("t"), 4
        data.state.write([(PERSISTER.encode(), PersisterName("control-records").encode())])
        data.append(self.topic, 0, batch(records(4), 0))

    def control(self, control: ShareControl, *, damaged: bool = False) -> int:
        data = bytearray(build_control_batch([control]))
        stamp(data, base_offset=self.end, leader_epoch=0)
        data[-1] ^= damaged
        self.data.append(self.topic, 0, bytes(data))
        self.end += 1
        return self.end - 1

    def checkpoint(self, group: str, start: int, *, damaged: bool = False) -> Chain:
        at = self.control(ShareControl(CHECKPOINT, group, snapshot(start)), damaged=damaged)
        return Chain(at, at)

    def delta(self, group: str, chain: Chain, first: int, *, damaged: bool = False) -> Chain:
        return chain._replace(
            newest=self.control(ShareControl(DELTA, group, update(first), chain.newest), damaged=damaged)
        )

    def plain(self, count: int) -> None:
        self.data.append(self.topic, 0, batch(records(count), self.end))
        self.end += count

    def seal(self) -> None:
        """The records appended so far are in sealed segments. (An active segment ends at its first
        damage.)"""
        for _ in range(3):
            self.plain(200)

    def hint(self, *, is_open: bool, offset: int | None = None, **chains: Chain) -> None:
        groups = {group: ControlChain(*chain) for group, chain in chains.items()}
        hint = ControlHint(self.end if offset is None else offset, is_open, groups)
        self.data.state.write([(ControlHintKey(self.topic, 0).encode(), hint.encode())])

    def states(self) -> dict[str, list[int] | str]:
        """By group, first offsets of its batches, or the problem."""
        found: dict[str, Any] = {}
        for row in table(state_table, self.data.path):
            assert row["topic_id"] == str(self.topic)
            if row["problem"]:
                found[row["group"]] = row["problem"]
            else:
                found.setdefault(row["group"], []).append(row["first_offset"])
        return found


def test_a_closed_hint_says_where_chains_end(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        log = Log(data)
        a, b = log.checkpoint("a", 0), log.checkpoint("b", 1)
        a = log.delta("a", a, 2)
        assert log.states() == {}, "a log without a hint has no such records"
        log.hint(is_open=False, a=a, b=b)
        log.delta("b", b, 3)
        assert log.states() == {"a": [0, 2], "b": [1]}, "behind a closed one there are none"


def test_behind_an_open_hint_the_log_is_looked_through(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        log = Log(data)
        a, b, gone = log.checkpoint("a", 0), log.checkpoint("b", 1), log.checkpoint("gone", 0)
        log.hint(is_open=True, a=a, b=b, gone=gone)
        for _ in range(300):
            log.plain(3)
        log.delta("a", a, 2)
        log.control(ShareControl(CHECKPOINT, "gone", b""))
        log.checkpoint("new", 3)
        assert log.states() == {"a": [0, 2], "b": [1], "new": [3]}


def test_a_hint_to_records_that_the_log_has_lost(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        log = Log(data)
        a = log.checkpoint("a", 0)
        log.checkpoint("b", 1)
        log.hint(is_open=True, a=a._replace(newest=log.end + 7), offset=log.end + 8)
        assert log.states() == {"a": [0], "b": [1]}


def test_damage_is_one_groups_trouble(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        log = Log(data)
        a, b, c = log.checkpoint("a", 0), log.checkpoint("b", 1), log.checkpoint("c", 2)
        a = log.delta("a", a, 2, damaged=True)
        c = log.delta("c", c, 3)
        log.seal()
        log.hint(is_open=False, a=a, b=b, c=c._replace(checkpoint=b.checkpoint))
        states = log.states()
    assert states.pop("b") == [1]
    assert (
        "share state in a control record cannot be read: the control batch at offset 7 is damaged"
        in states["a"]
    )
    assert "does not lead to its checkpoint" in states["c"]


def test_damage_where_a_log_is_looked_through_is_all_groups_trouble(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        log = Log(data)
        a, b = log.checkpoint("a", 0), log.checkpoint("b", 1)
        log.hint(is_open=True, a=a, b=b)
        log.delta("a", a, 2, damaged=True)
        log.seal()
        states = log.states()
    assert set(states) == {"a", "b"}
    assert {str(problem).split(":")[0] for problem in states.values()} == {
        "its control records cannot be read"
    }


def test_history_of_control_records_goes_back_to_where_the_log_begins(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        log = Log(data)
        first = log.checkpoint("a", 0)
        log.delta("a", first, 2)
        second = log.checkpoint("a", 1)
        second = log.delta("a", second, 3)
        log.hint(is_open=True, a=second)
        rows = table(state_table, tmp_path, view="history")
    assert [(row["kind"], row["number"], row["log_offset"], row["is_current"]) for row in rows] == [
        ("snapshot", 0, 4, False),
        ("update", 1, 5, False),
        ("snapshot", 0, 6, True),
        ("update", 1, 7, True),
    ]
    assert [[each["first_offset"] for each in row["batches"]] for row in rows] == [[0], [2], [1], [3]]


def test_history_of_control_records_while_retention_cuts_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first snapshot has been read it is removed, and so is the second one, whose update
    does not belong to the first."""
    with writing(tmp_path) as data:
        log = Log(data)
        first = log.checkpoint("a", 0)
        log.seal()
        second = log.checkpoint("a", 1)
        log.seal()
        log.hint(is_open=True, a=log.delta("a", second, 2))
        monkeypatch.setattr(control_log, "_CHUNK_BYTES", 1)
        read = SegmentLogReader.read

        def read_and_trim(
            reader: SegmentLogReader, of: LogId, offset: int, **more: Any
        ) -> Sequence[memoryview]:
            found = read(reader, of, offset, **more)
            if offset == first.newest:
                data.logs.trim(of, second.newest + 1)
            return found

        monkeypatch.setattr(SegmentLogReader, "read", read_and_trim)
        assert table(state_table, tmp_path, view="history") == []
        assert data.logs.bounds(LogId(log.topic, 0)).start_offset == second.newest + 1


def test_control_offsets_are_counted_from_anywhere(tmp_path: Path) -> None:
    """Each group counts from its own start, which may be inside a batch; in any order."""
    with writing(tmp_path) as data:
        log = Log(data)
        for _ in range(3):
            controls = bytearray(build_control_batch([ShareControl(DELTA, "a", update(0), 0)] * 4))
            stamp(controls, base_offset=log.end, leader_epoch=0)
            data.append(log.topic, 0, bytes(controls))
            log.end += 4
            log.plain(2)
        expected = {0: 12, 5: 11, 6: 10, 9: 8, 20: 0}
        for order in permutations(expected):
            view = LogView(data.logs, LogId(log.topic, 0), Bounds(0, log.end), has_controls=True)
            assert {start: view.controls_from(start) for start in order} == expected


def test_markers_are_not_counted_as_share_state(tmp_path: Path) -> None:
    """The state counts them as finished already."""
    with writing(tmp_path) as data:
        log = Log(data)
        for kind in (MarkerType.ABORT, MarkerType.COMMIT):
            marker = bytearray(build_marker(kind, 7, 0, 0, 5))
            stamp(marker, base_offset=log.end, leader_epoch=0)
            data.append(log.topic, 0, bytes(marker))
            log.end += 1
            log.checkpoint("a", 0)
        view = LogView(data.logs, LogId(log.topic, 0), Bounds(0, log.end), has_controls=True)
        assert [view.controls_from(start) for start in range(log.end + 1)] == [2, 2, 2, 2, 2, 2, 1, 1, 0]


def test_state_of_a_topic_that_is_gone(tmp_path: Path) -> None:
    """Its log may be gone as well; state in the store still has its owner's name."""
    with writing(tmp_path) as data:
        log = Log(data)
        log.hint(is_open=False, a=log.checkpoint("a", 0))
        missing = UUID(int=9)
        data.state.write(
            [(ControlHintKey(missing, 0).encode(), ControlHint(1, False, {"x": ControlChain(0, 0)}).encode())]
        )
        data.tombstone(log.topic, "t")
        (row,) = table(state_table, tmp_path, view="share-partitions")
    assert (row["group"], row["topic"], row["log_end_offset"], row["lag"], row["acknowledged_records"]) == (
        "a",
        None,
        None,
        None,
        1,
    )
