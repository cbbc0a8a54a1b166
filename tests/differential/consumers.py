"""Members of consumer groups (KIP-848), for scripts: each heartbeat is a step; waiting for the
broker to know topics and groups is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.differential.script import Entity, Session, Topic, Value

COORDINATOR_PARTITIONS = 4
"""The number that Kafka's recorder has; each partition learns of topics independently."""
_NOT_YET = (14, 15, 16)
Owned: TypeAlias = Mapping[Topic, Sequence[int]]


def group_of(s: Session, name: str = "g", *topics: Topic) -> str:
    """A group id of this script, whose coordinator is ready and knows these topics."""
    group = f"{s.name}-{name}"

    def ready() -> bool:
        answer = s.prepare(
            "consumer_group_describe", 1, on="probe", group_ids=[group], include_authorized_operations=False
        )
        if answer.groups[0].error_code.value not in _NOT_YET:
            return True
        s.prepare("find_coordinator", 4, on="probe", key_type=0, coordinator_keys=[group])
        return False

    s.until(ready, f"there is a coordinator of {group}")
    for topic in topics:
        wait_for_partitions(s, group, topic)
    return group


def wait_for_partitions(s: Session, group: str, topic: Topic, count: int | None = None) -> None:
    """Until the coordinator of `group` knows the topic: with `count` partitions, 0 after its
    deletion (default: any)."""
    candidates = (f"{s.name}-probe{index}" for index in range(1000))
    probe = next(name for name in candidates if _coordinator_partition(name) == _coordinator_partition(group))

    def known() -> bool:
        member = Consumer(s, probe, "probe", on="probe")
        answer = member.silently(0, subscribed_topic_names=[topic.name], rebalance_timeout=60_000)
        found = (
            sum(len(row.partitions) for row in answer.assignment.topic_partitions) if answer.assignment else 0
        )
        member.silently(-1)
        return found > 0 if count is None else found == count

    s.until(known, f"the coordinator of {group} knows {topic.name}", every_s=0.1)


def _coordinator_partition(group: str) -> int:
    """Kafka's choice: String.hashCode without its sign, modulo the partitions."""
    code = 0
    for character in group:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % COORDINATOR_PARTITIONS


def owned_rows(owned: Owned) -> list[dict[str, Value]]:
    return [{"topic_id": topic.topic_id, "partitions": list(which)} for topic, which in owned.items()]


@dataclass
class Consumer:
    """A member that sends the epoch of the last response, unless the script passes another one."""

    session: Session
    group_id: str
    member_id: str
    on: str = "a"
    version: int = 1
    epoch: int = 0
    instance_id: str | None = None

    def join(self, *topics: Topic | str, **values: Value) -> Entity:
        """Epoch 0 with a full request: no partitions, a rebalance timeout of a minute, these
        topics."""
        names = [topic if isinstance(topic, str) else topic.name for topic in topics]
        return self.beat(
            0,
            **{
                "rebalance_timeout": 60_000,
                "subscribed_topic_names": names,
                "topic_partitions": (),
                **values,
            },
        )

    def beat(self, epoch: int | None = None, owns: Owned | None = None, **values: Value) -> Entity:
        """A heartbeat in which omitted fields have not changed. `owns`: the partitions that the
        member reports."""
        if owns is not None:
            values["topic_partitions"] = owned_rows(owns)
        answer = self.session.call(
            "consumer_group_heartbeat", self.version, on=self.on, **self._request(epoch, values)
        )
        if answer is not None and answer.error_code.value == 0:
            self.epoch, self.member_id = max(answer.member_epoch, 0), answer.member_id or self.member_id
        return answer

    def leave(self, epoch: int = -1, **values: Value) -> Entity:
        return self.beat(epoch, **values)

    def silently(self, epoch: int | None = None, **values: Value) -> Entity:
        """Like `beat`, but not a step of the transcript."""
        request = self._request(epoch, {"topic_partitions": () if epoch == 0 else None, **values})
        answer = self.session.prepare("consumer_group_heartbeat", self.version, on=self.on, **request)
        if answer.error_code.value == 0:
            self.epoch = max(answer.member_epoch, 0)
        return answer

    def _request(self, epoch: int | None, values: Mapping[str, Value]) -> dict[str, Value]:
        unchanged: dict[str, Value] = {
            "group_id": self.group_id, "member_id": self.member_id,
            "member_epoch": self.epoch if epoch is None else epoch,
            "instance_id": self.instance_id, "rack_id": None, "rebalance_timeout": -1,
            "subscribed_topic_names": None,
            "server_assignor": None, "topic_partitions": None,
        }  # fmt: skip
        if self.version >= 1:
            unchanged["subscribed_topic_regex"] = None
        return {**unchanged, **values}


def describe(s: Session, *groups: str, version: int = 1, operations: bool = False) -> Entity:
    return s.call(
        "consumer_group_describe", version, group_ids=list(groups), include_authorized_operations=operations
    )
