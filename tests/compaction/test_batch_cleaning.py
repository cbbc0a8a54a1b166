"""Which records a pass leaves, and in which batches."""

from __future__ import annotations

import pytest

from kbroker.compaction.batch_cleaning import LastOfProducer
from kbroker.formats.batches import (
    CONTROL,
    NO_PRODUCER,
    ProducerInfo,
    Record,
    build_batch,
    read_header,
    stamp_log_append_time,
)
from kbroker.formats.compacted_batches import DELETE_HORIZON, delete_horizon_ms
from kbroker.formats.compression import Codec, CorruptPayload
from kbroker.formats.transactions import MarkerType
from tests.compaction.logs import NOW_MS, RETENTION_MS, MemoryLog, record

PRODUCER = ProducerInfo(7, 0, 0)


@pytest.mark.parametrize("codec", Codec)
def test_the_latest_record_of_each_key_stays_as_it_was(codec: Codec) -> None:
    log = MemoryLog()
    log.append(record("a", "1"), record("b", "2", NOW_MS - 5), record("a", "3"), codec=codec)
    log.append(record("c", "4"), codec=codec)
    before = {each.offset: each for each in log.records()}
    assert log.clean().removed_records == 1
    assert list(log.records()) == [before[offset] for offset in (1, 2, 3)]
    assert log.layout() == [(0, 2, 2), (3, 3, 1)]
    assert [each.codec_id for each in log.headers()] == [codec, codec]
    assert log.headers()[0].max_timestamp_ms == NOW_MS


def test_a_batch_that_loses_nothing_stays_byte_by_byte() -> None:
    log = MemoryLog()
    log.append(record("a", "1"), record("b", "2"), codec=Codec.ZSTD)
    before = list(log.batches)
    assert log.clean().removed_records == 0
    assert log.batches == before


def test_the_max_timestamp_is_that_of_the_records_that_stay() -> None:
    log = MemoryLog()
    log.append(record("a", "1", NOW_MS + 9), record("b", "2", NOW_MS - 1), record("c", "3", NOW_MS - 2))
    log.append(record("a", "4"))
    log.clean()
    assert [each.max_timestamp_ms for each in log.headers()] == [NOW_MS - 1, NOW_MS]


def test_log_append_time_stays() -> None:
    log = MemoryLog()
    batch = bytearray(build_batch([record("a", "1"), record("b", None)]))
    stamp_log_append_time(batch, NOW_MS + 77)
    log.batches, log.next_offset = [bytes(batch)], 2
    log.append(record("a", "2"))
    log.clean()
    assert log.headers()[0].max_timestamp_ms == NOW_MS + 77
    assert [each.timestamp_ms for each in log.records()] == [NOW_MS + 77, NOW_MS]


def test_records_without_key_go() -> None:
    log = MemoryLog()
    log.append(record(None, "1"), record("", "2"), record(None, None))
    log.clean()
    assert [each.offset for each in log.records()] == [1]


def test_a_tombstone_gets_a_horizon_and_goes_after_it() -> None:
    log = MemoryLog()
    log.append(record("a", "1"), record("b", "2", NOW_MS - 3))
    log.append(record("a", None), record("b", "3", NOW_MS - 4))
    log.append(record("c", "4"))
    log.clean()
    assert [(each.offset, each.timestamp_ms) for each in log.records()] == [
        (2, NOW_MS), (3, NOW_MS - 4), (4, NOW_MS)
    ]  # fmt: skip
    first = log.headers()[0]
    assert delete_horizon_ms(first) == NOW_MS + RETENTION_MS
    assert first.attributes & DELETE_HORIZON
    before = list(log.batches)
    log.clean(now_ms=NOW_MS + RETENTION_MS - 1)
    assert log.batches == before
    log.clean(now_ms=NOW_MS + RETENTION_MS)
    assert [(each.offset, each.timestamp_ms) for each in log.records()] == [(3, NOW_MS - 4), (4, NOW_MS)]
    assert delete_horizon_ms(log.headers()[0]) == NOW_MS + RETENTION_MS


def test_a_horizon_beyond_all_times_is_not_set() -> None:
    """As in Kafka: a lower delete.retention.ms may set it later."""
    log = MemoryLog()
    log.append(record("a", None), record("b", "1"))
    log.end(MarkerType.COMMIT, 7)
    before = list(log.batches)
    log.clean(retention_ms=(1 << 63) - 1, producers={})
    assert log.batches == before
    log.append(record("c", "2"))
    log.clean(producers={})
    assert [delete_horizon_ms(each) for each in log.headers()] == [NOW_MS + RETENTION_MS] * 2 + [None]


def test_an_overwritten_tombstone_goes_at_once() -> None:
    log = MemoryLog()
    log.append(record("a", None))
    log.append(record("a", "1"))
    log.clean()
    assert log.layout() == [(1, 1, 1)]


