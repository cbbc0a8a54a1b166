"""Connections of a listener without authentication act as User:ANONYMOUS from their address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tests.api.authorization_world import AUTHORIZER
from tests.metrics.world import World, opened


async def metadata(world: World) -> Any:
    answer = await world.over_the_wire(
        "metadata",
        9,
        topics=[{"name": "orders"}],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return answer.topics[0].error_code


async def test_a_client_that_does_not_authenticate_has_the_rights_of_anonymous(tmp_path: Path) -> None:
    entry = Acl(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        "orders",
        "User:ANONYMOUS",
        "127.0.0.1",
        Operation.DESCRIBE,
        Permission.ALLOW,
    )
    async with opened(tmp_path, AUTHORIZER) as world:
        await world.client.create_topic("orders")
        acls = world.broker.acls
        assert await metadata(world) == ErrorCode.topic_authorization_failed
        await acls.create([entry._replace(host="127.0.0.2")])
        assert await metadata(world) == ErrorCode.topic_authorization_failed
        await acls.create([entry])
        assert await metadata(world) == ErrorCode.none
        assert acls.denied == {(Operation.DESCRIBE, ResourceType.TOPIC): 2}


async def test_without_an_authorizer_there_are_no_rights_to_look_at(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.client.create_topic("orders")
        assert await metadata(world) == ErrorCode.none
        assert world.broker.acls.statistics().principals == 0
