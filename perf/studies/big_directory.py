"""A large data directory, built once for each engine through the broker and kept for later runs.

It has one topic of 1 000 partitions with 2 GiB in records of 1 KiB (random bytes, so that no file
system compresses them), written in batches of up to 64 KB. It is built with `--durability os`,
which writes the same files in less time. A start on it changes almost nothing.
"""

from __future__ import annotations

import errno
import os
import shutil
from io import FileIO
from pathlib import Path

from perf.measuring.measured_broker import measured_broker

PARTITIONS = 1_000
RECORD_BYTES = 1_024
_FORMAT = 1
_QUEUE_KBYTES = 256 << 10
_ROOM_FACTOR = 2.0  # LMDB keeps some pages free, RocksDB has its log and what it is compacting


class NoRoom(Exception):
    """The disk has no space for another directory; the text says how much is needed."""


def big_directory(cache: Path, engine: str, total_bytes: int) -> Path:
    """The data directory, built if `cache` does not have it yet. Raises NoRoom."""
    home = cache / f"kbroker-perf-{_FORMAT}-{engine}-{total_bytes >> 20}MiB"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _check_room(home, total_bytes)
        _build(home, engine, total_bytes)
        (home / "complete").touch()
    return home


def _check_room(home: Path, total_bytes: int) -> None:
    needed = int(total_bytes * _ROOM_FACTOR)
    free = shutil.disk_usage(home).free
    if free < needed:
        raise NoRoom(
            f"{home} needs {needed >> 20} MiB of free space and has {free >> 20}: "
            "choose another --cache-dir, or a smaller --mib"
        )


def _build(home: Path, engine: str, total_bytes: int) -> None:
    from confluent_kafka import Producer

    broker = measured_broker(home, engine, "os")
    broker.start()
    try:
        broker.create_topic("big", partitions=PARTITIONS)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "acks": "all",
                "linger.ms": 100,
                "batch.size": 64 << 10,
                "queue.buffering.max.kbytes": _QUEUE_KBYTES,
                "log_level": 0,
            }
        )
        failed: list[object] = []
        payload = os.urandom(1 << 20)
        in_a_row = 60  # records of one partition, so that batches are full
        for number in range(total_bytes // RECORD_BYTES):
            start = number * 13 % (len(payload) - RECORD_BYTES)
            partition = number // in_a_row % PARTITIONS
            _produce(producer, partition, payload[start : start + RECORD_BYTES], failed)
        if producer.flush(300) or failed:
            raise RuntimeError(f"the topic could not be filled: {failed[:1] or 'timeout'}")
        broker.stop()
    finally:
        broker.kill()


def _produce(producer: object, partition: int, value: bytes, failed: list[object]) -> None:
    from confluent_kafka import Producer

    assert isinstance(producer, Producer)

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    while True:
        try:
            producer.produce("big", value, partition=partition, on_delivery=delivered)
        except BufferError:
            producer.poll(0.1)
            continue
        producer.poll(0)
        return


def read_all(directory: Path) -> None:
    """Reads the files into the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                _read_without_holes(file)


def _read_without_holes(file: FileIO) -> None:
    """Skips holes: an active segment's file has its maximum length, and most of it is a hole."""
    end = 0
    while True:
        try:
            start = os.lseek(file.fileno(), end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        file.seek(start)
        while (left := end - file.tell()) > 0 and file.read(min(left, 1 << 20)):
            pass


def evict(directory: Path) -> None:
    """Evicts the files from the page cache, as after a reboot: the next reader waits for the disk.
    Linux only."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
