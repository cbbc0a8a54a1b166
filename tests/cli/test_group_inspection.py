"""`kbroker storage inspect` on groups of all types and their committed offsets, with the memory
stores."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from kbroker.formats.group_records import (
    ClassicGroupMember,
    ClassicGroupMetadata,
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    ExpiringGroupOffset,
    GroupOffset,
)
from kbroker.formats.share_records import Message, RecordType, ShareGroupMember, ShareGroupMetadata
from kbroker.formats.state import GroupKey, GroupOffsetKey
from kbroker.inspection.groups import GroupReport, OffsetReport
from kbroker.inspection.topics import Inspection, inspect
from tests.cli.test_inspection import ORDERS, Directory

GONE = UUID(int=9)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def seen(directory: Directory) -> Inspection:
    return inspect(directory.logs, directory.state)


def put(
    directory: Directory, record_type: RecordType, group: str, value: Message, member_id: str | None = None
) -> None:
    directory.state.write([(GroupKey(record_type, group, member_id).encode(), value.encode())])


def commit(
    directory: Directory,
    group: str,
    value: GroupOffset | ExpiringGroupOffset,
    topic: UUID = ORDERS,
    partition: int = 0,
) -> None:
    directory.state.write([(GroupOffsetKey(group, topic, partition).encode(), value.encode())])


def test_groups_of_all_types_and_their_members(directory: Directory) -> None:
    members = tuple(
        ClassicGroupMember(
            member_id=name,
            client_id="c",
            client_host="/h",
            rebalance_timeout=1,
            session_timeout=1,
            subscription=b"",
            assignment=b"",
        )
        for name in ("one", "two")
    )
    generation = ClassicGroupMetadata(
        protocol_type="consumer", generation=3, protocol="range", leader="one", members=members
    )
    put(directory, RecordType.CLASSIC_GROUP_METADATA, "classic", generation)
    put(directory, RecordType.CONSUMER_GROUP_METADATA, "consumer", ConsumerGroupMetadata(epoch=1))
    put(
        directory,
        RecordType.CONSUMER_GROUP_MEMBER,
        "consumer",
        ConsumerGroupMember(client_id="", client_host="", subscribed_topic_names=()),
        "m",
    )
    put(directory, RecordType.SHARE_GROUP_METADATA, "share", ShareGroupMetadata(epoch=1, metadata_hash=0))
    put(
        directory,
        RecordType.SHARE_GROUP_MEMBER,
        "share",
        ShareGroupMember(client_id="", client_host="", subscribed_topic_names=()),
        "m",
    )
    commit(directory, "a simple one", GroupOffset(offset=1, commit_timestamp=5))
    commit(directory, "consumer", GroupOffset(offset=1, commit_timestamp=5))
    report = seen(directory)
    assert report.groups == [
        GroupReport("a simple one", "classic", 0),
        GroupReport("classic", "classic", 2),
        GroupReport("consumer", "consumer", 1),
        GroupReport("share", "share", 1),
    ]
    assert report.problems == []


def test_offsets_and_lag(directory: Directory) -> None:
    """A deleted topic whose offsets the broker had no time to remove is not a problem: the next
    start does it."""
    commit(directory, "g", GroupOffset(offset=4, leader_epoch=2, metadata="m", commit_timestamp=5))
    commit(directory, "g", ExpiringGroupOffset(offset=3, commit_timestamp=6, expire_timestamp=7), GONE, 1)
    commit(directory, "beyond", GroupOffset(offset=40, commit_timestamp=8))
    report = seen(directory)
    assert report.offsets == [
        OffsetReport("beyond", "orders", 0, 40, 0, -1, "", 8, None),
        OffsetReport("g", str(GONE), 1, 3, None, -1, "", 6, 7),
        OffsetReport("g", "orders", 0, 4, 6, 2, "m", 5, None),
    ]
    assert report.problems == []


def test_what_cannot_be_read_is_a_problem(directory: Directory) -> None:
    directory.state.write([(GroupOffsetKey("g", ORDERS, 0).encode(), b"\0\3broken")])
    directory.state.write([(GroupOffsetKey.namespace + b"\0\1", b"")])
    report = seen(directory)
    assert (report.groups, report.offsets) == ([], [])
    assert len(report.problems) == 2
    assert all(each.startswith("state key ") for each in report.problems)


def test_a_group_of_several_types_is_a_problem(directory: Directory) -> None:
    """No broker starts with it."""
    put(directory, RecordType.CONSUMER_GROUP_METADATA, "g", ConsumerGroupMetadata(epoch=1))
    put(directory, RecordType.SHARE_GROUP_METADATA, "g", ShareGroupMetadata(epoch=1, metadata_hash=0))
    assert seen(directory).problems == ["group g has records of several types: consumer, share"]
