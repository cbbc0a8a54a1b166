"""The state store, the small ordered map of everything except topic data: share state, offsets,
groups, topics, configs.

Keys are those of share state, values have 200 bytes.

- *write*: `StateStore.write()` of 1 or 100 changes of existing keys, with and without `sync()`.
- *prune*: a write that replaces a snapshot and removes the 500 updates merged into it.
- *open*: the start of a store with 10 000 share-partitions, each with a snapshot and five updates
  (60 000 keys), after a clean stop. `python -m perf.studies.state_load` measures the same start
  through the broker's persister.
- *scan*: reads one share-partition, or everything.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from itertools import count, cycle
from pathlib import Path

import pytest

from kbroker.formats.state import share_partition_prefix, share_state_number
from kbroker.storage.spi import Change, StateStore
from perf.parts.material import KEPT_STATE_ENGINES, STATE_ENGINES, TOPIC_ID, open_state_store
from perf.parts.part import Part

_VALUE = random.Random(7).randbytes(200)
_KEYS = 1000
_SHARE_PARTITIONS, _UPDATES = 10_000, 5
_PRUNED = 500


@pytest.fixture(params=STATE_ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(engine: str, directory: Path) -> Iterator[StateStore]:
    store = open_state_store(engine, directory)
    store.write([(key(partition), _VALUE) for partition in range(_KEYS)])
    store.sync()
    yield store
    store.close()


def key(partition: int, number: int = 0) -> bytes:
    return share_partition_prefix("workers", TOPIC_ID, partition) + share_state_number(number)


@pytest.mark.parametrize("sync", [False, True], ids=["write", "write and sync"])
@pytest.mark.parametrize("changes", [1, 100])
def test_write(part: Part, engine: str, store: StateStore, changes: int, sync: bool) -> None:
    partitions = cycle(range(_KEYS))
    writes = 20 if changes == 1 else 2

    def prepare() -> tuple[list[list[Change]]]:
        return ([[(key(next(partitions)), _VALUE) for _ in range(changes)] for _ in range(writes)],)

    def write(groups: Sequence[Sequence[Change]]) -> None:
        for group in groups:
            store.write(group)
            if sync:
                store.sync()

    group = f"state, {'write and sync' if sync else 'write'}: {changes} of 200 bytes"
    part.rounds(prepare, write, rounds=20, things=writes, thing="write", group=group, name=engine)


def test_prune(part: Part, engine: str, store: StateStore) -> None:
    numbers = count()

    def prepare() -> tuple[list[Change]]:
        partition = _KEYS + next(numbers)
        for number in range(0, _PRUNED + 1, 50):
            store.write(
                [(key(partition, each), _VALUE) for each in range(number, min(number + 50, _PRUNED + 1))]
            )
        store.sync()
        return (
            [(key(partition), _VALUE), *((key(partition, number), None) for number in range(1, _PRUNED + 1))],
        )

    part.rounds(
        prepare,
        store.write,
        rounds=8,
        thing="prune",
        group=f"state, prune: a snapshot for {_PRUNED} updates",
        name=engine,
    )


@pytest.fixture(scope="module", params=KEPT_STATE_ENGINES)
def kept_engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def stored(kept_engine: str, module_directory: Path) -> Iterator[Path]:
    """The directory of a closed store."""
    path = module_directory / kept_engine
    store = open_state_store(kept_engine, path)
    for first in range(0, _SHARE_PARTITIONS, 100):
        store.write(
            [
                (key(partition, number), _VALUE)
                for partition in range(first, first + 100)
                for number in range(_UPDATES + 1)
            ]
        )
    store.sync()
    store.close()
    yield path
    shutil.rmtree(path)


def test_open(part: Part, kept_engine: str, stored: Path) -> None:
    opened: list[StateStore] = []
    part.rounds(
        lambda: (stored,), lambda path: opened.append(open_state_store(kept_engine, path)),
        clear_up=lambda _: opened.pop().close(),
        rounds=5, thing="start", group="state, open: 10 000 share-partitions", name=kept_engine,
    )  # fmt: skip


@pytest.mark.parametrize("what", ["one", "all"])
def test_scan(part: Part, kept_engine: str, stored: Path, what: str) -> None:
    store = open_state_store(kept_engine, stored)
    prefixes = cycle(
        [
            share_partition_prefix("workers", TOPIC_ID, partition)
            for partition in range(0, _SHARE_PARTITIONS, 7)
        ]
    )
    if what == "one":
        group, keys = "state, scan: one share-partition of 6 keys", _UPDATES + 1
        assert len(list(store.scan(next(prefixes)))) == keys
        part.repeat(lambda: list(store.scan(next(prefixes))), thing="scan", group=group, name=kept_engine)
    else:
        keys = _SHARE_PARTITIONS * (_UPDATES + 1)
        assert sum(1 for _ in store.scan(b"")) == keys
        group = "state, scan: 60 000 keys"
        part.rounds(
            tuple,
            lambda: list(store.scan(b"")),
            rounds=3,
            things=keys,
            thing="key",
            group=group,
            name=kept_engine,
        )
    store.close()
