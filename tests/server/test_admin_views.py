"""Views of the admin endpoint, called without a socket."""

from __future__ import annotations

import json
from pathlib import Path

from kbroker.security.principals import ANONYMOUS
from kbroker.server.admin_access import AdminCaller
from kbroker.server.admin_requests import HttpRequest
from kbroker.server.admin_views import AdminViews
from tests.api.share_consumers import FAST, GROUP, Member, prepare
from tests.metrics.world import opened


async def test_in_flight_is_given_a_share_partition_at_a_time(tmp_path: Path) -> None:
    """So that other tasks can run in between. A share-partition that is deleted meanwhile is left
    out, and the output stays one line of JSON."""
    async with opened(tmp_path, FAST) as world:
        topic_id, _ = await prepare(world.client, 1, partitions=4)
        for partition in range(1, 4):
            await world.client.append("orders", 1, partition=partition)
        for partition in range(4):
            await Member(world.client, f"M{partition}").fetch([(topic_id, partition)], wait_ms=5000)
        in_flight = AdminViews(world.broker).views()["in_flight"]
        caller = AdminCaller(ANONYMOUS, is_known=False, rights=None)
        answer = await in_flight(HttpRequest((), {}), caller, {"GROUP": GROUP})
        assert not isinstance(answer.body, bytes)
        text = b""
        async for piece in answer.body:
            assert piece.count(b'"ranges"') <= 1
            text += piece
            for loaded in world.broker.share_partitions.loaded():
                if loaded.key[1].partition in (0, 2):
                    world.broker.share_partitions.forget(GROUP, [loaded.key[1]])
        document = json.loads(text)
        assert (text.count(b"\n"), document["group"]) == (1, GROUP)
        assert [row["partition"] for row in document["share_partitions"]] == [1, 3]
        assert [row["ranges"][0]["member_id"] for row in document["share_partitions"]] == ["M1", "M3"]
