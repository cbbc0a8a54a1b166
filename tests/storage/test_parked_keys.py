"""Keys of ON_DISK in the segment engine: the state after a kill between any two steps, full and
failing disks, readers, memory.

The contract runs in segment_state/test_store.py, with three sizes of the overlay; power cuts are in
tests/powercut/test_parked_keys.py.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kbroker.errors import NoSpace, OperatorError, StoreFailed
from kbroker.storage.lmdb import overlaid_map
from kbroker.storage.lmdb import state_map as lmdb_state_map
from kbroker.storage.lmdb.environment import LmdbEnvironment, Transaction
from kbroker.storage.lmdb.overlaid_map import OverlaidMap
from kbroker.storage.lmdb.state_map import OnDiskMap
from kbroker.storage.segment.log_store import SegmentLogStore
from kbroker.storage.segment_state import store as log_state_store
from kbroker.storage.segment_state.store import STATE_STORE, LogStateStore
from kbroker.storage.spi import Change, LogSettings, StateReader
from kbroker.testing.on_disk_contract import END, entries_of, key_of
from tests.small_disk import small_disk

SIZES = ["0", "6", "25"]


@contextmanager
def opened(directory: Path, overlay_changes: str = "4096") -> Iterator[LogStateStore]:
    store = STATE_STORE.open(directory, {"overlay_changes": overlay_changes}, 1)
    assert isinstance(store, LogStateStore)
    try:
        yield store
    finally:
        store.close()


def everything(reader: StateReader) -> dict[bytes, bytes]:
    found = dict(reader.scan(b""))
    assert entries_of(reader) == sorted(
        (key, value) for key, value in found.items() if key.startswith(b"parked/")
    )
    return found


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments, rewritings and transactions small enough that a short test has many of them."""
    monkeypatch.setattr(log_state_store, "SETTINGS", LogSettings(segment_bytes=2048, segment_ms=1 << 62))
    monkeypatch.setattr(log_state_store, "SMALLEST_DEAD_BYTES", 3000)
    monkeypatch.setattr(log_state_store, "PIECE_BYTES", 400)
    monkeypatch.setattr(log_state_store, "LARGEST_PIECE", 5)
    monkeypatch.setattr(lmdb_state_map, "CHANGES_AT_ONCE", 4)


def some_changes(rng: random.Random, step: int) -> list[Change]:
    """A count, other keys, and keys on disk that are added and removed."""
    own: list[Change] = [
        (key_of(rng.randrange(40)), None if rng.random() < 0.4 else b"%030d" % step)
        for _ in range(rng.randrange(6))
    ]
    others: list[Change] = [
        (b"key%02d" % rng.randrange(10), None if rng.random() < 0.3 else b"%020d" % step) for _ in range(2)
    ]
    return [*own, *others, (b"step", b"%d" % step)]


