"""What a share consumer promises (KIP-932), against kbroker and Apache Kafka, under both loops."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

import anyio
import pytest

from clients.python.tests.targets import Target
from kbroker.client.rpc import Connection
from kbroker_client import (
    Acquire,
    BrokerUnreachable,
    ClientClosed,
    IllegalState,
    LockLost,
    Mode,
    Outcome,
    Producer,
    Reason,
    Record,
    ShareConsumer,
    TopicPartition,
    WokenUp,
)
from tests.odd_batches import odd_batch

pytestmark = pytest.mark.anyio
POLL_S = 20.0


async def fill(target: Target, topic: str, count: int) -> None:
    async with Producer(target.bootstrap) as producer:
        await producer.send_all(topic, [b"%d" % each for each in range(count)])


def values(records: Iterable[Record]) -> list[int]:
    return [int(each.value or b"-1") for each in records]


async def test_records_are_accepted_by_the_next_poll(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 10)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        first = await consumer.poll(POLL_S)
        assert values(first) == list(range(10))
        assert {each.delivery_count for each in first} == {1}
        assert consumer.assignment == {TopicPartition(topic, 0)}
        assert await consumer.poll(0.1) == []
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        assert await consumer.poll(1.5) == []


async def test_what_was_not_accepted_is_released_at_the_end(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 3)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        assert len(await consumer.poll(POLL_S)) == 3
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        again = await consumer.poll(POLL_S)
        assert values(again) == [0, 1, 2]
        assert {each.delivery_count for each in again} == {2}


async def test_a_commit_accepts_without_another_poll(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 3)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        await consumer.poll(POLL_S)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}
        assert await consumer.commit() == {}
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        assert await consumer.poll(1.5) == []


async def test_each_record_has_its_own_outcome(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 4)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic], mode=Mode.EXPLICIT) as consumer:
        outcomes = (Outcome.ACCEPT, Outcome.RELEASE, Outcome.REJECT, Outcome.RELEASE)
        for record, outcome in zip(await consumer.poll(POLL_S), outcomes, strict=True):
            consumer.acknowledge(record, outcome)
        again = await consumer.poll(POLL_S)
        assert values(again) == [1, 3]
        for record in again:
            assert record.delivery_count == 2
            consumer.acknowledge(record)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}
        assert await consumer.poll(0.5) == []


async def test_explicit_records_must_be_acknowledged_before_the_next_poll(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 2)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic], mode="explicit") as consumer:
        first, second = await consumer.poll(POLL_S)
        consumer.acknowledge(first)
        with pytest.raises(IllegalState, match="1 records of the last poll"):
            await consumer.poll(0)
        with pytest.raises(IllegalState, match="is not to be acknowledged"):
            consumer.acknowledge(first)
        consumer.acknowledge(second)
        assert await consumer.poll(0.1) == []


async def test_implicit_records_cannot_be_acknowledged(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 1)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        (record,) = await consumer.poll(POLL_S)
        with pytest.raises(IllegalState, match="accepts records implicitly"):
            consumer.acknowledge(record)


async def test_free_records_are_acknowledged_in_any_order_while_polling(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 6)
    async with ShareConsumer(
        target.bootstrap, group=group, topics=[topic], mode="free", acquire=Acquire.RECORD_LIMIT
    ) as consumer:
        one, two = await consumer.poll(POLL_S, max_records=2)
        three, four = await consumer.poll(POLL_S, max_records=2)
        consumer.acknowledge(four)
        consumer.acknowledge(one, Outcome.RELEASE)
        consumer.acknowledge(two)
        consumer.acknowledge(three)
        rest = []
        while len(rest) < 3:
            rest += await consumer.poll(POLL_S, max_records=1)
        assert sorted(values(rest)) == [0, 4, 5]


async def test_a_record_limit_is_kept(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 7)
    async with ShareConsumer(
        target.bootstrap, group=group, topics=[topic], acquire=Acquire.RECORD_LIMIT, max_poll_records=3
    ) as consumer:
        found = [await consumer.poll(POLL_S) for _ in range(3)]
        assert [values(each) for each in found] == [[0, 1, 2], [3, 4, 5], [6]]


async def test_iteration_accepts_each_record_with_the_next(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 5)
    seen = []
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        async for record in consumer:
            seen.append(record)
            if len(seen) == 4:
                break
    assert values(seen) == [0, 1, 2, 3]
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        rest: list[Record] = []
        while len(rest) < 2:
            rest += await consumer.poll(POLL_S)
    assert sorted(values(rest)) == [3, 4]


async def test_a_renewed_record_stays_locked(target: Target) -> None:
    topic, group = target.topic(), target.group(share_record_lock_duration_ms="2000")
    await fill(target, topic, 1)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic], mode="explicit") as consumer:
        (record,) = await consumer.poll(POLL_S)
        assert consumer.lock_timeout_s == 2.0
        for _ in range(3):
            await anyio.sleep(1.0)
            consumer.acknowledge(record, Outcome.RENEW)
            assert await consumer.commit() == {TopicPartition(topic, 0): None}
        consumer.acknowledge(record)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}


async def test_a_late_acknowledgement_is_refused(target: Target) -> None:
    topic, group = target.topic(), target.group(share_record_lock_duration_ms="1000")
    await fill(target, topic, 1)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic], mode="explicit") as consumer:
        (record,) = await consumer.poll(POLL_S)
        async with ShareConsumer(target.bootstrap, group=group, topics=[topic], mode="explicit") as other:
            (again,) = await other.poll(POLL_S)
            assert again.delivery_count == 2
            consumer.acknowledge(record)
            (error,) = (await consumer.commit()).values()
            assert isinstance(error, LockLost)
            other.acknowledge(again)
            assert await other.commit() == {TopicPartition(topic, 0): None}


async def test_a_reason_of_any_text_can_be_given(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 2)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic], mode="explicit") as consumer:
        for record in await consumer.poll(POLL_S):
            consumer.acknowledge(record, Outcome.REJECT, reason=Reason("Odd", "\ud800", "x" * 100_000))
        assert await consumer.commit() == {TopicPartition(topic, 0): None}


async def test_the_callback_gets_every_outcome(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 3)
    told: list[tuple[Mapping[TopicPartition, frozenset[int]], Exception | None]] = []
    async with ShareConsumer(
        target.bootstrap, group=group, topics=[topic], mode="explicit",
        on_acknowledged=lambda offsets, error: told.append((offsets, error)),
    ) as consumer:  # fmt: skip
        for record in await consumer.poll(POLL_S):
            consumer.acknowledge(record)
        consumer.commit_soon()
        with anyio.fail_after(POLL_S):
            while not told:
                assert await consumer.poll(0.1) == []
    assert told == [({TopicPartition(topic, 0): frozenset((0, 1, 2))}, None)]


async def test_a_poll_that_waits_is_woken_up(target: Target) -> None:
    topic, group = target.topic(), target.group()
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_wake_when_polling, consumer)
            with pytest.raises(WokenUp):
                await consumer.poll()
        consumer.wake_up()
        with pytest.raises(WokenUp):
            await consumer.poll()
        assert await consumer.poll(0.1) == []


async def _wake_when_polling(consumer: ShareConsumer) -> None:
    await anyio.sleep(0.05)
    consumer.wake_up()


async def test_a_cancelled_poll_loses_nothing(target: Target) -> None:
    topic, group = target.topic(), target.group()
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic], mode="free") as consumer:
        seen: list[Record] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_fill_slowly, target, topic, 100)
            pause_s = 0.0
            with anyio.fail_after(60):
                while len(seen) < 100:
                    with anyio.move_on_after(pause_s):
                        found = await consumer.poll()
                        for record in found:
                            consumer.acknowledge(record)
                        seen += found
                    pause_s = (pause_s + 0.0007) % 0.02
        assert sorted(values(seen)) == list(range(100))
        assert {each.delivery_count for each in seen} == {1}


async def _fill_slowly(target: Target, topic: str, count: int) -> None:
    async with Producer(target.bootstrap) as producer:
        for each in range(count):
            await producer.send(topic, b"%d" % each)


async def test_polls_that_do_not_wait_get_records_in_the_end(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 3)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        seen: list[Record] = []
        with anyio.fail_after(POLL_S):
            while len(seen) < 3:
                seen += await consumer.poll(0)
                await anyio.sleep(0.01)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}


async def test_a_subscription_can_change(target: Target) -> None:
    one, two, group = target.topic(), target.topic(), target.group()
    await fill(target, one, 1)
    await fill(target, two, 1)
    async with ShareConsumer(target.bootstrap, group=group) as consumer:
        consumer.subscribe([one])
        assert consumer.subscription == {one}
        assert [each.topic for each in await consumer.poll(POLL_S)] == [one]
        consumer.subscribe([two])
        assert [each.topic for each in await consumer.poll(POLL_S)] == [two]
        consumer.unsubscribe()
        await fill(target, two, 1)
        assert await consumer.poll(0.5) == []
        consumer.subscribe([two])
        assert [each.topic for each in await consumer.poll(POLL_S)] == [two]


async def test_two_members_share_the_work(target: Target) -> None:
    topic, group = target.topic(4), target.group()
    seen: list[list[Record]] = [[], []]

    async def work(place: int) -> None:
        async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
            with anyio.fail_after(60):
                while len(seen[0]) + len(seen[1]) < 400:
                    seen[place] += await consumer.poll(0.3)
            await consumer.commit()

    await fill(target, topic, 400)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, 0)
        tasks.start_soon(work, 1)
    assert sorted(values(seen[0] + seen[1])) == list(range(400))


async def test_wrong_use_is_told_at_once(target: Target) -> None:
    topic, group = target.topic(), target.group()
    with pytest.raises(ValueError, match="name of a group"):
        ShareConsumer(target.bootstrap, group="")
    with pytest.raises(ValueError, match="list of names"):
        ShareConsumer(target.bootstrap, group=group, topics=topic)
    with pytest.raises(ValueError, match="must be at most 2147483647"):
        ShareConsumer(target.bootstrap, group=group, fetch_max_bytes=4 << 30)
    with pytest.raises(ValueError, match="not an address"):
        ShareConsumer("127.0.0.1:port", group=group)
    consumer = ShareConsumer(target.bootstrap, group=group, topics=[topic])
    with pytest.raises(IllegalState, match="async with"):
        await consumer.poll(0)
    async with consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.poll, 0.5)
        await anyio.sleep(0.05)
        with pytest.raises(IllegalState, match="another task"):
            await consumer.poll(0)
    with pytest.raises(ClientClosed):
        await consumer.poll(0)
    with pytest.raises(BrokerUnreachable, match="is the broker running there"):
        async with ShareConsumer("127.0.0.1:1", group=group, topics=[topic]):
            pass


async def test_an_error_of_the_caller_is_not_wrapped(target: Target) -> None:
    topic, group = target.topic(), target.group()

    async def fail() -> None:
        async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
            await consumer.poll(0.1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_a_program_that_uses_all_threads_gets_records(target: Target) -> None:
    """Large batches are decoded in a thread, and so locks could not be renewed either."""
    topic, group = target.topic(), target.group()
    async with Producer(target.bootstrap) as producer:
        await producer.send(topic, b"x" * 200_000)
    end, threads = threading.Event(), int(anyio.to_thread.current_default_thread_limiter().total_tokens)
    async with anyio.create_task_group() as tasks:
        for _ in range(threads):
            tasks.start_soon(anyio.to_thread.run_sync, end.wait)
        try:
            async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
                found = await consumer.poll(POLL_S)
        finally:
            end.set()
    assert len(found) == 1


@pytest.mark.parametrize(("unreadable", "times"), [(Outcome.RELEASE, 5), (Outcome.REJECT, 1)])
async def test_records_that_cannot_be_decoded(
    target: Target, caplog: pytest.LogCaptureFixture, unreadable: Outcome, times: int
) -> None:
    """Their checksum is right, so another client may read them: they are released, up to the
    delivery limit of the group. The records behind them are delivered."""
    topic, group = target.topic(), target.group()
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": odd_batch("no zstd")}]}]
    await fill(target, topic, 1)
    with Connection("127.0.0.1", target.port, client_id="odd") as odd:
        answer = odd.call("produce", 9, transactional_id=None, acks=-1, timeout=30_000, topic_data=rows)
        if answer.responses[0].partition_responses[0].error_code.value:
            pytest.skip("this broker does not take them")
    await fill(target, topic, 1)
    found: list[Record] = []
    wanted = dict.fromkeys((1, 2, 3), times)
    async with ShareConsumer(
        target.bootstrap, group=group, topics=[topic], unreadable=unreadable
    ) as consumer:
        with anyio.fail_after(POLL_S):
            while len(found) < 2 or undecoded(caplog, unreadable) != wanted:
                found += await consumer.poll(0.2)
        assert await consumer.poll(0.5) == []
    assert [each.offset for each in found] == [0, 4]
    assert undecoded(caplog, unreadable) == wanted


def undecoded(caplog: pytest.LogCaptureFixture, outcome: Outcome) -> Counter[int]:
    """How often each offset could not be decoded."""
    pattern = rf"records (\d+) to (\d+) cannot be decoded by this client \({outcome.name}\)"
    found: Counter[int] = Counter()
    for line in caplog.records:
        if (match := re.search(pattern, line.getMessage())) is not None:
            found.update(range(int(match[1]), int(match[2]) + 1))
    return found
