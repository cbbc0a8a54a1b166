"""Members of classic consumer groups, for scripts: the client's side of JoinGroup, SyncGroup,
Heartbeat and LeaveGroup.

    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, b)                                 # not part of the transcript; generation 2, a leads
    b.heartbeat(generation=1)

A member's name is its client id on a separate connection, so that ids that the broker derives from
it read `a(1)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.differential.script import Entity, Session, Topic, Value

PROBE = "probe"
_COORDINATOR_COMES = (14, 15, 16)
Answer = Callable[[], Entity]


def classic_group(s: Session, name: str = "g") -> str:
    """A group id of this script, once its coordinator is ready: a fresh Kafka creates the
    coordinator's topic on the first request."""
    group_id = f"{s.name}-{name}"

    def ready() -> bool:
        s.prepare("find_coordinator", 4, on=PROBE, key_type=0, coordinator_keys=[group_id])
        return _described(s, group_id).error_code.value not in _COORDINATOR_COMES

    s.until(ready, f"{group_id} has a coordinator")
    return group_id


def _described(s: Session, group_id: str) -> Entity:
    answer = s.prepare("describe_groups", 5, on=PROBE, groups=[group_id], include_authorized_operations=False)
    return answer.groups[0]


def until_state(s: Session, group_id: str, state: str, members: int | None = None) -> None:
    """Wait until the group is in this state and has this many members."""

    def reached() -> bool:
        group = _described(s, group_id)
        return group.group_state == state and members in (None, len(group.members))

    s.until(reached, f"{group_id} is {state}")


def describe(s: Session, *group_ids: str, version: int = 6, operations: bool = False) -> Entity:
    optional = {"include_authorized_operations": operations} if version >= 3 else {}
    return s.call("describe_groups", version, on=PROBE, groups=list(group_ids), **optional)


def delete(s: Session, *group_ids: str, version: int = 2) -> Entity:
    return s.call("delete_groups", version, on=PROBE, groups_names=list(group_ids))


def strings(*values: str) -> bytes:
    return len(values).to_bytes(4, "big") + b"".join(
        len(value).to_bytes(2, "big") + value.encode() for value in values
    )


def subscription(*topics: str | Topic) -> bytes:
    """ConsumerProtocolSubscription v0, without user data."""
    return (
        b"\0\0"
        + strings(*(topic.name if isinstance(topic, Topic) else topic for topic in topics))
        + b"\xff\xff\xff\xff"
    )


def protocols(*names: str, metadata: bytes | None = None) -> list[dict[str, Value]]:
    return [
        {"name": name, "metadata": subscription("subscribed") if metadata is None else metadata}
        for name in names
    ]


