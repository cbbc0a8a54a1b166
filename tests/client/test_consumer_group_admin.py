"""Requests about consumer groups against a fake broker: which requests are sent, and how groups of
both kinds and older versions are handled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from kbroker.client import consumer_group_admin
from kbroker.client.consumer_group_admin import (
    CommittedOffset,
    ConsumerGroupDescription,
    ConsumerMemberDescription,
)
from kbroker.client.group_admin import TopicPartition
from kbroker.client.rpc import API_KEYS
from kbroker.errors import ErrorCode, KafkaError
from tests.client.fake_broker import connected
from tests.protocol.test_consumer_protocol import ASSIGNMENT_V1, SUBSCRIPTION_V3

FINE = {"error_code": ErrorCode.none, "error_message": None}


def assigned(partitions: Mapping[str, list[int]]) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": UUID(int=1), "topic_name": name, "partitions": each}
            for name, each in partitions.items()
        ]
    }


def consumer_describe(request: Any) -> dict[str, Any]:
    """Knows the group "new" only."""
    member = {
        "member_id": "m",
        "member_epoch": 4,
        "client_id": "c",
        "client_host": "/h",
        "subscribed_topic_names": ["b", "a"],
        "subscribed_topic_regex": "",
        "assignment": assigned({"a": [1, 0]}),
        "target_assignment": assigned({"a": [2]}),
        "member_type": 0,
    }
    row = {
        "group_state": "Stable",
        "group_epoch": 5,
        "assignment_epoch": 4,
        "assignor_name": "uniform",
        "members": [member],
        **FINE,
    }
    unknown = {
        "error_code": ErrorCode.group_id_not_found,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
    }
    other = {**unknown, "members": ()}
    return {
        "groups": [
            {
                "group_id": name,
                **(
                    row
                    if name == "new"
                    else {**other, "error_message": f"Group {name} is not a consumer group."}
                ),
            }
            for name in request.group_ids
        ]
    }


def classic_describe(request: Any) -> dict[str, Any]:
    """As version 5 does: a group that does not exist is Dead."""
    member = {
        "member_id": "m",
        "group_instance_id": "desk",
        "client_id": "c",
        "client_host": "/h",
        "member_metadata": SUBSCRIPTION_V3,
        "member_assignment": ASSIGNMENT_V1,
    }
    stable = {
        "group_state": "Stable",
        "protocol_type": "consumer",
        "protocol_data": "range",
        "members": [member],
        **FINE,
    }
    known = {"old": stable, "connect": {**stable, "protocol_type": "connect"}}
    dead = {"group_state": "Dead", "protocol_type": "", "protocol_data": "", "members": (), **FINE}
    return {"groups": [{"group_id": name, **known.get(name, dead)} for name in request.groups]}


DESCRIBING = {
    API_KEYS["consumer_group_describe"]: consumer_describe,
    API_KEYS["describe_groups"]: classic_describe,
}


def test_groups_of_both_kinds_in_the_order_of_the_question() -> None:
    with connected(DESCRIBING, {API_KEYS["consumer_group_describe"]: 1, API_KEYS["describe_groups"]: 5}) as (
        connection,
        broker,
    ):
        old, none, new, connect = consumer_group_admin.describe_consumer_groups(
            connection, ["old", "none", "new", "connect"]
        )
    classic = ConsumerMemberDescription(
        "m", "desk", "c", "/h", "rack-1", None, ("a", "b"), None, {"a": (2,), "b": (0, 1)}, None, None
    )
    modern = ConsumerMemberDescription(
        "m", None, "c", "/h", None, 4, ("a", "b"), None, {"a": (0, 1)}, {"a": (2,)}, True
    )
    assert old == ConsumerGroupDescription("old", "classic", "Stable", "range", None, None, (classic,))
    assert new == ConsumerGroupDescription("new", "consumer", "Stable", "uniform", 5, 4, (modern,))
    assert isinstance(none, KafkaError)
    assert (none.code, none.message) == (ErrorCode.group_id_not_found, "Group none is not a consumer group.")
    assert isinstance(connect, KafkaError)
    assert connect.message == "Group connect is no consumer group: its protocol type is connect."
    assert [
        set(request.groups) for key, _, request in broker.requests if key == API_KEYS["describe_groups"]
    ] == [{"old", "none", "connect"}]


def test_a_broker_that_knows_classic_groups_only() -> None:
    with connected({API_KEYS["describe_groups"]: classic_describe}, {API_KEYS["describe_groups"]: 0}) as (
        connection,
        _,
    ):
        old, none = consumer_group_admin.describe_consumer_groups(connection, ["old", "none"])
    assert isinstance(old, ConsumerGroupDescription)
    assert (old.members[0].instance_id, old.members[0].assignment) == (None, {"a": (2,), "b": (0, 1)})
    assert isinstance(none, KafkaError)
    assert none.code is ErrorCode.group_id_not_found


def offset_row(
    partition: int,
    offset: int,
    epoch: int = -1,
    metadata: str | None = None,
    code: ErrorCode = ErrorCode.none,
) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "metadata": metadata,
        "error_code": code,
    }


@pytest.mark.parametrize("version", [2, 5, 7, 8, 9, 10])
def test_committed_offsets_of_any_version_with_topics_by_name(version: int) -> None:
    rows = {
        "topics": [
            {"name": "b", "partitions": [offset_row(1, 7, 3, "m"), offset_row(0, -1)]},
            {"name": "a", "partitions": [offset_row(2, 0)]},
        ]
    }

    def answer(request: Any) -> dict[str, Any]:
        asked = request.groups[0] if hasattr(request, "groups") else request
        assert (asked.group_id, asked.topics) == ("g", None)
        return {
            "groups": [{"group_id": "g", "error_code": ErrorCode.none, **rows}],
            "error_code": ErrorCode.none,
            **rows,
        }

    key = API_KEYS["offset_fetch"]
    with connected({key: answer}, {key: version}) as (connection, broker):
        found = consumer_group_admin.committed_offsets(connection, "g")
    epoch = 3 if version >= 5 else None
    assert found == {
        TopicPartition("a", 2): CommittedOffset(0, None, ""),
        TopicPartition("b", 1): CommittedOffset(7, epoch, "m"),
    }
    assert list(found) == sorted(found)
    assert broker.requests[-1][:2] == (key, min(version, 9))


def test_an_offset_that_is_not_told() -> None:
    row = offset_row(0, -1, code=ErrorCode.unstable_offset_commit)
    answer = {
        "groups": [
            {"group_id": "g", "error_code": ErrorCode.none, "topics": [{"name": "a", "partitions": [row]}]}
        ]
    }
    with (
        connected({API_KEYS["offset_fetch"]: lambda _: answer}) as (connection, _),
        pytest.raises(KafkaError, match="offset of group g, a-0: unstable offset commit"),
    ):
        consumer_group_admin.committed_offsets(connection, "g")


@pytest.mark.parametrize("version", [2, 9, 10])
def test_offsets_are_committed_by_nobody_and_refusals_come_back(version: int) -> None:
    def answer(request: Any) -> dict[str, Any]:
        assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
        (topic,) = request.topics
        assert [(row.partition_index, row.committed_offset) for row in topic.partitions] == [(1, 5), (0, 6)]
        rows = [
            {"partition_index": 1, "error_code": ErrorCode.none},
            {"partition_index": 0, "error_code": ErrorCode.unknown_member_id},
        ]
        return {"topics": [{"name": "a", "partitions": rows}]}

    key = API_KEYS["offset_commit"]
    with connected({key: answer}, {key: version}) as (connection, broker):
        refused = consumer_group_admin.commit_offsets(
            connection, "g", {TopicPartition("a", 1): 5, TopicPartition("a", 0): 6}
        )
    assert {place: error.code for place, error in refused.items()} == {
        TopicPartition("a", 0): ErrorCode.unknown_member_id
    }
    assert broker.requests[-1][:2] == (key, min(version, 9))


def test_deleting_offsets_of_a_group_that_is_not_there() -> None:
    answer = {"error_code": ErrorCode.group_id_not_found, "topics": ()}
    with (
        connected({API_KEYS["offset_delete"]: lambda _: answer}) as (connection, _),
        pytest.raises(KafkaError, match="group g: group id not found"),
    ):
        consumer_group_admin.delete_offsets(connection, "g", [TopicPartition("a", 0)])


def test_which_groups_are_consumer_groups() -> None:
    kinds = [
        ("classic", "consumer"),
        ("classic", ""),
        ("classic", "connect"),
        ("Consumer", "consumer"),
        ("share", "share"),
        ("streams", "streams"),
    ]
    rows = [
        {"group_id": f"{t}-{p}", "protocol_type": p, "group_state": "Empty", "group_type": t}
        for t, p in kinds
    ]
    answer = {"error_code": ErrorCode.none, "groups": rows}
    key = API_KEYS["list_groups"]
    for version in (4, 5):  # before version 5 a broker does not report types
        with connected({key: lambda _: answer}, {key: version}) as (connection, _):
            found = consumer_group_admin.consumer_groups(connection)
        assert [each.group_id for each in found] == ["Consumer-consumer", "classic-", "classic-consumer"]
