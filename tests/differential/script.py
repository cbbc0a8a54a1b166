"""Scripts, and the session that each one gets: connections, topics, share-group members, and a
transcript of the answers.

    @script("SF-3")
    def acknowledgements_on_epoch_zero(s: Session) -> None:
        topic = s.topic()
        s.share_fetch("g", "m", 0, {topic: {0: [(0, 0, [ACCEPT])]}})

A script runs unchanged against either broker, on its own topics and groups (their names begin with
the script's). Every `call` is a step of the transcript. Preparation, and waiting for background
work of Kafka, is `prepare`d or polled for: it is not in the transcript. The names in `@script(...)`
are the rules of docs/rules that the script shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias
from uuid import UUID

from kbroker.client.rpc import Connection, ConnectionClosed, Entity
from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import Record, build_batch
from tests.differential.transcript import Json, Names, transcribe

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
PATIENCE_S = 40.0
"""How long a poll may take: Kafka initializes a share-partition with the second heartbeat, and
retries some things after 30 s."""

Value: TypeAlias = Any
Acks: TypeAlias = Sequence[tuple[int, int, Sequence[int]]]
Keep: TypeAlias = Callable[[Json], Json]
Rows: TypeAlias = Mapping["Topic", Mapping[int, Acks]]
"""Acknowledgement batches by topic and partition; no batches: the partition is only added to the
session."""


@dataclass(frozen=True)
class Script:
    name: str
    rules: tuple[str, ...]
    run: Callable[[Session], None]
    seconds: float
    alone: bool
    long: bool
    secured: bool = False
    """Written for the second profile: see secured.py."""
    restarts: bool = False
    """Written for a broker that no other script uses meanwhile: see restarts.py."""

    @property
    def profile(self) -> str:
        return "secured" if self.secured else "restarts" if self.restarts else "plain"


SCRIPTS: dict[str, Script] = {}


def script(
    *rules: str, seconds: float = 1.0, alone: bool = False, long: bool = False
) -> Callable[[Callable[[Session], None]], Callable[[Session], None]]:
    """Register a script under `module.function`. `seconds`: about how long it takes if it waits for
    locks or sessions. `alone`: Kafka's answers are repeatable only while no other script runs.
    `long`: it takes much processor time, so `make test` leaves it out."""

    def registered(run: Callable[[Session], None]) -> Callable[[Session], None]:
        name = f"{run.__module__.rsplit('.', 1)[-1]}.{run.__name__}"
        if name in SCRIPTS:
            raise ValueError(f"two scripts are named {name}")
        SCRIPTS[name] = Script(name, rules, run, seconds, alone, long)
        return run

    return registered


@dataclass(frozen=True)
class Topic:
    name: str
    topic_id: UUID


@dataclass
class Session:
    """One script's view of one broker."""

    name: str
    port: int
    names: Names = field(default_factory=Names)
    steps: list[Json] = field(default_factory=list)
    _open: ExitStack = field(default_factory=ExitStack)
    _connections: dict[str, Connection] = field(default_factory=dict)
    _topics: int = 0

    def close(self) -> None:
        self._open.close()

    def connection(self, name: str = "a", client_id: str = "differential") -> Connection:
        """Connections have names; each is opened on first use, which decides its client id."""
        if name not in self._connections:
            opened = Connection("127.0.0.1", self.port, client_id=client_id, timeout_s=PATIENCE_S)
            self._connections[name] = self._open.enter_context(opened)
        return self._connections[name]

    def disconnect(self, name: str = "a") -> None:
        self._connections.pop(name).close()

    def prepare(self, api: str, version: int, /, on: str = "a", **values: Value) -> Entity:
        """A request whose response is not part of the transcript."""
        return self.connection(on).call(api, version, **values)

    def call(
        self, api: str, version: int, /, on: str = "a", keep: Keep | None = None, **values: Value
    ) -> Entity:
        """A request and its response: a step of the transcript. A connection that the broker closes
        instead is an answer too. `keep`: the part of the answer that goes into the transcript
        (`only`), if it also lists other scripts' things."""
        return self.begin(api, version, on, keep, **values)()

    def begin(
        self, api: str, version: int, /, on: str = "a", keep: Keep | None = None, **values: Value
    ) -> Callable[[], Entity]:
        """Like `call`, but only sent: the returned function waits for the answer. Meanwhile the
        connection takes no other request."""
        step = {
            "api": api,
            "version": version,
            "request": transcribe(values, self.names),
            "answer": "none was waited for",
        }
        self.steps.append(step)
        connection = self.connection(on)
        connection.send_raw(connection.encode(api, version, values))

        def answer() -> Entity:
            try:
                entity = connection.read_response(api, version)
            except ConnectionClosed:
                step["answer"] = "connection closed"
                self.disconnect(on)
                return None
            told = transcribe(entity, self.names)
            step["answer"] = keep(told) if keep else told
            return entity

        return answer

    def attempt(self, api: str, version: int, /, on: str = "a", **values: Value) -> Entity:
        """Like `prepare`, for an API that a broker may not have: None if the connection was
        closed."""
        try:
            return self.prepare(api, version, on, **values)
        except ConnectionClosed:
            self.disconnect(on)
            return None

    def note(self, what: str, value: Json) -> None:
        """Record an observation as a step, for instance one by a real client."""
        self.steps.append({"note": what, "value": transcribe(value, self.names)})

    # Topics and records

    def topic(self, partitions: int = 1, *, name: str | None = None, **configs: str) -> Topic:
        """Create a topic; names are unique per script. Config names with _ for the dots."""
        self._topics += 1
        full = name or f"{self.name}-t{self._topics}"
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        wanted = {
            "name": full,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": (),
            "configs": rows,
        }
        (row,) = self.prepare("create_topics", 7, topics=[wanted], timeout=30_000, validate_only=False).topics
        if row.error_code.value:
            raise AssertionError(
                f"{self.name}: cannot create {full}: {row.error_code.name}, {row.error_message}"
            )
        return self.learn(full, partitions)

    def learn(self, name: str, partitions: int = 1) -> Topic:
        """Wait until the broker leads all partitions of a topic; its id and epochs get names."""
        return self.until(lambda: self._described(name, partitions), f"topic {name} is led")

    def _described(self, name: str, partitions: int) -> Topic | None:
        answer = self.prepare(
            "metadata", 12, topics=[{"topic_id": None, "name": name}],
            allow_auto_topic_creation=False, include_topic_authorized_operations=False,
        )  # fmt: skip
        (row,) = answer.topics
        if (
            row.error_code.value
            or len(row.partitions) < partitions
            or any(p.error_code.value or p.leader_id < 0 for p in row.partitions)
        ):
            return None
        if not self._has_logs(name, len(row.partitions)):
            return None
        self.names.topics[row.topic_id] = name.replace(self.name, "")
        self.names.leader_epochs |= {p.leader_epoch for p in row.partitions}
        return Topic(name, row.topic_id)

    def gone(self, topic: Topic) -> bool:
        """Whether the broker no longer knows the id of a deleted topic."""
        answer = self.prepare(
            "metadata", 12, topics=[{"topic_id": topic.topic_id, "name": None}],
            allow_auto_topic_creation=False, include_topic_authorized_operations=False,
        )  # fmt: skip
        return bool(answer.topics[0].error_code.value == 100)

    def _has_logs(self, name: str, partitions: int) -> bool:
        """Kafka lists a new topic a moment before it accepts requests for it."""
        rows = [
            {
                "name": name,
                "partitions": [{"partition_index": index, "timestamp": -1} for index in range(partitions)],
            }
        ]
        answer = self.prepare("list_offsets", 6, replica_id=-1, isolation_level=0, topics=rows)
        return not any(row.error_code.value for topic in answer.topics for row in topic.partitions)

    def produce(
        self,
        topic: Topic,
        *values: str,
        partition: int = 0,
        per_batch: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Append records, `per_batch` to a batch (all in one); waits for acks=all."""
        stamp = wall_clock_ms() if timestamp_ms is None else timestamp_ms
        size = per_batch or len(values)
        for start in range(0, len(values), size):
            rows = [Record(0, stamp, None, value.encode(), ()) for value in values[start : start + size]]
            self.produce_batch(topic, build_batch(rows), partition)

    def produce_batch(self, topic: Topic, batch: bytes, partition: int = 0) -> None:
        rows = [{"name": topic.name, "partition_data": [{"index": partition, "records": batch}]}]
        answer = self.prepare("produce", 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
        code = answer.responses[0].partition_responses[0].error_code
        if code.value:
            raise AssertionError(f"{self.name}: cannot produce to {topic.name}: {code.name}")

    # Share groups

    def group(self, name: str = "g", **configs: str) -> str:
        """A group id of this script; with configs: `share_record_lock_duration_ms="1000"`. The
        reset policy is earliest unless given."""
        group_id = f"{self.name}-{name}"
        wanted = {
            "share.auto.offset.reset": "earliest",
            **{key.replace("_", "."): value for key, value in configs.items()},
        }
        rows = [{"name": key, "config_operation": 0, "value": value} for key, value in wanted.items()]
        resource = {"resource_type": 32, "resource_name": group_id, "configs": rows}
        (row,) = self.prepare(
            "incremental_alter_configs", 1, resources=[resource], validate_only=False
        ).responses
        if row.error_code.value:
            raise AssertionError(
                f"{self.name}: cannot configure {group_id}: {row.error_code.name}, {row.error_message}"
            )
        self.until(lambda: self._is_configured(group_id, wanted), f"group {group_id} has its configs")
        return group_id

    def _is_configured(self, group_id: str, wanted: Mapping[str, str]) -> bool:
        resource = {"resource_type": 32, "resource_name": group_id, "configuration_keys": None}
        answer = self.prepare(
            "describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False
        )
        found = {row.name: row.value for row in answer.results[0].configs}
        return all(found.get(name) == value for name, value in wanted.items())

    def join(self, group_id: str, member_id: str, *topics: Topic, partitions: int = 1, on: str = "a") -> int:
        """Send heartbeats until the member has `partitions` partitions; returns its epoch."""
        wanted = [topic.name for topic in topics]
        epoch, assigned = 0, 0

        def heartbeat() -> bool:
            nonlocal epoch, assigned
            answer = self.prepare(
                "share_group_heartbeat", 1, on=on, group_id=group_id, member_id=member_id, member_epoch=epoch,
                rack_id=None, subscribed_topic_names=wanted,
            )  # fmt: skip
            if answer.error_code.value:
                # a fresh Kafka creates its coordinator's topic on the first request
                if answer.error_code.value in (14, 15, 16):
                    self.prepare("find_coordinator", 4, on=on, key_type=0, coordinator_keys=[group_id])
                    return False
                raise AssertionError(
                    f"{self.name}: {member_id} cannot join: {answer.error_code.name}, {answer.error_message}"
                )
            epoch = answer.member_epoch
            if answer.assignment is not None:
                assigned = sum(len(row.partitions) for row in answer.assignment.topic_partitions)
            return assigned >= partitions

        self.until(heartbeat, f"{member_id} has {partitions} partitions")
        return epoch

    def load(self, group_id: str, *topics: Topic, partitions: int = 1) -> None:
        """Load the share-partitions, by a session that stays open and holds nothing. Topics must
        still be empty, and the group's offsets initialized (`join`): Kafka loads in the background,
        so the first rows of a session may be missing."""
        rows = topic_rows({topic: {index: () for index in range(partitions)} for topic in topics})

        def all_rows() -> bool:
            answer = self.prepare(
                "share_fetch", 1, on="loader", group_id=group_id, member_id="loader", share_session_epoch=0,
                topics=rows,
                forgotten_topics_data=(), max_records=1, batch_size=1, max_wait=100, min_bytes=1, max_bytes=1,
            )  # fmt: skip
            clean = [
                row for topic in answer.responses for row in topic.partitions if row.error_code.value == 0
            ]
            return len(clean) == partitions * len(topics)

        self.until(all_rows, f"{group_id} is loaded")

    def member(self, group_id: str | None, member_id: str = "m", *, on: str = "a") -> Member:
        return Member(self, group_id, member_id, on)

    def share(self, partitions: int = 1, **configs: str) -> tuple[Topic, Member]:
        """An empty topic, and the member "m" of a group with these configs for which the topic's
        share-partitions are loaded."""
        return self.share_of(self.topic(partitions), partitions, **configs)

    def share_of(self, topic: Topic, partitions: int = 1, **configs: str) -> tuple[Topic, Member]:
        """Likewise, for a topic that was made for it."""
        group = self.group(**configs)
        self.join(group, "m", topic, partitions=partitions)
        self.load(group, topic, partitions=partitions)
        return topic, self.member(group)

    # Waiting

    def until(self, probe: Callable[[], Value], what: str, every_s: float = 0.05) -> Value:
        """Poll until `probe` returns a true value, and return that."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := probe()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.name}: waited {PATIENCE_S:g} s in vain until {what}")
            time.sleep(every_s)
        return found

    def wait(self, seconds: float) -> None:
        """Wait for the time that the script is about: a lock's or a session's."""
        time.sleep(seconds)


