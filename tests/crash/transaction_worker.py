"""The client processes of a crash test with transactions.

    python -m tests.crash.transaction_worker ROLE NAME BOOTSTRAP HISTORY SEED

    write      threads with a transactional producer each: some write to EVENTS, one feeds INPUTS,
               and one (the zombie) is now and then overtaken by a second producer of its own id
    transform  members of a group that write an output for each input, with their offsets in the
               same transaction
    read       reads all logs with read_committed, again and again
    settle     waits until the group has read all inputs
    end        waits until no transaction is open, and reads all logs

The transactional ids do not depend on NAME: the successor of a killed process takes over its ids.
worker.py has the rules for events.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.crash.transaction_reading import (
    CALL_S,
    EVENTS,
    GROUP,
    INPUTS,
    OUTPUTS,
    PATIENCE_S,
    SESSION_MS,
    SETTINGS,
    end,
    is_drained,
    open_consumer,
    read,
    settle,
)
from tests.crash.worker import (
    PARTITIONS,
    History,
    flush,
    guarded,
    record_of,
    run_until_stopped,
    stopping,
    value_of,
)
from tests.judges.history_events import SendConfirmed, Sent
from tests.judges.transaction_events import (
    CommitAsked,
    Planned,
    TransactionBegan,
    TransactionEnded,
    TransactionResult,
)

TRANSACTION_MS, HANGS_S = 4000, 12.0
FILLED = 60
"""Inputs that are there from the beginning."""


def producer_of(transactional_id: str, bootstrap: str, **more: Any) -> Producer | None:
    """It has fenced all earlier ones. None if the process is to stop and the broker does not
    answer. `more`: settings of the library."""
    config = {
        "bootstrap.servers": bootstrap,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": TRANSACTION_MS,
        "linger.ms": 2,
    }
    while True:
        producer = Producer({**config, **SETTINGS, **more})
        try:
            producer.init_transactions(CALL_S)
            return producer
        except KafkaException as error:
            print(f"{transactional_id}: init: {error}", file=sys.stderr, flush=True)
            if stopping.is_set():
                return None


def within(call: Callable[..., None], *args: Any) -> None:
    """Some calls of the library never return, whatever their limit, if a broker dies at the wrong
    moment. Raises KafkaException, after HANGS_S a fatal one."""
    failures: list[KafkaException] = [KafkaException(KafkaError(KafkaError._TIMED_OUT, "hangs", True))]

    def work() -> None:
        try:
            call(*args)
            failures.clear()
        except KafkaException as error:
            failures[0] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HANGS_S)
    if failures:
        raise failures[0]


class Writer:
    """One transactional id of an application, with a new Producer after each unknown end."""

    def __init__(
        self, name: str, transactional_id: str, bootstrap: str, history: History, chooser: random.Random
    ) -> None:
        self.name, self.id = name, transactional_id
        self.history, self.random = history, chooser
        self.bootstrap = bootstrap
        self.producer: Producer | None = None
        self._begun = 0

    def ready(self) -> bool:
        self.producer = self.producer or producer_of(self.id, self.bootstrap)
        return self.producer is not None

    def begin(self, planned: Callable[[str], Sequence[Planned]]) -> tuple[str, Sequence[Planned]]:
        """Name a transaction, and note it with its records."""
        transaction = f"{self.name}-{self._begun}"
        self._begun += 1
        records = tuple(planned(transaction))
        self.history.write(TransactionBegan(time.monotonic_ns(), self.id, transaction, records))
        return transaction, records

    def padding(self) -> bytes:
        return b" " * self.random.choice([0, 0, 0, 200, 9000])

    def send(self, producer: Producer, records: Sequence[Planned]) -> None:
        for each in records:
            producer.produce(each.topic, each.value.encode() + self.padding(), partition=each.partition)
            producer.poll(0)

    def write(
        self,
        planned: Callable[[str], Sequence[Planned]],
        *,
        is_commit: bool,
        inside: Callable[[Producer], None] | None = None,
    ) -> TransactionResult:
        """One transaction. `inside`: what else belongs to it."""
        producer = self.producer
        assert producer is not None
        transaction, records = self.begin(planned)
        result = TransactionResult.UNKNOWN
        try:
            producer.begin_transaction()
            self.send(producer, records)
            if inside is not None:
                inside(producer)
            result = self.end(producer, transaction, is_commit=is_commit)
        except KafkaException as error:
            result = self.failed(producer, error)
        self.ended(transaction, result)
        return result

    def end(self, producer: Producer, transaction: str, *, is_commit: bool) -> TransactionResult:
        """Raises KafkaException."""
        if is_commit:
            self.history.write(CommitAsked(time.monotonic_ns(), transaction))
            producer.commit_transaction(CALL_S)
            return TransactionResult.COMMITTED
        flush(producer, CALL_S)
        producer.abort_transaction(CALL_S)
        return TransactionResult.ABORTED

    def failed(self, producer: Producer, error: KafkaException) -> TransactionResult:
        """Abort if the library asks for it; otherwise the producer is given up."""
        print(f"{self.id}: {error}", file=sys.stderr, flush=True)
        if error.args[0].txn_requires_abort():
            try:
                producer.abort_transaction(CALL_S)
                return TransactionResult.ABORTED
            except KafkaException as another:
                print(f"{self.id}: abort: {another}", file=sys.stderr, flush=True)
        self.producer = None
        return TransactionResult.UNKNOWN

    def ended(self, transaction: str, result: TransactionResult) -> None:
        self.history.write(TransactionEnded(time.monotonic_ns(), transaction, result))


def some_records(topic: str, chooser: random.Random, transaction: str) -> Sequence[Planned]:
    """One to four for each of two or three partitions."""
    partitions = chooser.sample(range(PARTITIONS), chooser.choice([2, 3]))
    places = [partition for partition in partitions for _ in range(chooser.randint(1, 4))]
    return [Planned(topic, partition, f"{transaction}.{number}") for number, partition in enumerate(places)]


def append(writer: Writer, topic: str, pause_s: float) -> None:
    chooser = writer.random
    while not stopping.is_set() and writer.ready():
        writer.write(partial(some_records, topic, chooser), is_commit=chooser.random() < 0.7)
        stopping.wait(chooser.uniform(0, pause_s))


def zombie(writer: Writer) -> None:
    """As `append`, but now and then another producer of its id begins while it has an open
    transaction; or it waits until that is timed out."""
    chooser = writer.random
    while not stopping.is_set() and writer.ready():
        if chooser.random() < 0.25:
            overtake(writer)
        elif chooser.random() < 0.05:
            writer.write(
                partial(some_records, EVENTS, chooser),
                is_commit=True,
                inside=lambda _: (stopping.wait(TRANSACTION_MS / 1000 * 1.2), None)[1],
            )
        else:
            writer.write(partial(some_records, EVENTS, chooser), is_commit=chooser.random() < 0.7)
        stopping.wait(chooser.uniform(0, 0.2))


def overtake(writer: Writer) -> None:
    """The first producer continues beside the second one, which has fenced it."""
    first, chooser = writer.producer, writer.random
    assert first is not None
    transaction, records = writer.begin(partial(some_records, EVENTS, chooser))
    is_fenced = False
    try:
        first.begin_transaction()
        writer.send(first, records[:-1])
        flush(first, chooser.choice([0, 0.05, CALL_S]))
        writer.producer = producer_of(writer.id, writer.bootstrap)
        if writer.producer is None:
            return
        is_fenced = True
        writer.ended(transaction, TransactionResult.ABORTED)
        other = threading.Thread(target=guarded, args=(_meanwhile, writer))
        other.start()
        try:
            writer.send(first, records[-1:])
            writer.ended(transaction, writer.end(first, transaction, is_commit=chooser.random() < 0.8))
        finally:
            other.join()
    except KafkaException as error:
        if not is_fenced:
            writer.ended(transaction, writer.failed(first, error))


def _meanwhile(writer: Writer) -> None:
    writer.write(partial(some_records, EVENTS, writer.random), is_commit=True)


def write(name: str, bootstrap: str, history: History, seed: int) -> None:
    def writer(number: int, role: str) -> Writer:
        return Writer(f"{name}.{number}", role, bootstrap, history, random.Random(seed + number))

    works: list[tuple[Any, ...]] = [
        (append, writer(0, "append-0"), EVENTS, 0.1),
        (append, writer(1, "append-1"), EVENTS, 0.5),
        (append, writer(2, "feed"), INPUTS, 0.3),
        (zombie, writer(3, "zombie")),
    ]
    run_until_stopped([threading.Thread(target=guarded, args=work) for work in works])


def fill(name: str, bootstrap: str, history: History, seed: int) -> None:
    """Plain records for INPUTS."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **SETTINGS})

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        history.write(SendConfirmed(time.monotonic_ns(), name, value_of(message), record_of(message)))

    for number in range(FILLED):
        value = f"{name}-{number}"
        history.write(Sent(time.monotonic_ns(), name, value, True))
        producer.produce(INPUTS, value, partition=number % PARTITIONS, on_delivery=delivered)
    assert producer.flush(60) == 0


