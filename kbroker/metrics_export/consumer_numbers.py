"""Numbers of classic groups, consumer groups and committed offsets: how many, in which state, and
how far behind each group is.

Committed offsets and log ends are in memory.
"""

from __future__ import annotations

from typing import Final

from kbroker.broker.broker import Broker
from kbroker.groups.classic.state import GroupState
from kbroker.metrics_export.scrape import Scrape

CLASSIC_STATES: Final = tuple(str(state) for state in GroupState if state is not GroupState.DEAD)
CONSUMER_STATES: Final = ("Empty", "Assigning", "Reconciling", "Stable")


async def add_consumer_groups(scrape: Scrape, broker: Broker) -> None:
    _add_totals(scrape, broker)
    await scrape.pace.rest()
    for group_id in broker.consumer_group_service.groups.group_ids():
        await _add_lags(scrape, broker, group_id)


def _add_totals(scrape: Scrape, broker: Broker) -> None:
    counted = broker.consumer_group_service.statistics()
    classic, consumer, offsets = counted.groups.classic, counted.groups.consumer, counted.groups.offsets
    for protocol, states, groups in (
        ("classic", CLASSIC_STATES, classic.groups),
        ("consumer", CONSUMER_STATES, consumer.groups),
    ):
        scrape.add("kbroker_groups", sum(groups.values()), {"protocol": protocol})
        for state in states:
            scrape.add(f"kbroker_{protocol}_groups", groups.get(state, 0), {"state": state})
    scrape.add("kbroker_classic_group_members", classic.members)
    scrape.add("kbroker_classic_group_pending_members", classic.pending_members)
    scrape.add("kbroker_classic_group_rebalances_total", classic.rebalances)
    for protocol, members in (
        ("classic", consumer.classic_members),
        ("consumer", consumer.members - consumer.classic_members),
    ):
        scrape.add("kbroker_consumer_group_members", members, {"protocol": protocol})
    scrape.add("kbroker_consumer_group_rebalances_total", consumer.rebalances)
    scrape.add("kbroker_group_requests_waiting", counted.waiting)
    scrape.add("kbroker_committed_offsets", offsets.offsets)
    scrape.add("kbroker_offset_commits_total", offsets.commits)
    scrape.add("kbroker_offset_expirations_total", offsets.expired)
    scrape.add("kbroker_offset_deletions_total", offsets.deleted)


async def _add_lags(scrape: Scrape, broker: Broker, group_id: str) -> None:
    """The existing partitions. The loop yields after every few of them: partitions deleted in the
    meantime are left out."""
    offsets = broker.consumer_group_service.groups.offsets
    for topic_id in tuple(offsets.of(group_id)):
        for number in tuple(offsets.of(group_id).get(topic_id, ())):
            committed = offsets.of(group_id).get(topic_id, {}).get(number)
            partition = broker.topics.partition(topic_id, number)
            if committed is not None and partition is not None:
                labels = {"group": group_id, "topic": partition.topic_name, "partition": str(number)}
                scrape.add("kbroker_group_committed_offset", committed.offset, labels)
                scrape.add("kbroker_group_lag", max(0, partition.high_watermark - committed.offset), labels)
            await scrape.pace.rest()
