"""InitProducerId: unique ids, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import ErrorCode
from tests.api.conftest import Client, Connect, versions


async def init(
    client: Client,
    version: int,
    transactional_id: str | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> Any:
    own = {"producer_id": producer_id, "producer_epoch": producer_epoch}
    return await client.call(
        "init_producer_id", version, transactional_id=transactional_id, transaction_timeout=1000, **own
    )


@pytest.mark.parametrize("version", versions("init_producer_id"))
async def test_every_version_gives_new_ids(connect: Connect, every_engine: str, version: int) -> None:
    given = []
    for _ in range(2):
        async with connect(every_engine) as client:
            for _ in range(2):
                answer = await init(client, version)
                assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
                given.append(answer.producer_id)
    assert len(set(given)) == 4


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_an_id_of_its_own(connect: Connect, version: int) -> None:  # BASE-41
    """With its epoch the request is accepted, but a new id is returned: only transactional
    producers keep theirs. Alone it is refused."""
    async with connect() as client:
        for own in ((700, 3), (0, 0), (-5, -5)):
            answer = await init(client, version, producer_id=own[0], producer_epoch=own[1])
            assert (answer.error_code, answer.producer_epoch) == (ErrorCode.none, 0)
            assert answer.producer_id not in (700, -5)
        for own in ((700, -1), (-1, 3), (-5, -1)):
            answer = await init(client, version, producer_id=own[0], producer_epoch=own[1])
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
                ErrorCode.invalid_request,
                -1,
                -1,
            )


@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [
        ("", ErrorCode.invalid_request),
        ("t", ErrorCode.none),
        ("ü" * 127 + "t", ErrorCode.none),
        ("ü" * 128, ErrorCode.invalid_request),
    ],
)
async def test_transactional_ids(connect: Connect, transactional_id: str, code: ErrorCode) -> None:
    """BASE-41. They have 1 to 255 bytes."""
    async with connect() as client:
        assert (await init(client, 5, transactional_id)).error_code == code


@pytest.mark.parametrize("version", versions("init_producer_id"))
async def test_a_transactional_id_keeps_its_producer_id(connect: Connect, version: int) -> None:
    async with connect() as client:
        first, second = [await init(client, version, "t") for _ in range(2)]
        assert (first.error_code, first.producer_epoch) == (ErrorCode.none, 0)
        assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
