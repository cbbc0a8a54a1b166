"""Random clients of a transaction coordinator, with saves that fail and brokers that die: whatever
happens, a transaction ends once.

Two clients use each id, so that each is the other's zombie. A client is sequential: it adds, ends,
and repeats what was not answered. Some of its requests arrive again much later. The model keeps
what is stored, and what the markers of each transaction say.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import pytest

from kbroker.formats.transactions import NO_PRODUCER, TransactionPartition, TransactionRecord
from kbroker.transactions.coordinator import (
    NOBODY,
    Moment,
    ProducerEpoch,
    TransactionDecision,
    Transactions,
    TransactionSettings,
    Transition,
)
from tests.transactions.world import (
    BUSY,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    COMPLETED,
    DAY_MS,
    EMPTY,
    FENCED,
    OK,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TOPIC,
    WRONG_PRODUCER,
    WRONG_STATE,
)

IDS: Final = ("a", "b", "c")
IDLE: Final = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
REFUSALS: Final = (BUSY, FENCED, WRONG_STATE, WRONG_PRODUCER)
SETTINGS: Final = TransactionSettings(expiration_ms=20_000)
MAX_EPOCH: Final = 32_767


@dataclass
class Client:
    """`producer`: NOBODY until it has begun. `ending`: the end it has asked for, and repeats until
    it is answered. `added`: whether its transaction has begun."""

    name: str
    producer: ProducerEpoch = NOBODY
    version: int = 2
    added: bool = False
    ending: bool | None = None

    def die(self) -> None:
        self.producer, self.added, self.ending = NOBODY, False, None


@dataclass
class Flying:
    """A transition that is being saved. Nobody waits for one that the coordinator began."""

    transition: Transition
    client: Client | None
    decision: TransactionDecision
    version: int


@dataclass
class Told:
    """What the log says about the transactions of an id. `number` counts their beginnings, `ends`
    has the markers of each: the producer, and whether it is a commit. `by_producer`: the last end
    of each producer."""

    number: int = 0
    ends: dict[int, tuple[ProducerEpoch, bool]] = field(default_factory=dict)
    by_producer: dict[ProducerEpoch, bool] = field(default_factory=dict)


def _producer(record: TransactionRecord | None) -> ProducerEpoch:
    return NOBODY if record is None else ProducerEpoch(record.producer_id, record.producer_epoch)


class Model:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = Moment(1_800_000_000_000, 1000)
        self.next_id = 100
        self.store: dict[str, TransactionRecord] = {}
        self.memory: dict[str, TransactionRecord] = {}
        self.told = {name: Told() for name in IDS}
        self.owners: dict[int, str] = {}
        self.clients = [Client(name) for name in IDS for _ in range(2)]
        self.late: deque[tuple[str, ProducerEpoch, bool | None]] = deque(maxlen=40)
        self.seen: set[str] = set()
        self.start()

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def start(self) -> None:
        """As after kill -9. Ids without a transaction may have aged, as if many had passed."""
        for name, record in self.store.items():
            if record.state in IDLE and record.producer_epoch < 32_000 and self.random.random() < 0.3:
                self.store[name] = replace(record, producer_epoch=32_763, last_producer_epoch=32_762)
        self.flying: dict[str, Flying] = {}
        self.transactions = Transactions(lambda: SETTINGS, self.new_id)
        self.transactions.load(self.store.items(), self.now)
        self.memory = dict(self.store)
        assert dict(self.transactions.records()) == self.store
        exhausted = sum(each.producer_epoch >= MAX_EPOCH - 1 for each in self.store.values())
        assert self.transactions.exhausted() == exhausted
        unfinished = {name for name, record in self.store.items() if record.state in COMPLETED}
        assert set(self.transactions.unfinished()) == unfinished

    # --- what happens ---

    def step(self) -> None:
        chance = self.random.random()
        self.now = Moment(self.now.wall_ms + 1, self.now.steady_ms + 1)
        if chance < 0.5:
            self.ask(self.random.choice(self.clients))
        elif chance < 0.7 and self.flying:
            self.land(self.flying.pop(self.random.choice(list(self.flying))))
        elif chance < 0.85:
            self.mark()
        elif chance < 0.9:
            self.ask_late()
        elif chance < 0.985:
            self.pass_time()
        elif chance < 0.99:
            self.kill(self.random.choice(self.clients))
        elif chance < 0.995:
            self.start()
        self.check()

    def kill(self, client: Client) -> None:
        """What it has asked for goes on without it."""
        client.die()
        for flying in self.flying.values():
            if flying.client is client:
                flying.client = None

    def pass_time(self) -> None:
        passed_ms = self.random.choice((1, 10, 100, 100, 1000))
        if self.random.random() < 0.01:
            passed_ms = 30_000
        step_ms = self.random.choice((0, 0, 0, DAY_MS, -DAY_MS))
        self.now = Moment(self.now.wall_ms + passed_ms + step_ms, self.now.steady_ms + passed_ms)
        begun = [
            *self.transactions.abort_timed_out(self.now),
            *self.transactions.remove_expired(self.now),
        ]
        for transition in begun:
            self.begin(Flying(transition, None, TransactionDecision(transition=transition), 0))

    def ask(self, client: Client) -> None:
        """The client's next request, if it has none under way."""
        if any(flying.client is client for flying in self.flying.values()):
            return
        if client.producer == NOBODY or (not client.added and self.random.random() < 0.05):
            expected = client.producer
            decision = self.transactions.init(
                client.name, self.random.choice((500, 5000)), expected, self.now
            )
            assert decision.code in (OK, *REFUSALS)
            client.added, client.ending, client.version = False, None, self.random.choice((1, 2))
            self.decided(client, decision, client.version)
        elif client.ending is None and self.random.random() < 0.6:
            if not client.added:
                client.version = self.random.choice((1, 2))
            self.decided(client, self.add(client.name, client.producer, client.version), client.version)
        elif client.added or client.version == 2:
            if client.ending is None:
                client.ending = client.added and self.random.random() < 0.6
            self.end(client.name, client.producer, client.ending, client.version, client)

    def ask_late(self) -> None:
        """A request of version 2 arrives once more; nobody waits for its answer. One of version 1
        could end the next transaction, which has the same epoch (KAFKA-17754)."""
        if not self.late:
            return
        name, producer, is_commit = self.random.choice(self.late)
        if _producer(self.memory.get(name)) == producer:
            return
        if is_commit is None:
            self.decided(None, self.add(name, producer, 2), 2)
        else:
            self.end(name, producer, is_commit, 2, None)

    def add(self, name: str, producer: ProducerEpoch, version: int) -> TransactionDecision:
        log = TransactionPartition(TOPIC, self.random.randrange(4))
        groups = ("g",) if self.random.random() < 0.2 else ()
        verified = self.transactions.verify(name, producer, log)
        decision = self.transactions.add(name, producer, (log,), groups, version, self.now)
        assert decision.code in (OK, *REFUSALS)
        record = self.memory.get(name)
        if verified is OK:
            assert record is not None
            assert (_producer(record), record.state) == (producer, ONGOING)
            assert log in record.partitions
        self.check_change(name, producer, decision)
        if version == 2:
            self.late.append((name, producer, None))
        return decision

    def end(
        self, name: str, producer: ProducerEpoch, is_commit: bool, version: int, client: Client | None
    ) -> None:
        decision = self.transactions.end(name, producer, is_commit=is_commit, version=version, now=self.now)
        assert decision.code in (OK, *REFUSALS)
        self.check_change(name, producer, decision)
        if version == 2:
            self.late.append((name, producer, is_commit))
        self.decided(client, decision, version)

    def check_change(self, name: str, producer: ProducerEpoch, decision: TransactionDecision) -> None:
        """Only the newest producer of an id changes anything, and nothing is begun on top of a save
        or before the markers are written."""
        if decision.transition is not None:
            record = self.memory.get(name)
            assert record is not None
            assert decision.code == OK
            assert _producer(record) == producer
            assert record.state not in COMPLETED
        elif decision.code is OK:
            assert name not in self.flying

    # --- what is saved ---

    def decided(self, client: Client | None, decision: TransactionDecision, version: int) -> None:
        if decision.transition is None:
            self.answer(client, decision)
        else:
            self.begin(Flying(decision.transition, client, decision, version))

    def begin(self, flying: Flying) -> None:
        name = flying.transition.transactional_id
        assert name not in self.flying, "one transition at a time"
        assert flying.transition.before == self.memory.get(name)
        self.flying[name] = flying

    def land(self, flying: Flying) -> None:
        """The save succeeds, or fails, or the broker dies before or after it."""
        chance = self.random.random()
        if chance < 0.15:
            self.transactions.not_saved(flying.transition)
            self.seen.add("not saved")
            return
        self.apply(flying)
        if chance < 0.17:
            self.start()
            self.seen.add("died")
            return
        self.transactions.saved(flying.transition, self.now)
        if self.random.random() < 0.9:
            self.answer(flying.client, flying.decision)

    def apply(self, flying: Flying) -> None:
        name, record = flying.transition.transactional_id, flying.transition.record
        before = self.memory.get(name)
        if record is None:
            assert before is not None
            assert before.state in IDLE
            del self.store[name], self.memory[name]
            self.seen.add("expired")
            return
        self.check_step(name, before, record, flying)
        told = self.told[name]
        if record.state is ONGOING and (before is None or before.state is not ONGOING):
            told.number += 1
        if record.state in COMPLETED:
            assert before is not None
            if before.state is not ONGOING:
                told.number += 1
                self.seen.add("empty abort")
                assert (record.state, flying.version) == (PREPARE_ABORT, 2)
            told.by_producer[_producer(before)] = record.state is PREPARE_COMMIT
        self.store[name] = self.memory[name] = record

    def check_step(
        self, name: str, before: TransactionRecord | None, record: TransactionRecord, flying: Flying
    ) -> None:
        """A transition is one of Kafka's, and the producer never goes back."""
        came_from = {
            EMPTY: (None, *IDLE),
            ONGOING: (ONGOING, *IDLE),
            PREPARE_COMMIT: (ONGOING,),
            PREPARE_ABORT: (ONGOING, *IDLE),
            COMPLETE_COMMIT: (PREPARE_COMMIT,),
            COMPLETE_ABORT: (PREPARE_ABORT,),
        }
        assert (before and before.state) in came_from[record.state]
        assert flying.transition.ends == (record.state in COMPLETED)
        assert 0 <= record.producer_epoch <= MAX_EPOCH
        assert _producer(record) >= _producer(before)
        if record.state is ONGOING:
            assert record.partitions >= (before.partitions if before else frozenset())
            assert _producer(record) == _producer(before)
        for producer_id in (record.producer_id, record.next_producer_id):
            if producer_id != NO_PRODUCER:
                assert self.owners.setdefault(producer_id, name) == name
        if before is not None and record.producer_id != before.producer_id:
            self.seen.add(f"rotated by {record.state.name}")

    def mark(self) -> None:
        """The markers of an ended transaction are written. Sometimes the broker dies before the new
        state is stored: they are written again then, and are the same."""
        unfinished = self.transactions.unfinished()
        assert set(unfinished) == {name for name, record in self.memory.items() if record.state in COMPLETED}
        if not unfinished:
            return
        name = self.random.choice(unfinished)
        told, prepared = self.told[name], self.memory[name]
        markers = (_producer(prepared), prepared.state is PREPARE_COMMIT)
        assert told.ends.setdefault(told.number, markers) == markers
        transition = self.transactions.complete(name, self.now)
        record = transition.record
        assert record is not None
        assert (record.state, record.partitions, record.groups) == (
            COMPLETED[prepared.state],
            frozenset(),
            frozenset(),
        )
        flying = Flying(transition, None, TransactionDecision(transition=transition), 0)
        if self.random.random() < 0.1:
            self.start()
            self.seen.add("marked again")
        else:
            self.apply(flying)

    # --- answers ---

    def answer(self, client: Client | None, decision: TransactionDecision) -> None:
        if client is None or decision.code is BUSY:
            return
        if decision.code is not OK:
            self.seen.add(decision.code.name)
            client.die()
        elif client.producer == NOBODY or (client.ending is None and decision.producer != NOBODY):
            assert decision.producer.epoch >= 0
            client.producer = decision.producer
            client.added = False
        elif client.ending is None:
            client.added = True
        else:
            self.answer_end(client, client.ending, decision)

    def answer_end(self, client: Client, is_commit: bool, decision: TransactionDecision) -> None:
        """Whoever is told that its transaction has ended in a way finds it ended so."""
        self.seen.add(f"version {client.version} {'commit' if is_commit else 'abort'}")
        if client.added:
            assert self.told[client.name].by_producer[client.producer] is is_commit
        if client.version == 2:
            assert decision.producer > client.producer
            client.producer = decision.producer
        client.added, client.ending = False, None

    def check(self) -> None:
        assert dict(self.transactions.records()) == self.memory


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        *((seed, 3000) for seed in range(3)),
        *(pytest.param(seed, 100_000, marks=pytest.mark.full) for seed in range(10, 13)),
    ],
)
def test_a_transaction_ends_once_whatever_happens(seed: int, steps: int) -> None:
    model = Model(seed)
    for _ in range(steps):
        model.step()
    wanted = {f"version {version} {kind}" for version in (1, 2) for kind in ("commit", "abort")}
    wanted |= {"not saved", "died", "marked again", "empty abort", "producer_fenced"}
    assert wanted <= model.seen
    if steps > 10_000:
        assert model.seen >= {"expired", "rotated by EMPTY", "rotated by COMPLETE_COMMIT"}
