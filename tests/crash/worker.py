"""The client processes of a crash test: producers, share consumers, the one that drains the group,
the one that reads the logs.

    python -m tests.crash.worker ROLE NAME BOOTSTRAP HISTORY SEED

All clients are unmodified confluent-kafka. Each event is one line, written with one write() to
HISTORY (opened with O_APPEND), so that kill -9 of this process loses no event. SIGTERM ends
producing and consuming cleanly. tests.judges.history_events defines the events and when to write
them. HISTORY may be the log of the power-cut recorder: then events are marks.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)

from tests.crash.purge_topics import AGING, OLD_MS, TOPICS
from tests.judges.history_events import (
    AckAnswered,
    AckKind,
    AckSent,
    Closing,
    Delivered,
    Disconnected,
    Drained,
    Event,
    LogRead,
    LogReadDone,
    Outcome,
    Record,
    SendConfirmed,
    Sent,
    to_json,
)
from tests.powercut.recording import write_mark

TOPIC, GROUP, PARTITIONS = "orders", "workers", 3
LOCK_MS = 1000
CONSUMERS_PER_PROCESS = 2
SESSION_MS = 2000
QUIET_S = 1.2
"""The group counts as drained when nothing arrives for this long: a lock and a little more ..."""
LONGEST_SESSION_S = SESSION_MS / 1000 + 0.7
"""... and killed consumers have lost their membership, and with it the partitions that only they
were assigned."""
MUCH_LONGER_S = 10.0
"""A record that was not drained gets a second chance: on a busy machine a departed member may have
kept its partition until now."""
POLL_S = 0.2
ACK_WIRE = {AckKind.ACCEPT: 1, AckKind.RELEASE: 2, AckKind.REJECT: 3}
REFUSALS = {42, 121, 122, 123}
"""Error codes that mean for certain that an acknowledgement was not applied: INVALID_REQUEST,
INVALID_RECORD_STATE, share sessions."""
QUICK_RECONNECT: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}


class History:
    """The file to which this process writes its events."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._as_marks = path.suffix == ".log"

    def write(self, *events: Event) -> None:
        if self._as_marks:
            for event in events:
                write_mark(self._fd, to_json(event).encode())
        elif events:
            os.write(self._fd, "".join(to_json(event) + "\n" for event in events).encode())

    def close(self) -> None:
        os.close(self._fd)


stopping = threading.Event()


def record_of(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return Record(topic, partition, offset)


def value_of(message: Message) -> str:
    value = message.value()
    assert value is not None
    return value.decode().rstrip()


def digest(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], timestamp_ms: int
) -> str:
    """Of a record as its producer and its consumers see it."""
    return hashlib.blake2b(
        repr((key, value, list(headers), timestamp_ms)).encode(), digest_size=8
    ).hexdigest()


def digest_of(message: Message, *, without: str = "\0") -> str:
    """`without`: headers with this prefix were added by the broker and are ignored."""
    headers = [(name, value) for name, value in message.headers() or () if not name.startswith(without)]
    key, value = message.key(), message.value()
    assert not isinstance(key, str)
    return digest(key, value, headers, message.timestamp()[1])


def produce(name: str, bootstrap: str, history: History, seed: int) -> None:
    """Two producers, one of them idempotent, the other one with acks=1; small bursts, some records
    of several pages."""
    _produce(
        name,
        bootstrap,
        history,
        seed,
        (True, False),
        [(TOPIC, partition, False) for partition in range(PARTITIONS)],
    )


def produce_old(name: str, bootstrap: str, history: History, seed: int) -> None:
    """Two idempotent producers, for logs that are purged: records in AGING are old enough to be
    removed at once."""
    places = [
        (topic, partition, topic == AGING)
        for topic, partitions in TOPICS.items()
        for partition in range(partitions)
    ]
    _produce(name, bootstrap, history, seed, (True, True), places)


Place: TypeAlias = tuple[str, int, bool]
"""Topic, partition, and whether records there get a timestamp that is long past."""


def _produce(
    name: str,
    bootstrap: str,
    history: History,
    seed: int,
    idempotent: Sequence[bool],
    places: Sequence[Place],
) -> None:
    threads = []
    for number, each in enumerate(idempotent):
        work = (f"{name}.{number}", bootstrap, history, random.Random(seed + number), each, places)
        threads.append(threading.Thread(target=guarded, args=(produce_one, *work)))
    run_until_stopped(threads)


