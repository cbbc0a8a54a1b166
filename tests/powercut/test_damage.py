"""Files of a store that were damaged while the broker was down: it refuses to start with one line,
or continues with the undamaged part.

It never prints a traceback, and never silently loses records, except where the damage looks like
the end left by a crash: docs/durability.md says where. (tests/api/test_damaged_files.py has damage
that shows only when a broker reads.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.exits import DATA_DIRECTORY
from kbroker.storage.segment.log_store import LOG_STORE
from kbroker.storage.spi import LogBounds
from kbroker.testing.broker import FAST_CONFIG, BrokerStartFailed, RunningBroker
from kbroker.testing.log_store_model import LOG, SETTINGS, sized_batch
from tests.powercut.disk import Disk, save
from tests.powercut.test_broker_faults import TOPIC, consume, produce

RECORDS = 100
Damage = Callable[[Path], None]


def put(path: Path, data: bytes, at: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, where: float) -> None:
    """Change some bytes at this part of the file."""
    data = path.read_bytes()
    at = int(len(data) * where)
    put(path, bytes(byte ^ 0x55 for byte in data[at : at + 40]), at)


def cut(path: Path, where: float) -> None:
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * where))


FLIPPED, CUT = partial(flip, where=0.5), partial(cut, where=0.5)
FLIPPED_END = partial(flip, where=0.99)
GARBAGE: Damage = partial(put, data=b"\x5a" * 8192)
REFUSED: dict[tuple[str, str], dict[str, Damage]] = {
    ("rocksdb", "CURRENT"): {
        "gone": Path.unlink,
        "nonsense": partial(put, data=b"nonsense"),
        "cut": partial(cut, where=0),
    },
    ("rocksdb", "MANIFEST-*"): {"gone": Path.unlink, "flipped": FLIPPED, "cut": CUT},
    ("rocksdb", "*.sst"): {"gone": Path.unlink, "flipped at the end": FLIPPED_END, "cut": CUT},
    ("lmdb", "data.mdb"): {
        "gone": Path.unlink,
        "both meta pages": GARBAGE,
        "zeros for both meta pages": partial(put, data=bytes(8192)),
        "the first meta page": partial(put, data=b"\x5a" * 4096),
        "the second meta page": partial(put, data=b"\x5a" * 4096, at=4096),
        "one page left": lambda path: put_length(path, 4096),
        "empty": partial(cut, where=0),
    },
    ("sqlite", "*.sqlite"): {"gone": Path.unlink, "empty": partial(cut, where=0)},
}
QUICK = {("rocksdb", "MANIFEST-*", "cut"), ("rocksdb", "*.sst", "flipped at the end")}
"""Regressions: a traceback, and records hidden after an early end of a log."""


def put_length(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def cases() -> list[Any]:
    """Each damage to the log store and to the state store; the default run has some of them."""
    return [
        pytest.param(engine, kind, files, damage, id=f"{engine}-{kind}-{files}-{name}", marks=marks)
        for (engine, files), damages in REFUSED.items()
        for name, damage in damages.items()
        for kind in ("log", "state")
        for marks in ([] if kind == "log" and (engine, files, name) in QUICK else [pytest.mark.full])
    ]


class Left:
    """The directories of killed brokers, by engine, created on first use."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._made: dict[str, Path] = {}

    def copy(self, engine: str, to: Path) -> RunningBroker:
        """A broker that is not running, on a copy."""
        if engine not in self._made:
            self._made[engine] = self._make(engine)
        save(Disk(self._made[engine]).latest(), to / "data")
        (to / "data").chmod(0o700)  # As the broker had it: otherwise it warns.
        return RunningBroker(to, storage=engine, config=FAST_CONFIG)

    def _make(self, engine: str) -> Path:
        """Half of the records are in RocksDB's tables, and half in its WAL."""
        home = self._home / engine
        home.mkdir()
        broker = RunningBroker(home, storage=engine, config=FAST_CONFIG)
        try:
            for first in (0, RECORDS // 2):
                broker.start()
                if first == 0:
                    broker.create_topic(TOPIC, config={"segment.bytes": "1048576"})
                confirmed, _ = produce(broker, range(first, first + RECORDS // 2))
                assert len(confirmed) == RECORDS // 2
                broker.kill()
        finally:
            broker.kill()
        return broker.data_dir


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(tmp_path_factory.mktemp("left"))


def the_file(broker: RunningBroker, kind: str, files: str) -> Path:
    """The largest file with that name."""
    return max(
        (broker.data_dir / f"{kind}-{broker.storage}").rglob(files), key=lambda path: path.stat().st_size
    )


@pytest.mark.parametrize(("engine", "kind", "files", "damage"), cases())
def test_a_store_that_is_damaged_is_refused(
    engine: str, kind: str, files: str, damage: Damage, left: Left, home: Path
) -> None:
    broker = left.copy(engine, home)
    damage(the_file(broker, kind, files))
    with pytest.raises(BrokerStartFailed) as refused:
        broker.start()
    assert refused.value.exit_code == DATA_DIRECTORY, broker.logs()
    (line,) = [line for line in broker.logs().splitlines() if " INFO " not in line]
    assert line.startswith("kbroker: ")


def records_of(broker: RunningBroker) -> list[int]:
    broker.start()
    try:
        found = [int(value) for value in consume(broker)]
        (more,), _ = produce(broker, [RECORDS])
        assert [int(value) for value in consume(broker)] == [*found, int(more)]
    finally:
        broker.kill()
    return found


@pytest.mark.full
def test_a_torn_wal_of_rocksdb_is_what_a_crash_leaves(left: Left, home: Path) -> None:
    """Its end is cut off; the broker starts."""
    broker = left.copy("rocksdb", home)
    path = the_file(broker, "log", "*.log")
    put_length(path, path.stat().st_size - 20)
    assert records_of(broker) == list(range(RECORDS - 1))


@pytest.mark.full
def test_rocksdb_takes_damage_within_its_wal_for_its_end(left: Left, home: Path) -> None:
    """A known limit: RocksDB cannot distinguish it from a power cut, which may lose a page and keep
    the next. A prefix is left."""
    broker = left.copy("rocksdb", home)
    flip(the_file(broker, "log", "*.log"), 0.5)
    found = records_of(broker)
    assert RECORDS // 2 <= len(found) < RECORDS
    assert found == list(range(len(found)))


@pytest.mark.full
def test_damage_within_synced_records_of_a_segment(left: Left, home: Path) -> None:
    """Without a checkpoint, after a crash, it cannot be distinguished from pages that a power cut
    lost. The log ends there, one line reports it, and the bytes after the damage are kept."""
    broker = left.copy("segment", home)
    path = the_file(broker, "log", "data.ninja")
    rest = path.read_bytes()[40 * 3100 : 41 * 3100]
    put(path, b"\x5a" * 40, at=30 * 3100)
    found = records_of(broker)
    assert RECORDS // 4 < len(found) < RECORDS // 2
    assert found == list(range(len(found)))
    (line,) = [line for line in broker.logs().splitlines() if " ERROR " in line]
    assert str(path) in line
    (kept,) = path.parent.parent.glob("*.cut")
    assert rest in kept.read_bytes()


def test_damage_before_a_checkpoint_removes_nothing(home: Path) -> None:
    """Records that are known to have been synced stay where they are: those before and after the
    damage can be read."""
    batches = [sized_batch(offset, 3000) for offset in range(20)]
    store = LOG_STORE.open(home / "living", {"checkpoint_bytes": "0"}, 0)
    store.create(LOG, SETTINGS)
    for batch in batches:
        store.write([batch], now_ms=0)
        store.sync()
    save(Disk(home / "living").latest(), home / "left")
    store.close()
    (path,) = (home / "left").rglob("data.ninja")
    put(path, b"\x5a" * 40, at=5 * len(batches[0].data))
    store = LOG_STORE.open(home / "left", {}, 0)
    assert store.bounds(LOG) == LogBounds(0, 20)
    for offset in (0, 4, 6, 19):
        assert b"".join(store.read(LOG, offset, max_bytes=1, end_offset=20)) == batches[offset].data
    store.close()
