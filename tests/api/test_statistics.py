"""Whatever the broker holds in memory, some statistic reports how much."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from types import ModuleType
from typing import Any

import pytest

from kbroker.broker import broker as broker_module
from kbroker.broker.broker import BrokerStatistics
from kbroker.formats.batches import ProducerInfo, Record, build_batch
from tests.api.conftest import Connect

WITHOUT_STATE = (str, int, bool, ModuleType)
ELSEWHERE = {
    "options": "what the broker was started with",
    "config": "its altered settings are counted by `configs`",
    "persister": "the share state, or a plugin",
    "producer_snapshots": "saves the producers of partitions, which count them",
    "directory": "a few names",
    "held_logs": "asks the persister; what retention saw last of each log is a metric",
    "metrics": "nothing but numbers itself",
    "background": "starts tasks for the parts, which count them",
    "share_fetches": "parts of the broker that a share fetch uses",
    "unattended": "what it loads is counted by `share_partitions`",
}


async def test_every_part_of_a_broker_has_statistics_that_cannot_be_changed(connect: Connect) -> None:
    async with connect() as client:
        parts = {
            name: part
            for name, part in vars(client.broker).items()
            if not isinstance(part, WITHOUT_STATE) and name not in ELSEWHERE
        }
        assert len(parts) > 10
        parts["sessions"] = client.broker.share_partitions.sessions
        parts["share_states"] = client.broker.share_state.coordinator.states
        parts["share_group_coordinator"] = client.broker.share_group_service.coordinator
        await client.create_topic("a")
        parts["partition"] = client.partition("a")
        parts["producers"] = client.partition("a").producers
        for name, part in parts.items():
            found: Any = part.statistics()
            field = found._fields[0] if isinstance(found, tuple) else fields(found)[0].name
            with pytest.raises((FrozenInstanceError, AttributeError)):
                setattr(found, field, 7)
            assert getattr(found, field) == getattr(part.statistics(), field), name


async def test_the_brokers_statistics_count_what_is_there(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a", 2)
        before = client.broker.statistics()
        producer = await client.call(
            "init_producer_id",
            4,
            transactional_id=None,
            transaction_timeout=1000,
            producer_id=-1,
            producer_epoch=-1,
        )
        await client.append_raw(
            "a",
            build_batch([Record(0, 1, None, b"x", ())], producer=ProducerInfo(producer.producer_id, 0, 0)),
        )
        heartbeat = {
            "group_id": "g",
            "member_id": "M1",
            "member_epoch": 0,
            "rack_id": None,
            "subscribed_topic_names": ["a"],
        }
        await client.call("share_group_heartbeat", 1, **heartbeat)
        found = client.broker.statistics()
        assert (before.producer_ids.next_id, found.producer_ids.next_id) == (0, 1)
        assert (found.topics.topics, found.topics.partitions, found.topics.unfinished_deletions) == (1, 2, 0)
        assert client.partition("a").producers.statistics() == (1, 0, 0)
        assert (found.share_group_service.groups.groups, found.share_group_service.groups.members) == (1, 1)
        service = found.share_group_service
        assert (service.initializations, service.in_administration) == (0, 0)
        assert (found.share_state.loaded, found.share_state.unsaved) == (2, 0)
        assert (
            found.share_partitions.share_partitions,
            found.share_sessions.sessions,
            found.deadlines.scheduled,
        ) == (0, 0, 0)
        assert found.log_commits.entries == 1


def test_every_statistic_of_the_broker_module_is_part_of_the_whole() -> None:
    imported = {name for name in vars(broker_module) if name.endswith("Statistics")} - {
        BrokerStatistics.__name__
    }
    assert imported == {str(field.type) for field in fields(BrokerStatistics)}