def produce_one(
    name: str,
    bootstrap: str,
    history: History,
    chooser: random.Random,
    idempotent: bool,
    places: Sequence[Place],
) -> None:
    config = {
        "bootstrap.servers": bootstrap,
        "acks": "all" if idempotent else "1",
        "enable.idempotence": idempotent,
        "linger.ms": 2,
        "retry.backoff.ms": 20,
    }
    # No limit: if a record times out that may have been written, the library continues with a new
    # epoch. It then repeats earlier records, and these look like new ones.
    producer = Producer({**config, **QUICK_RECONNECT, "message.timeout.ms": 0, "error_cb": refuse_fatal})

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            history.write(SendConfirmed(time.monotonic_ns(), name, value_of(message), record_of(message)))

    sent = 0
    while not stopping.is_set():
        for _ in range(chooser.choice([1, 1, 2, 5, 20])):
            value = f"{name}-{sent}"
            sent += 1
            padding = b" " * chooser.choice([0, 0, 0, 200, 9000])
            topic, partition, is_old = chooser.choice(places)
            timestamp_ms = time.time_ns() // 1_000_000 - (OLD_MS if is_old else 0)
            history.write(Sent(time.monotonic_ns(), name, value, idempotent, is_old))
            producer.produce(
                topic,
                value.encode() + padding,
                partition=partition,
                timestamp=timestamp_ms,
                on_delivery=delivered,
            )
        producer.poll(0)
        stopping.wait(chooser.uniform(0.005, 0.06))
    finish_sending(producer)


def finish_sending(producer: Producer) -> None:
    """Wait until all records are confirmed, over as many lives of the broker as that takes."""
    left = len(producer)
    while left:
        before, left = left, producer.flush(60)
        assert left < before, f"{left} records were neither confirmed nor refused after a minute"


def flush(producer: Producer, patience_s: float) -> None:
    """Raises KafkaException for a fatal error, also where the library meets it in a callback."""
    try:
        producer.flush(patience_s)
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def refuse_fatal(error: KafkaError) -> None:
    """A producer gives up permanently, for instance because its sequence numbers and the broker's
    differ."""
    if error.fatal():
        print(f"fatal: {error}", file=sys.stderr, flush=True)
        os._exit(71)


class Worker:
    """One share consumer that acknowledges explicitly and synchronously."""

    topics: Sequence[str] = (TOPIC,)

    def __init__(self, name: str, bootstrap: str, history: History, chooser: random.Random) -> None:
        self.name, self._history, self._random = name, history, chooser
        self._asked_ns = time.monotonic_ns()
        self._broken_ns = 0
        self.stalls = True
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit",
            "error_cb": self._error,
        }
        self._consumer = ShareConsumer({**config, **QUICK_RECONNECT, "fetch.wait.max.ms": 200})
        self._consumer.subscribe(list(self.topics))

    @staticmethod
    def name_of(message: Message) -> str:
        """What identifies the record in Delivered."""
        return value_of(message)

    def _error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN) and not self._broken_ns:
            self._broken_ns = time.monotonic_ns()
            self._history.write(Disconnected(self._broken_ns, self.name))

    def turn(self, choose: Callable[[random.Random], AckKind]) -> int:
        """Poll once and acknowledge the records; returns their number."""
        broken_ns = self._broken_ns
        try:
            messages = [message for message in self._consumer.poll(POLL_S) if message.error() is None]
        except KafkaException:
            messages = []
        now_ns = time.monotonic_ns()
        if not messages:
            # The client has dropped all records that it had received before the break when this
            # poll began: these were fetched later.
            if broken_ns:
                self._asked_ns, self._broken_ns = max(self._asked_ns, broken_ns), 0
            return 0
        for message in messages:
            count = message.delivery_count()
            assert count is not None
            what = record_of(message), self.name_of(message), count, digest_of(message)
            self._history.write(Delivered(now_ns, self._asked_ns, self.name, *what))
        self._asked_ns = now_ns
        if self.stalls:
            self._stall()
        self._acknowledge(messages, choose)
        return len(messages)

    def _stall(self) -> None:
        if self._random.random() < 0.02:
            time.sleep(LOCK_MS / 1000 * self._random.uniform(0.5, 1.5))

    def _acknowledge(self, messages: Sequence[Message], choose: Callable[[random.Random], AckKind]) -> None:
        outcomes: dict[Record, Outcome] = {}
        for message in messages:
            kind, record = choose(self._random), record_of(message)
            self._history.write(AckSent(time.monotonic_ns(), self.name, record, kind))
            try:
                self._consumer.acknowledge(message, ACK_WIRE[kind])
            except RuntimeError:  # the client no longer has the record: nothing is sent
                outcomes[record] = Outcome.REFUSED
        try:
            answers = {
                (answer.topic, answer.partition): error
                for answer, error in self._consumer.commit_sync(10).items()
            }
        except KafkaException:
            answers = {}
        now_ns = time.monotonic_ns()
        for record in map(record_of, messages):
            outcome = outcomes.get(record) or _outcome(answers, record)
            self._history.write(AckAnswered(now_ns, self.name, record, outcome))

    def close(self) -> None:
        self._history.write(Closing(time.monotonic_ns(), self.name))
        try:
            self._consumer.close()
        except KafkaException as error:
            print(f"{self.name} closed with {error}", file=sys.stderr)


