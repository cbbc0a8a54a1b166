"""The client processes of a crash test with compacted topics.

    python -m tests.crash.compaction_worker ROLE NAME BOOTSTRAP HISTORY SEED

    write      threads with an idempotent producer each, of changing codecs, and threads with a
               transactional one, which commits or aborts
    read       threads that read the logs from the beginning, again and again, and one that follows
    consume    members of the share group
    finish     when the others have ended: settle, drain, end
    settle     writes until the cleaner is through with all that was written before
    drain      finishes what is left for the share group
    end        reads all logs

Keys are few, so that each log has many values of each. worker.py has the rules for events.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, Producer

from tests.crash.compaction_reading import (
    LOGS,
    NAME_HEADER,
    TableWorker,
    follow,
    is_clean,
    scan,
    scan_until_stopped,
)
from tests.crash.transaction_reading import CALL_S, ends_of
from tests.crash.transaction_worker import Writer, producer_of
from tests.crash.worker import (
    CONSUMERS_PER_PROCESS,
    QUICK_RECONNECT,
    History,
    a_mix,
    digest,
    drain,
    finish_sending,
    flush,
    guarded,
    refuse_fatal,
    run_until_stopped,
    stopping,
)
from tests.judges.compaction_events import EntryConfirmed, EntrySent, Settled
from tests.judges.transaction_events import TransactionResult

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HOT_KEYS, COLD_KEYS = 30, 300
FILLER, FILLER_BYTES = "filler", 3000
SETTLED_WITHIN_S = 40.0
LOCKS_RUN_OUT_S = 40.0
"""Offsets that were released, and then lost their records to compaction, are delivered again. Their
locks may run out as often as the delivery limit allows, and until then the group may get nothing
else for many seconds."""
BURSTS = (1, 1, 2, 5, 120)
"""How many records a producer writes at once; the largest ones make batches of many records."""


class Sender:
    """Sends entries, and notes them. `name` is used by one producer of the application only."""

    def __init__(self, name: str, history: History, chooser: random.Random) -> None:
        self.name, self.random = name, chooser
        self._history = history
        self._sent = 0

    def send(
        self,
        producer: Producer,
        log: tuple[str, int],
        *,
        key: str = "",
        value: bytes | None = None,
        transaction: str = "",
    ) -> None:
        """Without `key`, any key and value. Raises KafkaException."""
        name = f"{self.name}-{self._sent}"
        self._sent += 1
        if not key:
            key, value = self._any_key(), self._any_value(name)
        headers: list[tuple[str, bytes | None]] = [(NAME_HEADER, name.encode())]
        timestamp_ms = time.time_ns() // 1_000_000
        whole = digest(key.encode(), value, headers, timestamp_ms)
        self._history.write(
            EntrySent(time.monotonic_ns(), self.name, name, *log, key, value is None, transaction, whole)
        )
        producer.produce(
            log[0],
            value,
            key=key.encode(),
            partition=log[1],
            timestamp=timestamp_ms,
            headers=headers,
            on_delivery=partial(self._delivered, name),
        )
        producer.poll(0)

    def _any_key(self) -> str:
        if self.random.random() < 0.1:
            return f"cold{self.random.randrange(COLD_KEYS)}"
        return f"k{self.random.randrange(HOT_KEYS)}"

    def _any_value(self, name: str) -> bytes | None:
        if self.random.random() < 0.25:
            return None
        return name.encode() + b" " * self.random.choice([0, 0, 0, 100, 2000])

    def _delivered(self, name: str, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset()
            self._history.write(EntryConfirmed(time.monotonic_ns(), name, -1 if offset is None else offset))


def idempotent_producer(bootstrap: str, codec: str) -> Producer:
    config = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "retry.backoff.ms": 20,
        "compression.type": codec,
    }
    return Producer({**config, **QUICK_RECONNECT, "message.timeout.ms": 0, "error_cb": refuse_fatal})


def write_one(sender: Sender, bootstrap: str) -> None:
    """Now and then another producer continues, so that the last batches of former ones are cleaned
    too."""
    chooser = sender.random
    while not stopping.is_set():
        producer = idempotent_producer(bootstrap, chooser.choice(CODECS))
        for _ in range(chooser.randint(10, 60)):
            log = chooser.choice(LOGS)
            for _ in range(chooser.choice(BURSTS)):
                sender.send(producer, log)
            stopping.wait(chooser.uniform(0.01, 0.1))
            if stopping.is_set():
                break
        finish_sending(producer)


def transact_one(name: str, transactional_id: str, bootstrap: str, history: History, seed: int) -> None:
    chooser = random.Random(seed)
    writer = Writer(name, transactional_id, bootstrap, history, chooser)
    codec, number, producers = chooser.choice(CODECS), 0, 0
    while not stopping.is_set():
        if writer.producer is None:
            writer.producer = producer_of(transactional_id, bootstrap, **{"compression.type": codec})
            producers += 1
            sender = Sender(f"{name}.{producers}", history, chooser)
        if writer.producer is None:
            return
        transaction = f"{name}-t{number}"
        number += 1
        writer.ended(transaction, _transact(writer, writer.producer, sender, transaction))
        stopping.wait(chooser.uniform(0.01, 0.2))


def _transact(writer: Writer, producer: Producer, sender: Sender, transaction: str) -> TransactionResult:
    chooser = writer.random
    try:
        producer.begin_transaction()
        for log in chooser.sample(LOGS, chooser.randint(1, 3)):
            for _ in range(chooser.choice([1, 2, 5, 30])):
                sender.send(producer, log, transaction=transaction)
        if chooser.random() < 0.1:
            stopping.wait(1.0)  # Meanwhile nothing from its first record on can be cleaned.
        flush(producer, CALL_S)  # So that the offsets are known when the commit is.
        return writer.end(producer, transaction, is_commit=chooser.random() < 0.6)
    except KafkaException as error:
        return writer.failed(producer, error)


def write(name: str, bootstrap: str, history: History, seed: int) -> None:
    """The transactional ids do not depend on `name`: a successor takes over those of a killed
    process."""
    works: list[tuple[Any, ...]] = []
    for number in range(2):
        works += [
            (write_one, Sender(f"{name}.{number}", history, random.Random(seed + number)), bootstrap),
            (transact_one, f"{name}.t{number}", f"transact-{number}", bootstrap, history, seed + number),
        ]
    _in_threads(works)


def read(name: str, bootstrap: str, history: History, seed: int) -> None:
    _in_threads(
        (work, f"{name}.{number}", bootstrap, history, is_committed)
        for number, (work, is_committed) in enumerate(
            [(scan_until_stopped, True), (scan_until_stopped, False), (follow, True)]
        )
    )


def consume(name: str, bootstrap: str, history: History, seed: int) -> None:
    _in_threads(
        (_consume_one, f"{name}.{number}", bootstrap, history, random.Random(seed + number))
        for number in range(CONSUMERS_PER_PROCESS)
    )


def _consume_one(name: str, bootstrap: str, history: History, chooser: random.Random) -> None:
    worker = TableWorker(name, bootstrap, history, chooser)
    while not stopping.is_set():
        worker.turn(a_mix)
    worker.close()


def _in_threads(works: Iterable[tuple[Any, ...]]) -> None:
    run_until_stopped([threading.Thread(target=guarded, args=work) for work in works])


def settle(
    name: str, bootstrap: str, history: History, seed: int, *, within_s: float = SETTLED_WITHIN_S
) -> None:
    """Write to all logs, so that segments are closed and passes have a reason. Returns after the
    time in any case; the judge decides."""
    sender, producer = Sender(name, history, random.Random(seed)), idempotent_producer(bootstrap, "none")
    deadline, turn = time.monotonic() + within_s, 0
    ends: dict[tuple[str, int], int] = {}
    while time.monotonic() < deadline:
        if not ends:
            ends = _stable_ends(bootstrap)
        for log in LOGS:
            sender.send(producer, log, key=FILLER, value=bytes(FILLER_BYTES))
        finish_sending(producer)
        found = scan(f"{name}.{turn}", bootstrap, history, is_committed=False)
        turn += 1
        if ends and found and all(is_clean(found[log], ends[log]) for log in LOGS):
            break
    now_ns = time.monotonic_ns()
    history.write(*(Settled(now_ns, *log, end) for log, end in ends.items()))


def _stable_ends(bootstrap: str) -> dict[tuple[str, int], int]:
    """The end of each log; nothing while a transaction is open."""
    stable = ends_of(bootstrap, IsolationLevel.READ_COMMITTED, LOGS)
    high = ends_of(bootstrap, IsolationLevel.READ_UNCOMMITTED, LOGS)
    return high if stable == high else {}


def look(name: str, bootstrap: str, history: History, seed: int) -> None:
    """At once after a start."""
    scan(name, bootstrap, history, is_committed=True)


def finish(name: str, bootstrap: str, history: History, seed: int, *, within_s: float) -> None:
    settle(f"{name}.settle", bootstrap, history, seed, within_s=within_s)
    ROLES["drain"](f"{name}.drain", bootstrap, history, seed)
    end(f"{name}.end", bootstrap, history, seed)


def end(name: str, bootstrap: str, history: History, seed: int) -> None:
    """First transactions that were left open time out, since they hold back readers."""
    deadline = time.monotonic() + CALL_S
    while time.monotonic() < deadline and not _stable_ends(bootstrap):
        stopping.wait(0.1)
    for is_committed in (True, False):
        scan(f"{name}.{is_committed}", bootstrap, history, is_committed=is_committed, is_final=True)


ROLES: dict[str, Callable[[str, str, History, int], None]] = {
    "write": write,
    "read": read,
    "consume": consume,
    "finish": partial(finish, within_s=SETTLED_WITHIN_S),
    "finish-briefly": partial(finish, within_s=12.0),
    "settle": settle,
    "drain": partial(drain, kind=TableWorker),
    "drain-again": partial(drain, kind=TableWorker, longest_session_s=LOCKS_RUN_OUT_S),
    "look": look,
    "end": end,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    role, own_name, servers, path, seed_text = sys.argv[1:]
    ROLES[role](own_name, servers, History(Path(path)), int(seed_text))