class Kills:
    """Before and after each step of the store, copies the files as a kill -9 would leave them,
    opens the copy and compares."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, look_every: int = 1) -> None:
        self._directory, self._copy = directory, directory.with_name("copy")
        self._every, self._calls = look_every, 0
        self.model: dict[bytes, bytes] = {}
        self.next_model: dict[bytes, bytes] = {}
        self.looked: dict[str, int] = {}
        self.wrong: list[str] = []
        self._looking = False
        for owner, name in (
            (SegmentLogStore, "write"), (SegmentLogStore, "sync"), (SegmentLogStore, "trim"),
            (OnDiskMap, "write"), (OverlaidMap, "move"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, self._around(f"{owner.__name__}.{name}", getattr(owner, name)))
        write = LmdbEnvironment.write

        @contextmanager
        def look_behind(env: LmdbEnvironment) -> Iterator[Transaction]:
            with write(env) as transaction:
                yield transaction
            if not self._looking:
                self.look("after a transaction")

        monkeypatch.setattr(LmdbEnvironment, "write", look_behind)

    def _around(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._looking:
                return method(*args, **options)
            self.look("before " + name)
            answer = method(*args, **options)
            self.look("after " + name)
            return answer

        return call

    def look(self, where: str) -> None:
        self._calls += 1
        if self._calls % self._every and where in self.looked:
            return
        self._looking = True
        shutil.copytree(self._directory, self._copy)
        try:
            with opened(self._copy, "3") as left:
                found = everything(left)
                if found not in (self.model, self.next_model) or (
                    where == "after SegmentLogStore.write" and found != self.next_model
                ):
                    self.wrong.append(f"{where}: {sorted(found.items() ^ self.next_model.items())}")
                left.write([(b"key-after", b"1"), (key_of(999), b"1"), (key_of(1), None)])
                left.sync()
                expected = {**found, b"key-after": b"1", key_of(999): b"1"}
                expected.pop(key_of(1), None)
                if everything(left) != expected:
                    self.wrong.append(f"{where}: does not continue")
        finally:
            shutil.rmtree(self._copy)
            self._looking = False
        self.looked[where] = self.looked.get(where, 0) + 1

    def write(self, store: LogStateStore, changes: list[Change]) -> None:
        for key, value in changes:
            self.next_model.update({key: value}) if value is not None else self.next_model.pop(key, None)
        store.write(changes)
        self.model = dict(self.next_model)

    def work(self, store: LogStateStore, seed: int, steps: int) -> None:
        rng = random.Random(seed)
        for step in range(steps):
            self.write(store, some_changes(rng, step))
            if rng.random() < 0.6:
                store.sync()


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("overlay_changes", SIZES)
def test_a_kill_between_any_two_steps_loses_nothing(
    tmp_path: Path, overlay_changes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = Kills(tmp_path / "living", monkeypatch, look_every=7)
    with opened(tmp_path / "living", overlay_changes) as store:
        kills.work(store, 1, 150)
        found = store.statistics()
        assert everything(store) == kills.model
    assert kills.wrong == []
    assert found.rewrites >= 2
    assert found.moves >= 2
    assert len(kills.looked) == 11
    assert sum(kills.looked.values()) > 80


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    "fault", ["overlays are not rewritten", "a removal is forgotten", "the position comes first"]
)
def test_what_is_done_wrong_is_caught(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above detects stores that are broken on purpose."""
    apply, write = OverlaidMap.apply, OnDiskMap.write

    def without_removals(self: OverlaidMap, changes: list[Change]) -> None:
        apply(self, [change for change in changes if change[1] is not None])

    def position_first(self: OnDiskMap, changes: list[Change], position: int) -> None:
        write(self, [], position)
        write(self, changes, position)

    kills = Kills(tmp_path / "living", monkeypatch, look_every=7)
    with opened(tmp_path / "living", "25" if fault.startswith("overlays") else "6") as store:
        if fault == "overlays are not rewritten":
            monkeypatch.setattr(store, "_rewrite_overlaid", lambda rewrite: False)
        elif fault == "a removal is forgotten":
            monkeypatch.setattr(OverlaidMap, "apply", without_removals)
        else:
            monkeypatch.setattr(OnDiskMap, "write", position_first)
        kills.work(store, 1, 150)
    assert kills.wrong


def test_a_store_without_such_keys_makes_no_directory(tmp_path: Path) -> None:
    with opened(tmp_path, "0") as store:
        store.write([(b"key", b"1")])
        store.sync()
        assert store.statistics().on_disk_bytes == 0
        assert not (tmp_path / "parked").exists()
        store.write([(key_of(1), b"1")])
        assert not (tmp_path / "parked").exists()
        store.sync()
        assert (tmp_path / "parked" / "data.mdb").exists()
        assert store.statistics().waiting_changes == 0
        assert store.statistics().on_disk_bytes > 0


def test_the_directory_is_no_log_and_no_cause_for_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, "0") as store:
        store.write([(key_of(1), b"1")])
        store.sync()
    with opened(tmp_path, "0") as store:
        assert entries_of(store) == [(key_of(1), b"1")]
    assert not caplog.records


