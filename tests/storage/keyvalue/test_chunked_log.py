"""Chunks and the computations on them that the contract suites do not reach: sizes beyond a chunk,
holes, odd cuts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.storage import memory_store
from kbroker.storage.keyvalue import chunks
from kbroker.storage.lmdb import engine as lmdb_store
from kbroker.storage.rocksdb import engine as rocksdb_store
from kbroker.storage.spi import LogSettings, LogStore, LogStoreFactory, StampedBatch
from kbroker.testing.log_store_model import (
    EVERYTHING,
    LOG,
    SETTINGS,
    batch,
    check_segments,
    everything,
    joined,
    read_all,
    sized_batch,
)

ENGINES = {"lmdb": lmdb_store.LOG_STORE, "rocksdb": rocksdb_store.LOG_STORE}


@pytest.fixture(params=list(ENGINES))
def factory(request: pytest.FixtureRequest) -> LogStoreFactory:
    return ENGINES[request.param]


def opened(factory: LogStoreFactory, directory: Path) -> LogStore:
    return factory.open(directory, {}, 1)


def test_a_chunk_ends_before_it_is_too_large(
    factory: LogStoreFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.storage.keyvalue.chunked_log.CHUNK_BYTES", 2000)
    store = opened(factory, tmp_path)
    store.create(LOG, SETTINGS)
    written = [sized_batch(offset, 100 + offset * 90, timestamp_ms=offset) for offset in range(40)]
    store.write(written, now_ms=0)
    for offset in range(40):
        for max_bytes in (1, 1999, 2000, 2001, 5000, EVERYTHING):
            found = read_all(store, offset=offset, max_bytes=max_bytes)
            expected: list[StampedBatch] = []
            for each in written[offset:]:
                if expected and len(joined([*expected, each])) > max_bytes:
                    break
                expected.append(each)
            assert found == joined(expected), (offset, max_bytes)
        assert store.find_by_timestamp(LOG, offset) == offset
    check_segments(store)
    store.close()


@pytest.mark.parametrize("per_call", [1, 2, 8])
@pytest.mark.parametrize("segment_bytes", [1, 500, 1 << 20])
def test_truncation_into_holes(
    factory: LogStoreFactory, tmp_path: Path, per_call: int, segment_bytes: int
) -> None:
    """To every offset at which the log may be cut, including those in a hole; also after reopening
    the log."""
    offsets = [0, 10, 11, 20, 40, 41, 60, 90]
    written = [batch(offset, 1 if offset % 10 == 0 else 3, timestamp_ms=offset) for offset in offsets]
    ends = sorted(
        {
            0,
            *(each.base_offset for each in written),
            *(each.last_offset + 1 for each in written),
            5,
            33,
            70,
            91,
            200,
        }
    )
    for new_end in ends:
        store = opened(factory, tmp_path / str(new_end))
        model = memory_store.LOG_STORE.open(tmp_path / "model" / str(new_end), {}, 1)
        for each in (store, model):
            each.create(LOG, LogSettings(segment_bytes=segment_bytes))
            for number in range(0, len(written), per_call):
                each.write(written[number : number + per_call], now_ms=0)
            each.truncate(LOG, new_end)
        assert everything(store, LOG) == everything(model, LOG), new_end
        store.close()
        store = opened(factory, tmp_path / str(new_end))
        assert everything(store, LOG) == everything(model, LOG), new_end
        for each in (store, model):
            each.write([batch(300, 2, timestamp_ms=7)], now_ms=0)
        assert everything(store, LOG) == everything(model, LOG), new_end
        store.close()


def test_no_timestamps_roll_by_the_brokers_clock(factory: LogStoreFactory, tmp_path: Path) -> None:
    store = opened(factory, tmp_path)
    store.create(LOG, LogSettings(segment_ms=1000))
    store.write([batch(0, timestamp_ms=-1)], now_ms=5000)
    store.write([batch(1, timestamp_ms=-1)], now_ms=6000)
    store.close()
    store = opened(factory, tmp_path)
    store.write([batch(2, timestamp_ms=-1)], now_ms=6001)
    assert [segment.base_offset for segment in store.segments(LOG)] == [0, 2]
    store.close()


def test_the_head_of_a_chunk_is_as_drawn() -> None:
    segment = chunks.ChunkedSegment(1, 0, 0).grown(100, 7, 50, 9).grown(20, 8, 40, 10)
    assert segment.head() == b"".join(number.to_bytes(8, "big") for number in (8, 120, 50, 50, 9))
    assert segment.after(segment.head()) == segment
    assert len(segment.head()) == chunks.HEAD_SIZE
