"""A process with a share consumer that does everything that the client allows, at random.

    python -m clients.python.tests.chaos.consuming NAME BOOTSTRAP NOTES SEED LOOP MODE [FAULT]

Polls have random sizes and times, and some are cancelled or woken up. Records are accepted,
released, rejected or renewed, some too late; commits are waited for, cancelled or left to the next
poll. SIGTERM ends it in order. The mode `drain` accepts everything.

FAULT `early`: notes that acknowledgements are confirmed before it sends them, and is killed in
between. FAULT `twice`: some records of one fetch are returned by two polls.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
from pathlib import Path

import anyio

from clients.python.tests.chaos.noted_consumer import NotedConsumer, place_of
from clients.python.tests.chaos.notes import Note, Notes, runs_of_places
from kbroker_client import (
    Acquire,
    BrokerUnreachable,
    Mode,
    Outcome,
    Record,
    TimedOut,
    WokenUp,
)
from tests.judges.history_events import AckKind
from tests.judges.history_events import Outcome as Answer

logger = logging.getLogger("consuming")
MOST = 500
POLL_S = 0.0, 0.02, 0.2, 1.0
STALL, STALL_S = 0.02, (0.3, 2.0)
HELD_MOST = 1500
"""Records that the mode FREE keeps over polls."""
REOPENED = 0.005
EARLY_AFTER = 5
stopping = False


def stop(*_: object) -> None:
    global stopping
    stopping = True


class Application:
    """One life of a consumer. `fault`: see the head of this module."""

    def __init__(self, consumer: NotedConsumer, chance: random.Random, mode: Mode, fault: str) -> None:
        self._consumer, self._chance, self._mode, self._fault = consumer, chance, mode, fault
        self._turns = 0

    async def turn(self) -> None:
        self._turns += 1
        records = await self._poll()
        if self._chance.random() < STALL:
            await anyio.sleep(self._chance.uniform(*STALL_S))
        if self._fault == "early" and records and self._turns > EARLY_AFTER:
            self._confirm_early(records)
        if self._mode is Mode.IMPLICIT:
            await self._finish(may_wait=self._chance.random() < 0.3)
        elif self._mode is Mode.FREE:
            await self._acknowledge_some()
        else:
            await self._acknowledge(records)
            await self._finish(may_wait=self._chance.random() < 0.8)

    async def _poll(self) -> list[Record]:
        consumer, chance = self._consumer, self._chance
        if self._mode is Mode.IMPLICIT:
            self._accept_implicitly()
        if chance.random() < 0.01:
            consumer.wake_up()
        most = chance.choice([None, None, MOST, chance.randint(1, 50)])
        cancelled_s = chance.uniform(0, 0.1) if chance.random() < 0.1 else None
        records: list[Record] = []
        try:
            with anyio.move_on_after(cancelled_s):
                records = await consumer.poll(chance.choice(POLL_S), most)
        except WokenUp:
            return []
        consumer.note_delivery(records)
        if self._fault == "twice" and records and self._turns % 2:
            consumer.repeat(records)
        return records

    def _accept_implicitly(self) -> None:
        """What the next poll or commit does."""
        self._consumer.note_acknowledgement(list(self._consumer.held.values()), Outcome.ACCEPT)

    async def _finish(self, *, may_wait: bool) -> None:
        """Send the acknowledgements, or leave that to the next poll."""
        if not may_wait and self._chance.random() < 0.5:
            return
        if self._mode is Mode.IMPLICIT:
            self._accept_implicitly()
        if not may_wait:
            self._consumer.commit_soon()
            return
        cancelled_s = self._chance.uniform(0, 0.05) if self._chance.random() < 0.1 else None
        with anyio.move_on_after(cancelled_s):
            try:
                await self._consumer.commit(self._chance.choice([0.05, 2.0, 10.0]))
            except TimedOut as error:
                logger.info("%s", error)

    async def _acknowledge(self, records: list[Record]) -> None:
        if records and self._chance.random() < 0.03:
            await self._renew(records)
        for outcome, chosen in self._divided(records).items():
            self._consumer.acknowledge_all(chosen, outcome)

    async def _acknowledge_some(self) -> None:
        """In any order. What another record of its place has replaced cannot be acknowledged."""
        held = [
            record for place, record in self._consumer.held.items() if place not in self._consumer.unanswered
        ]
        share = 1.0 if len(held) > HELD_MOST else self._chance.choice([0.3, 0.8, 1.0, 1.0])
        chosen = self._chance.sample(held, round(len(held) * share))
        if chosen and self._chance.random() < 0.05:
            self._consumer.acknowledge_all(chosen[: len(chosen) // 3], Outcome.RENEW)
            chosen = chosen[len(chosen) // 3 :]
        await self._acknowledge(chosen)
        if self._chance.random() < 0.3:
            await self._finish(may_wait=True)

    async def _renew(self, records: list[Record]) -> None:
        """An answer to it must not be taken for one to the last acknowledgement."""
        places = {place_of(record) for record in records}
        self._consumer.acknowledge_all(records, Outcome.RENEW)
        while places & self._consumer.unanswered:
            try:
                await self._consumer.commit(2.0)
            except TimedOut as error:
                logger.info("%s", error)

    def _divided(self, records: list[Record]) -> dict[Outcome, list[Record]]:
        found: dict[Outcome, list[Record]] = {}
        outcomes, weights = [Outcome.ACCEPT, Outcome.RELEASE, Outcome.REJECT], [960, 35, 5]
        if self._chance.random() < 0.02:
            outcomes, weights = [Outcome.RELEASE], [1]
        for record in records:
            found.setdefault(self._chance.choices(outcomes, weights)[0], []).append(record)
        return found

    def _confirm_early(self, records: list[Record]) -> None:
        runs = runs_of_places(map(place_of, records))
        self._consumer.notes.write(Note.ACKNOWLEDGED, AckKind.ACCEPT, runs)
        self._consumer.notes.write(Note.ANSWERED, Answer.CONFIRMED, runs)
        os.kill(os.getpid(), signal.SIGKILL)


async def main(name: str, bootstrap: str, notes: Notes, chance: random.Random, mode: str, fault: str) -> None:
    while not stopping:
        try:
            if mode == "drain":
                await _drain(name, bootstrap, notes)
            else:
                await _live(name, bootstrap, notes, chance, Mode(mode), fault)
        except BrokerUnreachable as error:  # As it was entered: later ones are tried again.
            logger.info("%s", error)
            await anyio.sleep(0.2)


async def _live(
    name: str, bootstrap: str, notes: Notes, chance: random.Random, mode: Mode, fault: str
) -> None:
    options = {
        "max_poll_records": chance.choice([MOST, MOST, 100]),
        "acquire": chance.choice(list(Acquire)),
        "fetch_wait_ms": chance.choice([50, 200, 500]),
    }
    async with NotedConsumer(bootstrap, notes, mode, **options) as consumer:
        application = Application(consumer, chance, mode, fault)
        while not stopping and chance.random() >= REOPENED:
            await application.turn()
        notes.write(Note.CLOSING, name)


async def _drain(name: str, bootstrap: str, notes: Notes) -> None:
    async with NotedConsumer(bootstrap, notes, Mode.EXPLICIT, max_poll_records=MOST) as consumer:
        while not stopping:
            records = await consumer.poll(0.2)
            consumer.note_delivery(records)
            consumer.acknowledge_all(records, Outcome.ACCEPT)
            await consumer.commit()
        notes.write(Note.CLOSING, name)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    own_name, servers, path, seed, loop, own_mode, *faults = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    own_chance = random.Random(seed)
    anyio.run(main, own_name, servers, Notes(Path(path)), own_chance, own_mode, "".join(faults), backend=loop)