def _outcome(answers: dict[tuple[str, int], KafkaException | None], record: Record) -> Outcome:
    if record[:2] not in answers:
        return Outcome.UNKNOWN
    error = answers[record[:2]]
    if error is None:
        return Outcome.CONFIRMED
    return Outcome.REFUSED if error.args[0].code() in REFUSALS else Outcome.UNKNOWN


def a_mix(chooser: random.Random) -> AckKind:
    return chooser.choices([AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT], [80, 13, 7])[0]


def consume(name: str, bootstrap: str, history: History, seed: int) -> None:
    threads = []
    for number in range(CONSUMERS_PER_PROCESS):
        work = (f"{name}.{number}", bootstrap, history, random.Random(seed + number))
        threads.append(threading.Thread(target=guarded, args=(consume_one, *work)))
    run_until_stopped(threads)


def consume_one(name: str, bootstrap: str, history: History, chooser: random.Random) -> None:
    worker = Worker(name, bootstrap, history, chooser)
    while not stopping.is_set():
        worker.turn(a_mix)
    worker.close()


def drain(
    name: str,
    bootstrap: str,
    history: History,
    seed: int,
    *,
    longest_session_s: float = LONGEST_SESSION_S,
    kind: type[Worker] = Worker,
) -> None:
    worker = kind(name, bootstrap, history, random.Random(seed))
    worker.stalls = False
    began = quiet_since = time.monotonic()
    while time.monotonic() < max(quiet_since + QUIET_S, began + longest_session_s):
        if worker.turn(lambda _: AckKind.ACCEPT):
            quiet_since = time.monotonic()
    history.write(Drained(time.monotonic_ns()))
    worker.close()


def read(name: str, bootstrap: str, history: History, seed: int, *, is_purged: bool = False) -> None:
    """Read every partition completely, with an ordinary consumer. A log may end with offsets that
    hold no record; unless it `is_purged` it begins with the first record."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": name,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    # A log that by now begins later is read from there, not from its end.
    consumer = Consumer({**settings, **QUICK_RECONNECT, "auto.offset.reset": "earliest"})
    ends = {}
    for partition in range(PARTITIONS):
        low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=20)
        assert low == 0 or is_purged, f"{TOPIC}-{partition} begins at {low}"
        ends[partition] = high
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in ends])
    left = {partition for partition, end in ends.items() if end > 0}
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline, (
            f"the logs of partitions {left} were not read to their end in a minute"
        )
        for message in consumer.consume(500, 0.2):
            if message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                if message.offset() >= ends[message.partition()]:
                    left.discard(message.partition())
                continue
            assert message.error() is None, message.error()
            history.write(LogRead(time.monotonic_ns(), record_of(message), value_of(message)))
    for partition in ends:
        start, _ = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=20)
        history.write(LogReadDone(time.monotonic_ns(), TOPIC, partition, start))
    consumer.close()


def run_until_stopped(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # with a limit, so that signals are handled


def guarded(work: Callable[..., None], *args: object) -> None:
    """A bug in one thread ends the process at once, visibly."""
    try:
        work(*args)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(70)


ROLES: dict[str, Callable[[str, str, History, int], None]] = {
    "produce": produce,
    "produce-old": produce_old,
    "consume": consume,
    "drain": drain,
    "drain-again": partial(drain, longest_session_s=MUCH_LONGER_S),
    "read": read,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    role, own_name, servers, path, seed_text = sys.argv[1:]
    ROLES[role](own_name, servers, History(Path(path)), int(seed_text))
