"""The readers of a crash test with compacted topics, and what the others need to know of the topics
(compaction_worker.py has the roles)."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.crash.transaction_reading import CALL_S, open_consumer
from tests.crash.worker import History, Worker, digest_of, stopping
from tests.judges.compaction_events import EntriesRead, EntrySeen, LogScanned

TABLE, WINDOW = "table", "window"
"""Compacted; and compacted, with retention by size."""
PARTITIONS = 2
LOGS = tuple((topic, partition) for topic in (TABLE, WINDOW) for partition in range(PARTITIONS))
NAME_HEADER = "entry"
SCAN_WITHIN_S = 90.0
SCAN_PAUSE_S = 0.4
LEVELS = {True: "read_committed", False: "read_uncommitted"}


def name_of(message: Message) -> str:
    (name,) = [value for header, value in message.headers() or () if header == NAME_HEADER]
    assert isinstance(name, bytes)
    return name.decode()


class TableWorker(Worker):
    """Of the share group, which gets tombstones as well."""

    topics = (TABLE, WINDOW)

    @staticmethod
    def name_of(message: Message) -> str:
        return name_of(message)


class Found(NamedTuple):
    """A record of a scan."""

    offset: int
    key: bytes
    is_tombstone: bool


def _note(
    messages: Sequence[Message], history: History, reader: str, is_committed: bool
) -> Iterator[tuple[tuple[str, int], list[Message]]]:
    now_ns = time.monotonic_ns()
    by_log: dict[tuple[str, int], list[Message]] = defaultdict(list)
    for message in messages:
        if message.error() is None:
            by_log[str(message.topic()), int(message.partition() or 0)].append(message)
    for log, found in by_log.items():
        entries = tuple(EntrySeen(int(each.offset() or 0), name_of(each), digest_of(each)) for each in found)
        history.write(EntriesRead(now_ns, reader, *log, entries, is_committed))
        yield log, found


def scan(
    reader: str, bootstrap: str, history: History, *, is_committed: bool, is_final: bool = False
) -> dict[tuple[str, int], list[Found]] | None:
    """Read all logs from the beginning to the end, whatever the broker does meanwhile. None: the
    process is to stop. Raises AssertionError after SCAN_WITHIN_S."""
    found: dict[tuple[str, int], list[Found]] = {log: [] for log in LOGS}
    began_ns, deadline = time.monotonic_ns(), time.monotonic() + SCAN_WITHIN_S
    settings = {
        "group.id": reader,
        "isolation.level": LEVELS[is_committed],
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
    }
    with open_consumer(bootstrap, **settings) as consumer:
        consumer.assign([TopicPartition(*log, OFFSET_BEGINNING) for log in LOGS])
        left = set(LOGS)
        while left:
            if stopping.is_set():
                return None
            assert time.monotonic() < deadline, f"{left} were not read to their end in {SCAN_WITHIN_S} s"
            messages = consumer.consume(500, 0.2)
            for log, some in _note(messages, history, reader, is_committed):
                found[log] += [
                    Found(int(each.offset() or 0), _key(each), each.value() is None) for each in some
                ]
            now_ns = time.monotonic_ns()
            for message in messages:
                error = message.error()
                log = str(message.topic()), int(message.partition() or 0)
                if error is None or error.code() != KafkaError._PARTITION_EOF or log not in left:
                    continue
                where = _start_of(consumer, log, deadline), int(message.offset() or 0)
                history.write(LogScanned(now_ns, began_ns, reader, *log, *where, is_committed, is_final))
                left.discard(log)
    return found


def _key(message: Message) -> bytes:
    key = message.key()
    assert isinstance(key, bytes)
    return key


def _start_of(consumer: Consumer, log: tuple[str, int], deadline: float) -> int:
    while True:
        try:
            start, _ = consumer.get_watermark_offsets(TopicPartition(*log), timeout=CALL_S)
        except KafkaException:
            assert time.monotonic() < deadline, f"the start of {log} is unknown"
            continue
        return start


def scan_until_stopped(name: str, bootstrap: str, history: History, is_committed: bool) -> None:
    number = 0
    while not stopping.is_set():
        scan(f"{name}.{number}", bootstrap, history, is_committed=is_committed)
        number += 1
        stopping.wait(SCAN_PAUSE_S)


def follow(name: str, bootstrap: str, history: History, is_committed: bool) -> None:
    """From the beginning on, and then what comes."""
    level = {"group.id": name, "isolation.level": LEVELS[is_committed]}
    with open_consumer(bootstrap, **level) as consumer:
        consumer.assign([TopicPartition(*log, OFFSET_BEGINNING) for log in LOGS])
        while not stopping.is_set():
            for _ in _note(consumer.consume(200, 0.2), history, name, is_committed):
                pass


def is_clean(found: Sequence[Found], end: int) -> bool:
    """Whether passes have nothing left to do before `end`."""
    before = [each for each in found if each.offset < end]
    keys = Counter(each.key for each in before)
    return not any(each.is_tombstone for each in before) and max(keys.values(), default=0) <= 1
