"""For tests of dead letters: a group with a dead letter queue, and what is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import trio

from kbroker.records import Record, iter_headers, iter_records
from kbroker.share.dead_letter import origin_of
from tests.api.conftest import Client
from tests.api.share_consumers import GROUP, REJECT, Member, prepare, rows, set_up_group

QUEUE = "dlq.orders"
ENABLED = {"errors.deadletterqueue.group.enable": "true"}
NAME = "errors.deadletterqueue.topic.name"
COPY = "errors.deadletterqueue.copy.record.enable"


async def prepare_dead_letters(
    client: Client, *sizes: int, partitions: int = 1, queue: dict[str, str] | None = ENABLED, **configs: str
) -> tuple[UUID, int]:
    """As `prepare`, with a dead letter queue of one partition (`queue`: its configs; None: there is no such topic)."""
    key = await prepare(client, *sizes, partitions=partitions)
    if queue is not None:
        await client.create_topic(QUEUE, configs=queue)
    await set_up_group(client, {NAME: QUEUE, **{name.replace("_", "."): value for name, value in configs.items()}})
    return key


async def reject(client: Client, key: tuple[UUID, int], *offsets: int, member_id: str = "M1") -> Member:
    """A member that has fetched all there is and rejected these; it still holds the others."""
    member = Member(client, member_id)
    await member.fetch([key], wait_ms=5000)
    answer = await member.acknowledge({key: [(offset, offset, [REJECT]) for offset in offsets]})
    assert rows(answer)[key].error_code == 0
    return member


def batches_of(client: Client, topic: str = QUEUE, partition: int = 0) -> list[list[Record]]:
    """What is in a topic, batch by batch."""
    found = client.partition(topic, partition)
    views = found.read_now(found.log_start_offset, max_bytes=1 << 30, end_offset=found.high_watermark)
    return [list(iter_records(view, position)) for view in views for position, _ in iter_headers(view)]


def letters_of(client: Client, topic: str = QUEUE, partition: int = 0) -> list[Record]:
    return [record for batch in batches_of(client, topic, partition) for record in batch]


def offsets_of(records: Sequence[Record]) -> list[int]:
    """Which offsets of the source the dead letters stand for."""
    return [origin.offset for record in records if (origin := origin_of(record.headers)) is not None]


async def until(condition: Callable[[], object]) -> None:
    """Something that happens by itself has happened."""
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.002)


def is_done(client: Client, group_id: str = GROUP) -> bool:
    """Nothing of the group is ARCHIVING, or said to be on disk."""
    engines = [loaded.engine for loaded in client.broker.share_groups.loaded() if loaded.key[0] == group_id]
    return not any(engine is None or engine.has_archiving for engine in engines)


async def all_done(client: Client) -> None:
    """Dead letters are written and their cursors removed."""
    await until(lambda: is_done(client) and client.broker.dead_letters.statistics().share_partitions == 0)
