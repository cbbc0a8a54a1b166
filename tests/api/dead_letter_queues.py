"""For tests of dead letters: a group with a dead letter queue, and the records in that queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import trio
from crc32c import crc32c
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.broker.queues.dead_letter_counters import GroupDeadLetters
from kbroker.formats.batches import HEADER_SIZE, Record, build_batch, iter_headers, iter_records
from kbroker.formats.compression import Codec
from kbroker.share import archiving
from kbroker.share.dead_letter import origin_of
from tests.api.conftest import Client
from tests.api.share_consumers import GROUP, REJECT, Member, prepare, rows, set_up_group

QUEUE = "dlq.orders"
ENABLED = {"errors.deadletterqueue.group.enable": "true"}
NAME = "errors.deadletterqueue.topic.name"
COPY = "errors.deadletterqueue.copy.record.enable"
_STEP_S = 0.05


async def prepare_dead_letters(
    client: Client,
    *sizes: int,
    partitions: int = 1,
    queue: Mapping[str, str] | None = ENABLED,
    queue_partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> tuple[UUID, int]:
    """As `prepare`, with a dead letter queue. `queue`: the topic's configs, or None if the topic
    does not exist; `configs`: the group's."""
    key = await prepare(client, *sizes, partitions=partitions)
    if queue is not None:
        await client.create_topic(QUEUE, queue_partitions, configs=queue)
    await set_up_group(client, {NAME: QUEUE, **(configs or {})})
    return key


async def set_up_broker(client: Client, configs: Mapping[str, str]) -> None:
    await _alter(client, 4, "", configs)


async def set_up_topic(client: Client, topic: str, configs: Mapping[str, str]) -> None:
    await _alter(client, 2, topic, configs)


async def _alter(client: Client, resource_type: int, name: str, configs: Mapping[str, str]) -> None:
    entries = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
    resource = {"resource_type": resource_type, "resource_name": name, "configs": entries}
    answer = await client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    assert answer.responses[0].error_code == 0, answer


async def reject(client: Client, key: tuple[UUID, int], *offsets: int, member_id: str = "M1") -> Member:
    """A member that has fetched all records and rejected these; it still holds the others."""
    member = Member(client, member_id)
    await member.fetch([key], wait_ms=5000)
    answer = await member.acknowledge({key: [(offset, offset, [REJECT]) for offset in offsets]})
    assert rows(answer)[key].error_code == 0
    return member


def damaged_batch() -> bytes:
    """One record, with a correct CRC, that no client and no broker can decompress."""
    return reframed(build_batch([Record(0, 1, None, bytes(1000))], codec=Codec.GZIP), b"no gzip")


def reframed(batch: bytes, payload: bytes) -> bytes:
    """The batch with another compressed payload."""
    data = bytearray(batch[:HEADER_SIZE] + payload)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def batches_of(client: Client, topic: str = QUEUE, partition: int = 0) -> list[list[Record]]:
    """The records of a topic, batch by batch."""
    found = client.partition(topic, partition)
    views = found.read_now(found.log_start_offset, max_bytes=1 << 30, end_offset=found.high_watermark)
    return [list(iter_records(view, position)) for view in views for position, _ in iter_headers(view)]


def letters_of(client: Client, topic: str = QUEUE, partition: int = 0) -> list[Record]:
    return [record for batch in batches_of(client, topic, partition) for record in batch]


def offsets_of(records: Sequence[Record]) -> list[int]:
    """The source offsets of the dead letters."""
    return [origin.offset for record in records if (origin := origin_of(record.headers)) is not None]


async def until(condition: Callable[[], object]) -> None:
    """Wait until the broker has done something by itself."""
    with trio.fail_after(20):
        while not condition():
            await trio.lowlevel.checkpoint()


async def pass_time(client: Client, clock: MockClock, seconds: float) -> None:
    """In small steps, after each of which all tasks run: a clock that jumps by itself would outrun
    the threads that commit."""
    for _ in range(round(seconds / _STEP_S)):
        clock.jump(_STEP_S)
        await wait_all_tasks_blocked()
        while any(
            commits._idle_task is None or commits._is_in_flight
            for commits in (client.broker.log_commits, client.broker.state_commits)
        ):
            await trio.lowlevel.checkpoint()


def is_done(client: Client, group_id: str = GROUP) -> bool:
    """No record of the group is ARCHIVING, in memory or on disk."""
    engines = [
        loaded.engine for loaded in client.broker.share_partitions.loaded() if loaded.key[0] == group_id
    ]
    return not any(engine is None or archiving.has_archiving(engine) for engine in engines)


def counters_of(client: Client, group_id: str = GROUP) -> GroupDeadLetters:
    return client.broker.dead_letters.statistics().groups.get(group_id, GroupDeadLetters())


async def all_done(client: Client) -> None:
    """Dead letters are written and their cursors removed."""
    await until(lambda: is_done(client) and client.broker.dead_letters.statistics().share_partitions == 0)
