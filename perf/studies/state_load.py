"""The time to load the state of many share-partitions, by state engine.

    python -m perf.studies.state_load       10 000 share-partitions: updates, cold snapshots
    python -m perf.studies.state_load --engine lmdb --repeats 9

The coordinator itself creates the stored state: one snapshot for each share-partition, and some
updates. The measurement covers the work of a start: open the store, and read every share-partition
through the default persister, all concurrently, like a broker's first fetches. Each read stores the
new leader epoch. Repeats alternate between the engines; medians are shown. On a busy machine,
compare the CPU time.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from uuid import UUID

import click
import trio
from rich.console import Console
from rich.table import Table

from kbroker import plugins
from kbroker.broker.commits.group_commit import GroupCommit
from kbroker.broker.commits.process import settle_memory
from kbroker.broker.persisters.local import LocalPersister
from kbroker.errors import ErrorCode
from kbroker.share.effects import StateBatch
from kbroker.share.persister import InitializeRequest, ReadRequest, TopicPartition, WriteRequest
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.share_state.housekeeping import SharePartitionKey
from kbroker.storage.spi import Change, StateStore

ENGINES = ("segment", "lmdb", "rocksdb")
GROUP = "workers"
BATCHES_OF_SNAPSHOT, BATCHES_OF_UPDATE = 10, 2
_AT_ONCE = 500


def fill(directory: Path, engine: str, partitions: Sequence[TopicPartition], updates: int) -> int:
    """Fills a store. Returns the bytes of the stored keys and values."""
    store: StateStore = plugins.state_store_factory(engine).open(directory, {}, 1)
    coordinator = ShareStateCoordinator(store.scan, lambda *_: True)
    for first in range(0, len(partitions), _AT_ONCE):
        some = partitions[first : first + _AT_ONCE]
        initialize = coordinator.initialize(
            GROUP, [InitializeRequest(partition, 0, 0) for partition in some], now_ms=0
        )
        store.write(initialize.changes)
        coordinator.states.confirm(initialize)
        for number in range(updates + 1):
            size = BATCHES_OF_UPDATE if number else BATCHES_OF_SNAPSHOT
            batches = [StateBatch(at, at, 2, 1) for at in range(100 * number, 100 * number + 2 * size, 2)]
            written = coordinator.write(
                GROUP, [WriteRequest(partition, 0, 0, 0, size, batches) for partition in some], now_ms=0
            )
            store.write(written.changes)
            coordinator.states.confirm(written)
            if not number:
                cold = coordinator.states.snapshot(
                    [SharePartitionKey(GROUP, partition) for partition in some], now_ms=1
                )
                store.write(cold.changes)
                coordinator.states.confirm(cold)
            store.sync()
    size_bytes = sum(len(key) + len(value) for key, value in store.scan(b""))
    store.close()
    return size_bytes


async def load(
    directory: Path, engine: str, partitions: Sequence[TopicPartition], leader_epoch: int
) -> tuple[float, float, float]:
    """The milliseconds to open the store, to read everything, and of CPU time for both."""
    settle_memory()  # as in a broker, whose memory has no garbage of fill()
    began = time.perf_counter()
    began_cpu = time.process_time()
    store: StateStore = plugins.state_store_factory(engine).open(directory, {}, 1)
    opened = time.perf_counter()
    commits: GroupCommit[Change] = GroupCommit(
        "state",
        store.write,
        store.sync,
        in_thread=store.write_in_thread,
        beside_sync=store.write_beside_sync,
        durability="disk",
    )
    persister = LocalPersister(ShareStateCoordinator(store.scan, lambda *_: True), commits)

    async def read(partition: TopicPartition) -> None:
        (result,) = await persister.read(GROUP, [ReadRequest(partition, leader_epoch)])
        assert result.code is ErrorCode.none, result
        assert result.batches

    async with trio.open_nursery() as committer:
        committer.start_soon(commits.run)
        async with trio.open_nursery() as readers:
            for partition in partitions:
                readers.start_soon(read, partition)
        commits.close()
    read_all = time.perf_counter()
    cpu_ms = (time.process_time() - began_cpu) * 1000
    store.close()
    return (opened - began) * 1000, (read_all - opened) * 1000, cpu_ms


@click.command()
@click.option("--engine", "engines", type=click.Choice(ENGINES), multiple=True, default=ENGINES)
@click.option("--share-partitions", type=int, default=10_000, show_default=True)
@click.option(
    "--updates",
    type=int,
    multiple=True,
    default=(0, 5, 20),
    show_default=True,
    help="Updates after each snapshot.",
)
@click.option("--repeats", type=int, default=5, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all readings to this file.")
def main(
    engines: Sequence[str],
    share_partitions: int,
    updates: Sequence[int],
    repeats: int,
    json_path: Path | None,
) -> None:
    partitions = [TopicPartition(UUID(int=7), number) for number in range(share_partitions)]
    home = Path(tempfile.mkdtemp(prefix="kbroker-perf-"))
    readings: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    sizes: dict[tuple[str, int], int] = {}
    try:
        for engine in engines:
            for count in updates:
                sizes[engine, count] = fill(home / f"{engine}-{count}", engine, partitions, count)
        for repeat in range(repeats):
            for engine, count in sizes:
                directory = home / "now"
                shutil.copytree(home / f"{engine}-{count}", directory)
                readings.setdefault((engine, count), []).append(
                    trio.run(load, directory, engine, partitions, repeat + 1)
                )
                shutil.rmtree(directory)
    finally:
        shutil.rmtree(home)
    table = Table(
        "engine", "updates each", "stored, MB", "open, ms", "load all, ms", "CPU of both, ms", "CPU each, us"
    )
    for (engine, count), found in readings.items():
        opening, reading, cpu = (median(each[part] for each in found) for part in range(3))
        size, each_us = f"{sizes[engine, count] / 1e6:.1f}", f"{cpu * 1000 / share_partitions:.0f}"
        table.add_row(engine, str(count), size, f"{opening:.0f}", f"{reading:.0f}", f"{cpu:.0f}", each_us)
    Console().print(table)
    if json_path is not None:
        rows = [
            {"engine": engine, "updates": count, "open_load_cpu_ms": found}
            for (engine, count), found in readings.items()
        ]
        json_path.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