class Transformer:
    """A member of the group. After a transaction that was not committed it goes back to the
    committed offsets."""

    def __init__(self, writer: Writer, protocol: str) -> None:
        self._writer = writer
        settings = {
            "bootstrap.servers": writer.bootstrap,
            "group.id": GROUP,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 200,
            **({"session.timeout.ms": SESSION_MS} if protocol == "classic" else {}),
        }
        self._settings = {**settings, **SETTINGS}
        self._consumer = self._join()

    def _join(self) -> Consumer:
        consumer = Consumer(self._settings)
        consumer.subscribe([INPUTS])
        return consumer

    def turn(self, *, is_commit: bool) -> bool:
        """Returns whether there were inputs, and they are done."""
        found = self._consumer.consume(self._writer.random.choice([1, 5, 20]), 0.2)
        messages = [message for message in found if message.error() is None]
        if not messages or not self._writer.ready():
            return False

        def planned(transaction: str) -> Sequence[Planned]:
            return [
                Planned(OUTPUTS, self._writer.random.randrange(PARTITIONS), f"{transaction}.{number}", value)
                for number, value in enumerate(map(value_of, messages))
            ]

        result = self._writer.write(planned, is_commit=is_commit, inside=partial(self._offsets, messages))
        if result is not TransactionResult.COMMITTED:
            self._go_back()
        return result is TransactionResult.COMMITTED

    def _offsets(self, messages: Sequence[Message], producer: Producer) -> None:
        ends: dict[int, int] = {}
        for message in messages:
            record = record_of(message)
            ends[record.partition] = record.offset + 1
        positions = [TopicPartition(INPUTS, partition, end) for partition, end in ends.items()]
        within(producer.send_offsets_to_transaction, positions, self._consumer.consumer_group_metadata(), 5)

    def _go_back(self) -> None:
        """The next producer waits until the last transaction has ended: only then are the committed
        offsets those from which to continue."""
        if not self._writer.ready():
            return
        try:
            assigned = self._consumer.assignment()
            for each in self._consumer.committed(assigned, CALL_S):
                if each.error is not None:
                    raise KafkaException(each.error)
                offset = each.offset if each.offset >= 0 else OFFSET_BEGINNING
                self._consumer.seek(TopicPartition(each.topic, each.partition, offset))
        except KafkaException as error:
            print(f"{self._writer.id}: going back: {error}", file=sys.stderr, flush=True)
            self.close()
            self._consumer = self._join()

    def close(self) -> None:
        self._consumer.close()


