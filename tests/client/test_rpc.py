"""The RPC client against a fake broker on a real socket: versions, headers, field conversion and
every kind of failure."""

from __future__ import annotations

import socket
import struct
from typing import Any
from uuid import UUID

import pytest

from kbroker.client import admin
from kbroker.client.rpc import BrokerUnreachable, Connection, ConnectionClosed, key_of
from kbroker.errors import ErrorCode, KafkaError
from tests.client.fake_broker import fake_broker

TOPIC_ID = UUID(int=7)
METADATA, API_VERSIONS, CREATE_TOPICS, SHARE_FETCH = 3, 18, 19, 78
NO_OPERATIONS = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
SHARE_FETCH_FIELDS: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "share_session_epoch": 0,
    "max_wait": 1500,
    "min_bytes": 1,
    "max_records": 5,
    "batch_size": 5,
    "topics": [
        {
            "topic_id": TOPIC_ID,
            "partitions": [
                {
                    "partition_index": 3,
                    "acknowledgement_batches": [
                        {"first_offset": 1, "last_offset": 4, "acknowledge_types": [1]}
                    ],
                }
            ],
        }
    ],
    "forgotten_topics_data": [],
}


def versions(*rows: tuple[int, int, int]) -> dict[str, Any]:
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in rows]
    return {"error_code": ErrorCode.none, "api_keys": keys}


def metadata_answer(key: int, version: int, request: Any) -> dict[str, Any]:
    if key == API_VERSIONS:
        return versions((METADATA, 0, 12), (API_VERSIONS, 0, 3))
    partitions = [
        {
            "error_code": ErrorCode.none,
            "partition_index": i,
            "leader_id": 0,
            "replica_nodes": [0],
            "isr_nodes": [0],
            "offline_replicas": [],
        }
        for i in (1, 0)
    ]
    row = {"error_code": ErrorCode.none, "name": "orders", "topic_id": TOPIC_ID, "partitions": partitions}
    return {"brokers": [], "topics": [row], "error_code": ErrorCode.none}


def test_an_ipv6_address_has_brackets() -> None:
    with pytest.raises(BrokerUnreachable, match=r"cannot connect to \[::1\]:1: "):
        Connection("::1", 1)


def test_the_highest_common_version_is_asked_for_once_per_connection() -> None:
    with fake_broker(metadata_answer) as broker, Connection("127.0.0.1", broker.port) as connection:
        for _ in range(2):
            (topic,) = admin.topics(connection)
            assert (topic.name, topic.partitions) == ("orders", (0, 1))
    assert [(key, version) for key, version, _ in broker.requests] == [
        (API_VERSIONS, 3),
        (METADATA, 12),
        (METADATA, 12),
    ]


@pytest.mark.parametrize("version", range(14))
def test_every_version_of_a_request_with_both_kinds_of_header(version: int) -> None:
    with fake_broker(metadata_answer) as broker, Connection("127.0.0.1", broker.port) as connection:
        rows = [{"name": "orders", "topic_id": None}]
        answer = connection.call("Metadata", version, topics=rows, **NO_OPERATIONS)
        assert answer.topics[0].name == "orders"
        assert type(answer).__version__ == version
    assert [topic.name for topic in broker.requests[0][2].topics] == ["orders"]


def test_nested_fields_times_and_correlation_ids() -> None:
    def answer(key: int, version: int, request: Any) -> dict[str, Any]:
        return {
            "error_code": ErrorCode.none,
            "acquisition_lock_timeout": 1,
            "responses": [],
            "node_endpoints": [],
        }

    with fake_broker(answer) as broker, Connection("127.0.0.1", broker.port) as connection:
        for _ in range(3):
            connection.call(SHARE_FETCH, 2, **SHARE_FETCH_FIELDS)
    request = broker.requests[-1][2]
    assert request.max_wait.total_seconds() == 1.5
    assert request.topics[0].partitions[0].acknowledgement_batches[0].acknowledge_types == (1,)