def only(table: str, field: str, *wanted: str) -> Keep:
    """Keep the rows of an answer's table whose `field` matches one of the patterns."""

    def kept(answer: Json) -> Json:
        rows = answer[table] or ()
        return {
            **answer,
            table: [row for row in rows if any(fnmatchcase(row[field], name) for name in wanted)],
        }

    return kept


def topic_rows(rows: Rows) -> list[dict[str, Value]]:
    return [
        {
            "topic_id": topic.topic_id,
            "partitions": [
                {"partition_index": index, "acknowledgement_batches": ack_rows(acks)}
                for index, acks in partitions.items()
            ],
        }
        for topic, partitions in rows.items()
    ]


def ack_rows(acks: Acks) -> list[dict[str, Value]]:
    return [
        {"first_offset": first, "last_offset": last, "acknowledge_types": types}
        for first, last, types in acks
    ]


@dataclass
class Member:
    """A share consumer that counts its session's epoch as clients do, and can be set to another
    one."""

    session: Session
    group_id: str | None
    member_id: str | None
    on: str
    epoch: int = 0

    def other(self, member_id: str = "other") -> Member:
        """Another member of the group, with a separate connection."""
        return Member(self.session, self.group_id, member_id, member_id)

    def fetch(self, rows: Rows | None = None, **how: Value) -> Entity:
        """One ShareFetch as a step, see `begin_fetch`."""
        return self.begin_fetch(rows, **how)()

    def begin_fetch(
        self,
        rows: Rows | None = None,
        *,
        epoch: int | None = None,
        version: int = 2,
        forget: Mapping[Topic, Sequence[int]] | None = None,
        max_records: int = 500,
        wait_ms: int = 0,
        **more: Value,
    ) -> Callable[[], Entity]:
        """Only send a ShareFetch. With `wait_ms` 0 the answer is repeatable only for
        share-partitions that are loaded (`Session.load`)."""
        sent = self.epoch if epoch is None else epoch
        values: dict[str, Value] = {
            "topics": topic_rows(rows or {}),
            "forgotten_topics_data": [
                {"topic_id": topic.topic_id, "partitions": list(which)}
                for topic, which in (forget or {}).items()
            ],
            "max_records": max_records,
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "batch_size": max_records,
            "group_id": self.group_id,
            "member_id": self.member_id,
            "share_session_epoch": sent,
        }
        if version >= 2:
            values |= {"share_acquire_mode": 0, "is_renew_ack": False}
        answer = self.session.begin("share_fetch", version, on=self.on, **{**values, **more})

        def counted() -> Entity:
            entity = answer()
            self._count(entity, sent)
            return entity

        return counted

    def acknowledge(self, rows: Rows, *, epoch: int | None = None, version: int = 2, **more: Value) -> Entity:
        sent = self.epoch if epoch is None else epoch
        latest = {"is_renew_ack": False} if version >= 2 else {}
        answer = self.session.call(
            "share_acknowledge", version, on=self.on, group_id=self.group_id, member_id=self.member_id,
            share_session_epoch=sent,
            **{"topics": topic_rows(rows), **latest, **more},
        )  # fmt: skip
        self._count(answer, sent)
        return answer

    def _count(self, answer: Entity, sent: int) -> None:
        if answer is not None and answer.error_code.value == 0 and sent >= 0:
            self.epoch = sent + 1
