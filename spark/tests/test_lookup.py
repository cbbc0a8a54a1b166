"""Which partitions a selection includes, and which offset belongs to a time: by record, not by
batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from crc32c import crc32c

from kbroker.formats.batches import CONTROL, Record, build_batch, stamp_log_append_time
from kbroker.formats.compression import Codec
from kbroker.formats.state import TopicState
from kbroker_spark.data import TopicInfo, reading
from kbroker_spark.errors import SourceError
from kbroker_spark.lookup import Partition, look, offset_at_time
from kbroker_spark.offsets import Bounds, TopicPartition
from kbroker_spark.options import Assign, Selection, Subscribe, SubscribePattern
from spark.tests.stored import Stored, batch, records, writing


def found_by(path: Path, selection: Selection) -> list[str]:
    with reading(path) as directory:
        return [str(each) for each in look(directory, selection)]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    with writing(tmp_path) as data:
        for name in ("a", "ab", "b"):
            data.topic(name, partitions=2)
        data.topic("old", state=TopicState.DELETING)
    return tmp_path


def test_selections(three: Path) -> None:
    assert found_by(three, Subscribe(("b", "a"))) == ["a-0", "a-1", "b-0", "b-1"]
    assert found_by(three, SubscribePattern("a.?")) == ["a-0", "a-1", "ab-0", "ab-1"]
    assert found_by(three, SubscribePattern("a")) == ["a-0", "a-1"]
    assert found_by(three, SubscribePattern("old|zzz")) == []
    assert found_by(three, Assign((TopicPartition("b", 1), TopicPartition("ab", 0)))) == ["ab-0", "b-1"]


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        (Subscribe(("a", "old")), "there is no topic old in "),
        (Assign((TopicPartition("zzz", 0),)), ": there are a, ab, b"),
        (Assign((TopicPartition("a", 2),)), "topic a has no partition 2: it has 2, the first is 0"),
    ],
)
def test_what_is_not_there(three: Path, selection: Selection, text: str) -> None:
    with pytest.raises(SourceError) as caught:
        found_by(three, selection)
    assert text in str(caught.value)


def test_a_topic_without_its_log_is_damage_and_one_that_is_being_deleted_is_not(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        topic_id = data.topic("t", partitions=2)
        data.logs.drop(TopicInfo("t", topic_id, 2, 5, {}).log(1))
        with pytest.raises(SourceError, match="has no log of t-1: the directory was copied in part"):
            found_by(tmp_path, SubscribePattern("t"))


def offset_at(
    data: Stored, content: Sequence[bytes], ms: int, *, start: int = 0, end: int = 1000
) -> int | None:
    topic_id = data.topic("t")
    data.append(topic_id, 0, *content)
    with reading(data.path) as directory:
        return offset_at_time(
            directory.logs(), Partition(TopicInfo("t", topic_id, 1, 5, {}), 0, Bounds(start, end)), ms
        )


def at(*times: int) -> list[Record]:
    return [Record(0, ms, None, b"") for ms in times]


def seal(data: bytearray) -> None:
    """With the CRC of its bytes."""
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb", "sqlite"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize(
    ("ms", "offset"),
    [(0, 0), (1000, 0), (1001, 1), (1009, 9), (1010, 10), (1015, 15), (2019, 39), (2020, None)],
)
def test_each_record_counts(tmp_path: Path, engine: str, codec: Codec, ms: int, offset: int | None) -> None:
    content = [
        batch(records(10, first_ms=first), base, codec=codec)
        for base, first in ((0, 1000), (10, 1010), (20, 2000), (30, 2010))
    ]
    with writing(tmp_path, engine) as data:
        assert offset_at(data, content, ms) == offset


def test_the_order_of_times_is_the_producers(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        assert offset_at(data, [batch(at(50, 10), 0), batch(at(30, 90, 20), 2), batch(at(60), 5)], 60) == 3


def test_records_below_the_log_start_do_not_count(tmp_path: Path) -> None:
    content = [batch(at(50, 99, 10), 0), batch(at(5, 6), 3), batch(at(70, 80), 5)]
    with writing(tmp_path) as data:
        assert offset_at(data, content, 60, start=2) == 5
        assert offset_at(data, content, 60, start=1) == 1
        assert offset_at(data, content, 60, start=6) == 6


def test_records_behind_the_end_do_not_count(tmp_path: Path) -> None:
    with writing(tmp_path) as data:
        assert offset_at(data, [batch(at(50, 60, 70), 0)], 70, end=2) is None


def test_a_header_may_promise_a_time_that_no_record_has(tmp_path: Path) -> None:
    lying = bytearray(batch(at(50, 60), 0))
    lying[35:43] = (500).to_bytes(8, "big")
    seal(lying)
    with writing(tmp_path) as data:
        assert offset_at(data, [bytes(lying), batch(at(10), 2), batch(at(100), 3)], 90) == 3


def test_the_brokers_time_is_that_of_all_records(tmp_path: Path) -> None:
    stamped = bytearray(batch(at(50, 60), 4))
    stamp_log_append_time(stamped, 1000)
    with writing(tmp_path) as data:
        assert offset_at(data, [batch(at(900), 3), bytes(stamped)], 1000) == 4


def test_control_batches_and_records_without_a_time_are_never_found(tmp_path: Path) -> None:
    control = build_batch(at(500), base_offset=0, attributes=CONTROL)
    with writing(tmp_path) as data:
        assert offset_at(data, [control, batch(at(-1, -1), 1), batch(at(400), 3)], 0) == 3


def test_a_damaged_batch_is_told(tmp_path: Path) -> None:
    broken = bytearray(batch(records(10), 0, codec=Codec.ZSTD))
    broken[70:] = bytes(len(broken) - 70)
    seal(broken)
    with (
        writing(tmp_path) as data,
        pytest.raises(SourceError, match=r"t-0 is damaged at offset 0 .* no offset can be found by time"),
    ):
        offset_at(data, [bytes(broken)], 1005)
