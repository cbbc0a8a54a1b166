"""A request for a topic that does not exist leaves one line in the log, which names the client and
the command to run."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.api.conftest import Client, Connect


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines since the last time."""
    lines = [
        f"{record.levelname} {record.getMessage()}"
        for record in caplog.records
        if record.name.endswith("missing_topics")
    ]
    caplog.clear()
    return lines


async def metadata(client: Client, *names: str, create: bool = False) -> None:
    operations = dict.fromkeys(
        ("include_topic_authorized_operations", "include_cluster_authorized_operations"), False
    )
    topics = [{"name": name, "topic_id": None} for name in names]
    await client.call("metadata", 12, topics=topics, allow_auto_topic_creation=create, **operations)


async def join(client: Client, kind: str, *names: str, epoch: int = 0) -> Any:
    fields: dict[str, Any] = {"group_id": "g 1", "member_id": "m", "member_epoch": epoch, "rack_id": None}
    fields["subscribed_topic_names"] = names or None
    if kind == "share":
        return await client.call("share_group_heartbeat", 1, **fields)
    more = {
        "instance_id": None,
        "rebalance_timeout": 1000,
        "subscribed_topic_regex": None,
        "server_assignor": None,
    }
    return await client.call("consumer_group_heartbeat", 1, **fields, **more, topic_partitions=())


def line(name: str, group: str = "") -> str:
    return (
        f"WARNING client 'test' at 127.0.0.1{group} asks for topic {name}, which does not exist; "
        f"it gets nothing until there is one: kbroker topics create {name}, or kbroker queues create {name}"
    )


async def test_a_question_about_a_topic_that_does_not_exist(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect() as client:
        await client.create_topic("orders")
        await metadata(client, "orders", "__consumer_offsets", "__kbroker_redrives")
        await metadata(client, "made", create=True)
        assert said(caplog) == []
        await metadata(client, "orders", "missing", "also.missing")
        assert said(caplog) == [line("missing"), line("also.missing")]


@pytest.mark.parametrize("kind", ["share", "consumer"])
async def test_a_member_of_a_group_subscribes_to_it(
    connect: Connect, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    async with connect() as client:
        await client.create_topic("orders")
        joined = await join(client, kind, "orders", "missing", "no\ntopic")
        assert said(caplog) == [
            line("missing", ", in group 'g 1',"),
            "WARNING client 'test' at 127.0.0.1, in group 'g 1', asks for 'no\\ntopic', and gets nothing: "
            "no topic can have that name",
        ]
        await join(client, kind, epoch=joined.member_epoch)
        assert said(caplog) == []


async def test_once_in_a_while_and_never_many(
    connect: Connect, caplog: pytest.LogCaptureFixture, jump_clock: trio.testing.MockClock
) -> None:
    """A consumer repeats its requests, several consumers do, and a client may request thousands of
    topics."""
    async with connect() as client:
        for _ in range(5):
            await metadata(client, "missing")
            await join(client.another(2), "share", "missing")
        assert len(said(caplog)) == 1
        jump_clock.jump(599)
        await metadata(client, "missing")
        assert said(caplog) == []
        jump_clock.jump(2)
        await metadata(client, "missing")
        assert said(caplog) == [line("missing")]
        for number in range(1000):
            await metadata(client, f"no-{number}")
        assert len(said(caplog)) == 99
        assert client.broker.statistics().missing_topics.remembered == 100
        await client.create_topic("missing")
        jump_clock.jump(601)
        await metadata(client, "missing", "no-999")
        assert said(caplog) == [line("no-999")]
