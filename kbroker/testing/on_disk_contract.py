"""The part of the StateStore contract about `scan_range` (kbroker/storage/spi.py). Engines without
`keeps_keys_on_disk` skip it.

Keys that begin with ON_DISK are called keys on disk here; all others are kept in memory by some
engines. StateStoreContract includes these tests. `test_model_of_keys_on_disk` compares the engine
with a dict under random changes of both kinds of keys. This module must not know any engine.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import pytest

from kbroker.storage.spi import (
    ON_DISK,
    Change,
    StateReader,
    StateStore,
    StateStoreFactory,
)
from kbroker.testing.beside_sync import syncing
from kbroker.testing.opened_engine import OpenedEngine

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

END = b"parked0"
Step: TypeAlias = tuple[str, list[Change], bytes, bytes]
"""An operation, its changes, and the range to read afterwards."""


def key_of(number: int) -> bytes:
    return ON_DISK + b"%08d" % number


def has_verb(reader: StateReader) -> StateReader:
    """Skips the test if the reader has no `scan_range`."""
    if not reader.keeps_keys_on_disk:
        pytest.skip("this engine does not keep keys on disk")
    return reader


def entries_of(reader: StateReader, first: bytes = ON_DISK, end: bytes = END) -> list[tuple[bytes, bytes]]:
    return list(has_verb(reader).scan_range(first, end))


class OnDiskContract(OpenedEngine[StateStore, StateReader]):
    """See StateStoreContract."""

    factory: ClassVar[StateStoreFactory]

    @pytest.fixture
    def filled(self, store: StateStore) -> StateStore:
        """A store with 3 000 keys on disk and other keys before and after them; each write changed
        both kinds."""
        has_verb(store)
        for first in range(0, 3000, 500):
            changes: list[Change] = [(key_of(number), b"%d" % number) for number in range(first, first + 500)]
            store.write(
                [
                    *changes,
                    (b"paqked/%d" % first, b"below"),
                    (b"parked", b"below"),
                    (b"parkee/%d" % first, b"above"),
                ]
            )
            store.sync()
        return store

    def test_a_range_has_its_first_key_and_not_its_end(self, filled: StateStore) -> None:
        whole = [(key_of(number), b"%d" % number) for number in range(3000)]
        assert entries_of(filled) == whole
        assert entries_of(filled, key_of(10), key_of(2500)) == whole[10:2500]
        assert entries_of(filled, key_of(10) + b"\0", key_of(12) + b"\0") == whole[11:13]
        assert entries_of(filled, key_of(10), key_of(10)) == []
        assert entries_of(filled, key_of(12), key_of(10)) == []
        assert entries_of(filled, key_of(3000), END) == []

    def test_ranges_elsewhere_are_refused(self, store: StateStore) -> None:
        verb = has_verb(store)
        for first, end in (
            (b"", END),
            (b"parkec/", END),
            (ON_DISK, b"parked0\0"),
            (b"share/", b"share0"),
            (b"parked", END),
        ):
            with pytest.raises(ValueError, match="scan_range is for keys that begin with"):
                verb.scan_range(first, end)

    def test_the_other_reads_find_these_keys(self, filled: StateStore) -> None:
        assert filled.get(key_of(7)) == b"7"
        assert filled.get(key_of(3000)) is None
        assert [key for key, _ in filled.scan(key_of(120)[:-1])] == [
            key_of(number) for number in range(120, 130)
        ]
        everything = list(filled.scan(b""))
        assert len(everything) == 3000 + 6 + 6 + 1
        assert everything == sorted(everything)
        assert [key for key, _ in filled.scan(b"parkee/")] == sorted(
            b"parkee/%d" % first for first in range(0, 3000, 500)
        )
        assert len(list(filled.scan(b"park"))) == 3000 + 6 + 1
        assert len(list(filled.scan(b"pa"))) == 3000 + 6 + 6 + 1

    def test_an_empty_value_and_long_keys(self, store: StateStore, directory: Path) -> None:
        has_verb(store)
        keys = sorted(
            ON_DISK + b"k" * length + end
            for length in (0, 1, 400, 472, 473, 474, 2000)
            for end in (b"", b"\0", b"\xff")
        )
        store.write([(key, b"") for key in keys])
        store.sync()
        assert entries_of(store) == [(key, b"") for key in keys]
        for place, key in enumerate(keys):
            assert [found for found, _ in entries_of(store, key)] == keys[place:]
            assert [found for found, _ in entries_of(store, ON_DISK, key)] == keys[:place]
        store.write([(key, None) for key in keys[::2]])
        with self.reopened(store, directory) as again:
            assert [key for key, _ in entries_of(again)] == keys[1::2]

    def test_taking_from_the_front_again_and_again(self, filled: StateStore, directory: Path) -> None:
        for taken in range(0, 2500, 250):
            front = list(islice(has_verb(filled).scan_range(ON_DISK, END), 250))
            assert [key for key, _ in front] == [key_of(number) for number in range(taken, taken + 250)]
            filled.write([(key, None) for key, _ in front] + [(b"taken", b"%d" % taken)])
            if taken % 1000 == 0:
                filled.sync()
        with self.reopened(filled, directory) as again:
            assert [key for key, _ in entries_of(again)] == [key_of(number) for number in range(2500, 3000)]
            assert again.get(b"taken") == b"2250"

    def test_a_scan_beside_changes_gives_what_stays_once(self, filled: StateStore) -> None:
        """Keys that do not change are returned once and in order; a change may be seen or not."""
        seen = []
        for number, (key, _) in enumerate(has_verb(filled).scan_range(ON_DISK, END)):
            seen.append(key)
            if number % 50 == 0:
                filled.write(
                    [
                        (key_of(2 * number + 1), None),
                        (key_of(number // 2), b"again"),
                        (key_of(number) + b"x", b"new"),
                    ]
                )
            if number % 300 == 0:
                filled.sync()
        assert seen == sorted(set(seen))
        stays = {key_of(number) for number in range(3000) if (number - 1) % 100}
        assert stays <= set(seen)

    def test_a_range_scan_may_be_left_unfinished(self, filled: StateStore) -> None:
        scan = has_verb(filled).scan_range(ON_DISK, END)
        assert next(scan) == (key_of(0), b"0")
        filled.write([(key_of(0), None)])
        filled.sync()
        assert next(entry for entry in has_verb(filled).scan_range(ON_DISK, END)) == (key_of(1), b"1")
        assert next(scan)[0] == key_of(1)
        del scan
        filled.sync()

    def test_a_snapshot_shows_these_keys_at_its_moment(self, filled: StateStore) -> None:
        expected = entries_of(filled)
        with filled.snapshot() as moment:
            scan = has_verb(moment).scan_range(ON_DISK, END)
            assert next(scan) == expected[0]
            filled.write([(key, None) for key, _ in expected] + [(key_of(9999), b"new"), (b"parked", b"new")])
            filled.sync()
            assert [expected[0], *scan] == expected
            assert entries_of(moment, key_of(100), key_of(2000)) == expected[100:2000]
            assert moment.get(key_of(5)) == b"5"
            assert moment.get(key_of(9999)) is None
            assert moment.get(b"parked") == b"below"
            assert list(moment.scan(ON_DISK)) == expected
            assert len(list(moment.scan(b""))) == len(expected) + 13
            with moment.snapshot() as same:
                assert entries_of(same) == expected
        assert entries_of(filled) == [(key_of(9999), b"new")]

    def test_both_kinds_are_seen_together(self, store: StateStore) -> None:
        """A reader in another thread never sees half of a write, nor a write without the one before
        it."""
        has_verb(store)
        store.write([(b"other", b"0"), *((key_of(number), b"0") for number in range(20))])
        stop = Event()
        mixed: list[set[bytes | None]] = []

        def read_on() -> None:
            while not stop.is_set() and not mixed:
                with store.snapshot() as snapshot:
                    values: set[bytes | None] = {
                        snapshot.get(b"other"),
                        *(value for _, value in entries_of(snapshot)),
                    }
                if len(values) != 1:
                    mixed.append(values)

        thread = Thread(target=read_on)
        thread.start()
        for number in range(200):
            value = b"%d" % number
            store.write([(b"other", value), *((key_of(key), value) for key in range(20))])
            if number % 5 == 0:
                store.sync()
        stop.set()
        thread.join()
        assert mixed == []

    def test_keys_on_disk_are_written_beside_a_sync(self, store: StateStore, directory: Path) -> None:
        has_verb(store)
        rounds = 0
        with syncing(store) as syncs:
            while syncs.more() or rounds < 400:
                own: list[Change] = [(key_of(1000 * rounds + number), b"%d" % number) for number in range(10)]
                store.write([*own, (key_of(1000 * (rounds - 1) + 3), None), (b"rounds", b"%d" % rounds)])
                rounds += 1
        last = rounds - 1
        expected = [
            (key_of(1000 * each + number), b"%d" % number)
            for each in range(rounds)
            for number in range(10)
            if number != 3 or each == last
        ]
        assert entries_of(store) == expected
        with self.reopened(store, directory) as again:
            assert entries_of(again) == expected
            assert again.get(b"rounds") == b"%d" % last

    def test_a_reader_sees_these_keys_and_follows_them(self, filled: StateStore, directory: Path) -> None:
        expected = entries_of(filled)
        with self.reading(directory) as reader:
            assert entries_of(reader) == expected
            assert reader.get(key_of(5)) == b"5"
            assert list(reader.scan(key_of(5))) == [(key_of(5), b"5")]
            with reader.snapshot() as snapshot:
                filled.write([(key, None) for key, _ in expected[:2990]] + [(b"parked", b"new")])
                filled.sync()
                assert entries_of(snapshot) == expected
                assert snapshot.get(b"parked") == b"below"
            assert entries_of(reader) == expected[2990:]
            assert reader.get(b"parked") == b"new"
            assert reader.get(key_of(5)) is None

    def test_a_reader_beside_a_writer_sees_whole_writes(self, store: StateStore, directory: Path) -> None:
        """While an engine moves keys between its parts, a count and the keys that it counts never
        differ."""
        has_verb(store)
        store.write([(b"count", b"0")])
        store.sync()
        stop = Event()
        wrong: list[object] = []

        def write_on() -> None:
            number = 0
            while not stop.is_set():
                gone: list[Change] = (
                    [(key_of(number - 40 + each), None) for each in range(20)] if number >= 40 else []
                )
                more: list[Change] = [(key_of(number + each), bytes(50)) for each in range(20)]
                store.write([*more, *gone, (b"count", b"%d" % (number + 20))])
                store.sync()
                number += 20

        thread = Thread(target=write_on)
        with self.reading(directory) as reader:
            thread.start()
            try:
                for _ in range(150):
                    with reader.snapshot() as snapshot:
                        count = int(snapshot.get(b"count") or b"")
                        keys = [key for key, _ in entries_of(snapshot)]
                    if keys != [key_of(number) for number in range(max(0, count - 40), count)]:
                        wrong.append((count, keys[:1], keys[-1:], len(keys)))
                        break
            finally:
                stop.set()
                thread.join()
        assert wrong == []

    def test_model_of_keys_on_disk(self, directory: Path) -> None:
        from hypothesis import HealthCheck, given, settings

        with self.opened(directory) as store:
            has_verb(store)

        @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(steps())
        def run(chosen: Sequence[Step]) -> None:
            with tempfile.TemporaryDirectory() as home:
                self._run_steps(chosen, Path(home) / "state")

        run()

    def _run_steps(self, chosen: Sequence[Step], directory: Path) -> None:
        store = self.factory.open(directory, self.options, 1)
        model: dict[bytes, bytes] = {}
        try:
            for operation, changes, first, end in chosen:
                if operation == "sync":
                    store.sync()
                elif operation == "reopen":
                    if self.durable:
                        store.close()
                        store = self.factory.open(directory, self.options, 2)
                elif operation == "snapshot":
                    with store.snapshot() as moment:
                        before = dict(model)
                        _write(store, changes, model)
                        _compare(moment, before, first, end)
                else:
                    _write(store, changes, model)
                _compare(store, model, first, end)
            store.sync()
            with self.reading(directory) as reader:
                _compare(reader, model, ON_DISK, END)
        finally:
            store.close()


def _write(store: StateStore, changes: Sequence[Change], model: dict[bytes, bytes]) -> None:
    store.write(changes)
    for key, value in changes:
        model.update({key: value}) if value is not None else model.pop(key, None)


def _compare(reader: StateReader, model: dict[bytes, bytes], first: bytes, end: bytes) -> None:
    keys = sorted(model)
    wanted = keys[bisect_left(keys, first) : bisect_left(keys, end)]
    found = entries_of(reader, first, end)
    assert found == [(key, model[key]) for key in wanted]
    assert list(reader.scan(b"")) == sorted(model.items())
    assert list(reader.scan(first)) == [(key, model[key]) for key in keys if key.startswith(first)]
    assert reader.get(first) == model.get(first)


def steps() -> SearchStrategy[list[Step]]:
    from hypothesis import strategies as st

    tails = st.lists(st.sampled_from([0, 0x61, 0x62, 0xFF]), max_size=3).map(bytes)
    on_disk = tails.map(lambda tail: ON_DISK + tail)
    keys = on_disk | on_disk | tails.map(lambda tail: b"o" + tail) | tails.map(lambda tail: b"parkee" + tail)
    changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=20)), max_size=12)
    what = st.sampled_from(["write", "write", "write", "snapshot", "sync", "reopen"])
    return st.lists(st.tuples(what, changes, on_disk, on_disk | st.just(END)), max_size=20)
