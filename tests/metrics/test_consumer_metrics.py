"""Metrics of consumer groups: states, members, committed offsets, and lag as consumers would see
it."""

from __future__ import annotations

from pathlib import Path

from tests.api.conftest import Client
from tests.metrics.world import Samples, opened


async def commit(client: Client, group: str, topic: str, offsets: dict[int, int]) -> None:
    rows = [
        {"partition_index": number, "committed_offset": offset, "committed_metadata": None}
        for number, offset in offsets.items()
    ]
    member = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
    }
    answer = await client.call("offset_commit", 9, **member, topics=[{"name": topic, "partitions": rows}])
    assert {row.error_code for row in answer.topics[0].partitions} == {0}


def by_partition(found: Samples, name: str, group: str = "g") -> dict[tuple[str, int], float]:
    rows = [(dict(labels), value) for labels, value in found.get(name, {}).items()]
    return {
        (labels["topic"], int(labels["partition"])): value
        for labels, value in rows
        if labels["group"] == group
    }


async def test_lag_is_the_logs_end_less_the_committed_offset(tmp_path: Path) -> None:
    """No sample for a partition without an offset, and not below 0 if a client has committed beyond
    the end."""
    async with opened(tmp_path) as world:
        client = world.client
        await client.create_topic("orders", 4)
        await client.append("orders", *[1] * 5)
        await client.append("orders", *[1] * 2, partition=1)
        await commit(client, "g", "orders", {0: 3, 1: 0, 3: 7})
        await commit(client, "another", "orders", {0: 5})
        found = await world.scrape()
        assert by_partition(found, "kbroker_group_committed_offset") == {
            ("orders", 0): 3,
            ("orders", 1): 0,
            ("orders", 3): 7,
        }
        assert by_partition(found, "kbroker_group_lag") == {
            ("orders", 0): 2,
            ("orders", 1): 2,
            ("orders", 3): 0,
        }
        assert by_partition(found, "kbroker_group_lag", "another") == {("orders", 0): 0}
        assert found["kbroker_committed_offsets"] == {(): 4}
        assert found["kbroker_offset_commits_total"] == {(): 4}
        await client.append("orders", 1)
        assert by_partition(await world.scrape(), "kbroker_group_lag", "another") == {("orders", 0): 1}
        await client.call("delete_topics", 6, topics=[{"name": "orders", "topic_id": None}])
        found = await world.scrape()
        assert "kbroker_group_lag" not in found
        assert found["kbroker_committed_offsets"] == {(): 0}
        assert found["kbroker_offset_deletions_total"] == {(): 4}


async def test_groups_are_counted_by_protocol_and_state(tmp_path: Path) -> None:
    async with opened(tmp_path, {"group.initial.rebalance.delay.ms": "0"}) as world:
        client = world.client
        await client.create_topic("orders")
        await commit(client, "offsets alone", "orders", {0: 0})
        join = {
            "session_timeout": 6000,
            "rebalance_timeout": 6000,
            "member_id": "",
            "protocol_type": "consumer",
        }
        await client.call(
            "join_group", 3, group_id="classic", **join, protocols=[{"name": "range", "metadata": b""}]
        )
        beat = {
            "group_id": "consumer",
            "member_id": "m",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
        }
        beat |= {
            "rebalance_timeout": 1000,
            "subscribed_topic_names": ["orders"],
            "server_assignor": None,
            "topic_partitions": (),
        }
        await client.call("consumer_group_heartbeat", 0, **beat)
        found = await world.scrape()
        assert found["kbroker_groups"] == {
            (("protocol", "classic"),): 2,
            (("protocol", "consumer"),): 1,
            (("protocol", "share"),): 0,
        }
        states = {labels[0][1]: count for labels, count in found["kbroker_classic_groups"].items()}
        assert states == {"Empty": 1, "PreparingRebalance": 0, "CompletingRebalance": 1, "Stable": 0}
        assert sum(found["kbroker_consumer_groups"].values()) == 1
        assert set(found["kbroker_consumer_groups"]) == {
            (("state", each),) for each in ("Empty", "Assigning", "Reconciling", "Stable")
        }
        assert found["kbroker_classic_group_members"] == {(): 1}
        assert found["kbroker_consumer_group_members"] == {
            (("protocol", "classic"),): 0,
            (("protocol", "consumer"),): 1,
        }
