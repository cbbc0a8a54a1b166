"""The contract suite of the LogStore SPI. Every engine must pass it, built in or from a plugin.

    from kbroker.testing.log_store_contract import LogStoreContract
    class TestMyEngine(LogStoreContract):
        factory = LOG_STORE                      # the LogStoreFactory that the entry point names

There is one test method for each promise of kbroker/storage/spi.py, so that a failing test names
the broken promise. Those about segments and removals are in log_removal_contract.py, those about
replaced segments in log_replace_contract.py; engines without `replaces` skip them. `test_model`
runs random operations on the engine and on the memory store, and compares everything that can be
read. The suite does not test crashes: killing a process needs a harness around it. This module must
not know any engine.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from uuid import UUID

import pytest

from kbroker.formats.batches import crc_is_valid, iter_headers
from kbroker.storage.spi import LogBounds, LogId, LogSettings, LogStore, StampedBatch
from kbroker.testing.beside_sync import syncing
from kbroker.testing.log_removal_contract import LogRemovalContract
from kbroker.testing.log_replace_contract import LogReplaceContract
from kbroker.testing.log_store_model import (
    EVERYTHING,
    LOG,
    OTHER,
    SETTINGS,
    TOPIC,
    base_offsets,
    batch,
    check_against_memory_store,
    check_segments,
    everything,
    joined,
    read_all,
    sized_batch,
)


class LogStoreContract(LogRemovalContract, LogReplaceContract):
    """Subclass it, set `factory`, run pytest."""

    # Logs: created, missing, dropped

    def test_a_new_store_has_no_logs(self, store: LogStore) -> None:
        assert list(store.logs()) == []

    def test_engine_says_where_it_must_run(self, store: LogStore) -> None:
        assert isinstance(store.may_block, bool)
        assert isinstance(store.write_in_thread, bool)

    def test_an_engine_may_say_what_is_cached(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, SETTINGS)
        store.write([batch(offset) for offset in range(5)], now_ms=0)
        store.sync()
        expected = joined(batch(each) for each in range(2, 4))
        with self.reopened(store, directory) as again:
            for _ in range(2):
                assert isinstance(again.is_cached(LOG, 2, max_bytes=1000, end_offset=4), bool)
                assert b"".join(again.read(LOG, 2, max_bytes=1000, end_offset=4)) == expected
            assert isinstance(again.is_cached(LOG, 7, max_bytes=1000, end_offset=9), bool)

    def test_an_empty_log_begins_at_0(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        assert list(store.logs()) == [LOG]
        assert store.bounds(LOG) == (0, 0)
        assert [tuple(segment) for segment in store.segments(LOG)] == [(0, 0, 0, -1)]
        assert list(store.read(LOG, 0, max_bytes=100, end_offset=100)) == []
        assert store.find_by_timestamp(LOG, 0) is None

    def test_answers_are_plain_types_of_the_spi(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        assert isinstance(store.bounds(LOG), LogBounds)
        assert isinstance(next(iter(store.logs())), LogId)

    def test_a_missing_log_is_a_key_error(self, store: LogStore) -> None:
        store.create(OTHER, SETTINGS)
        with pytest.raises(KeyError):
            store.bounds(LOG)
        with pytest.raises(KeyError):
            store.segments(LOG)
        with pytest.raises(KeyError):
            store.read(LOG, 0, max_bytes=1, end_offset=1)
        with pytest.raises(KeyError):
            store.find_by_timestamp(LOG, 0)
        with pytest.raises(KeyError):
            store.trim(LOG, 1)
        with pytest.raises(KeyError):
            store.truncate(LOG, 1)

    def test_a_write_that_names_a_missing_log_keeps_nothing(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        with pytest.raises(KeyError):
            store.write([batch(0), batch(0, log=OTHER)], now_ms=0)
        assert store.bounds(LOG) == (0, 0)
        store.write([batch(0)], now_ms=0)
        assert read_all(store) == batch(0).data

    def test_create_again_keeps_the_content(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        store.write([batch(0)], now_ms=0)
        store.create(LOG, SETTINGS)
        assert read_all(store) == batch(0).data

    def test_drop_removes_a_log_and_only_that(self, store: LogStore, directory: Path) -> None:
        for log in (LOG, OTHER):
            store.create(log, SETTINGS)
            store.write([batch(0, log=log)], now_ms=0)
        store.drop(LOG)
        store.drop(LOG)
        assert list(store.logs()) == [OTHER]
        with pytest.raises(KeyError):
            store.bounds(LOG)
        with self.reopened(store, directory) as again:
            assert (list(again.logs()), read_all(again, OTHER)) == ([OTHER], batch(0, log=OTHER).data)

    def test_a_recreated_log_is_empty(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, SETTINGS)
        store.write([batch(0, 5)], now_ms=0)
        store.drop(LOG)
        store.create(LOG, SETTINGS)
        assert store.bounds(LOG) == (0, 0)
        assert read_all(store) == b""
        store.write([batch(0, 2)], now_ms=0)
        with self.reopened(store, directory) as again:
            assert read_all(again) == batch(0, 2).data

    def test_logs_differ_by_topic_id_and_by_partition(self, store: LogStore) -> None:
        logs = [
            LogId(UUID(int=topic), partition)
            for topic in (1, 2, 1 << 127)
            for partition in (0, 1, 10, 2**31 - 1)
        ]
        for log in logs:
            store.create(log, SETTINGS)
        store.write([batch(0, log=log, value=str(log).encode()) for log in logs], now_ms=0)
        assert sorted(store.logs()) == sorted(logs)
        for log in logs:
            assert read_all(store, log) == batch(0, log=log, value=str(log).encode()).data

    # Writing and reading

    def test_batches_are_kept_verbatim_in_order(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        written = [batch(0, 3), batch(3), batch(4, 10)]
        store.write(written[:1], now_ms=0)
        store.write(written[1:], now_ms=0)
        assert read_all(store) == joined(written)
        assert store.bounds(LOG) == (0, 14)
        check_segments(store)

    def test_any_buffer_is_taken_and_not_kept(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        scratch = bytearray(batch(0).data)
        store.write(
            [batch(0)._replace(data=scratch), batch(1)._replace(data=memoryview(batch(1).data))], now_ms=0
        )
        scratch[:] = bytes(len(scratch))
        assert read_all(store) == joined([batch(0), batch(1)])

    def test_writing_nothing_is_allowed(self, store: LogStore) -> None:
        store.write([], now_ms=0)
        store.sync()

    def test_many_logs_in_one_call(self, store: LogStore, directory: Path) -> None:
        logs = [LogId(TOPIC, partition) for partition in range(20)]
        for log in logs:
            store.create(log, SETTINGS)
        rounds = [[batch(offset, log=log) for log in logs] for offset in range(3)]
        store.write(rounds[0] + rounds[1], now_ms=0)
        store.write(rounds[2], now_ms=0)
        store.sync()
        with self.reopened(store, directory) as again:
            for log in logs:
                assert read_all(again, log) == joined(batch(offset, log=log) for offset in range(3))

    def test_many_batches_in_one_call(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        written = [batch(offset) for offset in range(3000)]
        store.write(written, now_ms=0)
        assert read_all(store) == joined(written)

    def test_read_begins_with_the_batch_that_holds_the_offset(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        store.write([batch(0, 10), batch(10, 10), batch(20, 10)], now_ms=0)
        for offset, expected in ((0, 0), (9, 0), (10, 10), (15, 10), (19, 10), (20, 20), (29, 20)):
            assert base_offsets(read_all(store, offset=offset))[0] == expected, f"read from {offset}"

    def test_read_at_or_past_the_end_is_empty(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        store.write([batch(0, 10)], now_ms=0)
        for offset in (10, 99):
            assert list(store.read(LOG, offset, max_bytes=100, end_offset=100)) == []

    def test_read_stops_before_the_batch_that_begins_at_end_offset(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        store.write([batch(0, 10), batch(10, 10), batch(20, 10)], now_ms=0)
        for end_offset, expected in (
            (0, []),
            (1, [0]),
            (10, [0]),
            (11, [0, 10]),
            (20, [0, 10]),
            (21, [0, 10, 20]),
        ):
            assert base_offsets(read_all(store, end_offset=end_offset)) == expected, (
                f"read up to {end_offset}"
            )
        assert list(store.read(LOG, 15, max_bytes=EVERYTHING, end_offset=10)) == []
        assert base_offsets(read_all(store, offset=15, end_offset=12)) == [10]

    def test_read_keeps_to_max_bytes(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        written = [batch(0, 10), batch(10, 10), batch(20, 10)]
        store.write(written, now_ms=0)
        one = len(written[0].data)
        two = one + len(written[1].data)
        for max_bytes, expected in (
            (0, [0]),
            (1, [0]),
            (one, [0]),
            (two - 1, [0]),
            (two, [0, 10]),
            (two + 1, [0, 10]),
        ):
            assert base_offsets(read_all(store, max_bytes=max_bytes)) == expected, (
                f"read of {max_bytes} bytes"
            )
        assert base_offsets(read_all(store, offset=10, max_bytes=1)) == [10]

    def test_max_bytes_holds_across_segments(self, store: LogStore) -> None:
        store.create(LOG, LogSettings(segment_bytes=500))
        written = [sized_batch(offset, 200) for offset in range(10)]
        store.write(written, now_ms=0)
        size = len(written[0].data)
        for count in range(1, 11):
            assert base_offsets(read_all(store, max_bytes=count * size)) == list(range(count))
            assert base_offsets(read_all(store, offset=1, max_bytes=count * size + size - 1)) == list(
                range(1, min(10, count + 1))
            )

    def test_views_are_read_only_bytes_of_whole_batches(self, store: LogStore) -> None:
        store.create(LOG, SETTINGS)
        store.write([batch(0, 2), batch(2, 2)], now_ms=0)
        for view in store.read(LOG, 0, max_bytes=EVERYTHING, end_offset=4):
            assert isinstance(view, memoryview)
            assert view.readonly
            assert view.format == "B"
            assert view.c_contiguous
            headers = list(iter_headers(view))
            assert sum(header.size_bytes for _, header in headers) == len(view)
            assert all(crc_is_valid(view, position, header) for position, header in headers)

    def test_offsets_may_have_holes(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, SETTINGS)
        written = [batch(0, 5), batch(10, 5), batch(1000, 5)]
        store.write(written, now_ms=0)
        for _ in range(2):
            assert store.bounds(LOG) == (0, 1005)
            for offset, expected in (
                (4, [0, 10, 1000]),
                (5, [10, 1000]),
                (9, [10, 1000]),
                (14, [10, 1000]),
                (15, [1000]),
                (1005, []),
            ):
                assert base_offsets(read_all(store, offset=offset)) == expected, f"read from {offset}"
            assert base_offsets(read_all(store, end_offset=500)) == [0, 10]
            assert list(store.read(LOG, 6, max_bytes=EVERYTHING, end_offset=10)) == []
            store.sync()
        with self.reopened(store, directory) as again:
            assert again.bounds(LOG) == (0, 1005)
            assert read_all(again) == joined(written)
            again.truncate(LOG, 1000)  # behind a hole
            assert (again.bounds(LOG), read_all(again)) == ((0, 1000), joined(written[:2]))

    def test_a_first_batch_beyond_0_makes_the_start(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, SETTINGS)
        store.write([batch(7, 3)], now_ms=0)
        assert store.bounds(LOG) == (7, 10)
        assert read_all(store, offset=0) == batch(7, 3).data
        check_segments(store)
        with self.reopened(store, directory) as again:
            assert again.bounds(LOG) == (7, 10)

    def test_large_offsets(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, SETTINGS)
        far = 1 << 62
        store.write([batch(far, 2)], now_ms=0)
        assert store.bounds(LOG) == (far, far + 2)
        assert store.read(LOG, far + 1, max_bytes=1, end_offset=far + 2)[0] == batch(far, 2).data
        with self.reopened(store, directory) as again:
            assert again.bounds(LOG) == (far, far + 2)

    def test_a_batch_of_8_mb(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, LogSettings(segment_bytes=1 << 20))
        written = [batch(0), sized_batch(1, 8 << 20), batch(2)]
        store.write(written, now_ms=0)
        assert read_all(store) == joined(written)
        check_segments(store)
        with self.reopened(store, directory) as again:
            assert read_all(again) == joined(written)

    # Timestamps

    @pytest.mark.parametrize("segment_bytes", [1, 300, 1 << 20])
    def test_find_by_timestamp(self, store: LogStore, segment_bytes: int) -> None:
        store.create(LOG, LogSettings(segment_bytes=segment_bytes))
        stamps = [100, 50, 200, 150, 150, 300]
        store.write([batch(number * 10, 10, timestamp_ms=ms) for number, ms in enumerate(stamps)], now_ms=0)
        cases = ((0, 0), (100, 0), (101, 20), (150, 20), (200, 20), (201, 50), (300, 50), (301, None))
        for timestamp_ms, expected in cases:
            assert store.find_by_timestamp(LOG, timestamp_ms) == expected, f"timestamp {timestamp_ms}"

    # Reopening

    @pytest.mark.parametrize("synced", [True, False])
    def test_reopen_gives_the_same(self, store: LogStore, directory: Path, synced: bool) -> None:
        for log, segment_bytes in ((LOG, 300), (OTHER, 1 << 20)):
            store.create(log, LogSettings(segment_bytes=segment_bytes))
            store.write(
                [batch(offset, 3, log=log, timestamp_ms=offset) for offset in range(0, 60, 3)], now_ms=0
            )
        if synced:
            store.sync()
        before = [(everything(store, log), list(store.segments(log))) for log in (LOG, OTHER)]
        with self.reopened(store, directory) as again:
            assert sorted(again.logs()) == [LOG, OTHER]
            assert [(everything(again, log), list(again.segments(log))) for log in (LOG, OTHER)] == before

    def test_writes_continue_after_reopen(self, directory: Path) -> None:
        if not self.durable:
            pytest.skip("this engine loses its contents on close()")
        written: list[StampedBatch] = []
        for round_number in range(4):
            with self.opened(directory) as store:
                store.create(LOG, LogSettings(segment_bytes=1000))
                fresh = [batch(round_number * 10 + number) for number in range(10)]
                store.write(fresh, now_ms=round_number)
                written += fresh
                assert read_all(store) == joined(written)
                check_segments(store)

    def test_an_empty_log_is_there_after_reopen(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, SETTINGS)
        with self.reopened(store, directory) as again:
            assert (list(again.logs()), again.bounds(LOG)) == ([LOG], (0, 0))

    # Readers while the writer is open

    def test_reader_sees_the_writers_log_and_follows_it(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, LogSettings(segment_bytes=400))
        store.write([batch(0, 2), batch(2)], now_ms=0)
        store.sync()
        with self.reading(directory) as reader:
            assert list(reader.logs()) == [LOG]
            assert everything(reader, LOG) == everything(store, LOG)
            with pytest.raises(KeyError):
                reader.bounds(OTHER)
            for offset in range(3, 40):
                store.write([batch(offset, timestamp_ms=offset)], now_ms=0)
                store.sync()
                assert everything(reader, LOG) == everything(store, LOG), f"after the write at {offset}"
            check_segments(reader)

    def test_reader_sees_trim_truncate_create_and_drop(self, store: LogStore, directory: Path) -> None:
        self.rolled(store)
        store.sync()
        with self.reading(directory) as reader:
            views = reader.read(LOG, 0, max_bytes=EVERYTHING, end_offset=EVERYTHING)
            before = joined(batch(offset, 10, timestamp_ms=offset) for offset in range(0, 60, 10))
            store.trim(LOG, 20)
            store.truncate(LOG, 50)
            store.write([batch(50, 3)], now_ms=0)
            store.create(OTHER, SETTINGS)
            store.sync()
            assert everything(reader, LOG) == everything(store, LOG)
            assert sorted(reader.logs()) == [LOG, OTHER]
            store.drop(LOG)
            assert list(reader.logs()) == [OTHER]
            with pytest.raises(KeyError):
                reader.bounds(LOG)
            assert b"".join(views) == before

    def test_reader_after_the_writer_has_closed(self, store: LogStore, directory: Path) -> None:
        written = self.rolled(store)
        if not self.durable:
            pytest.skip("this engine loses its contents on close()")
        store.close()
        with self.reading(directory) as reader:
            assert read_all(reader) == joined(written)
            assert reader.bounds(LOG) == (0, 60)
            check_segments(reader)

    def test_reads_in_another_thread_see_whole_prefixes(self, store: LogStore) -> None:
        store.create(LOG, LogSettings(segment_bytes=2000))
        stop = Event()
        problems: list[str] = []

        def read_on() -> None:
            while not stop.is_set() and not problems:
                end_offset = store.bounds(LOG).end_offset
                found = base_offsets(read_all(store, offset=0))
                if found != list(range(len(found))) or len(found) < end_offset:
                    problems.append(f"{len(found)} batches of at least {end_offset}, the last {found[-5:]}")

        thread = Thread(target=read_on)
        thread.start()
        for offset in range(400):
            store.write([batch(offset)], now_ms=0)
            if offset % 50 == 0:
                store.sync()
        stop.set()
        thread.join()
        assert problems == []

    def test_writes_beside_a_sync(self, store: LogStore, directory: Path) -> None:
        store.create(LOG, LogSettings(segment_bytes=2000))
        written: list[StampedBatch] = []
        with syncing(store) as syncs:
            while syncs.more() or len(written) < 400:
                written.append(batch(len(written)))
                store.write(written[-1:], now_ms=0)
        with self.reopened(store, directory) as again:
            assert read_all(again) == joined(written)

    def test_close_twice(self, directory: Path) -> None:
        with self.opened(directory) as store:
            store.close()

    # Random operations, compared with the memory store

    def test_model(self) -> None:
        check_against_memory_store(self.factory, self.options, durable=self.durable)
