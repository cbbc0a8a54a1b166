"""QueueAdmin: the queues that `kbroker queues` makes, with the same checks, from an event loop."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import anyio
import anyio.to_thread
import pytest

from clients.python.tests.targets import Target
from kbroker import errors
from kbroker.client import admin as topic_admin
from kbroker.client import group_admin
from kbroker.client.queues.settings import SETTINGS, Wish, look, wish_of
from kbroker.client.rpc import Connection
from kbroker_client import (
    ClientClosed,
    ErrorCode,
    IllegalState,
    KafkaError,
    Outcome,
    Producer,
    QueueAdmin,
    QueueDiffers,
    QueueMissing,
    QueueRefused,
    ShareConsumer,
)

pytestmark = pytest.mark.anyio
POLL_S = 30.0
COORDINATOR_IS_NEW = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)


@pytest.fixture
def name() -> str:
    return f"q{uuid.uuid4().hex[:12]}"


@pytest.fixture
def kbroker(target: Target) -> Target:
    """Apache Kafka has none of the settings that make a share group a queue."""
    if target.broker is None:
        pytest.skip("queues cannot be created in Apache Kafka")
    return target


@pytest.fixture
def queue(target: Target, name: str) -> str:
    """A queue; in Kafka, a topic and a share group of its name."""
    if target.broker is not None:
        target.broker.create_queue(name)
        return name
    target.topic(name=name)
    ends_s = time.monotonic() + POLL_S
    while not _has_begun(target, name):
        assert time.monotonic() < ends_s, "the group has no coordinator"
        time.sleep(0.1)
    return name


def _has_begun(target: Target, group: str) -> bool:
    """Whether the group was made. A Kafka that has just started makes the topics of its
    coordinators when it is first asked for one."""
    place = group_admin.TopicPartition(group, 0)
    with Connection("127.0.0.1", target.port) as connection:
        try:
            group_admin.find_coordinators(connection, [group])
            return not group_admin.alter_share_group_offsets(connection, group, {place: 0})
        except errors.KafkaError as error:
            if error.code not in COORDINATOR_IS_NEW:
                raise
            return False


def wish_at(target: Target, name: str) -> Wish:
    with Connection("127.0.0.1", target.port) as connection:
        return wish_of(look(connection, name))


# -- creating and altering
# --------------------------------------------------------------------------------------------------


async def test_a_queue_is_that_of_the_command(kbroker: Target, name: str) -> None:
    assert kbroker.broker is not None
    other = f"{name}-2"
    await anyio.to_thread.run_sync(kbroker.broker.create_queue, other)
    async with QueueAdmin(kbroker.bootstrap) as admin:
        made = await admin.create(name)
        assert (made.name, made.is_new, made.is_altered, made.unlike_new) == (name, True, False, ())
        assert made.steps == (
            f"created dead letter topic dlq.{name}", f"set 17 configs of share group {name}",
            f"created topic {name}", f"share group {name} begins at offset 0",
        )  # fmt: skip
        again = await admin.create(name)
        assert (again.is_new, again.is_altered, again.steps) == (False, False, ())
    ours, theirs = wish_at(kbroker, name), wish_at(kbroker, other)
    assert ours == Wish(name, theirs.partitions, f"dlq.{name}", theirs.settings, theirs.configs)


VALUES: Mapping[str, tuple[Any, str, Any]] = {
    "prefetch": (5, "5", 5),
    "delay": (10, "10000", timedelta(seconds=10)),
    "multiplier": (3, "3.0", 3.0),
    "max_delay": (timedelta(hours=1), "3600000", timedelta(hours=1)),
    "jitter": (0.5, "0.5", 0.5),
    "deliveries": (5, "5", 5),
    "lock_max": ("2h", "7200000", timedelta(hours=2)),
    "assignment": ("simple", "simple", "simple"),
    "in_flight_limit": ("span", "span", "span"),
    "scheduling": (False, "false", False),
    "ttl": (0.5, "500", timedelta(milliseconds=500)),
    "ordering": ("key", "key", "key"),
    "committed": (True, "read_committed", True),
    "retention": ("unfinished", "unfinished", "unfinished"),
    "keep_dead_letters": (math.inf, "-1", "forever"),
}
"""Of each setting: a value, its text, and as it is described."""


async def test_every_setting(kbroker: Target, name: str) -> None:
    async with QueueAdmin(kbroker.bootstrap) as admin:
        await admin.create(name, partitions=3, **{key: value for key, (value, _, _) in VALUES.items()})
        described = await admin.describe(name)
    assert list(described.settings) == [each.replace("-", "_") for each in SETTINGS]
    assert described.settings == {key: value for key, (_, _, value) in VALUES.items()}
    wish = wish_at(kbroker, name)
    assert wish.settings == {key.replace("_", "-"): text for key, (_, text, _) in VALUES.items()}
    assert (wish.partitions, wish.dead_letters, wish.configs) == (3, f"dlq.{name}", {})


async def test_dead_letters(kbroker: Target, name: str) -> None:
    async with QueueAdmin(kbroker.bootstrap) as admin:
        await admin.create(name, dead_letters=False)
        described = await admin.describe(name)
        assert (described.dead_letter_topic, described.dead_letters) == (None, None)
        await admin.create(name, dead_letters=f"letters.{name}", update=True)
        described = await admin.describe(name)
        assert (described.dead_letter_topic, described.dead_letters) == (f"letters.{name}", 0)
        await admin.create(f"{name}-2", dead_letters=True)
        assert (await admin.describe(f"{name}-2")).dead_letter_topic == f"dlq.{name}-2"


async def test_a_queue_that_differs_is_altered_on_request_only(kbroker: Target, name: str) -> None:
    async with QueueAdmin(kbroker.bootstrap) as admin:
        await admin.create(name, deliveries=5)
        with pytest.raises(QueueDiffers) as refused:
            await admin.create(name, max_delay=60, partitions=2)
        assert str(refused.value) == (
            f"queue {name} was not changed: update=True alters it (max_delay is 10m, requested is 1m; "
            "partitions is 1, requested is 2)"
        )
        assert [each[:3] for each in refused.value.differences] == [
            ("max_delay", "10m", "1m"), ("partitions", "1", "2")
        ]  # fmt: skip
        made = await admin.create(name, max_delay=60, partitions=2, update=True)
        assert (made.is_new, made.is_altered) == (False, True)
        assert made.unlike_new == (("deliveries", "5", "10"),)
        described = await admin.describe(name)
        assert described.partitions == 2
        assert described.settings["max_delay"] == timedelta(minutes=1)


async def test_partitions_do_not_grow_where_keys_are_in_order(kbroker: Target, name: str) -> None:
    async with QueueAdmin(kbroker.bootstrap) as admin:
        await admin.create(name, ordering="key")
        with pytest.raises(QueueRefused, match=r"Once all .* use force=True then"):
            await admin.create(name, partitions=2, update=True)
        assert (await admin.describe(name)).partitions == 1
        await admin.create(name, partitions=2, update=True, force=True)
        assert (await admin.describe(name)).partitions == 2
        with pytest.raises(QueueRefused, match=r"partitions are never taken away: ask for 2 or more"):
            await admin.create(name, partitions=1, update=True)


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        ({"max_dely": 1}, TypeError, "no setting 'max_dely': did you mean 'max_delay'"),
        ({"colour": 1}, TypeError, "no setting 'colour': there are prefetch, delay"),
        ({"delay": -1}, ValueError, "delay: -1 is not a duration"),
        ({"delay": timedelta(days=-1)}, ValueError, "is not a duration"),
        ({"delay": math.nan}, ValueError, "delay: nan is not a duration"),
        ({"delay": math.inf}, ValueError, "delay: 'forever' is not a duration"),
        ({"delay": 1e300}, ValueError, r"delay: 1e\+300 is not a duration"),
        ({"delay": True}, ValueError, "delay: True is not a duration"),
        ({"delay": "10"}, ValueError, "delay: '10' has no unit"),
        ({"delay": timedelta(days=3)}, ValueError, "delay: '3d' is more than 1d, the maximum"),
        ({"prefetch": 1.5}, ValueError, "prefetch: 1.5 is not a whole number from 0 to 10000"),
        ({"ordering": "keys"}, ValueError, "ordering: 'keys' is not one of none, key"),
        ({"committed": "yes"}, ValueError, "committed: 'yes' is not true or false"),
        ({"partitions": 0}, ValueError, "partitions must be a whole number from 1"),
        ({"dead_letters": ""}, ValueError, "dead_letters must be the name of a topic"),
        ({"delay": 20, "max_delay": 10}, QueueRefused, "longer than its max-delay"),
        ({"deliveries": 1}, ValueError, "deliveries: 1 is not a whole number of at least 2"),
        ({"deliveries": 1000}, KafkaError, "share.delivery.count.limit must be less than or equal"),
    ],
)
async def test_values_that_are_refused(
    kbroker: Target, name: str, request_: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with QueueAdmin(kbroker.bootstrap) as admin:
        with pytest.raises(error, match=words) as refused:
            await admin.create(name, **request_)
        assert "\n" not in str(refused.value)
        with pytest.raises(QueueMissing):
            await admin.describe(name)


async def test_names_that_are_refused(kbroker: Target, name: str) -> None:
    target = kbroker
    target.topic(name=f"{name}-topic")
    async with QueueAdmin(target.bootstrap) as admin:
        for bad in ("", "a b", ".", "x" * 250):
            with pytest.raises(QueueRefused, match="name is invalid"):
                await admin.create(bad)
        with pytest.raises(QueueRefused, match="names that begin with __ are for topics of brokers"):
            await admin.create("__jobs")
        with pytest.raises(QueueRefused, match="cannot be its own dead letter topic"):
            await admin.create(name, dead_letters=name)
        with pytest.raises(QueueDiffers, match=r"update=True creates it|update=True alters it") as refused:
            await admin.create(f"{name}-topic")
        first = refused.value.differences[0]
        why = f"topic {name}-topic exists already and is no queue: what it holds would become jobs"
        assert str(first) == why
        await admin.create(f"{name}-topic", update=True)
        assert (await admin.describe(f"{name}-topic")).unfinished == 0


async def test_many_may_create_a_queue_at_once(kbroker: Target, name: str) -> None:
    made = []

    async def create(admin: QueueAdmin) -> None:
        made.append(await admin.create(name, deliveries=7))

    async with QueueAdmin(kbroker.bootstrap) as one, QueueAdmin(kbroker.bootstrap) as other:
        async with anyio.create_task_group() as tasks:
            for admin in (one, other) * 4:
                tasks.start_soon(create, admin)
        assert len(made) == 8
        assert any(each.is_new for each in made)
        assert (await one.create(name, deliveries=7)).steps == ()
    assert wish_at(kbroker, name).settings["deliveries"] == "7"


async def test_kafka_refuses_a_queue_as_it_refuses_the_command(target: Target, name: str) -> None:
    if target.broker is not None:
        pytest.skip("only Apache Kafka")
    async with QueueAdmin(target.bootstrap) as admin:
        with pytest.raises(KafkaError, match="Unknown topic config name"):
            await admin.create(name)
    with Connection("127.0.0.1", target.port) as connection:
        assert not [each for each in topic_admin.topics(connection) if name in each.name]


# -- looking, purging and deleting
# --------------------------------------------------------------------------------------------------


async def fill(target: Target, queue: str, jobs: int = 3) -> None:
    async with Producer(target.bootstrap) as producer:
        await producer.send_all(queue, [b"%d" % each for each in range(jobs)])


async def test_jobs_workers_and_dead_letters_are_counted(target: Target, queue: str) -> None:
    await fill(target, queue)
    async with QueueAdmin(target.bootstrap) as admin:
        (row,) = [each for each in await admin.list() if each.name == queue]
        assert (row.partitions, row.unfinished, row.workers) == (1, 3, 0)
        described = await admin.describe(queue)
        assert (described.sent, described.unfinished, described.workers) == (3, 3, ())
        assert not described.is_paused
        async with ShareConsumer(
            target.bootstrap, group=queue, topics=[queue], mode="explicit", client_id="worker-1"
        ) as consumer:
            done = await consumer.poll(POLL_S)
            for record in done:
                consumer.acknowledge(record, Outcome.ACCEPT)
            await consumer.commit()
            described = await admin.describe(queue)
            (worker,) = described.workers
            assert (worker.client_id, worker.host) == ("worker-1", "127.0.0.1")
            assert (described.sent, described.unfinished) == (3, 3 - len(done))
            (row,) = [each for each in await admin.list() if each.name == queue]
            assert row.workers == 1
        assert row.dead_letter_topic == (None if target.broker is None else f"dlq.{queue}")
        assert row.dead_letters == (None if target.broker is None else 0)


async def test_purging(target: Target, queue: str) -> None:
    async with QueueAdmin(target.bootstrap) as admin:
        assert await admin.purge(queue) == 0
        await fill(target, queue)
        assert await admin.purge(queue) == 3
        described = await admin.describe(queue)
        assert (described.sent, described.unfinished) == (3, 0)


async def test_workers_must_be_put_out(target: Target, queue: str) -> None:
    await fill(target, queue)
    async with QueueAdmin(target.bootstrap) as admin:
        async with ShareConsumer(target.bootstrap, group=queue, topics=[queue], mode="explicit") as consumer:
            held = await consumer.poll(POLL_S)
            for call in (admin.purge(queue), admin.delete(queue)):
                with pytest.raises(QueueRefused, match=r"has 1 worker .*put them out with force=True"):
                    await call
            assert await admin.purge(queue, force=True) == 3
            for record in held:
                consumer.acknowledge(record)
            (error,) = (await consumer.commit()).values()
            assert error is not None, "the jobs were dropped while the worker held them"
        assert (await admin.describe(queue)).unfinished == 0


async def test_deleting(kbroker: Target, queue: str) -> None:
    """Not in Kafka 4.3.1, which sometimes never answers DeleteGroups for a group whose topic was
    deleted just before."""
    await fill(kbroker, queue)
    async with QueueAdmin(kbroker.bootstrap) as admin:
        assert await admin.delete(queue) == (0, f"dlq.{queue}")
        for call in (admin.describe(queue), admin.purge(queue), admin.delete(queue)):
            with pytest.raises(QueueMissing, match=rf"`create\('{queue}'\)` creates one, `list\(\)` lists"):
                await call
        assert queue not in [each.name for each in await admin.list()]


async def test_deleting_with_dead_letters(kbroker: Target, name: str) -> None:
    letters = f"letters.{name}"
    async with QueueAdmin(kbroker.bootstrap) as admin:
        await admin.create(name, dead_letters=letters)
        await admin.create(f"{name}-2", dead_letters=letters)
        with pytest.raises(QueueRefused, match=r"is used by .*: delete without with_dead_letters=True"):
            await admin.delete(name, with_dead_letters=True)
        assert (await admin.delete(f"{name}-2")).dead_letter_topic == letters
        assert await admin.delete(name, with_dead_letters=True) == (0, None)
        with pytest.raises(QueueMissing):
            await admin.describe(letters)


async def test_what_is_no_queue(kbroker: Target, name: str) -> None:
    kbroker.topic(name=f"{name}-topic")
    async with QueueAdmin(kbroker.bootstrap) as admin:
        await admin.create(name)
        for each, words in (
            (f"{name}-none", "there is no queue"),
            (f"{name}-topic", rf"only a topic of this name: `create\('{name}-topic', update=True\)` turns"),
            (f"dlq.{name}", f"has the dead letters of {name}"),
        ):
            with pytest.raises(QueueMissing, match=words):
                await admin.describe(each)


# -- the client
# --------------------------------------------------------------------------------------------------


async def test_a_call_needs_no_thread_of_the_jobs(target: Target) -> None:
    """Jobs may take all threads of anyio's default limiter."""
    async with QueueAdmin(target.bootstrap) as admin:
        limiter = anyio.to_thread.current_default_thread_limiter()
        before, limiter.total_tokens = limiter.total_tokens, 1
        try:
            async with limiter:
                with anyio.fail_after(POLL_S):
                    await admin.list()
        finally:
            limiter.total_tokens = before


async def test_an_admin_is_entered_once(target: Target) -> None:
    admin = QueueAdmin(target.bootstrap)
    with pytest.raises(IllegalState, match="use a queue admin with `async with`"):
        await admin.list()
    async with admin:
        with pytest.raises(IllegalState, match="can be entered once"):
            await admin.__aenter__()
    with pytest.raises(ClientClosed, match="has been closed"):
        await admin.list()
    with pytest.raises(IllegalState, match="can be entered once"):
        await admin.__aenter__()
