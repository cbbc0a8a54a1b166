"""Poison records on a real broker that is killed before a chosen one of its system calls, until
each call has been tried.

A round has its own topic, group and dead letter queue, which the broker creates on demand. Some
records are rejected, most of them for a reason, and one is released until its delivery limit.
Meanwhile the broker gets kill -9
(tests/powercut/recorder/faults.c) before its n-th call that changes a file. In every other round it
gets a second one while it starts or makes up for the first. Afterwards each of the records must be
in the queue once, with its value and the reason of its last rejection, and the group must be past
them.

The calls are counted from the consumer's first request. They are all calls of the flow: the write
that makes records ARCHIVING, with the cursor; its sync; creating the topic; appending the dead
letters; its sync; ARCHIVED; removing the cursor.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from uuid import UUID

from kbroker import plugins
from kbroker.client import admin
from kbroker.client.rpc import BrokerUnreachable, Connection
from kbroker.formats.batches import Record, build_batch, iter_headers, iter_records
from kbroker.formats.parked_records import REASON
from kbroker.formats.state import DeadLetterKey, ParkedKey, read_entries, share_partition_prefix
from kbroker.share.dead_letter import Origin, origin_of, reason_of
from kbroker.share.reasons import Reason
from kbroker.share_state.loading import load
from kbroker.storage.spi import StateReader
from kbroker.testing.broker import FAST_CONFIG, BrokerStartFailed, RunningBroker
from tests.powercut.recorded import RecordedBroker
from tests.powercut.recording import Faults, Recording
from tests.reject_reasons import with_reasons
from tests.small_disk import fill_the_rest

REJECTED, EXHAUSTED, RECORDS = {1, 4, 5}, {2}, 6
WITHOUT_REASON = 4
"""It is rejected for a reason every other time only."""
POISON = REJECTED | EXHAUSTED
ACCEPT, RELEASE, REJECT = 1, 2, 3
ACKNOWLEDGE_KEY, ACKNOWLEDGE_VERSION = 79, 2
FINAL_STATES = {2, 4}
MEMBER = "m"
PATIENCE_S = 60.0
NEVER = 1 << 40
SMALL_DISK_BYTES, NO_LETTERS_BYTES = 512 << 20, 12 << 20
"""With so little free, every engine takes acknowledgements, and the budget of dead letters has no
room."""
NO_ROOM = "wait for room on the disk"
_rejections = count()


def config_for(persister: str) -> dict[str, str]:
    create = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
    return {**FAST_CONFIG, **create, "kbroker.persister": persister}


@dataclass(frozen=True, slots=True)
class Round:
    """One group with its topic, which has the id `topic_id`."""

    number: int
    topic_id: UUID
    given: dict[int, Reason | None] = field(default_factory=dict)
    """The reason of the last rejection that was sent, by offset."""

    @property
    def topic(self) -> str:
        return f"orders{self.number}"

    @property
    def group(self) -> str:
        return f"workers{self.number}"

    @property
    def queue(self) -> str:
        return f"dlq.{self.topic}"

    @staticmethod
    def value_of(offset: int) -> bytes:
        return b"record %d" % offset

    def reasons_for(self, offsets: Sequence[int]) -> dict[int, Reason]:
        """For the next rejection of these offsets: another one each time."""
        for offset in offsets:
            number = next(_rejections)
            reason = Reason("ValueError", f"rejection {number}", f"Traceback\n{'line' * 1000}\n{number}")
            self.given[offset] = None if offset == WITHOUT_REASON and number % 2 else reason
        return {offset: reason for offset in offsets if (reason := self.given[offset]) is not None}


@dataclass(slots=True)
class Rounds:
    """A broker over all of its lives. `kills` counts the kills that happened."""

    broker: RunningBroker
    faults: Faults
    engine: str
    chooser: random.Random
    persister: str = "default"
    rounds: list[Round] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    def calls_of_one(self) -> int:
        """How many calls a round makes from the first fetch to the end without a kill."""
        round_ = self.begin()
        self.faults.arm_kill(NEVER)
        self.work(round_)
        self.wait_for_cursors()
        calls = self.faults.passed
        self.faults.disarm()
        return calls

    def calls_of_start(self) -> int:
        """How many calls a start after kill -9 makes until connections are accepted, when there is
        nothing to make up for."""
        self.broker.kill9()
        self.faults.arm_kill(NEVER)
        self._start()
        calls = self.faults.passed
        self.faults.disarm()
        return calls

    def run(self, first: int, second: int | None) -> None:
        """Kill before call `first` of the flow, then perhaps before call `second` after the start;
        judge."""
        round_ = self.begin()
        self.faults.arm_kill(first)
        self._work_until_killed(round_, "flow")
        if second is not None:
            self.faults.arm_kill(second)
            self._start("start")
            self._work_until_killed(round_, "recovery")
        self._start()
        self.work(round_)

    def run_refused(self, disk: Path, first: int) -> None:
        """The disk has no room for the dead letters of the round, in this life and in the next.
        When it has, kill before call `first` of the flow; judge."""
        round_ = self.begin()
        ballast = fill_the_rest(disk, but_bytes=NO_LETTERS_BYTES)
        self.share_until_refused(round_, times=1)
        self.broker.kill9()
        self.kills["refused"] += 1
        self._start()
        self.share_until_refused(round_, times=2)
        with self.broker.connect() as connection:
            assert found(connection, round_) == {}
        self.faults.arm_kill(first)
        ballast.unlink()
        self._work_until_killed(round_, "flow")
        self._start()
        self.work(round_)

    def share_until_refused(self, round_: Round, times: int) -> None:
        """Until the group is done with its records, and the log has told of each life that dead
        letters wait."""
        deadline, line = time.monotonic() + PATIENCE_S, f"{round_.group}:{round_.topic}-0: "
        with self.broker.connect() as connection:
            for epoch in range(0, 1 << 30, 2):
                told = [each for each in self.broker.logs().splitlines() if line in each and NO_ROOM in each]
                if not share(connection, round_, epoch) and len(told) == times:
                    return
                assert time.monotonic() < deadline, self.broker.log_tail()

    def begin(self) -> Round:
        with self.broker.connect() as connection:
            number = len(self.rounds)
            names = Round(number, UUID(int=0))
            admin.create_topic(connection, names.topic, partitions=1)
            (topic,) = admin.topics(connection, [names.topic])
            round_ = Round(number, topic.topic_id)
            produce(connection, round_)
            configs = {
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": "2",
                "errors.deadletterqueue.topic.name": round_.queue,
                "errors.deadletterqueue.copy.record.enable": "true",
            }
            admin.alter_configs(connection, admin.ResourceType.GROUP, round_.group, set_configs=configs)
            rows = [{"partition": 0, "state_epoch": 0, "start_offset": -1}]
            connection.call(
                "initialize_share_group_state",
                0,
                group_id=round_.group,
                topics=[{"topic_id": round_.topic_id, "partitions": rows}],
            )
        self.rounds.append(round_)
        return round_

    def _work_until_killed(self, round_: Round, where: str) -> None:
        """Until the end of the flow, if the broker lives that long."""
        before = self.faults.fired
        try:
            if self.broker.is_running:
                self.work(round_)
                self.wait_for_cursors()
        except BrokerUnreachable:
            pass
        if self.faults.fired > before:
            assert self.broker.wait() == -signal.SIGKILL
            self.kills[where] += 1
        elif self.broker.is_running:
            self.faults.disarm()
            self.broker.kill9()

    def _start(self, where: str = "") -> None:
        before = self.faults.fired
        try:
            self.broker.start()
        except BrokerStartFailed as error:
            if not where or self.faults.fired == before or error.exit_code != -signal.SIGKILL:
                raise
            self.kills[where] += 1

    def work(self, round_: Round) -> None:
        """Consume until the group is done with its records and each poison one is in the queue.
        Raises BrokerUnreachable."""
        deadline = time.monotonic() + PATIENCE_S
        with self.broker.connect() as connection:
            for epoch in range(0, 1 << 30, 2):
                if not share(connection, round_, epoch) and found(connection, round_) == dict.fromkeys(
                    POISON, 1
                ):
                    return
                assert time.monotonic() < deadline, f"{found(connection, round_)} of {POISON} after a minute"

    def judge(self) -> None:
        """Check the whole outcome, by the broker's answers and by its files."""
        with self.broker.connect() as connection:
            for round_ in self.rounds:
                assert found(connection, round_) == dict.fromkeys(POISON, 1), round_
        self.wait_for_cursors()
        self.broker.stop()
        with self._state() as store:
            assert self.persister != "default" or _reasons_in(store) == []
            for round_ in self.rounds if self.persister == "default" else ():
                state = load(store.scan(share_partition_prefix(round_.group, round_.topic_id, 0)))
                assert state is not None
                final = [batch for batch in state.merged_batches() if batch.state in FINAL_STATES]
                done = {
                    offset for batch in final for offset in range(batch.first_offset, batch.last_offset + 1)
                }
                assert set(range(state.start_offset, RECORDS)) <= done, round_

    def wait_for_cursors(self) -> None:
        """They are removed soon after the last dead letter. Returns early if the broker dies."""
        deadline = time.monotonic() + PATIENCE_S
        while self.broker.is_running:
            with self._state() as store:
                if not list(store.scan(DeadLetterKey.namespace)):
                    return
            assert time.monotonic() < deadline, "there are cursors left"
            time.sleep(0.05)

    @contextmanager
    def _state(self) -> Iterator[StateReader]:
        store = plugins.state_store_factory(self.engine).open_reader(
            self.broker.data_dir / f"state-{self.engine}"
        )
        try:
            yield store
        finally:
            store.close()


