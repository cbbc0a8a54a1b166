"""Features in ApiVersions, as far as no recording of Kafka shows them."""

from __future__ import annotations

import pytest

from tests.api.conftest import Connect

SOFTWARE = {"client_software_name": "kbroker", "client_software_version": "1"}


@pytest.mark.parametrize("version", [3, 4])
async def test_reasons_of_rejections_are_a_supported_feature(connect: Connect, version: int) -> None:
    """RPC-54: nothing about it is finalised."""
    async with connect() as client:
        answer = await client.call("api_versions", version, **SOFTWARE)
        supported = [(row.name, row.min_version, row.max_version) for row in answer.supported_features]
        assert ("kbroker.reject.reason", 1, 1) in supported
        assert not [row for row in answer.finalized_features if row.name.startswith("kbroker.")]
        assert all(row.min_version > 0 for row in answer.supported_features) or version > 3
