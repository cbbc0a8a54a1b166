"""Share consuming with the `control-records` persister: repeats the tests of the default persister
on logs that also hold the share state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.api import test_share_consuming, test_share_unloading
from tests.api.conftest import Client, Connect

CONTROL_RECORDS = {"kbroker.persister": "control-records"}

NAME_LATER_OFFSETS = {
    "test_a_waiting_fetch_of_a_replaced_session_acquires_nothing",
    "test_latest_is_decided_once",
}
"""These tests name the offsets of records that are produced after state was saved; with control
records those are higher."""

globals().update(
    (name, test)
    for module in (test_share_consuming, test_share_unloading)
    for name, test in vars(module).items()
    if name.startswith("test_") and name not in NAME_LATER_OFFSETS
)


@pytest.fixture
def connect(connect: Connect) -> Connect:
    @asynccontextmanager
    async def opened(
        engine: str = "memory", config: Mapping[str, str] | None = None
    ) -> AsyncIterator[Client]:
        async with connect(engine, {**(config or {}), **CONTROL_RECORDS}) as client:
            yield client

    return opened