def test_a_full_disk_keeps_them_in_memory(tmp_path: Path) -> None:
    """A really full one: the log already has its space when the map finds none."""
    with small_disk(tmp_path / "disk", 40 << 20) as disk, opened(disk / "state", "50") as store:
        model: dict[bytes, bytes] = {}
        for number in range(20):
            store.write([(key_of(number), bytes(50))])
            model[key_of(number)] = bytes(50)
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        assert shutil.disk_usage(disk).free < 1 << 16
        refused = 0
        for number in range(20, 30_000):
            changes: list[Change] = [(key_of(number), bytes(50)), (key_of(number - 20), None)]
            try:
                store.write(changes)
            except NoSpace:
                refused += 1
                break
            model[key_of(number)] = bytes(50)
            del model[key_of(number - 20)]
            if number % 10 == 0:
                store.sync()
                assert store.statistics().moves == 0
        assert refused
        assert store.statistics().waiting_changes > 100
        assert everything(store) == model
        ballast.unlink()
        store.write([(key_of(40_000), b"1")])
        model[key_of(40_000)] = b"1"
        for _ in range(3):
            store.sync()
        assert store.statistics().moves >= 1
        assert store.statistics().waiting_changes <= 50
        assert everything(store) == model
        store.close()
        with opened(disk / "state") as again:
            assert everything(again) == model


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Simulates whether LMDB finds space: the log can have some when LMDB has none."""
    is_full = False
    write = OnDiskMap.write

    def refuse(self: OnDiskMap, changes: list[Change], position: int) -> None:
        if is_full:
            raise NoSpace("full")
        write(self, changes, position)

    def set_full(value: bool) -> None:
        nonlocal is_full
        is_full = value

    monkeypatch.setattr(OnDiskMap, "write", refuse)
    return set_full


def test_too_much_that_waits_is_refused_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: Callable[[bool], None]
) -> None:
    monkeypatch.setattr(overlaid_map, "MOST_WAITING_CHANGES", 100)
    full(True)
    with opened(tmp_path, "10") as store:
        for number in range(101):
            store.write([(key_of(number), b"1")])
            store.sync()
        with pytest.raises(
            NoSpace, match=r"101 changes wait in memory .* 100 or \d+ bytes are the most: make room"
        ):
            store.write([(b"other", b"1"), (key_of(101), b"1")])
        assert store.get(b"other") is None
        store.write([(b"other", b"2")])
        full(False)
        store.sync()
        store.sync()
        assert store.statistics().waiting_changes == 0
        store.write([(key_of(101), b"1")])
        assert everything(store) == {b"other": b"2", **{key_of(number): b"1" for number in range(102)}}


@pytest.mark.usefixtures("small_limits")
def test_the_log_is_rewritten_while_moves_find_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: Callable[[bool], None]
) -> None:
    """Keys that are not yet in the map exist in the log alone, and the position of its frozen part
    is below the log's start."""
    kills = Kills(tmp_path / "living", monkeypatch, look_every=5)
    reader = STATE_STORE.open_reader(tmp_path / "living")
    with opened(tmp_path / "living", "6") as store:
        kills.work(store, 3, 30)
        assert store.statistics().moves
        for round_number in range(2):
            full(True)
            before = store.statistics()
            kills.work(store, 10 + round_number, 60)
            assert store.statistics().rewrites > before.rewrites
            assert store.statistics().moves == before.moves
            assert everything(store) == everything(reader) == kills.model
            full(False)
            kills.work(store, 20 + round_number, 10)
            assert store.statistics().moves > before.moves
            assert everything(store) == everything(reader) == kills.model
    reader.close()
    assert kills.wrong == []


def test_a_failed_move_is_the_end_of_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreFailed("the disk is gone")

    with opened(tmp_path, "0") as store:
        store.write([(key_of(1), b"1")])
        with monkeypatch.context() as patch:
            patch.setattr(OnDiskMap, "write", fail)
            with pytest.raises(StoreFailed, match="the disk is gone"):
                store.sync()
        for _ in range(2):
            with pytest.raises(StoreFailed, match="the disk is gone"):
                store.write([(b"other", b"1")])
            with pytest.raises(StoreFailed, match="the disk is gone"):
                store.sync()
        assert entries_of(store) == [(key_of(1), b"1")]
    with opened(tmp_path) as again:
        assert everything(again) == {key_of(1): b"1"}


@pytest.mark.parametrize("what", ["cannot be made", "is of a newer copy"])
def test_a_directory_that_does_not_fit_is_named(tmp_path: Path, what: str) -> None:
    with opened(tmp_path / "state", "0") as store:
        store.write([(b"other", b"1")])
        if what == "cannot be made":
            (tmp_path / "state" / "parked").write_bytes(b"a file")
            store.write([(key_of(1), b"1")])
            with pytest.raises(StoreFailed, match="parked"):
                store.sync()
            return
        store.sync()
        shutil.copytree(tmp_path / "state", tmp_path / "older")
        store.write([(key_of(number), b"1") for number in range(10)])
        store.sync()
    shutil.copytree(tmp_path / "state" / "parked", tmp_path / "older" / "parked")
    with pytest.raises(
        OperatorError, match=r"one of them is from an older copy; restore both from one backup"
    ):
        STATE_STORE.open(tmp_path / "older", {}, 1)
    reader = STATE_STORE.open_reader(tmp_path / "older")
    assert reader.get(b"other") == b"1"
    with pytest.raises(StoreFailed, match="from an older copy"):
        reader.get(key_of(1))
    reader.close()


