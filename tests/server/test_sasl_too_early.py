"""What a request is answered that comes where the broker expects a token."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.api import APIS
from kbroker.client.rpc import ConnectionClosed
from kbroker.errors import ErrorCode
from tests.server.sasl_world import SaslBroker, open_sasl_broker

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    with open_sasl_broker(tmp_path_factory.mktemp("sasl")) as opened:
        yield opened


@pytest.mark.parametrize("module", [api.module for api in APIS.values() if api.module != "sasl_authenticate"])
def test_another_request_instead_of_a_token(sasl: SaslBroker, module: str) -> None:
    """It is answered with 34, if its answer has a code for the whole request, in every version."""
    api = next(each for each in APIS.values() if each.module == module)
    for version in range(api.first, api.last + 1):
        with sasl.connect() as connection:
            connection.call("sasl_handshake", 1, mechanism="PLAIN")
            content = struct.pack(">hhihb", api.key, version, connection._correlation_id, -1, 0)
            connection.send_raw(struct.pack(">i", len(content)) + content)
            try:
                answer = connection.read_response(module, version)
            except ConnectionClosed:
                has_code = False
            else:
                has_code = True
                assert answer.error_code == ErrorCode.illegal_sasl_state
                assert not getattr(answer, "api_keys", ()), module
                with pytest.raises(ConnectionClosed):
                    connection.read_frame()
            if module in ("api_versions", "sasl_handshake", "find_coordinator", "heartbeat", "list_groups"):
                assert has_code or (version > 3 and module == "find_coordinator"), version


def asked_too_early(sasl: SaslBroker, api: str, version: int, **values: object) -> Any:
    with sasl.connect() as connection:
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        answer = connection.call(api, version, **values)
        with pytest.raises(ConnectionClosed):
            connection.read_frame()
        return answer


def test_a_request_instead_of_a_token_is_refused_in_each_row(sasl: SaslBroker) -> None:
    code = ErrorCode.illegal_sasl_state
    (topic,) = asked_too_early(sasl, "metadata", 1, topics=[{"name": "t"}]).topics
    assert (topic.name, topic.error_code, topic.partitions) == ("t", code, ())
    found = asked_too_early(sasl, "find_coordinator", 4, key_type=0, coordinator_keys=["g", "h"])
    rows = [(row.key, row.error_code, row.node_id, row.port) for row in found.coordinators]
    assert rows == [("g", code, -1, -1), ("h", code, -1, -1)]
    assert all(row.error_message for row in found.coordinators)
    (group,) = asked_too_early(
        sasl, "describe_groups", 5, groups=["g"], include_authorized_operations=False
    ).groups
    assert (group.group_id, group.error_code, group.group_state) == ("g", code, "")
    partitions = [{"partition_index": 3, "timestamp": -1, "current_leader_epoch": -1}]
    (listed,) = asked_too_early(
        sasl, "list_offsets", 4, replica_id=-1, isolation_level=0,
        topics=[{"name": "t", "partitions": partitions}],
    ).topics  # fmt: skip
    assert [(row.partition_index, row.error_code, row.offset) for row in listed.partitions] == [(3, code, -1)]


def test_what_is_not_known_is_minus_one(sasl: SaslBroker) -> None:
    found = asked_too_early(sasl, "find_coordinator", 3, key="g", key_type=0)
    assert (found.node_id, found.port, bool(found.error_message)) == (-1, -1, True)
    producer = asked_too_early(sasl, "init_producer_id", 1, transactional_id=None, transaction_timeout=1000)
    assert (producer.producer_id, producer.producer_epoch) == (-1, -1)


def test_an_unknown_version_of_api_versions_instead_of_a_token(sasl: SaslBroker) -> None:
    """It is answered in version 0, as ever."""
    with sasl.connect() as connection:
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        frame = bytearray(connection.encode("api_versions", 3, SOFTWARE))
        frame[6:8] = struct.pack(">h", 99)
        connection.send_raw(bytes(frame))
        assert connection.read_frame()[4:] == struct.pack(">hi", ErrorCode.illegal_sasl_state, 0)
        with pytest.raises(ConnectionClosed):
            connection.read_frame()


def test_a_large_request_instead_of_a_token_is_not_read(sasl: SaslBroker) -> None:
    keys = ["a group"] * 1000
    with sasl.connect() as connection:
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        with pytest.raises(ConnectionClosed):
            connection.call("find_coordinator", 4, key_type=0, coordinator_keys=keys)
