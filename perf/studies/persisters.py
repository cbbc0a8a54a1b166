"""Speed and space of the two designs for share state: the persisters `default` and
`control-records`, with 1 and with 20 groups.

    python -m perf.studies.persisters                              everything, some minutes
    python -m perf.studies.persisters --engine lmdb --groups 20

A broker is opened in this process, without a server, so that only the persister and its engine are
measured. There is one topic with one partition and records of 100 bytes in batches of 10. All
groups accept all records at the same time, in acknowledgements of 10 records, each of which waits
for the one before. Then the broker is stopped, an ordinary fetch reads the log from its beginning,
and a new broker loads the state of all groups. Repeats alternate between the persisters; medians
are shown.

    acks/s          acknowledgements of all groups per second; meaningless on a busy machine
    CPU us          CPU time of the process per acknowledgement (including the fetch)
    log B, state B  bytes per acknowledgement: in the topic's log, without the records, and on disk
                    for the state
    fetch MB        bytes sent to an ordinary consumer that reads the whole topic
    load ms         CPU time to load all groups after a clean stop, and after a crash
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
import trio
from rich.console import Console
from rich.table import Table

from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.options import StartOptions
from kbroker.errors import ErrorCode
from kbroker.formats.batches import Record, build_batch, iter_headers
from kbroker.settings.altering import BrokerConfig
from kbroker.share.acquire import Control
from kbroker.share.effects import AckBatch
from kbroker.share.persister import InitializeRequest, TopicPartition
from kbroker.share.share_partition import AcquireMode
from kbroker.storage.spi import LogId

PERSISTERS = ("default", "control-records")
BATCH, VALUE = 10, bytes(100)
_NOW_MS = 1_000_000.0
_TIMESTAMP_MS = 1_700_000_000_000
_BATCH = build_batch([Record(0, _TIMESTAMP_MS, None, VALUE)] * BATCH)


class Setting(NamedTuple):
    persister: str
    engine: str
    groups: int
    durability: str


class Reading(NamedTuple):
    acks_per_s: float
    cpu_us: float
    log_bytes: float
    state_bytes: float
    fetch_mb: float
    load_ms: float
    load_after_crash_ms: float


def options_of(setting: Setting, directory: Path) -> StartOptions:
    config = BrokerConfig({"kbroker.persister": setting.persister, "log.segment.bytes": str(1 << 26)})
    return StartOptions(
        data_dir=directory,
        storage=setting.engine,
        state_storage=setting.engine,
        config=config,
        durability=setting.durability,  # type: ignore[arg-type]
    )


async def append(broker: Broker, batches: int) -> None:
    topic = broker.topics.by_name("orders")
    assert topic is not None
    done = trio.Event()
    for number in range(batches):
        topic.partitions[0].append(
            _BATCH, _TIMESTAMP_MS, lambda _, last=number == batches - 1: done.set() if last else None
        )
    await done.wait()


async def work(broker: Broker, group_id: str, key: TopicPartition, batches: int) -> None:
    """One group: loads its share-partition, then acquires and accepts batch after batch."""
    loaded = await broker.share_partitions.load(group_id, key)
    engine = loaded.engine
    assert engine is not None
    done = 0
    while done < batches:
        offset = engine.window.next_fetch_offset()
        views = await loaded.partition.read(
            offset, max_bytes=4 << 10, end_offset=loaded.partition.high_watermark
        )
        data, control = batches_of(views)
        ranges = engine.acquire(
            "m", mode=AcquireMode.BATCH_OPTIMIZED, batch_size=BATCH, max_records=BATCH, fetch_offset=offset,
            batches=data, control=control,
            now_ms=_NOW_MS,
        )  # fmt: skip
        for first, last, _ in ranges:
            results = await broker.share_partitions.acknowledge(
                group_id, "m", [(key, [AckBatch(first, last, (1,))])]
            )
            assert results == [None]
            done += 1


def batches_of(views: Sequence[memoryview]) -> tuple[list[tuple[int, int]], list[Control]]:
    data, control = [], []
    for view in views:
        for _, header in iter_headers(view):
            if header.is_control:
                control.append(Control(header.base_offset, header.last_offset, header.has_producer))
            else:
                data.append((header.base_offset, header.last_offset))
    return data, control


async def fill_and_work(
    setting: Setting, directory: Path, acks: int, crash: Path
) -> tuple[float, float, float]:
    batches = acks // setting.groups
    async with open_broker(options_of(setting, directory)) as broker:
        topic = await broker.topics.create("orders", 1, {})
        key = TopicPartition(topic.topic_id, 0)
        await append(broker, batches)
        group_ids = [f"group-{number}" for number in range(setting.groups)]
        for group_id in group_ids:
            (result,) = await broker.persister.initialize(group_id, [InitializeRequest(key, 0, 0)])
            assert result.code is ErrorCode.none
        began, began_cpu = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for group_id in group_ids:
                nursery.start_soon(work, broker, group_id, key, batches)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        records = batches * len(_BATCH)
        log_bytes = sum(segment.size_bytes for segment in topic.partitions[0].segments()) - records
        shutil.copytree(directory, crash)
    done = batches * setting.groups
    return done / seconds, cpu_s * 1e6 / done, log_bytes / done


async def load(setting: Setting, directory: Path) -> tuple[float, float]:
    """The CPU milliseconds to load all groups, and the megabytes sent to a consumer."""
    async with open_broker(options_of(setting, directory)) as broker:
        topic = broker.topics.by_name("orders")
        assert topic is not None
        key = TopicPartition(topic.topic_id, 0)
        began = time.process_time()
        async with trio.open_nursery() as nursery:
            for number in range(setting.groups):
                nursery.start_soon(broker.share_partitions.load, f"group-{number}", key)
        load_ms = (time.process_time() - began) * 1000
        log = LogId(*key)
        views = broker.log_store.read(
            log, 0, max_bytes=1 << 30, end_offset=topic.partitions[0].high_watermark
        )
        return load_ms, sum(map(len, views)) / 1e6


def bytes_in(directory: Path) -> int:
    return sum(
        os.stat(os.path.join(folder, name)).st_blocks * 512
        for folder, _, files in os.walk(directory)
        for name in files
    )


def measure(setting: Setting, home: Path, acks: int) -> Reading:
    directory, crash = home / "now", home / "crash"
    rate, cpu_us, log_bytes = trio.run(fill_and_work, setting, directory, acks, crash)
    state_bytes = bytes_in(directory / f"state-{setting.engine}") / acks
    load_ms, fetch_mb = trio.run(load, setting, directory)
    after_crash_ms, _ = trio.run(load, setting, crash)
    shutil.rmtree(home)
    home.mkdir()
    return Reading(rate, cpu_us, log_bytes, state_bytes, fetch_mb, load_ms, after_crash_ms)


@click.command()
@click.option("--engine", "engines", multiple=True, default=("segment", "lmdb", "rocksdb"), show_default=True)
@click.option("--groups", "groups", type=int, multiple=True, default=(1, 20), show_default=True)
@click.option("--durability", "durabilities", multiple=True, default=("os", "disk"), show_default=True)
@click.option(
    "--acks", type=int, default=10_000, show_default=True, help="Acknowledgements of all groups together."
)
@click.option("--repeats", type=int, default=3, show_default=True)
def main(
    engines: Sequence[str], groups: Sequence[int], durabilities: Sequence[str], acks: int, repeats: int
) -> None:
    settings = [
        Setting(persister, engine, count, durability)
        for engine in engines
        for durability in durabilities
        for count in groups
        for persister in PERSISTERS
    ]
    readings: dict[Setting, list[Reading]] = {}
    for _ in range(repeats):
        for setting in settings:
            home = Path(tempfile.mkdtemp(prefix="kbroker-perf-"))
            try:
                readings.setdefault(setting, []).append(measure(setting, home, acks))
            finally:
                shutil.rmtree(home)
    names = ("acks/s", "CPU us", "log B", "state B", "fetch MB", "load ms", "after a crash")
    table = Table("engine", "durability", "groups", "persister", *names)
    for setting, found in readings.items():
        row = Reading(*(median(each[part] for each in found) for part in range(len(Reading._fields))))
        table.add_row(
            setting.engine, setting.durability, str(setting.groups), setting.persister,
            f"{row.acks_per_s:.0f}", f"{row.cpu_us:.0f}",
            f"{row.log_bytes:.0f}", f"{row.state_bytes:.0f}", f"{row.fetch_mb:.2f}", f"{row.load_ms:.0f}",
            f"{row.load_after_crash_ms:.0f}",
        )  # fmt: skip
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
