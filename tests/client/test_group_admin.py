"""Requests about groups against a fake broker: which requests are sent, and how answers, refusals
and older versions are handled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

import pytest

from kbroker.client import group_admin
from kbroker.client.group_admin import ShareOffset, TopicPartition
from kbroker.client.rpc import Connection
from kbroker.errors import ErrorCode, KafkaError
from tests.client.fake_broker import FakeBroker, connected

FIND_COORDINATOR, LIST_GROUPS, DELETE_GROUPS, SHARE_GROUP_DESCRIBE = 10, 16, 42, 77
DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 90, 91, 92
OK = {"error_code": ErrorCode.none, "error_message": None}
NO_TOPIC = {
    "error_code": ErrorCode.unknown_topic_or_partition,
    "error_message": "This server does not host it.",
}


def answering(
    api_key: int, answer: Callable[[Any], dict[str, Any]], highest: Mapping[int, int] | None = None
) -> AbstractContextManager[tuple[Connection, FakeBroker]]:
    """A connection to a broker that serves one API."""
    return connected({api_key: answer}, highest)


def offset_row(partition: int, start: int, lag: int, **fields: object) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "start_offset": start,
        "leader_epoch": 4,
        "lag": lag,
        **OK,
        **fields,
    }


def offsets_answer(*rows: dict[str, Any], **fields: object) -> dict[str, Any]:
    topic = {"topic_name": "orders", "topic_id": UUID(int=7), "partitions": rows}
    return {"groups": [{"group_id": "g", "topics": [topic], **OK, **fields}]}


def test_offsets_by_topic_and_partition() -> None:
    def answer(request: Any) -> dict[str, Any]:
        (group,) = request.groups
        assert (group.group_id, group.topics) == ("g", None)
        return offsets_answer(offset_row(1, 5, 3), offset_row(0, 0, 0))

    with answering(DESCRIBE_OFFSETS, answer) as (connection, broker):
        found = group_admin.describe_share_group_offsets(connection, "g")
    assert found == [ShareOffset("orders", 0, 0, 4, 0, None), ShareOffset("orders", 1, 5, 4, 3, None)]
    assert broker.requests[-1][:2] == (DESCRIBE_OFFSETS, 1)


def test_offsets_of_some_partitions() -> None:
    def answer(request: Any) -> dict[str, Any]:
        (topic,) = request.groups[0].topics
        assert (topic.topic_name, topic.partitions) == ("orders", (2, 3))
        return offsets_answer(offset_row(2, 1, 1))

    with answering(DESCRIBE_OFFSETS, answer) as (connection, _):
        assert [
            each.partition
            for each in group_admin.describe_share_group_offsets(connection, "g", {"orders": [2, 3]})
        ] == [2]


def test_an_offset_that_nobody_knows() -> None:
    """Kafka leaves start offset 0 in a row with an error; -1 elsewhere is a share-partition that
    was never used."""
    rows = (offset_row(0, -1, -1), offset_row(1, 0, -1, **NO_TOPIC), offset_row(2, 9, -1))
    with answering(DESCRIBE_OFFSETS, lambda _: offsets_answer(*rows)) as (connection, _):
        unused, refused, without_lag = group_admin.describe_share_group_offsets(connection, "g")
    assert unused == ShareOffset("orders", 0, None, None, None, None)
    assert (refused.start_offset, refused.lag) == (None, None)
    assert refused.error is not None
    assert (refused.error.code, refused.error.message) == (
        ErrorCode.unknown_topic_or_partition,
        "This server does not host it.",
    )
    assert (without_lag.start_offset, without_lag.lag) == (9, None)


def test_version_0_has_no_lag() -> None:
    with answering(
        DESCRIBE_OFFSETS, lambda _: offsets_answer({**offset_row(0, 5, 0)}), highest={DESCRIBE_OFFSETS: 0}
    ) as (
        connection,
        broker,
    ):
        assert group_admin.describe_share_group_offsets(connection, "g") == [
            ShareOffset("orders", 0, 5, 4, None, None)
        ]
    assert broker.requests[-1][:2] == (DESCRIBE_OFFSETS, 0)


def test_a_group_whose_offsets_are_refused() -> None:
    refusal = {"error_code": ErrorCode.group_authorization_failed, "error_message": "no"}
    refused = pytest.raises(KafkaError, match="this user lacks DESCRIBE on group g: `kbroker acls add")
    with answering(DESCRIBE_OFFSETS, lambda _: offsets_answer(**refusal)) as (connection, _), refused:
        group_admin.describe_share_group_offsets(connection, "g")


def test_altering_offsets_of_several_topics() -> None:
    def answer(request: Any) -> dict[str, Any]:
        asked = {
            topic.topic_name: [(row.partition_index, row.start_offset) for row in topic.partitions]
            for topic in request.topics
        }
        assert (request.group_id, asked) == ("g", {"orders": [(0, 5), (1, 6)], "returns": [(0, 7)]})
        rows = [{"partition_index": 0, **OK}, {"partition_index": 1, **NO_TOPIC}]
        return {**OK, "responses": [{"topic_name": "orders", "topic_id": UUID(int=7), "partitions": rows}]}

    wanted = {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 6, TopicPartition("returns", 0): 7}
    with answering(ALTER_OFFSETS, answer) as (connection, _):
        refused = group_admin.alter_share_group_offsets(connection, "g", wanted)
    assert {str(place): error.code for place, error in refused.items()} == {
        "orders-1": ErrorCode.unknown_topic_or_partition
    }


def test_nothing_is_done_for_a_group_with_members() -> None:
    answer = {"error_code": ErrorCode.non_empty_group, "error_message": None, "responses": []}
    with connected({ALTER_OFFSETS: lambda _: answer, DELETE_OFFSETS: lambda _: answer}) as (connection, _):
        with pytest.raises(KafkaError, match="non_empty_group"):
            group_admin.alter_share_group_offsets(connection, "g", {TopicPartition("orders", 0): 5})
        with pytest.raises(KafkaError, match="non_empty_group"):
            group_admin.delete_share_group_offsets(connection, "g", ["orders"])


def test_deleting_offsets() -> None:
    def answer(request: Any) -> dict[str, Any]:
        assert [topic.topic_name for topic in request.topics] == ["orders", "other"]
        rows = [("orders", UUID(int=7), OK), ("other", None, {**NO_TOPIC, "error_message": None})]
        return {
            **OK,
            "responses": [
                {"topic_name": name, "topic_id": topic_id, **code} for name, topic_id, code in rows
            ],
        }

    with answering(DELETE_OFFSETS, answer) as (connection, _):
        refused = group_admin.delete_share_group_offsets(connection, "g", ["orders", "other"])
    assert {topic: error.message for topic, error in refused.items()} == {
        "other": "unknown topic or partition"
    }


def test_groups_by_state_and_type() -> None:
    def answer(request: Any) -> dict[str, Any]:
        assert (request.types_filter, request.states_filter) == (("share",), ("Empty",))
        names = ("b", "a")
        rows = [
            {"group_id": name, "protocol_type": "share", "group_state": "Empty", "group_type": "share"}
            for name in names
        ]
        return {"error_code": ErrorCode.none, "groups": rows}

    with answering(LIST_GROUPS, answer) as (connection, _):
        assert [each.group_id for each in group_admin.groups(connection, states=["Empty"])] == ["a", "b"]


def test_deleting_groups() -> None:
    def answer(request: Any) -> dict[str, Any]:
        codes = {"a": ErrorCode.none, "b": ErrorCode.non_empty_group}
        return {"results": [{"group_id": name, "error_code": codes[name]} for name in request.groups_names]}

    with answering(DELETE_GROUPS, answer) as (connection, _):
        refused = group_admin.delete_groups(connection, ["a", "b"])
    assert {name: (error.code, error.message) for name, error in refused.items()} == {
        "b": (ErrorCode.non_empty_group, "non empty group")
    }


def described(group_id: str, **fields: object) -> dict[str, Any]:
    epochs = {"group_epoch": 3, "assignment_epoch": 3, "assignor_name": "simple", "members": ()}
    return {
        "group_id": group_id,
        "group_state": "Empty",
        "authorized_operations": -(1 << 31),
        **OK,
        **epochs,
        **fields,
    }


def test_describing_several_groups_one_of_them_missing() -> None:
    """In the order of the request, whatever the order of the answer."""
    missing = {"error_code": ErrorCode.group_id_not_found, "error_message": "Group b not found."}
    with answering(
        SHARE_GROUP_DESCRIBE, lambda _: {"groups": [described("b", **missing), described("a")]}
    ) as (connection, _):
        first, second = group_admin.describe_share_groups(connection, ["a", "b"])
        with pytest.raises(KafkaError, match=r"Group b not found\."):
            group_admin.describe_share_group(connection, "b")
    assert isinstance(first, group_admin.ShareGroupDescription)
    assert isinstance(second, KafkaError)
    assert (first.group_id, second.code) == ("a", ErrorCode.group_id_not_found)


def test_coordinators() -> None:
    def answer(request: Any) -> dict[str, Any]:
        node = {"node_id": 3, "host": "h", "port": 9092, **OK}
        return {"coordinators": [{"key": key, **node} for key in request.coordinator_keys]}

    with answering(FIND_COORDINATOR, answer) as (connection, _):
        assert group_admin.find_coordinators(connection, ["a", "b"]) == dict.fromkeys(
            "ab", group_admin.CoordinatorNode(3, "h", 9092)
        )


def test_a_coordinator_that_nobody_knows() -> None:
    row = {
        "key": "a",
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": ErrorCode.coordinator_not_available,
        "error_message": None,
    }
    refused = pytest.raises(KafkaError, match="coordinator_not_available")
    with answering(FIND_COORDINATOR, lambda _: {"coordinators": [row]}) as (connection, _), refused:
        group_admin.find_coordinators(connection, ["a"])
