"""The groups of a data directory and what they have committed, read from its state without a
broker.

`kbroker storage inspect` shows the result: the groups as a start would load them. A classic group
has the members of its last stable generation, the others all their members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from kbroker.formats.group_records import (
    AnyGroupOffset,
    ClassicGroupMetadata,
    ExpiringGroupOffset,
    GroupOffset,
)
from kbroker.formats.share_records import SHARE_GROUP_VALUES, RecordType
from kbroker.formats.state import GroupKey, GroupOffsetKey, StateKey, StateValue
from kbroker.groups.ids import CLASSIC, CONSUMER, SHARE

_MEMBER_TYPES: Final = (RecordType.CONSUMER_GROUP_MEMBER, RecordType.SHARE_GROUP_MEMBER)


@dataclass(frozen=True, slots=True)
class GroupReport:
    """`type`: as in ListGroups. A group that has only offsets is a classic one without members."""

    group: str
    type: str
    members: int


@dataclass(frozen=True, slots=True)
class OffsetReport:
    """`topic`: its id if the topic no longer exists. `lag`: None if the log no longer exists. Times
    in milliseconds; `expires_ms` None: the broker's setting applies."""

    group: str
    topic: str
    partition: int
    offset: int
    lag: int | None
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int | None


@dataclass(slots=True)
class _Found:
    types: set[str] = field(default_factory=set)
    members: int = 0


def read_groups(
    records: Iterable[tuple[StateKey, StateValue]], offsets: Iterable[OffsetReport], problems: list[str]
) -> list[GroupReport]:
    """`records`: a scan of GroupKey.namespace. Returns the groups by name."""
    found: dict[str, _Found] = {}
    for key, value in records:
        if isinstance(key, GroupKey):
            group = found.setdefault(key.group_id, _Found())
            group.types.add(_type_of(key.record_type))
            if isinstance(value, ClassicGroupMetadata):
                group.members += len(value.members)
            else:
                group.members += key.record_type in _MEMBER_TYPES
    for offset in offsets:
        if offset.group not in found:
            found[offset.group] = _Found({CLASSIC})
    for group_id, group in found.items():
        if len(group.types) > 1:
            problems.append(
                f"group {group_id} has records of several types: {', '.join(sorted(group.types))}"
            )
    return [
        GroupReport(group_id, min(group.types), group.members) for group_id, group in sorted(found.items())
    ]


def _type_of(record_type: RecordType) -> str:
    if record_type in SHARE_GROUP_VALUES:
        return SHARE
    return CLASSIC if record_type is RecordType.CLASSIC_GROUP_METADATA else CONSUMER


def read_offsets(
    records: Iterable[tuple[StateKey, StateValue]],
    topics: Mapping[UUID, str],
    ends: Mapping[tuple[UUID, int], int],
) -> list[OffsetReport]:
    """`records`: a scan of GroupOffsetKey.namespace; `topics`: names of the existing ones;
    `ends`: their logs' end offsets."""
    found: list[OffsetReport] = []
    for key, value in records:
        if isinstance(key, GroupOffsetKey) and isinstance(value, GroupOffset | ExpiringGroupOffset):
            end = ends.get((key.topic_id, key.partition))
            found.append(_report(key, value, topics.get(key.topic_id, str(key.topic_id)), end))
    return sorted(found, key=lambda each: (each.group, each.topic, each.partition))


def _report(key: GroupOffsetKey, value: AnyGroupOffset, topic: str, end: int | None) -> OffsetReport:
    return OffsetReport(
        group=key.group_id,
        topic=topic,
        partition=key.partition,
        offset=value.offset,
        lag=None if end is None else max(0, end - value.offset),
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        committed_ms=value.commit_timestamp,
        expires_ms=value.expire_timestamp if isinstance(value, ExpiringGroupOffset) else None,
    )
