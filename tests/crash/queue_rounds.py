"""A work queue that delays, schedules and dead-letters jobs, on a broker that is killed with kill
-9 repeatedly.

Jobs are produced, some scheduled for later. Workers accept, release and reject them at random, are
killed themselves, or let locks expire. Halfway the group is deleted and recreated at the end of the
logs, also under kills. At the end, after one more kill, all jobs are finished, and the logs, the
dead letters and the state store are read. The history goes to tests.judges.queue_history.

With `retention` the topic has kbroker.queue.retention and small segments, some workers are slow,
and the logs are trimmed throughout: unfinished records are kept beside them
(broker/queues/kept_records.py).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from kbroker import plugins
from kbroker.client import admin, group_admin
from kbroker.client.rpc import BrokerUnreachable, Connection
from kbroker.errors import ErrorCode
from kbroker.formats.parked_records import KeptRecord, ParkedCount, ParkedKey, end_of, read_parked_entries
from kbroker.formats.state import DeadLetterKey
from kbroker.storage.spi import StateReader
from kbroker.testing.broker import RunningBroker
from tests.crash.harness import BROKER_CONFIG, GROUP_CONFIG, LAUNCHER, Torment, row_of
from tests.crash.launcher import LOOKS_OFTEN
from tests.crash.queue_worker import DEAD_LETTERS
from tests.crash.tally import Progress, silent
from tests.crash.worker import GROUP, LOCK_MS, PARTITIONS, TOPIC
from tests.judges.history import GroupSettings
from tests.judges.history_events import Event, LeftBehind, LogCut, PassedOver, merge
from tests.judges.queue_history import QueueSettings, Report, check
from tests.powercut import recorded
from tests.powercut.recording import Recording

LIMIT = 4
"""Low enough that some jobs reach it within the seconds of a run with few rounds."""
DELAY_MS, MULTIPLIER, MAX_MS = 1200, 1.5, 2000
"""Every release is parked: its wait is too long for the window (queue_configs.PARK_FROM_MS)."""
SETTINGS = QueueSettings(GroupSettings(LOCK_MS, LIMIT), DELAY_MS, MULTIPLIER, MAX_MS)
QUEUE_CONFIG = {
    **GROUP_CONFIG,
    "share.delivery.count.limit": str(LIMIT),
    "errors.deadletterqueue.topic.name": DEAD_LETTERS,
    "errors.deadletterqueue.copy.record.enable": "true",
    "kbroker.errors.deadletterqueue.keep.headers.enable": "true",
    "kbroker.errors.deadletterqueue.keep.timestamp.enable": "true",
    "kbroker.queue.redelivery.delay.ms": str(DELAY_MS),
    "kbroker.queue.redelivery.multiplier": str(MULTIPLIER),
    "kbroker.queue.redelivery.max.ms": str(MAX_MS),
    "kbroker.queue.redelivery.jitter": "0",
    "kbroker.queue.prefetch": "3",
    "kbroker.queue.scheduling": "true",
    "kbroker.share.in.flight.limit": "undecided",
}
ORDERED_CONFIG = {**QUEUE_CONFIG, "kbroker.queue.ordering": "key", "kbroker.queue.prefetch": "1"}
ROLES, ORDERED_ROLES = ("produce", *["consume"] * 2), ("produce-keys", *["consume-keys"] * 4)
"""Processes; each consuming one has two workers."""
RETAINED_CONFIG = {**QUEUE_CONFIG, "kbroker.queue.lock.max.ms": "60000"}
RETAINED_ROLES = "produce-all", "consume", "consume", "consume-slowly"
RETAINED_TOPIC = {"internal.segment.bytes": "6000", "retention.ms": "1000"}
"""`retention.ms` matters with `unfinished` only."""
RETENTION_CHECK_MS = 200
"""How often logs are checked with `unfinished`; for work queues tests/crash/launcher.py does it,
with `looks-often`."""
SAMPLE_S = 0.2
TOPIC_CONFIG = {"segment.bytes": "1048576"}
PURGED_PARTITION = 0
PATIENCE_S = 30.0
LOAD_S = 0.8, 3.2


@dataclass(slots=True)
class QueueTorment:
    torment: Torment
    patience_s: float = PATIENCE_S
    """How long the final rounds may take until nothing is left."""
    ordered: bool = False
    """Jobs have keys, and the group keeps their order."""
    retention: str = "time"
    """kbroker.queue.retention of the topic."""
    load_s: tuple[float, float] = LOAD_S
    """How long the load of a round lasts."""
    roles: Sequence[str] = ()
    """Roles other than the usual ones."""
    rounds: int = 0
    purges: int = 0
    _random: random.Random = field(default_factory=random.Random)
    _starts: dict[int, int] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, str]:
        if self.retention != "time":
            return RETAINED_CONFIG
        return ORDERED_CONFIG if self.ordered else QUEUE_CONFIG

    @property
    def topic_config(self) -> dict[str, str]:
        return (
            TOPIC_CONFIG
            if self.retention == "time"
            else {**RETAINED_TOPIC, "kbroker.queue.retention": self.retention}
        )

    @property
    def broker(self) -> RunningBroker:
        return self.torment.broker

    def round(self, *, purges: bool = False) -> None:
        """Load, end, start. Sometimes it ends cleanly, and sometimes, or if it `purges`, after a
        purge."""
        self.rounds += 1
        self.load(self._random.uniform(*self.load_s))
        for client in self.torment.clients:
            client.check_alive()
        if self._random.random() < 0.25:
            self.torment.kill_a_consumer()
        if self._random.random() < 0.25 or purges:
            self._purge()
        if self._random.random() < 0.2:
            self.torment.stop_broker()
        else:
            self.torment.kill_broker()
        if self._random.random() < 0.15:
            self.torment.start_and_kill_early()
        self.torment.start_broker()

    def load(self, seconds: float) -> None:
        """Let the clients work, and record the logs' start offsets meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._note_starts()
            time.sleep(min(SAMPLE_S, left))

    def load_until_cut(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self._starts:
            assert time.monotonic() < deadline, "no log was cut"
            self.load(SAMPLE_S)

    def load_until_kept(self) -> None:
        """Until a record is kept that the log no longer has."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._has_kept():
            assert time.monotonic() < deadline, "nothing is kept"
            self.load(SAMPLE_S)

    def _has_kept(self) -> bool:
        prefix = ParkedKey.namespace
        with self._state() as reader:
            entries = read_parked_entries(reader.scan_range(prefix, end_of(prefix)))
            return any(
                isinstance(value, KeptRecord) and key.offset < self._starts.get(key.partition, 0)
                for key, value in entries
            )

    def _note_starts(self) -> None:
        if self.retention == "time":
            return
        with self.broker.connect() as connection:
            found = admin.find_offsets(connection, {TOPIC: range(PARTITIONS)}, admin.EARLIEST)
        for (topic, partition), start in found.items():
            assert isinstance(start, int), start
            if start != self._starts.get(partition, 0):
                self._starts[partition] = start
                self.torment.write(LogCut(time.monotonic_ns(), topic, partition, start))

    def _purge(self) -> None:
        """DeleteRecords, somewhere in one particular log: it excuses all jobs below that offset
        that are not done."""
        partition = PURGED_PARTITION
        with self.broker.connect() as connection:
            start = admin.find_offsets(connection, {TOPIC: [partition]}, admin.EARLIEST)[TOPIC, partition]
            end = admin.find_offsets(connection, {TOPIC: [partition]}, admin.LATEST)[TOPIC, partition]
            assert isinstance(start, int), start
            assert isinstance(end, int), end
            offset = start + round((end - start) * self._random.choice([0.5, 0.8, 0.95, 1.0]))
            starts = admin.delete_records(connection, TOPIC, {partition: offset})
        low_watermark = starts[partition]
        assert isinstance(low_watermark, int), low_watermark
        assert low_watermark >= offset, "retention may have gone further meanwhile"
        self.purges += 1
        self.torment.write(PassedOver(time.monotonic_ns(), TOPIC, partition, offset))

    def begin_anew(self) -> None:
        """Delete the group, and recreate it at the ends of the logs, while some of its jobs are
        parked. A kill may interrupt that."""
        self._end_clients()
        with self.broker.connect() as connection:
            found = admin.find_offsets(connection, {TOPIC: range(PARTITIONS)}, admin.LATEST)
        ends = {}
        for (topic, partition), end in found.items():
            assert isinstance(end, int), end
            ends[group_admin.TopicPartition(topic, partition)] = end
        timer = threading.Timer(self._random.uniform(0, 0.1), os.kill, (self.broker.pid, signal.SIGKILL))
        timer.start()
        try:
            self._anew(ends)
        except BrokerUnreachable:
            pass
        finally:
            timer.join()
        self.torment.kill_broker()
        self.torment.start_broker()
        self._anew(ends)
        for (topic, partition), end in ends.items():
            self.torment.write(PassedOver(time.monotonic_ns(), topic, partition, end))
        self.broker.set_group_config(GROUP, self.config)
        self._begin_clients()

    def _anew(self, ends: dict[group_admin.TopicPartition, int]) -> None:
        """Killed members leave the group only after some time."""
        deadline = time.monotonic() + PATIENCE_S
        with self.broker.connect() as connection:
            while True:
                refused = group_admin.delete_groups(connection, [GROUP]).get(GROUP)
                if refused is None or refused.code is ErrorCode.group_id_not_found:
                    break
                assert refused.code is ErrorCode.non_empty_group, refused
                assert time.monotonic() < deadline, refused
                time.sleep(0.1)
            assert not group_admin.alter_share_group_offsets(connection, GROUP, ends)

    def begin_state(self) -> None:
        """As `kbroker queues create` does: before a group has state, retention.ms alone decides,
        and workers may start later than that."""
        starts = {group_admin.TopicPartition(TOPIC, partition): 0 for partition in range(PARTITIONS)}
        with self.broker.connect() as connection:
            refused = group_admin.alter_share_group_offsets(connection, GROUP, starts)
        assert not refused, refused

    def _begin_clients(self) -> None:
        for role in self.roles or self._roles():
            self.torment.start_client(role)

    def _roles(self) -> Sequence[str]:
        if self.retention != "time":
            return RETAINED_ROLES
        return ORDERED_ROLES if self.ordered else ROLES

    def _end_clients(self) -> None:
        """End them cleanly: everything produced is confirmed."""
        for role in ("produce", "consume"):
            ended = [client for client in self.torment.clients if client.role.startswith(role)]
            for client in ended:
                client.stop()
            for client in ended:
                client.wait()
        self.torment.clients.clear()

    def finish(self) -> None:
        self._end_clients()
        self.torment.kill_broker()
        self.torment.start_broker()
        self.end()

    def end(self) -> None:
        """One worker finishes the remaining jobs; then logs and state are read."""
        self._note_starts()
        self._run("drain")
        self._wait_for_dead_letters()
        with self.broker.connect() as connection:
            lags = lags_of(connection)
            (topic,) = admin.topics(connection, [TOPIC])
        self._run("read", "read-dead-letters")
        self.torment.stop_broker()
        parked, counted, kept = self._parked()
        for partition in range(PARTITIONS):
            place = topic.topic_id, partition
            what = lags.get(partition), parked[place], counted[place], kept[place]
            self.torment.write(LeftBehind(time.monotonic_ns(), TOPIC, partition, *what))

    def _run(self, *roles: str) -> None:
        """Run them concurrently until all end."""
        for client in [self.torment.start_client(role) for role in roles]:
            client.wait()
        self.torment.clients.clear()

    def _wait_for_dead_letters(self) -> None:
        """Also waits until nothing is parked. Returns after a long time in any case: the judge
        decides."""
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline and (self._has_cursors() or self._parked().parked.total()):
            time.sleep(0.1)

    def _has_cursors(self) -> bool:
        with self._state() as reader:
            return any(True for _ in reader.scan(DeadLetterKey.namespace))

    @contextmanager
    def _state(self) -> Iterator[StateReader]:
        engine = self.broker.state_storage
        kind = engine.rpartition(":")[2]  # the part before it breaks the engine on purpose
        reader = plugins.state_store_factory(kind).open_reader(self.broker.data_dir / f"state-{engine}")
        try:
            yield reader
        finally:
            reader.close()

    def _parked(self) -> Parked:
        found = Parked(Counter(), Counter(), Counter())
        prefix = ParkedKey.namespace
        with self._state() as reader:
            for key, value in read_parked_entries(reader.scan_range(prefix, end_of(prefix))):
                place = key.topic_id, key.partition
                if isinstance(value, ParkedCount):
                    found.counted[place] += value.number
                else:
                    (found.kept if isinstance(value, KeptRecord) else found.parked)[place] += 1
        return found

    def judge(self, before: Sequence[Event] = ()) -> Report:
        """`before`: what happened before the first kill."""
        settings = replace(SETTINGS, ordered=self.ordered, cuts=self.retention != "time")
        return check(merge([before, self.torment.events()]), settings)


class Parked(NamedTuple):
    """Keys of parked records by share-partition, of any generation; the values of the counters; and
    records that are kept."""

    parked: Counter[tuple[UUID, int]]
    counted: Counter[tuple[UUID, int]]
    kept: Counter[tuple[UUID, int]]


def lags_of(connection: Connection) -> dict[int, int | None]:
    return {each.partition: each.lag for each in group_admin.describe_share_group_offsets(connection, GROUP)}


@contextmanager
def tormented(
    broker: RunningBroker,
    home: Path,
    seed: int,
    patience_s: float = PATIENCE_S,
    *,
    ordered: bool = False,
    retention: str = "time",
    load_s: tuple[float, float] = LOAD_S,
    roles: Sequence[str] = (),
    one_log: Path | None = None,
) -> Iterator[QueueTorment]:
    """A running broker with its queue, one process of producers and two or three of workers;
    stopped afterwards."""
    torment = Torment(broker, home, seed, one_log, module="tests.crash.queue_worker")
    with torment.running():
        queue = QueueTorment(
            torment, patience_s, ordered, retention, load_s, roles, _random=random.Random(seed)
        )
        broker.create_topic(TOPIC, partitions=PARTITIONS, config=queue.topic_config)
        broker.create_topic(DEAD_LETTERS, config={"errors.deadletterqueue.group.enable": "true"})
        broker.set_group_config(GROUP, queue.config)
        if retention != "time":
            queue.begin_state()
        queue._begin_clients()
        yield queue


def broker_of(
    home: Path,
    storage: str,
    state_storage: str | None = None,
    *,
    persister: str = "default",
    durability: str = "disk",
    command: Sequence[str] | None = None,
    retention: str = "time",
    recording: Recording | None = None,
) -> RunningBroker:
    config = {**BROKER_CONFIG, "kbroker.persister": persister}
    if retention != "time":
        config["log.retention.check.interval.ms"] = str(RETENTION_CHECK_MS)
        command = [*(command or LAUNCHER), LOOKS_OFTEN]
    stores = {"storage": storage, "state_storage": state_storage}
    return recorded.broker_of(
        home, recording, **stores, config=config, command=command, durability=durability
    )


def run(
    home: Path,
    storage: str,
    *,
    rounds: int,
    seed: int,
    persister: str = "default",
    durability: str = "disk",
    anew_before: int | None = None,
    command: Sequence[str] | None = None,
    patience_s: float = PATIENCE_S,
    ordered: bool = False,
    retention: str = "time",
    load_s: tuple[float, float] = LOAD_S,
    progress: Progress | None = None,
) -> Report:
    """Kill a broker for some rounds and judge. `home`: an empty directory, which keeps all
    histories and logs. `anew_before`: the round before which the group is deleted and recreated;
    jobs that are unfinished by then are excused."""
    progress = progress or silent()
    kind = "ordered queues" if ordered else "queues" if retention == "time" else f"{retention} queues"
    progress.begin(f"{kind} on {row_of(storage, storage, durability, persister)}", "round", rounds)
    broker = broker_of(
        home, storage, persister=persister, durability=durability, command=command, retention=retention
    )
    with tormented(
        broker, home, seed, patience_s, ordered=ordered, retention=retention, load_s=load_s
    ) as queue:
        if retention != "time":
            queue.load_until_cut()
        for number in range(rounds):
            before = queue.torment.kills
            if number == anew_before:
                queue.begin_anew()
            queue.round(purges=1 < rounds == number + 1)
            progress.step(kills=queue.torment.kills - before)
        queue.finish()
        report = queue.judge()
        progress.count(purges=queue.purges)
    done = report.statistics
    progress.count(
        jobs=done.confirmed_sends, deliveries=done.deliveries, delays=done.delays, schedules=done.schedules
    )
    progress.count(rejected=done.rejected, exhausted=done.exhausted, violations=len(report.violations))
    if retention != "time":
        progress.count(cut=done.cut, kept=done.kept)
    return report