def test_the_end_of_the_range_stays_visible() -> None:
    log = MemoryLog()
    log.append(record("a", "1"), record("a", "2"))
    log.append(record(None, "3"), record(None, "4"), codec=Codec.LZ4)
    log.clean()
    assert log.layout() == [(0, 1, 1), (2, 3, 0)]
    last = log.headers()[-1]
    assert last.size_bytes == 61
    assert last.codec_id == Codec.NONE
    log.append(record("b", "5"))
    log.clean()
    assert log.layout() == [(0, 1, 1), (4, 4, 1)]


def test_the_last_batch_of_a_producer_stays_as_a_header() -> None:
    log = MemoryLog()
    log.append(record("a", "1"), record("b", "1"), producer=ProducerInfo(7, 3, 40))
    log.append(record("a", "2"), producer=ProducerInfo(7, 3, 42))
    log.append(record("a", "3"), record("b", "3"))
    log.clean()
    assert log.layout() == [(2, 2, 0), (3, 4, 2)]
    header = log.headers()[0]
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 42)
    log.clean(producers={})
    assert log.layout() == [(3, 4, 2)]


def test_records_of_an_aborted_transaction_go_and_remove_nothing() -> None:
    log = MemoryLog()
    log.append(record("a", "1"))
    log.append(record("a", "aborted"), producer=PRODUCER, is_transactional=True)
    log.append(record("b", "2"))
    log.end(MarkerType.ABORT, 7)
    log.append(record("c", "3"))
    log.clean(producers={})
    assert [each.value for each in log.records()] == [b"1", b"2", b"3"]
    # A batch was seen, so the marker stays without a horizon; the next pass sees none.
    assert [delete_horizon_ms(each) for each in log.headers()] == [None] * 4
    log.clean(producers={})
    assert delete_horizon_ms(log.headers()[2]) == NOW_MS + RETENTION_MS
    log.clean(now_ms=NOW_MS + RETENTION_MS, producers={})
    assert [each.is_control for each in log.headers()] == [False] * 3


def test_a_commit_marker_stays_as_long_as_its_records() -> None:
    log = MemoryLog()
    log.append(record("a", "1"), producer=PRODUCER, is_transactional=True)
    log.end(MarkerType.COMMIT, 7)
    log.append(record("b", "2"))
    before = list(log.batches)
    log.clean(producers={})
    assert log.batches == before
    log.append(record("a", "3"))
    log.clean(producers={})  # This pass has seen the batch that it removes.
    assert delete_horizon_ms(log.headers()[0]) is None
    log.clean(producers={})
    assert delete_horizon_ms(log.headers()[0]) == NOW_MS + RETENTION_MS
    log.clean(now_ms=NOW_MS + RETENTION_MS, producers={})
    assert [each.value for each in log.records()] == [b"2", b"3"]
    assert not any(each.is_control for each in log.headers())


def test_the_marker_of_an_active_producer_without_data_stays_as_a_header() -> None:
    log = MemoryLog()
    log.end(MarkerType.COMMIT, 7, epoch=2)
    log.append(record("b", "2"))
    active = {7: LastOfProducer(None, 2)}
    log.clean(producers=active)
    log.clean(now_ms=NOW_MS + RETENTION_MS, producers=active)
    assert log.layout() == [(0, 0, 0), (1, 1, 1)]
    log.clean(now_ms=NOW_MS + RETENTION_MS, producers={7: LastOfProducer(None, 3)})
    assert log.layout() == [(1, 1, 1)]


def test_control_records_of_share_state_stay() -> None:
    log = MemoryLog()
    log.batches = [build_batch([Record(0, -1, b"k", b"v")], attributes=CONTROL)]
    log.next_offset = 1
    log.append(record("a", "1"))
    before = list(log.batches)
    log.clean()
    assert log.batches == before


def test_records_beyond_the_map_stay() -> None:
    log = MemoryLog()
    for number in range(1000):
        log.append(record(f"{number % 900}", "x"), producer=NO_PRODUCER)
    log.clean(map_bytes=24 * 1024)
    assert log.cleaned_to == 768
    assert len(log.records()) == 1000
    log.clean(map_bytes=24 * 1024)
    assert log.cleaned_to == 1000
    assert sorted(int(each.key or b"") for each in log.records()) == list(range(900))


def test_a_batch_that_cannot_be_read_is_named() -> None:
    log = MemoryLog()
    log.append(record("a", "1"), record("b", "2"), codec=Codec.GZIP)
    log.batches[0] = log.batches[0][:75] + b"\xff\xff" + log.batches[0][77:]
    assert read_header(log.batches[0]).record_count == 2
    with pytest.raises(CorruptPayload):
        log.clean()
