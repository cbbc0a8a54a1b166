"""The contract suite of the StateStore SPI. Every engine must pass it, built in or from a plugin.

    from kbroker.testing.state_store_contract import StateStoreContract
    class TestMyEngine(StateStoreContract):
        factory = STATE_STORE                    # the StateStoreFactory that the entry point names

There is one test method for each promise of kbroker/storage/spi.py. `test_model` compares the
engine with a dict under random changes. The tests of `scan_range` are in on_disk_contract.py. This
module must not know any engine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, ClassVar

import pytest

from kbroker.storage.spi import Change, StateStore, StateStoreFactory
from kbroker.testing.beside_sync import syncing
from kbroker.testing.on_disk_contract import OnDiskContract

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class StateStoreContract(OnDiskContract):
    """Subclass it, set `factory`, run pytest."""

    factory: ClassVar[StateStoreFactory]

    def test_a_new_store_is_empty(self, store: StateStore) -> None:
        assert list(store.scan(b"")) == []
        assert store.get(b"a") is None

    def test_engine_says_where_it_must_run(self, store: StateStore) -> None:
        assert isinstance(store.write_in_thread, bool)

    def test_put_and_get(self, store: StateStore) -> None:
        store.write([(b"a", b"1"), (b"b", b"2")])
        assert store.get(b"a") == b"1"
        assert store.get(b"b") == b"2"
        assert store.get(b"ab") is None
        assert isinstance(store.get(b"a"), bytes)
        assert all(isinstance(key, bytes) and isinstance(value, bytes) for key, value in store.scan(b""))

    def test_overwrite_and_remove(self, store: StateStore) -> None:
        store.write([(b"a", b"1"), (b"b", b"2")])
        store.write([(b"a", b"3"), (b"b", None), (b"never there", None)])
        assert list(store.scan(b"")) == [(b"a", b"3")]
        assert store.get(b"b") is None

    def test_the_last_change_of_a_key_wins(self, store: StateStore) -> None:
        store.write(
            [(b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2"), (b"c", b"1"), (b"c", b"3"), (b"c", b"2")]
        )
        assert list(store.scan(b"")) == [(b"b", b"2"), (b"c", b"2")]

    def test_writing_nothing_is_allowed(self, store: StateStore) -> None:
        store.write([])
        store.sync()

    def test_an_empty_value_is_not_an_absent_one(self, store: StateStore, directory: Path) -> None:
        store.write([(b"a", b"")])
        assert store.get(b"a") == b""
        assert list(store.scan(b"a")) == [(b"a", b"")]
        with self.reopened(store, directory) as again:
            assert again.get(b"a") == b""

    def test_scan_is_in_bytewise_order(self, store: StateStore) -> None:
        keys = [
            b"a",
            b"a\x00",
            b"a\x00\x00",
            b"a\x01",
            b"aa",
            b"a\x7f",
            b"a\x80",
            b"a\xff",
            b"a\xff\xff",
            b"b",
        ]
        store.write([(key, key) for key in reversed(keys)])
        assert list(store.scan(b"")) == [(key, key) for key in keys]
        assert [key for key, _ in store.scan(b"a\x00")] == [b"a\x00", b"a\x00\x00"]

    def test_scan_keeps_to_its_prefix(self, store: StateStore) -> None:
        store.write([(key, b"") for key in (b"a", b"ab", b"abc", b"abd", b"ac", b"b")])
        assert [key for key, _ in store.scan(b"ab")] == [b"ab", b"abc", b"abd"]
        assert [key for key, _ in store.scan(b"abc")] == [b"abc"]
        assert list(store.scan(b"abcd")) == []
        assert list(store.scan(b"c")) == []

    def test_scan_of_a_prefix_of_ff_bytes(self, store: StateStore) -> None:
        keys = [b"\xfe", b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff\xff\xff"]
        store.write([(key, b"") for key in keys])
        assert [key for key, _ in store.scan(b"\xfe\xff")] == [b"\xfe\xff"]
        assert [key for key, _ in store.scan(b"\xff")] == keys[2:]
        assert [key for key, _ in store.scan(b"\xff\xff")] == keys[4:]
        assert [key for key, _ in store.scan(b"\xff\xff\xff\xff")] == []

    def test_scan_shows_the_moment_of_its_first_step(self, store: StateStore) -> None:
        store.write([(b"a%03d" % number, b"old") for number in range(100)])
        scan = store.scan(b"a")
        first = next(scan)
        store.write(
            [(b"a%03d" % number, None if number % 2 else b"new") for number in range(100)]
            + [(b"a0995", b"new")]
        )
        assert [first, *scan] == [(b"a%03d" % number, b"old") for number in range(100)]

    def test_a_scan_may_be_left_unfinished(self, store: StateStore) -> None:
        store.write([(b"a", b"1"), (b"b", b"2")])
        scan = store.scan(b"")
        assert next(scan) == (b"a", b"1")
        del scan
        store.write([(b"a", b"3")])
        assert store.get(b"a") == b"3"

    def test_writing_while_scanning(self, store: StateStore) -> None:
        store.write([(b"a%d" % number, b"") for number in range(10)])
        for key, _ in store.scan(b"a"):
            store.write([(key, None), (b"b" + key, b"")])
        assert list(store.scan(b"a")) == []
        assert len(list(store.scan(b"b"))) == 10

    def test_keys_of_the_sizes_in_use(self, store: StateStore) -> None:
        """State keys are names of topics and groups plus some numbers: nearly all have at most 400
        bytes."""
        keys = sorted(bytes([65 + number]) * size for number, size in enumerate((1, 2, 100, 249, 400)))
        store.write([(key, b"x") for key in keys])
        assert [key for key, _ in store.scan(b"")] == keys

    def test_keys_longer_than_that(self, store: StateStore, directory: Path) -> None:
        """A client chooses the names of groups: a long one must not stop the store."""
        keys = sorted(
            b"k" * length + end
            for length in (400, 511, 512, 2000, 30_000)
            for end in (b"", b"\0", b"a", b"\xff")
        )
        store.write([(key, b"%d" % len(key)) for key in reversed(keys)])
        assert [key for key, _ in store.scan(b"k")] == keys
        assert [key for key, _ in store.scan(b"k" * 1999)] == [
            key for key in keys if key.startswith(b"k" * 1999)
        ]
        store.write([(keys[0], None), (keys[-1], None)])
        with self.reopened(store, directory) as again:
            assert list(again.scan(b"")) == [(key, b"%d" % len(key)) for key in keys[1:-1]]
            assert again.get(keys[5]) == b"%d" % len(keys[5])

    def test_a_value_of_1_mb(self, store: StateStore, directory: Path) -> None:
        large = bytes(range(256)) * 4096
        store.write([(b"large", large), (b"small", b"1")])
        assert store.get(b"large") == large
        with self.reopened(store, directory) as again:
            assert list(again.scan(b"")) == [(b"large", large), (b"small", b"1")]

    def test_many_changes_in_one_call(self, store: StateStore, directory: Path) -> None:
        changes: list[Change] = [(b"%06d" % number, b"v%d" % number) for number in range(20_000)]
        store.write(changes)
        assert list(store.scan(b"")) == changes
        store.write([(key, None) for key, _ in changes[::2]])
        with self.reopened(store, directory) as again:
            assert list(again.scan(b"")) == changes[1::2]

    def test_snapshot_shows_one_moment(self, store: StateStore) -> None:
        store.write([(b"a", b"1"), (b"b", b"2")])
        with store.snapshot() as snapshot:
            store.write([(b"a", b"3"), (b"b", None), (b"c", b"4")])
            assert snapshot.get(b"a") == b"1"
            assert snapshot.get(b"c") is None
            assert list(snapshot.scan(b"")) == [(b"a", b"1"), (b"b", b"2")]
            with store.snapshot() as later:
                assert list(later.scan(b"")) == [(b"a", b"3"), (b"c", b"4")]
        assert list(store.scan(b"")) == [(b"a", b"3"), (b"c", b"4")]

    def test_a_call_is_seen_whole_or_not_at_all(self, store: StateStore) -> None:
        store.write([(b"a%d" % number, b"0") for number in range(20)])
        stop = Event()
        mixed: list[set[bytes]] = []

        def read_on() -> None:
            while not stop.is_set() and not mixed:
                with store.snapshot() as snapshot:
                    values = {value for _, value in snapshot.scan(b"a")}
                if len(values) != 1:
                    mixed.append(values)

        thread = Thread(target=read_on)
        thread.start()
        for number in range(200):
            store.write([(b"a%d" % key, b"%d" % number) for key in range(20)])
        stop.set()
        thread.join()
        assert mixed == []

    def test_writes_beside_a_sync(self, store: StateStore, directory: Path) -> None:
        rounds = 0
        with syncing(store) as syncs:
            while syncs.more() or rounds < 400:
                store.write(
                    [
                        (b"a%d" % (rounds % 7), b"%d" % rounds),
                        (b"b%d" % rounds, b""),
                        (b"b%d" % (rounds - 1), None),
                    ]
                )
                rounds += 1
        expected = {
            b"b%d" % (rounds - 1): b"",
            **{b"a%d" % (number % 7): b"%d" % number for number in range(rounds)},
        }
        assert dict(store.scan(b"")) == expected
        with self.reopened(store, directory) as again:
            assert dict(again.scan(b"")) == expected

    @pytest.mark.parametrize("synced", [True, False])
    def test_reopen_gives_the_same(self, store: StateStore, directory: Path, synced: bool) -> None:
        store.write([(b"%d" % number, b"v%d" % number) for number in range(100)])
        store.write([(b"%d" % number, None) for number in range(0, 100, 3)])
        if synced:
            store.sync()
        before = list(store.scan(b""))
        with self.reopened(store, directory) as again:
            assert list(again.scan(b"")) == before
            again.write([(b"new", b"1"), (b"1", None)])
            assert again.get(b"new") == b"1"

    def test_writes_continue_after_reopen(self, directory: Path) -> None:
        if not self.durable:
            pytest.skip("this engine loses its contents on close()")
        for number in range(5):
            with self.opened(directory) as store:
                store.write([(b"%d" % number, b""), (b"count", b"%d" % number)])
                assert [key for key, _ in store.scan(b"")] == [b"%d" % each for each in range(number + 1)] + [
                    b"count"
                ]

    def test_reader_sees_what_is_synced_and_follows_it(self, store: StateStore, directory: Path) -> None:
        store.write([(b"a", b"1"), (b"b", b"2")])
        store.sync()
        with self.reading(directory) as reader:
            assert list(reader.scan(b"")) == [(b"a", b"1"), (b"b", b"2")]
            assert reader.get(b"a") == b"1"
            with reader.snapshot() as snapshot:
                store.write([(b"a", b"3"), (b"b", None)])
                store.sync()
                assert list(snapshot.scan(b"")) == [(b"a", b"1"), (b"b", b"2")]
            assert list(reader.scan(b"")) == [(b"a", b"3")]
            assert reader.get(b"b") is None

    def test_reader_after_the_writer_has_closed(self, store: StateStore, directory: Path) -> None:
        if not self.durable:
            pytest.skip("this engine loses its contents on close()")
        store.write([(b"a", b"1")])
        store.close()
        with self.reading(directory) as reader:
            assert list(reader.scan(b"")) == [(b"a", b"1")]

    def test_close_twice(self, directory: Path) -> None:
        with self.opened(directory) as store:
            store.close()

    def test_model(self) -> None:
        from hypothesis import HealthCheck, given, settings

        @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(operations())
        def run(steps: Sequence[tuple[str, list[Change]]]) -> None:
            with tempfile.TemporaryDirectory() as directory:
                self._run_model(steps, Path(directory) / "state")

        run()

    def _run_model(self, steps: Sequence[tuple[str, list[Change]]], directory: Path) -> None:
        store = self.factory.open(directory, self.options, 1)
        model: dict[bytes, bytes] = {}
        try:
            for operation, changes in steps:
                if operation == "write":
                    store.write(changes)
                    for key, value in changes:
                        model.update({key: value}) if value is not None else model.pop(key, None)
                elif operation == "sync":
                    store.sync()
                elif self.durable:
                    store.close()
                    store = self.factory.open(directory, self.options, 2)
                for prefix in {b"", *(key[:1] for key, _ in changes), *(key for key, _ in changes)}:
                    expected = sorted(item for item in model.items() if item[0].startswith(prefix))
                    assert list(store.scan(prefix)) == expected
                    assert store.get(prefix or b"\0") == model.get(prefix or b"\0")
        finally:
            store.close()


def operations() -> SearchStrategy[list[tuple[str, list[Change]]]]:
    """Lists of (operation, changes)."""
    from hypothesis import strategies as st

    keys = st.lists(st.sampled_from([0, 1, 0x61, 0xFE, 0xFF]), min_size=1, max_size=4).map(bytes)
    changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=20)), max_size=8)
    return st.lists(
        st.tuples(st.sampled_from(["write", "write", "write", "sync", "reopen"]), changes), max_size=20
    )