def test_a_field_that_the_version_cannot_carry_is_dropped_only_at_its_default() -> None:
    with fake_broker(lambda *_: None) as broker, Connection("127.0.0.1", broker.port) as connection:
        assert connection.encode("list_groups", 3, {"states_filter": (), "types_filter": ()})
        with pytest.raises(KafkaError, match=r"ListGroupsRequest v4 has no field 'types_filter'") as caught:
            connection.encode("list_groups", 4, {"types_filter": ("share",)})
        assert caught.value.code is ErrorCode.unsupported_version
        with pytest.raises(KafkaError, match="ShareFetchRequest v1 has no field 'is_renew_ack'"):
            connection.encode("share_fetch", 1, {**SHARE_FETCH_FIELDS, "is_renew_ack": True})
        assert connection.encode("share_fetch", 1, {**SHARE_FETCH_FIELDS, "is_renew_ack": False})


def test_mistaken_fields_are_type_errors() -> None:
    with fake_broker(lambda *_: None) as broker, Connection("127.0.0.1", broker.port) as connection:
        with pytest.raises(TypeError, match="no version of CreatableTopic has a field 'partitions'"):
            connection.encode("create_topics", 7, {"topics": [{"partitions": 1}], "timeout": 1})
        with pytest.raises(
            TypeError, match=r"ShareGroupDescribeRequest\.include_authorized_operations has no default"
        ):
            connection.encode("share_group_describe", 1, {"group_ids": ["g"]})
        with pytest.raises(KeyError):
            key_of("no_such_api")


def test_an_error_code_becomes_a_kafka_error_with_the_brokers_text() -> None:
    def answer(key: int, version: int, request: Any) -> dict[str, Any]:
        if key == API_VERSIONS:
            return versions((CREATE_TOPICS, 2, 7))
        row = {
            "name": "t",
            "topic_id": None,
            "error_code": ErrorCode.topic_already_exists,
            "error_message": "Topic 't' already exists.",
        }
        return {"topics": [{**row, "topic_config_error_code": 0, "configs": [], "is_sensitive": False}]}

    with fake_broker(answer) as broker, Connection("127.0.0.1", broker.port) as connection:
        with pytest.raises(KafkaError, match="already exists") as caught:
            admin.create_topic(connection, "t", partitions=3, config={"retention.ms": "1000"})
        assert caught.value.code is ErrorCode.topic_already_exists
    (row,) = broker.requests[-1][2].topics
    assert (row.num_partitions, [(c.name, c.value) for c in row.configs]) == (3, [("retention.ms", "1000")])


def test_no_common_version() -> None:
    with (
        fake_broker(lambda *_: versions((METADATA, 99, 99))) as broker,
        Connection("127.0.0.1", broker.port) as connection,
    ):
        for api in ("metadata", "list_groups"):
            with pytest.raises(KafkaError, match=f"serves no version of {api}"):
                connection.call(api)


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(
            BrokerUnreachable, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"
        ):
            Connection("127.0.0.1", port)


def test_the_broker_hangs_up_or_says_nothing() -> None:
    with (
        fake_broker(lambda *_: None) as broker,
        Connection("127.0.0.1", broker.port) as connection,
        pytest.raises(ConnectionClosed, match="without an answer"),
    ):
        connection.call("metadata")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = Connection("127.0.0.1", silent.getsockname()[1], timeout_s=0.05)
        with connection, pytest.raises(BrokerUnreachable, match=r"did not answer within 0\.05 s"):
            connection.call("metadata")


def test_an_answer_to_another_request_is_refused() -> None:
    frame = struct.pack(">ii", 4, 12345)
    refused = pytest.raises(BrokerUnreachable, match="is it a Kafka broker")
    with fake_broker(lambda *_: frame) as broker, Connection("127.0.0.1", broker.port) as connection, refused:
        connection.call("metadata", 1, topics=None)


def test_a_broker_that_does_not_know_our_version_of_api_versions() -> None:
    frame = struct.pack(">iihi", 10, 1, ErrorCode.unsupported_version.value, 0)
    refused = pytest.raises(KafkaError, match="does not answer ApiVersions v3")
    with fake_broker(lambda *_: frame) as broker, Connection("127.0.0.1", broker.port) as connection, refused:
        connection.call("metadata")


@pytest.mark.parametrize("host", ["x" * 64, "a..b"])
def test_a_name_that_no_resolver_takes(host: str) -> None:
    with pytest.raises(BrokerUnreachable, match="cannot connect"):
        Connection(host, 9092)
