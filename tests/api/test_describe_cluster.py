"""DescribeCluster: one broker in every version, and the two wrong endpoint types."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from tests.api.conftest import Connect, versions

NOT_ASKED_FOR = -(1 << 31)


@pytest.mark.parametrize("version", versions("describe_cluster"))
@pytest.mark.parametrize(("asked", "operations"), [(True, 8096), (False, NOT_ASKED_FOR)])
async def test_every_version(connect: Connect, version: int, asked: bool, operations: int) -> None:
    async with connect() as client:
        answer = await client.call(
            "describe_cluster",
            version,
            include_cluster_authorized_operations=asked,
            endpoint_type=1,
            include_fenced_brokers=True,
        )
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        assert answer.cluster_id == client.broker.cluster_id
        assert answer.controller_id == 1
        assert [(each.broker_id, each.host, each.port, each.rack) for each in answer.brokers] == [
            (1, "127.0.0.1", 9092, None)
        ]
        assert answer.cluster_authorized_operations == operations


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.mismatched_endpoint_type), (0, ErrorCode.unsupported_endpoint_type), (3, 115)],
)
# BASE-20
async def test_other_endpoints(connect: Connect, version: int, endpoint_type: int, code: int) -> None:
    async with connect() as client:
        answer = await client.call(
            "describe_cluster",
            version,
            include_cluster_authorized_operations=False,
            endpoint_type=endpoint_type,
            include_fenced_brokers=False,
        )
        assert answer.error_code == code
        assert answer.error_message
        assert answer.brokers == ()