def transform(name: str, bootstrap: str, history: History, seed: int) -> None:
    threads = []
    for number in range(2):
        chooser = random.Random(seed + number)
        writer = Writer(f"{name}.{number}", f"transform-{number}", bootstrap, history, chooser)
        protocol = "consumer" if chooser.random() < 0.3 else "classic"
        threads.append(threading.Thread(target=guarded, args=(_transform, writer, protocol)))
    run_until_stopped(threads)


def _transform(writer: Writer, protocol: str) -> None:
    transformer = Transformer(writer, protocol)
    while not stopping.is_set():
        transformer.turn(is_commit=writer.random.random() < 0.75)
    transformer.close()


def finish(name: str, bootstrap: str, history: History, seed: int) -> None:
    """Transform the inputs that are left, if nobody else does it."""
    transformer = Transformer(Writer(name, "finish", bootstrap, history, random.Random(seed)), "classic")
    with open_consumer(bootstrap) as consumer:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and (
            transformer.turn(is_commit=True) or not is_drained(bootstrap, consumer)
        ):
            pass
    transformer.close()


ROLES: dict[str, Callable[[str, str, History, int], None]] = {
    "write": write,
    "fill": fill,
    "transform": transform,
    "finish": finish,
    "read": read,
    "settle": settle,
    "settle-briefly": partial(settle, patience_s=12.0),
    "end": end,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    role, own_name, servers, path, seed_text = sys.argv[1:]
    ROLES[role](own_name, servers, History(Path(path)), int(seed_text))