def test_a_reader_that_cannot_open_the_directory_reads_the_rest(tmp_path: Path) -> None:
    with opened(tmp_path, "0") as store:
        store.write([(b"other", b"1"), (key_of(1), b"1")])
        store.sync()
    (tmp_path / "parked" / "data.mdb").write_bytes(b"")
    reader = STATE_STORE.open_reader(tmp_path)
    assert list(reader.scan(b"oth")) == [(b"other", b"1")]
    with reader.snapshot() as moment:
        assert moment.get(b"other") == b"1"
        for ask in (
            lambda: moment.get(key_of(1)),
            lambda: list(moment.scan(b"")),
            lambda: entries_of(moment),
        ):
            with pytest.raises(OperatorError, match=r"data\.mdb is empty: restore a backup"):
                ask()
    reader.close()


def test_options_are_numbers(tmp_path: Path) -> None:
    with pytest.raises(
        OperatorError, match="option overlay_bytes of the segment engine's state must be a number, not 'much'"
    ):
        STATE_STORE.open(tmp_path, {"overlay_bytes": "much"}, 1)
    with pytest.raises(OperatorError, match="has no option 'overlay'"):
        STATE_STORE.open(tmp_path, {"overlay": "1"}, 1)


_PROGRAM = """
import sys, resource
from pathlib import Path
from kbroker import plugins
from kbroker.storage.spi import ON_DISK

def anonymous():
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) >> 10

what, engine, directory, count, options = sys.argv[1:]
options = dict(option.split("=") for option in options.split(",") if option)
factory = plugins.state_store_factory(engine)
warm = factory.open(Path(directory) / "warm", options, 1)
warm.write([(ON_DISK + b"%040d" % number, bytes(30)) for number in range(10)])
warm.sync()
before = anonymous()
store = factory.open(Path(directory) / "state", options, 1)
if what == "fill":
    for first in range(0, int(count), 500):
        numbers = [number * 7919 % int(count) for number in range(first, first + 500)]
        store.write([(ON_DISK + b"%080d" % number, bytes(30)) for number in numbers])
        store.sync()
found = sum(1 for _ in store.scan_range(ON_DISK, b"parked0"))
after = anonymous()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
print(found, after - before, peak, len(dir(store)))
store.close()
"""


def _memory_of(what: str, engine: str, directory: Path, count: int, options: str = "") -> tuple[int, int]:
    """Keys found, and the growth of anonymous memory in MiB."""
    command = [sys.executable, "-c", _PROGRAM, what, engine, str(directory), str(count), options]
    found, grown, _, _ = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    print(f"{engine}, {what} of {count}: {grown} MiB of anonymous memory")
    return int(found), int(grown)


MOST_MIB = 32
NONE_WAIT = "overlay_changes=1000000,overlay_bytes=1000000000"


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
@pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=pytest.mark.full)])
def test_memory_does_not_rise_with_the_number_of_keys(tmp_path: Path, engine: str, count: int) -> None:
    for what in ("fill", "open"):
        found, grown = _memory_of(what, engine, tmp_path, count)
        assert found == count
        assert grown < MOST_MIB


@pytest.mark.parametrize("count", [50_000, pytest.param(250_000, marks=pytest.mark.full)])
def test_a_start_moves_what_a_log_has_in_pieces(tmp_path: Path, count: int) -> None:
    """As many as may wait on a full disk, all of them in the log alone."""
    assert _memory_of("fill", "segment", tmp_path, count, NONE_WAIT)[0] == count
    assert not (tmp_path / "state" / "parked").exists()
    found, grown = _memory_of("open", "segment", tmp_path, count)
    assert found == count
    assert grown < MOST_MIB
    assert (tmp_path / "state" / "parked").exists()


def test_ranges_end_where_the_namespace_does() -> None:
    assert END > b"parked/\xff\xff"
