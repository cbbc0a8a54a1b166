"""Cold snapshots in a real broker: consuming continues undisturbed, and after a restart the state
that no request has loaded is found."""

from __future__ import annotations

import pytest

from kbroker.broker.broker import Broker
from kbroker.clock import wall_clock_ms
from kbroker.errors import OperatorError, StoreFailed
from kbroker.formats.state import ShareStateKey, parse_key
from kbroker.settings.altering import BrokerConfig
from tests.api.conftest import Connect
from tests.api.dead_letter_queues import until
from tests.api.share_consumers import ACCEPT, FAST, RELEASE, Member, acquired, prepare

LATER_MS = 300_001
COLD = "share.coordinator.cold.partition.snapshot.interval.ms"


def numbers(broker: Broker) -> list[int]:
    """Of the share state keys in the store: 0 for a snapshot, others for updates."""
    keys = [parse_key(key) for key, _ in broker.state_store.scan(ShareStateKey.namespace)]
    return [key.number for key in keys if isinstance(key, ShareStateKey)]


async def test_cold_snapshots_and_what_comes_after(connect: Connect, every_engine: str) -> None:  # SC-51
    async with connect(engine=every_engine, config=FAST) as client:
        partition = await prepare(client, 4, 4)
        member = Member(client, "m")
        await member.fetch([partition], wait_ms=5000)
        await member.acknowledge({partition: [(0, 2, [ACCEPT]), (3, 3, [RELEASE])]})
        await member.acknowledge({partition: [(5, 5, [ACCEPT])]})
        before = numbers(client.broker)
        assert len(before) > 2
        await client.broker.state_housekeeping.work(wall_clock_ms() + LATER_MS)
        assert numbers(client.broker) == [0]
        await member.acknowledge({partition: [(4, 4, [RELEASE])]})
        assert numbers(client.broker) == [0, 1]
        assert acquired(await member.fetch()) == [(3, 4, 2)]
    if every_engine == "memory":
        return
    async with connect(engine=every_engine, config=FAST) as client:
        assert numbers(client.broker) == [0, 1]
        await client.broker.state_housekeeping.work(wall_clock_ms() + 2 * LATER_MS)
        assert numbers(client.broker) == [0], "although nobody has asked for it since the start"
        assert client.broker.statistics().share_state.cold_snapshots == 1
        assert acquired(await Member(client, "n").fetch([partition], wait_ms=5000)) == [(3, 4, 2), (6, 7, 1)]


async def test_the_broker_does_it_by_itself(connect: Connect) -> None:  # SC-51
    async with connect(config={**FAST, COLD: "20"}) as client:
        partition = await prepare(client, 4)
        member = Member(client, "m")
        await member.fetch([partition], wait_ms=5000)
        await member.acknowledge({partition: [(0, 3, [ACCEPT])]})
        await until(lambda: numbers(client.broker) == [0])


async def test_a_store_that_cannot_be_read_is_tried_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(config=FAST) as client:
        await prepare(client, 4)
        housekeeping = client.broker.state_housekeeping

        def fails(prefix: bytes) -> object:
            raise StoreFailed("damaged block")

        with monkeypatch.context() as patched:
            patched.setattr(client.broker.state_store, "scan", fails)
            await housekeeping.work(wall_clock_ms())
        assert "damaged block" in caplog.text
        assert housekeeping.statistics().failures == 1
        await housekeeping.work(wall_clock_ms() + LATER_MS)
        assert housekeeping.statistics().rounds == 2
        assert numbers(client.broker) == [0]


def test_the_pruning_interval_of_kafka_is_refused_with_a_reason() -> None:  # SC-52
    with pytest.raises(OperatorError, match="removes obsolete state by itself"):
        BrokerConfig.load(overrides={"share.coordinator.state.topic.prune.interval.ms": "1000"})