@dataclass
class ClassicMember:
    """Remembers its id and generation from the responses. `quiet`: the step is not part of the
    transcript."""

    session: Session
    group_id: str
    name: str
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    protocol: str | None = None
    session_ms: int = 30_000
    rebalance_ms: int = 30_000

    def join(self, version: int = 9, *, quiet: bool = False, **changed: Value) -> Entity:
        return self.begin_join(version, quiet=quiet, **changed)()

    def begin_join(self, version: int = 9, *, quiet: bool = False, **changed: Value) -> Answer:
        """Only send a JoinGroup. `changed`: fields other than the usual ones."""
        values: dict[str, Value] = {
            "group_id": self.group_id, "session_timeout": self.session_ms,
            "rebalance_timeout": self.rebalance_ms,
            "member_id": self.member_id, "group_instance_id": self.instance_id, "protocol_type": "consumer",
            "protocols": protocols("range"), "reason": None,
        }  # fmt: skip
        answer = self._begin("join_group", version, values | changed, quiet)

        def joined() -> Entity:
            entity = answer()
            code = None if entity is None else entity.error_code.name
            if code in ("none", "member_id_required"):
                self.member_id = entity.member_id
                self.session.names.member(entity.member_id)  # counted, also where the step is quiet
            if code == "none":
                self.generation, self.protocol = entity.generation_id, entity.protocol_name
            return entity

        return joined

    def enter(self, *, quiet: bool = True, **changed: Value) -> Answer:
        """Get a member id, then join with it; that JoinGroup is only sent."""
        if not self.member_id and self.instance_id is None:
            self.join(quiet=quiet, **changed)
        return self.begin_join(quiet=quiet, **changed)

    def sync(
        self, *assigned: ClassicMember, version: int = 5, quiet: bool = False, **changed: Value
    ) -> Entity:
        return self.begin_sync(*assigned, version=version, quiet=quiet, **changed)()

    def begin_sync(
        self, *assigned: ClassicMember, version: int = 5, quiet: bool = False, **changed: Value
    ) -> Answer:
        """Only send a SyncGroup; each of `assigned` gets its name as its assignment."""
        latest = (
            {"protocol_type": "consumer", "protocol_name": self.protocol or "range"} if version >= 5 else {}
        )
        values: dict[str, Value] = {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id if version >= 3 else None,
            "assignments": [
                {"member_id": each.member_id, "assignment": f"of {each.name}".encode()} for each in assigned
            ],
        }
        return self._begin("sync_group", version, values | latest | changed, quiet)

    def heartbeat(
        self, version: int = 4, *, generation: int | None = None, quiet: bool = False, **changed: Value
    ) -> Entity:
        values: dict[str, Value] = {
            "group_id": self.group_id, "generation_id": self.generation if generation is None else generation,
            "member_id": self.member_id, "group_instance_id": self.instance_id if version >= 3 else None,
        }  # fmt: skip
        return self._begin("heartbeat", version, values | changed, quiet)()

    def leave(self, version: int = 5, *, quiet: bool = False, **changed: Value) -> Entity:
        """Leave as clients do: up to v2 by the member id alone."""
        if version < 3:
            values: dict[str, Value] = {"group_id": self.group_id, "member_id": self.member_id}
        else:
            values = {"group_id": self.group_id, "members": [identity(self.member_id, self.instance_id)]}
        return self._begin("leave_group", version, values | changed, quiet)()

    def commit(
        self, topic: Topic, offset: int, *, version: int = 9, quiet: bool = False, **changed: Value
    ) -> Entity:
        """OffsetCommit of partition 0 as a member."""
        values: dict[str, Value] = {
            "group_id": self.group_id, "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id if version >= 7 else None,
            "topics": commit_rows(version, {topic: {0: offset}}),
        }  # fmt: skip
        return self._begin("offset_commit", version, values | changed, quiet)()

    def disconnect(self) -> None:
        self.session.disconnect(f"member {self.name}")

    def _begin(self, api: str, version: int, values: dict[str, Value], quiet: bool) -> Answer:
        name = f"member {self.name}"
        connection = self.session.connection(name, client_id=self.name)
        if not quiet:
            return self.session.begin(api, version, name, None, **values)
        connection.send_raw(connection.encode(api, version, values))
        return lambda: connection.read_response(api, version)


def identity(member_id: str, instance_id: str | None = None) -> dict[str, Value]:
    """The member's row in LeaveGroup."""
    return {"member_id": member_id, "group_instance_id": instance_id}


def commit_rows(version: int, offsets: dict[Topic, dict[int, int]], **more: Value) -> list[dict[str, Value]]:
    """Topics of OffsetCommit: offsets by topic and partition. `more`: further fields of every row;
    `committed_metadata` is empty."""
    row = {"committed_metadata": "", **({"committed_leader_epoch": -1} if version >= 6 else {}), **more}
    return [
        (topic_key(version, topic))
        | {
            "partitions": [
                {"partition_index": index, "committed_offset": offset, **row}
                for index, offset in partitions.items()
            ]
        }
        for topic, partitions in offsets.items()
    ]


def topic_key(version: int, topic: Topic) -> dict[str, Value]:
    """The topic in OffsetCommit and OffsetFetch: by its id from v10 on, by name before."""
    return {"topic_id": topic.topic_id} if version >= 10 else {"name": topic.name}


def form(*members: ClassicMember, **joined: Value) -> None:
    """Let new members join one after the other: the group is stable, the first one leads, the
    generation is the number of members. Not part of the transcript. `joined`: fields of JoinGroup
    other than the usual ones."""
    for count in range(1, len(members) + 1):
        present = members[:count]
        waiting = [present[-1].enter(**joined)]
        if count > 1:
            until_state(present[0].session, present[0].group_id, "PreparingRebalance", count)
        waiting += [each.begin_join(quiet=True, **joined) for each in present[:-1]]
        _expect_success(waiting, "join_group")
        share_out(*present)


def share_out(leader: ClassicMember, *followers: ClassicMember) -> None:
    """SyncGroup of all members, with an assignment for each. Not part of the transcript."""
    present: Sequence[ClassicMember] = (leader, *followers)
    waiting = [leader.begin_sync(*present, quiet=True), *(each.begin_sync(quiet=True) for each in followers)]
    _expect_success(waiting, "sync_group")


def _expect_success(waiting: Sequence[Answer], what: str) -> None:
    codes = [answer().error_code for answer in waiting]
    if any(code.value for code in codes):
        raise AssertionError(f"{what}: {[code.name for code in codes]}")
