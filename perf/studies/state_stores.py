"""The state stores of the engines `segment` and `lmdb` beside each other: what decided
docs/decisions/0026-two-state-stores.md.

    python -m perf.studies.state_stores                   everything, ten pairs, half an hour
    python -m perf.studies.state_stores --only acks,start --pairs 3
    python -m perf.studies.state_stores --store segment --store lmdb:redo_bytes=16777216

Each reading is made in its own process, on a new ext4 on a loop device, whose image is a file in
--home. So the kernel's counters of that device have nothing but what the store and its file system
wrote: bytes, and flushes, which is how a device sees a sync. That needs the right to mount.
Readings of the stores alternate, and every second pair has the opposite order. The table has the
median of each store with the lowest and the highest, and the median of the pairs' ratios to the
first store. CPU time is that of all threads of the process; wall time is not reported.

The share coordinator makes the keys and values of acknowledgements, the format of parked records
the others. The studies:

    acks        120 000 acknowledgements, one by one, round robin in some share-partitions
    parking     20 000 records, parked one by one, and then finished one by one
    start       kill -9 with a million parked records and 60 000 keys of share state, the last
                writes not synced: to open the store, and to load the share state; memory
    room        the smallest tmpfs, in steps of 4 MiB, on which 200 000 acknowledgements find space
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias
from uuid import UUID

import click
from rich.console import Console
from rich.table import Table

from kbroker import plugins
from kbroker.broker.commits.process import settle_memory
from kbroker.errors import NoSpace
from kbroker.formats.parked_records import (
    ParkedCount,
    ParkedRecord,
    by_offset_key,
    counter_key,
    generation_prefix,
    parked_prefix,
    place_key,
)
from kbroker.share.effects import StateBatch
from kbroker.share.persister import InitializeRequest, TopicPartition, WriteRequest
from kbroker.share_state.coordinator import ShareStateCoordinator
from kbroker.storage.spi import Change, StateStore
from perf.measuring.processes import memory

TOPIC, GROUP, LANE = UUID(int=7), "workers", 3
ACKS = 120_000
"""More than the 16 MiB after which the segment engine's store rewrites its log."""
COMMITS = 20_000
PARKED, PARKED_AT_ONCE = 1_000_000, 500
PARTITIONS_TO_LOAD, UPDATES_TO_LOAD = 10_000, 5
DISK_BYTES = 4 << 30
SECTOR = 512

Reading: TypeAlias = dict[str, float]


# --- what the store is given ---


def acknowledgements(count: int, partitions: int) -> Iterator[list[Change]]:
    """The changes of each of `count` acknowledgements of one record."""
    coordinator = ShareStateCoordinator(lambda _: iter(()), lambda *_: True)
    places = [TopicPartition(TOPIC, number) for number in range(partitions)]
    outcome: Any = coordinator.initialize(
        GROUP, [InitializeRequest(place, 0, 0) for place in places], now_ms=0
    )
    coordinator.states.confirm(outcome)
    yield list(outcome.changes)
    for number in range(count):
        offset = number // partitions
        request = WriteRequest(
            places[number % partitions], 0, 0, offset, 1, [StateBatch(offset + 2, offset + 2, 2, 1)]
        )
        outcome = coordinator.write(GROUP, [request], now_ms=number)
        coordinator.states.confirm(outcome)
        yield list(outcome.changes)


class Jobs:
    """Parked records, due in random order."""

    def __init__(self, count: int) -> None:
        self._prefix = generation_prefix(parked_prefix(GROUP, TOPIC, 0), 1)
        self.due = random.Random(1).sample(range(1 << 40, (1 << 40) + 10 * count), count)

    def parked(self, offset: int) -> list[Change]:
        record = ParkedRecord(offset, LANE, self.due[offset], 1, 0, rejected=False)
        return [
            (by_offset_key(self._prefix, offset), record.encode()),
            (place_key(self._prefix, LANE, self.due[offset], offset), record.encode_place()),
        ]

    def finished(self, offset: int) -> list[Change]:
        return [(key, None) for key, _ in self.parked(offset)]

    def count(self, number: int) -> Change:
        return counter_key(self._prefix), ParkedCount(number).encode()

    def in_order(self) -> list[int]:
        return sorted(range(len(self.due)), key=self.due.__getitem__)


# --- readings, each in its own process ---


def opened(store: str, directory: Path) -> StateStore:
    """`store`: ENGINE, or ENGINE:OPTION=VALUE."""
    engine, _, option = store.partition(":")
    options = dict([option.split("=")]) if option else {}
    found: StateStore = plugins.state_store_factory(engine).open(directory, options, 1)
    return found