def _reasons_in(store: StateReader) -> list[ParkedKey]:
    found = read_entries(store.scan(ParkedKey.namespace))
    return [key for key, _ in found if isinstance(key, ParkedKey) and key.kind == REASON]


def produce(connection: Connection, round_: Round) -> None:
    batch = build_batch(
        Record(0, time.time_ns() // 1_000_000, None, round_.value_of(offset)) for offset in range(RECORDS)
    )
    rows = [{"name": round_.topic, "partition_data": [{"index": 0, "records": batch}]}]
    answer = connection.call("produce", 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
    assert answer.responses[0].partition_responses[0].error_code == 0


def share(connection: Connection, round_: Round, epoch: int) -> set[int]:
    """Fetch, and acknowledge each record on its own; return the offsets."""
    session = {"group_id": round_.group, "member_id": MEMBER}
    partitions = {"partition_index": 0, "acknowledgement_batches": ()}
    answer = connection.call(
        "share_fetch", 2, **session, share_session_epoch=epoch, max_wait=50, min_bytes=1, max_bytes=1 << 20,
        max_records=100, batch_size=100, share_acquire_mode=0, is_renew_ack=False, forgotten_topics_data=(),
        topics=() if epoch else [{"topic_id": round_.topic_id, "partitions": [partitions]}],
    )  # fmt: skip
    assert answer.error_code == 0, answer
    runs = [run for topic in answer.responses for row in topic.partitions for run in row.acquired_records]
    offsets = [offset for run in runs for offset in range(run.first_offset, run.last_offset + 1)]
    reasons = round_.reasons_for([offset for offset in offsets if offset in REJECTED])
    kinds = [
        REJECT if offset in REJECTED else RELEASE if offset in EXHAUSTED else ACCEPT for offset in offsets
    ]
    acks = [
        {"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]}
        for offset, kind in zip(offsets, kinds, strict=True)
    ]
    rows = [{"partition_index": 0, "acknowledgement_batches": acks}]
    fields = {
        **session, "share_session_epoch": epoch + 1, "is_renew_ack": False,
        "topics": [{"topic_id": round_.topic_id, "partitions": rows}],
    }  # fmt: skip
    frame = connection.encode(ACKNOWLEDGE_KEY, ACKNOWLEDGE_VERSION, fields)[4:]
    if reasons:
        frame = with_reasons(frame, [(round_.topic_id, 0, *each) for each in reasons.items()])
    connection.send_raw(len(frame).to_bytes(4, "big") + frame)
    answer = connection.read_response(ACKNOWLEDGE_KEY, ACKNOWLEDGE_VERSION)
    assert answer.error_code == 0, answer
    return set(offsets)


def found(connection: Connection, round_: Round) -> dict[int, int]:
    """How often each offset is in the queue; each dead letter must be correct."""
    letters = list(_letters(connection, round_.queue))
    origins = [origin_of(letter.headers) for letter in letters]
    for letter, origin in zip(letters, origins, strict=True):
        assert origin is not None
        message = (
            "Offset rejected by client."
            if origin.offset in REJECTED
            else "Offset delivery count exceeded the threshold."
        )
        assert origin == Origin(round_.topic, 0, origin.offset, round_.group, origin.delivery_count, message)
        assert letter.value == round_.value_of(origin.offset)
        assert reason_of(letter.headers) == round_.given.get(origin.offset), origin
    return dict(Counter(origin.offset for origin in origins if origin is not None))


def _letters(connection: Connection, queue: str) -> Iterator[Record]:
    """One fetch may end early: after a cold read, where that one ended."""
    offset = 0
    while True:
        partition = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
        }
        answer = connection.call(
            "fetch", 12, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
            session_id=0, session_epoch=-1, rack_id="", forgotten_topics_data=(),
            topics=[{"topic": queue, "partitions": [partition]}],
        )  # fmt: skip
        data = answer.responses[0].partitions[0].records or b""
        if not data:
            return
        for position, header in iter_headers(data):
            yield from iter_records(data, position)
            offset = header.last_offset + 1


@contextmanager
def rounds_on(home: Path, engine: str, seed: int, persister: str = "default") -> Iterator[Rounds]:
    """A running broker under the recorder; stopped afterwards."""
    (home / "data").mkdir()
    faults = Faults(home / "faults")
    recording = Recording(home / "data", home / "record.log", faults=faults)
    broker = RecordedBroker(home, recording, storage=engine, config=config_for(persister))
    broker.start()
    try:
        yield Rounds(broker, faults, engine, random.Random(seed), persister)
    finally:
        faults.disarm()
        broker.kill9()
        recording.close()
