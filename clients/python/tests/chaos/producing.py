"""A process that sends numbered records, and notes which of them are confirmed.

    python -m clients.python.tests.chaos.producing NAME BOOTSTRAP NOTES SEED LOOP PARTITIONS COUNT
        PER_SECOND [FAULT]

It ends when COUNT records are confirmed. Some sends are cancelled: their records may be written or
not, and do not count. A process that replaces a killed one has another name, so it repeats nothing.

FAULT `early`: notes records as confirmed before it sends them, and is killed in between.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import anyio

from clients.python.tests.chaos.notes import TOPIC, Note, Notes, Value, runs_of_stored, runs_of_values
from kbroker_client import BrokerUnreachable, Producer

MOST = 1000
"""Records of one call, at most."""
SINGLE, CANCELLED, CANCELLED_WITHIN_S = 0.05, 0.03, 0.05
EARLY_AFTER = 300


class Sender:
    def __init__(self, name: str, notes: Notes, chance: random.Random, partitions: int, fault: str) -> None:
        self._name, self._notes, self._chance, self._fault = name, notes, chance, fault
        self._partitions = partitions
        self._turn = 0
        self._next: Counter[int] = Counter()
        self._ends: Counter[int] = Counter()
        self.confirmed = 0

    async def send(self, producer: Producer, count: int) -> None:
        """One call, which may be cancelled. Not the first one: it asks for the topic first."""
        if self._chance.random() < SINGLE:
            partition = self._chance.randrange(self._partitions)
            await self._send_one(producer, self._value(partition))
            return
        values = [self._value(self._take_turn()) for _ in range(count)]
        self._notes.write(Note.SENT, runs_of_values(values))
        if self._fault == "early" and self.confirmed > EARLY_AFTER:
            self._confirm_early(values)
        is_cancelled = self.confirmed and self._chance.random() < CANCELLED
        with anyio.move_on_after(self._chance.uniform(0, CANCELLED_WITHIN_S) if is_cancelled else None):
            places = await producer.send_all(TOPIC, [str(value).encode() for value in values])
            self._confirm([(value, *place[1:]) for value, place in zip(values, places, strict=True)])

    async def _send_one(self, producer: Producer, value: Value) -> None:
        self._notes.write(Note.SENT, runs_of_values([value]))
        place = await producer.send(TOPIC, str(value).encode(), partition=value.partition)
        self._confirm([(value, *place[1:])])

    def _value(self, partition: int) -> Value:
        self._next[partition] += 1
        return Value(self._name, partition, self._next[partition])

    def _take_turn(self) -> int:
        """The partition of the next record without a key."""
        self._turn += 1
        return self._turn % self._partitions

    def _confirm(self, places: list[tuple[Value, int, int]]) -> None:
        for value, partition, offset in places:
            assert value.partition == partition, f"{value} was stored in partition {partition}"
            assert offset >= 0, f"{value} was stored, but the client does not know where"
            self._ends[partition] = offset + 1
        self._notes.write(Note.STORED, runs_of_stored((value, offset) for value, _, offset in places))
        self.confirmed += len(places)

    def _confirm_early(self, values: list[Value]) -> None:
        guessed = []
        for value in values:
            guessed.append((value, self._ends[value.partition]))
            self._ends[value.partition] += 1
        self._notes.write(Note.STORED, runs_of_stored(guessed))
        os.kill(os.getpid(), signal.SIGKILL)


async def main(bootstrap: str, sender: Sender, chance: random.Random, count: int, per_second: float) -> None:
    while sender.confirmed < count:
        try:
            await _produce(bootstrap, sender, chance, count, per_second)
        except BrokerUnreachable as error:  # Nothing was sent: no broker was reached.
            logging.info("%s", error)
            await anyio.sleep(0.2)


async def _produce(
    bootstrap: str, sender: Sender, chance: random.Random, count: int, per_second: float
) -> None:
    linger_s = chance.choice([0, 0.005])
    compression = chance.choice(["none", "lz4"])
    async with Producer(bootstrap, linger_s=linger_s, compression=compression) as producer:
        producer._turn = 0  # It begins at a random partition; each record's name has the partition in it.
        began_s, before = anyio.current_time(), sender.confirmed
        while sender.confirmed < count:
            done = sender.confirmed - before
            most = min(MOST, max(1, int(per_second / 5)), count - sender.confirmed)
            await sender.send(producer, chance.randint(1, most))
            await anyio.sleep(max(0.0, began_s + done / per_second - anyio.current_time()))


if __name__ == "__main__":
    name, servers, path, seed, loop, partition_count, record_count, rate, *faults = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    own_chance = random.Random(seed)
    own_sender = Sender(name, Notes(Path(path)), own_chance, int(partition_count), "".join(faults))
    anyio.run(main, servers, own_sender, own_chance, int(record_count), float(rate), backend=loop)