class Counted:
    """Differences of the counters of the process and of the device that has `directory`."""

    def __init__(self, directory: Path, things: int) -> None:
        device = os.stat(directory.parent).st_dev
        self._stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        self._things, self._directory = things, directory
        os.sync()
        self._before = self._now()

    def _now(self) -> tuple[float, int, int, int]:
        cpu_s = time.process_time()
        io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        fields = self._stat.read_text().split()
        return cpu_s, int(io["wchar"]), int(fields[6]) * SECTOR, int(fields[15])

    def reading(self, what: str) -> Reading:
        used = [after - before for after, before in zip(self._now(), self._before, strict=True)]
        names = ("CPU, us", "bytes written by calls", "bytes written to the device", "flushes")
        each = {
            f"{what}: {name}": value / self._things * (1e6 if name.startswith("CPU") else 1)
            for name, value in zip(names, used, strict=True)
        }
        taken = sum(path.stat().st_blocks * SECTOR for path in self._directory.rglob("*") if path.is_file())
        return {**each, f"{what}: on disk at the end, MB": taken / 1e6}


def commit_all(store: StateStore, commits: Sequence[Sequence[Change]], sync_every: int) -> None:
    for number, changes in enumerate(commits, 1):
        store.write(changes)
        if number % sync_every == 0:
            store.sync()


def acks(store: str, directory: Path, partitions: int, sync_every: int) -> Reading:
    first, *commits = acknowledgements(ACKS, partitions)
    opened_store = opened(store, directory)
    commit_all(opened_store, [first], 1)
    settle_memory()
    counted = Counted(directory, ACKS)
    commit_all(opened_store, commits, sync_every)
    return counted.reading(f"ack, {partitions} share-partitions, a sync every {sync_every}")


def parking(store: str, directory: Path, sync_every: int) -> Reading:
    jobs = Jobs(COMMITS)
    opened_store = opened(store, directory)
    parked = [[*jobs.parked(offset), jobs.count(offset + 1)] for offset in range(COMMITS)]
    finished = [
        [*jobs.finished(offset), jobs.count(COMMITS - done)] for done, offset in enumerate(jobs.in_order(), 1)
    ]
    found: Reading = {}
    for what, commits in (("park", parked), ("finish", finished)):
        settle_memory()
        counted = Counted(directory, COMMITS)
        commit_all(opened_store, commits, sync_every)
        found |= counted.reading(f"{what}, a sync every {sync_every}")
    return found


def fill(store: str, directory: Path) -> Reading:
    """Ends with kill -9, after acknowledgements that no sync followed."""
    opened_store, jobs = opened(store, directory), Jobs(PARKED)
    for first in range(0, PARKED, PARKED_AT_ONCE):
        some = range(first, first + PARKED_AT_ONCE)
        opened_store.write([*(row for offset in some for row in jobs.parked(offset)), jobs.count(some.stop)])
        opened_store.sync()
    updates = acknowledgements(PARTITIONS_TO_LOAD * UPDATES_TO_LOAD, PARTITIONS_TO_LOAD)
    for number, changes in enumerate(updates):
        opened_store.write(changes)
        if number % 100 == 0:
            opened_store.sync()
    for offset in range(2000):
        opened_store.write(jobs.finished(offset))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def start(store: str, directory: Path) -> Reading:
    plugins.state_store_factory(store.partition(":")[0])
    settle_memory()
    before_mb, before_s = memory(os.getpid()).anonymous_mb, time.process_time()
    opened_store = opened(store, directory)
    opened_s = time.process_time()
    opened_mb = memory(os.getpid()).anonymous_mb
    assert sum(1 for _ in opened_store.scan(b"share/")) == PARTITIONS_TO_LOAD * (UPDATES_TO_LOAD + 1)
    loaded_s = time.process_time()
    jobs = Jobs(PARKED)
    settle_memory()
    work_mb = memory(os.getpid()).anonymous_mb
    for number, offset in enumerate(range(2000, 22_000)):
        opened_store.write(jobs.finished(offset))
        if number % 10 == 0:
            opened_store.sync()
    return {
        "start: CPU to open, ms": (opened_s - before_s) * 1e3,
        "start: CPU to open and load, ms": (loaded_s - before_s) * 1e3,
        "start: anonymous memory of the open store, MB": opened_mb - before_mb,
        "start: more after 20 000 were finished, MB": memory(os.getpid()).anonymous_mb - work_mb,
    }


def room(store: str, directory: Path) -> Reading:
    """Until the disk is full, or to the end."""
    opened_store = opened(store, directory)
    done, least = 0, 0
    try:
        for number, changes in enumerate(acknowledgements(10 * COMMITS, 10)):
            opened_store.write(changes)
            done += 1
            if number % 10 == 0:
                opened_store.sync()
                least = max(least, opened_store.least_free_bytes())
    except NoSpace:
        pass
    return {"acknowledged": done, "least_free_bytes": least}


