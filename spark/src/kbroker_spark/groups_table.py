"""The format kbroker-groups: groups of all types as the broker would load them at a start.

    view       a row for each
    groups     group, including classic groups without members, of which only committed offsets
               exist
    members    member of a group, with its metadata, its assignment and its target assignment
    offsets    committed offset, with its lag

The table shows the stored state, not the current one. A classic group has its last stable
generation here, even during a rebalance. A member that has died is listed until the broker removes
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from pyspark.sql.types import StructType

from kbroker.formats.group_records import (
    NOT_CLASSIC,
    AnyGroupOffset,
    ClassicGroupMember,
    ClassicGroupMetadata,
    ConsumerGroupCurrentMember,
    ConsumerGroupMember,
    ExpiringGroupOffset,
)
from kbroker.formats.share_records import SHARE_GROUP_VALUES, RecordType, ShareGroupMember
from kbroker.formats.state import Config, ConfigKey, GroupKey, GroupOffsetKey, ResourceType, read_entries
from kbroker.protocol.consumer_protocol import CONSUMER_PROTOCOL, read_assignment, read_subscription
from kbroker.storage.spi import LogId, StateReader
from kbroker_spark.data import DataDir, TopicInfo, topics
from kbroker_spark.log_ends import LogEnds
from kbroker_spark.table_source import FrozenReader
from kbroker_spark.tables import (
    BIGINT,
    INT,
    STRING,
    STRING_MAP,
    STRINGS,
    TIMESTAMP,
    Row,
    array_of,
    chosen,
    columns,
    listed,
    micros,
)

GROUPS, MEMBERS, OFFSETS = VIEWS = ("groups", "members", "offsets")
OPTIONS: Final = ("path", "view", "groups", "topics")
CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"

_PLACES: Final = array_of(topic=STRING, partition=INT)
SCHEMAS: Final[Mapping[str, StructType]] = {
    GROUPS: columns(
        group=STRING, type=STRING, protocol_type=STRING, state=STRING, members=INT, epoch=INT,
        assignment_epoch=INT, protocol=STRING,
        configs=STRING_MAP,
    ),
    MEMBERS: columns(
        group=STRING, type=STRING, member_id=STRING, instance_id=STRING, rack_id=STRING, client_id=STRING,
        client_host=STRING,
        protocol=STRING, member_epoch=INT, state=STRING, subscribed_topics=STRINGS, subscribed_regex=STRING,
        assigned=_PLACES,
        target=_PLACES,
    ),
    OFFSETS: columns(
        group=STRING, type=STRING, topic=STRING, topic_id=STRING, partition=INT, committed_offset=BIGINT,
        leader_epoch=INT,
        metadata=STRING, committed=TIMESTAMP, expires=TIMESTAMP, log_end_offset=BIGINT, lag=BIGINT,
    ),
}  # fmt: skip

Topics: TypeAlias = Mapping[UUID, TopicInfo]
_MEMBER: Final = {CONSUMER: RecordType.CONSUMER_GROUP_MEMBER, SHARE: RecordType.SHARE_GROUP_MEMBER}
_METADATA: Final = {CONSUMER: RecordType.CONSUMER_GROUP_METADATA, SHARE: RecordType.SHARE_GROUP_METADATA}
_TARGETS: Final = {
    CONSUMER: RecordType.CONSUMER_GROUP_TARGET_METADATA,
    SHARE: RecordType.SHARE_GROUP_TARGET_METADATA,
}
_TARGET: Final = {
    CONSUMER: RecordType.CONSUMER_GROUP_TARGET_MEMBER,
    SHARE: RecordType.SHARE_GROUP_TARGET_MEMBER,
}
_CURRENT: Final = {
    CONSUMER: RecordType.CONSUMER_GROUP_CURRENT_MEMBER,
    SHARE: RecordType.SHARE_GROUP_CURRENT_MEMBER,
}
_MEMBER_STATES: Final = ("stable", "revoking", "waiting")


@dataclass(slots=True)
class Group:
    """`records` by type and member id (None: the group's own). A classic group has one record, or
    only offsets."""

    group: str
    records: dict[tuple[RecordType, str | None], Any] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        kinds = {kind for kind, _ in self.records}
        if any(kind in SHARE_GROUP_VALUES for kind in kinds):
            return SHARE
        return CONSUMER if kinds - {RecordType.CLASSIC_GROUP_METADATA} else CLASSIC

    @property
    def classic(self) -> ClassicGroupMetadata | None:
        return cast(ClassicGroupMetadata | None, self.records.get((RecordType.CLASSIC_GROUP_METADATA, None)))

    def member_ids(self) -> list[str]:
        kind = _MEMBER.get(self.type)
        return sorted(member for each, member in self.records if each is kind and member is not None)

    def get(self, kind: RecordType, member: str | None = None) -> Any:  # noqa: ANN401 - the type of record says which
        return self.records.get((kind, member))


def view_of(options: Mapping[str, str]) -> str:
    return chosen(options, "view", VIEWS)


def schema(options: Mapping[str, str]) -> StructType:
    return SCHEMAS[view_of(options)]


def reader(options: Mapping[str, str], wanted: StructType) -> FrozenReader:
    return FrozenReader(rows, options, schema(options), wanted)


def rows(data: DataDir, options: Mapping[str, str]) -> Iterator[Row]:
    view, names = view_of(options), listed(options, "groups")
    with data.state().snapshot() as moment:
        named = {topic.topic_id: topic for topic in topics(moment)}
        found = [group for group in read_groups(moment) if names is None or group.group in names]
        if view == GROUPS:
            yield from map(group_row, found)
        elif view == MEMBERS:
            for group in found:
                yield from member_rows(group, named)
        else:
            ends, types = (
                LogEnds(data.logs(), moment, named.values()),
                {group.group: group.type for group in found},
            )
            yield from offset_rows(ends, moment, types, named, listed(options, "topics"))


def read_groups(state: StateReader) -> list[Group]:
    """All groups, sorted by name. Raises ValueError for a record that cannot be read."""
    found: dict[str, Group] = {}
    for key, value in read_entries(state.scan(GroupKey.namespace)):
        assert isinstance(key, GroupKey), "that is its namespace"
        found.setdefault(key.group_id, Group(key.group_id)).records[key.record_type, key.member_id] = value
    for key, _ in read_entries(state.scan(GroupOffsetKey.namespace)):
        assert isinstance(key, GroupOffsetKey), "that is its namespace"
        found.setdefault(key.group_id, Group(key.group_id))
    for key, value in read_entries(state.scan(ConfigKey.namespace)):
        if (
            isinstance(key, ConfigKey)
            and isinstance(value, Config)
            and key.resource_type is ResourceType.GROUP
            and key.name in found
        ):
            found[key.name].configs = value.entries
    return [found[name] for name in sorted(found)]


# --- groups ---


def group_row(group: Group) -> Row:
    configs = list(group.configs.items())
    if group.type == CLASSIC:
        return (group.group, CLASSIC, *_classic_row(group.classic), configs)
    epoch, assignment_epoch = _epochs(group)
    members = len(group.member_ids())
    return (
        group.group,
        group.type,
        group.type,
        _state(group, epoch, assignment_epoch),
        members,
        epoch,
        assignment_epoch,
        None,
        configs,
    )


def _classic_row(found: ClassicGroupMetadata | None) -> Row:
    if found is None:
        return "", "Empty", 0, None, None, None
    state = "Stable" if found.members else "Empty"
    return found.protocol_type, state, len(found.members), found.generation, None, found.protocol


def _epochs(group: Group) -> tuple[int | None, int | None]:
    metadata, targets = group.get(_METADATA[group.type]), group.get(_TARGETS[group.type])
    return (None if metadata is None else metadata.epoch), (
        None if targets is None else targets.assignment_epoch
    )


def _state(group: Group, epoch: int | None, assignment_epoch: int | None) -> str:
    """The state that the broker reports, provided that all members are alive."""
    members = group.member_ids()
    if not members:
        return "Empty"
    if group.type == SHARE:
        return "Stable"
    if assignment_epoch is not None and epoch is not None and assignment_epoch < epoch:
        return "Assigning"
    current = [group.get(RecordType.CONSUMER_GROUP_CURRENT_MEMBER, member) for member in members]
    settled = all(
        each is not None and each.state == 0 and each.member_epoch == assignment_epoch for each in current
    )
    return "Stable" if settled else "Reconciling"


# --- members ---


def member_rows(group: Group, named: Topics) -> Iterator[Row]:
    if group.type == CLASSIC:
        metadata = group.classic
        for each in () if metadata is None else metadata.members:
            yield (
                group.group,
                CLASSIC,
                *_classic_member(each, metadata.protocol_type if metadata is not None else ""),
            )
        return
    for member_id in group.member_ids():
        said, current = group.get(_MEMBER[group.type], member_id), group.get(_CURRENT[group.type], member_id)
        target = group.get(_TARGET[group.type], member_id)
        yield (
            group.group,
            group.type,
            member_id,
            *_said(said),
            None if current is None else current.member_epoch,
            _member_state(current),
            list(said.subscribed_topic_names),
            getattr(said, "subscribed_topic_regex", None) or None,
            [] if current is None else _places(current.assigned_partitions, named),
            [] if target is None else _places(target.topic_partitions, named),
        )


def _said(said: ConsumerGroupMember | ShareGroupMember) -> Row:
    """Instance id, rack, client id, host and the member's protocol."""
    if isinstance(said, ShareGroupMember):
        return None, said.rack_id, said.client_id, said.client_host, SHARE
    protocol = CONSUMER if said.classic.present == NOT_CLASSIC.present else CLASSIC
    return said.instance_id, said.rack_id, said.client_id, said.client_host, protocol


def _member_state(current: Any) -> str | None:  # noqa: ANN401 - of either type
    if not isinstance(current, ConsumerGroupCurrentMember):
        return None if current is None else _MEMBER_STATES[0]
    return (
        _MEMBER_STATES[current.state]
        if 0 <= current.state < len(_MEMBER_STATES)
        else f"state {current.state}"
    )


def _classic_member(member: ClassicGroupMember, protocol_type: str) -> Row:
    """Only the metadata of ordinary consumers can be parsed; other protocol types have their own
    formats."""
    subscribed: list[str] | None = None
    assigned: list[dict[str, object]] | None = None
    rack_id = None
    if protocol_type == CONSUMER_PROTOCOL:
        try:
            subscription = read_subscription(member.subscription)
            subscribed, rack_id = list(subscription.topics), subscription.rack_id or None
            partitions = read_assignment(member.assignment).partitions if member.assignment else {}
            assigned = [
                {"topic": topic, "partition": number}
                for topic in sorted(partitions)
                for number in sorted(partitions[topic])
            ]
        except ValueError:
            subscribed = assigned = rack_id = None  # The broker accepts any bytes too.
    identity = (member.member_id, member.group_instance_id, rack_id, member.client_id, member.client_host)
    return *identity, CLASSIC, None, None, subscribed, None, assigned, assigned


def _places(parts: Sequence[Any], named: Topics) -> list[dict[str, object]]:
    """Sorted by topic and partition. A deleted topic is shown by its id."""
    found = [
        (_name(part.topic_id, named) or str(part.topic_id), number)
        for part in parts
        for number in part.partitions
    ]
    return [{"topic": topic, "partition": number} for topic, number in sorted(found)]


def _name(topic_id: UUID, named: Topics) -> str | None:
    topic = named.get(topic_id)
    return None if topic is None else topic.name


# --- offsets ---


def offset_rows(
    ends: LogEnds, state: StateReader, types: Mapping[str, str], named: Topics, names: frozenset[str] | None
) -> Iterator[Row]:
    """`types` has the types of the requested groups, `names` the requested topics (None: all)."""
    for key, value in read_entries(state.scan(GroupOffsetKey.namespace)):
        assert isinstance(key, GroupOffsetKey), "that is its namespace"
        topic = _name(key.topic_id, named)
        if key.group_id not in types or (names is not None and topic not in names):
            continue
        offset, bounds = cast(AnyGroupOffset, value), ends.get(LogId(key.topic_id, key.partition))
        yield (
            key.group_id,
            types[key.group_id],
            topic,
            str(key.topic_id),
            key.partition,
            offset.offset,
            None if offset.leader_epoch < 0 else offset.leader_epoch,
            offset.metadata,
            micros(offset.commit_timestamp),
            micros(offset.expire_timestamp) if isinstance(offset, ExpiringGroupOffset) else None,
            None if bounds is None else bounds.end,
            None if bounds is None else max(0, bounds.end - offset.offset),
        )
