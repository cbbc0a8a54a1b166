"""Share consuming with the `control-records` persister: the tests of the default one once more, on
logs that hold the share state, too."""

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
"""They say which offsets records have that are produced after something was saved; those are higher
here."""

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