READINGS: Mapping[str, Callable[..., Reading]] = {
    "acks": acks, "parking": parking, "fill": fill, "start": start, "room": room,
}  # fmt: skip


# --- the driver ---


@contextmanager
def new_disk(home: Path) -> Iterator[Path]:
    image = home / "disk.img"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    # the kernel would write the tables of inodes later, beside the measurement
    eager = ["-E", "lazy_itable_init=0,lazy_journal_init=0", "-m", "0"]
    subprocess.run(["mkfs.ext4", "-q", *eager, str(image)], check=True)
    with mounted(home, "-o", "loop", str(image)) as disk:
        yield disk
    image.unlink()


@contextmanager
def mounted(home: Path, *what: str) -> Iterator[Path]:
    mount_point = home / "disk"
    mount_point.mkdir(exist_ok=True)
    subprocess.run(["mount", *what, str(mount_point)], check=True)
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", str(mount_point)], check=True)


def read(what: str, store: str, directory: Path, *arguments: int) -> Reading:
    reading = json.dumps([what, store, str(directory), *arguments])
    command = [sys.executable, "-m", __spec__.name, "--read", reading]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if what == "fill":
        assert process.returncode == -signal.SIGKILL, process
        return {}
    process.check_returncode()
    found: Reading = json.loads(process.stdout)
    return found


def acks_on(store: str, home: Path) -> Reading:
    found: Reading = {}
    for partitions, sync_every in ((10, 1), (10, 10), (1000, 10), (10_000, 10)):
        with new_disk(home) as disk:
            found |= read("acks", store, disk / "state", partitions, sync_every)
    return found


def parking_on(store: str, home: Path) -> Reading:
    with new_disk(home) as disk:
        return read("parking", store, disk / "state", 10)


def start_on(store: str, home: Path) -> Reading:
    filled = home / f"filled-{store.replace('/', '-')}"
    if not filled.exists():
        read("fill", store, filled)
    with new_disk(home) as disk:
        subprocess.run(["cp", "-r", "--sparse=always", str(filled), str(disk / "state")], check=True)
        return read("start", store, disk / "state")


def room_on(store: str, home: Path) -> Reading:
    for size_mib in range(4, 128, 4):
        with mounted(home, "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs") as disk:
            found = read("room", store, disk / "state")
        if found["acknowledged"] > 10 * COMMITS:
            return {
                "room: enough, MiB": size_mib,
                "room: least_free_bytes, MB": found["least_free_bytes"] / 1e6,
            }
    raise AssertionError("no size is enough")


STUDIES: Mapping[str, Callable[[str, Path], Reading]] = {
    "acks": acks_on, "parking": parking_on, "start": start_on, "room": room_on,
}  # fmt: skip


@click.command()
@click.option("--store", "stores", multiple=True, default=("segment", "lmdb"), show_default=True)
@click.option("--only", default=",".join(STUDIES), show_default=True)
@click.option("--pairs", type=int, default=10, show_default=True)
@click.option(
    "--home", type=click.Path(path_type=Path), default=Path("/dev/shm/kbroker-perf"), show_default=True
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all readings to this file.")
@click.option("--read", "reading", hidden=True)
def main(
    stores: Sequence[str], only: str, pairs: int, home: Path, json_path: Path | None, reading: str | None
) -> None:
    if reading is not None:
        what, store, directory, *arguments = json.loads(reading)
        click.echo(json.dumps(READINGS[what](store, Path(directory), *arguments)))
        return
    home.mkdir(exist_ok=True)
    found: dict[str, dict[str, list[float]]] = {}
    for study in only.split(","):
        for pair in range(1 if study == "room" else pairs):
            for store in stores if pair % 2 == 0 else reversed(stores):
                for name, value in STUDIES[study](store, home).items():
                    found.setdefault(name, {}).setdefault(store, []).append(value)
            if json_path is not None:
                json_path.write_text(json.dumps(found, indent=1))
    Console(width=160).print(table_of(stores, found))


def table_of(stores: Sequence[str], found: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    table = Table("", *stores, *(f"{store} / {stores[0]}" for store in stores[1:]))
    for name, by_store in found.items():
        first = by_store[stores[0]]
        cells = [f"{median(each):.5g} ({min(each):.4g}-{max(each):.4g})" for each in by_store.values()]
        ratios = [
            f"{median(one / other for one, other in zip(by_store[store], first, strict=True)):.2f}"
            if all(first)
            else "-"
            for store in stores[1:]
        ]
        table.add_row(name, *cells, *ratios)
    return table


if __name__ == "__main__":
    main()
