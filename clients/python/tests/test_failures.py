"""Brokers that die, answers that get lost, secured listeners, and calls that are cancelled."""

from __future__ import annotations

import logging
import struct
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from clients.python.tests.targets import SHORT_LOCKS, Target
from clients.python.tests.worker.queues import until
from kbroker.client.broker_process import free_port
from kbroker.client.group_admin import ShareGroupDescription, describe_share_groups
from kbroker.client.rpc import API_KEYS, Connection
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_client import (
    Acquire,
    BrokerUnreachable,
    KafkaError,
    LockLost,
    NotAuthenticated,
    Outcome,
    Producer,
    Record,
    Security,
    ShareConsumer,
    TimedOut,
    TopicPartition,
    cluster,
    connection,
)
from kbroker_client.share import session
from tests.clients.lossy_proxy import LossyProxy, open_lossy_proxy

pytestmark = pytest.mark.anyio
POLL_S = 30.0


@pytest.fixture
def own() -> Iterator[RunningBroker]:
    """For tests that end it."""
    with open_test_broker(storage="segment", config=SHORT_LOCKS) as broker:
        yield broker


@pytest.fixture
def proxied() -> Iterator[tuple[Target, LossyProxy]]:
    port = free_port()
    with (
        open_lossy_proxy(("127.0.0.1", port)) as proxy,
        open_test_broker(
            port=port, extra_args=["--advertise", proxy.address], config=SHORT_LOCKS, storage="memory"
        ) as broker,
    ):
        target = Target(port, broker)
        target.bootstrap = proxy.address
        yield target, proxy


async def fill(bootstrap: str, topic: str, first: int, last: int) -> None:
    async with Producer(bootstrap) as producer:
        await producer.send_all(topic, [b"%d" % each for each in range(first, last)])


def values(records: list[Record]) -> list[int]:
    return sorted(int(each.value or b"-1") for each in records)


# -- brokers
# --------------------------------------------------------------------------------------------------


async def test_a_consumer_survives_its_broker(own: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kbroker_client.share.session")
    target = Target(own.port, own)
    topic, group = target.topic(), target.group()
    await fill(own.bootstrap, topic, 0, 5)
    async with ShareConsumer(own.bootstrap, group=group, topics=[topic], mode="free") as consumer:
        held = await consumer.poll(POLL_S)
        assert values(held) == list(range(5))
        await anyio.to_thread.run_sync(own.kill)
        await anyio.to_thread.run_sync(own.restart)
        again = await consumer.poll(POLL_S)
        assert values(again) == list(range(5))
        assert {each.delivery_count for each in again} == {1}, "acquisitions are not stored"
        consumer.acknowledge(again[0])
        assert await consumer.commit() == {TopicPartition(topic, 0): None}
        assert not held[1].lease.is_open
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, "one for the outage and one for its end"
    assert lines[0].endswith("; trying until it is back")
    assert lines[1] == f"share group {group}: connected again"


async def test_a_broker_that_does_not_answer_is_given_up(
    own: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "REQUEST_S", 0.5)
    monkeypatch.setattr(session, "WATCH_S", 0.1)
    caplog.set_level(logging.INFO, "kbroker_client")
    target = Target(own.port, own)
    topic, group = target.topic(), target.group()
    async with ShareConsumer(own.bootstrap, group=group, topics=[topic], fetch_wait_ms=100) as consumer:
        assert await consumer.poll(1) == []
        own.sigstop()
        assert await consumer.poll(2) == []
        own.sigcont()
        assert f"{own.bootstrap} did not answer within 0.6 s" in caplog.text
        await fill(own.bootstrap, topic, 0, 1)
        assert values(await consumer.poll(POLL_S)) == [0]


async def test_a_record_of_a_lost_session_is_answered_as_lost(own: RunningBroker) -> None:
    target = Target(own.port, own)
    topic, group = target.topic(), target.group()
    await fill(own.bootstrap, topic, 0, 1)
    async with ShareConsumer(own.bootstrap, group=group, topics=[topic], mode="explicit") as consumer:
        (record,) = await consumer.poll(POLL_S)
        await anyio.to_thread.run_sync(own.kill)
        await anyio.to_thread.run_sync(own.restart)
        consumer.acknowledge(record)
        (error,) = (await consumer.commit()).values()
        assert isinstance(error, LockLost)
        (record,) = await consumer.poll(POLL_S)
        consumer.acknowledge(record)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}


async def test_a_partition_without_a_leader_is_asked_for_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the brokers elect one."""
    topic, group = target.topic(), target.group()
    await fill(target.bootstrap, topic, 0, 1)
    learn, asked = cluster.Cluster._learn, 0

    def learn_late(self: cluster.Cluster, row: Any) -> None:
        nonlocal asked
        asked += 1
        learn(self, row)
        if asked <= 3:
            known = self._by_name[row.name]
            self._by_name[row.name] = self._by_id[known.id] = known._replace(leaders=[-1])

    monkeypatch.setattr(cluster.Cluster, "_learn", learn_late)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        assert values(await consumer.poll(POLL_S)) == [0]
    assert asked > 3


async def test_a_node_without_partitions_does_not_keep_the_turn(target: Target) -> None:
    """Its last one may have got another leader while it was not asked."""
    topic, group = target.topic(), target.group()
    async with ShareConsumer(
        target.bootstrap, group=group, topics=[topic], acquire=Acquire.RECORD_LIMIT
    ) as consumer:
        assert await consumer.poll(1) == []
        await until(lambda: not consumer._is_asking)
        consumer._sessions[77] = session.ShareSession(77, consumer._cluster, group, "", consumer)
        consumer._sessions[77]._ended.set()
        consumer._fetching = 77
        await fill(target.bootstrap, topic, 0, 1)
        assert values(await consumer.poll(POLL_S)) == [0]


async def test_a_producer_survives_its_broker_and_writes_once(own: RunningBroker) -> None:
    target = Target(own.port, own)
    topic, group = target.topic(), target.group()

    async def kill_twice() -> None:
        for _ in range(2):
            await anyio.sleep(0.4)
            await anyio.to_thread.run_sync(own.kill)
            await anyio.to_thread.run_sync(own.restart)

    async with Producer(own.bootstrap) as producer, anyio.create_task_group() as tasks:
        tasks.start_soon(kill_twice)
        for each in range(300):
            await producer.send(topic, b"%d" % each)
            await anyio.sleep(0.005)
    seen: list[Record] = []
    async with ShareConsumer(own.bootstrap, group=group, topics=[topic]) as consumer:
        while len(seen) < 300:
            found = await consumer.poll(POLL_S)
            assert found
            seen += found
        assert await consumer.poll(0.5) == []
    assert values(seen) == list(range(300))


async def test_questions_survive_a_restart(own: RunningBroker) -> None:
    """The connection for them may be lost while nobody asks."""
    target = Target(own.port, own)
    async with Producer(own.bootstrap) as producer:
        await anyio.to_thread.run_sync(own.kill)
        await anyio.to_thread.run_sync(own.restart)
        assert (await producer.send(target.topic(), b"0")).offset == 0


async def test_a_producer_gives_up_in_time(own: RunningBroker) -> None:
    topic = Target(own.port, own).topic()
    async with Producer(own.bootstrap, delivery_timeout_s=1.0) as producer:
        await producer.send(topic, b"0")
        await anyio.to_thread.run_sync(own.kill)
        with anyio.fail_after(20), pytest.raises(TimedOut):
            await producer.send(topic, b"1")
        await anyio.to_thread.run_sync(own.restart)
        with anyio.fail_after(20):
            assert (await producer.send(topic, b"2")).topic == topic


async def test_a_lost_answer_to_a_produce_writes_nothing_twice(proxied: tuple[Target, LossyProxy]) -> None:
    target, proxy = proxied
    topic = target.topic()
    async with Producer(target.bootstrap) as producer:
        first = await producer.send(topic, b"0")
        proxy.lose_next(API_KEYS["produce"], lambda _: True)
        again = await producer.send(topic, b"1")
        last = await producer.send(topic, b"2")
    assert proxy.lost.is_set()
    assert (first.offset, again.offset, last.offset) == (0, 1, 2)


async def test_records_lost_on_their_way_are_delivered_again(proxied: tuple[Target, LossyProxy]) -> None:
    target, proxy = proxied
    topic, group = target.topic(), target.group()
    await fill(target.bootstrap, topic, 0, 5)
    proxy.lose_next(
        API_KEYS["share_fetch"],
        lambda answer: any(row.acquired_records for each in answer.responses for row in each.partitions),
    )
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
        found = await consumer.poll(POLL_S)
        assert values(found) == list(range(5))
        assert {each.delivery_count for each in found} == {2}
        assert await consumer.commit() == {TopicPartition(topic, 0): None}


async def test_a_lost_answer_to_an_acknowledgement_is_an_error(proxied: tuple[Target, LossyProxy]) -> None:
    """The broker has stored it: the record does not come again."""
    target, proxy = proxied
    topic, group = target.topic(), target.group()
    await fill(target.bootstrap, topic, 0, 1)
    async with ShareConsumer(target.bootstrap, group=group, topics=[topic], mode="explicit") as consumer:
        (record,) = await consumer.poll(POLL_S)
        proxy.lose_next(API_KEYS["share_acknowledge"], lambda _: True)
        consumer.acknowledge(record)
        (error,) = (await consumer.commit()).values()
        assert isinstance(error, LockLost)
        assert await consumer.poll(1.0) == []


async def test_a_late_release_leaves_the_next_delivery_alone(target: Target) -> None:
    """The lock has run out, and the record has arrived again before its first delivery is
    acknowledged."""
    topic, group = target.topic(), target.group(share_record_lock_duration_ms="1000")
    await fill(target.bootstrap, topic, 0, 1)
    errors: list[Exception | None] = []
    async with ShareConsumer(
        target.bootstrap, group=group, topics=[topic], mode="free",
        on_acknowledged=lambda _, error: errors.append(error),
    ) as consumer:  # fmt: skip
        (first,) = await consumer.poll(POLL_S)
        await anyio.sleep(1.2)
        assert await consumer.poll(0) == []  # The consumer still waits for that fetch.
        await anyio.sleep(0.3)
        consumer.acknowledge(first, Outcome.RELEASE)
        (second,) = await consumer.poll(POLL_S)
        assert second.delivery_count == 2
        consumer.acknowledge(second)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}
    assert [type(error) for error in errors] == [LockLost, type(None)]


async def test_a_release_that_waits_for_a_fetch_leaves_what_it_brings_alone(target: Target) -> None:
    topic, group = target.topic(), target.group(share_record_lock_duration_ms="1000")
    await fill(target.bootstrap, topic, 0, 1)
    async with ShareConsumer(
        target.bootstrap, group=group, topics=[topic], mode="free", fetch_wait_ms=3000
    ) as consumer:
        (first,) = await consumer.poll(POLL_S)
        await anyio.sleep(0.7)
        assert await consumer.poll(0.1) == []  # The fetch is answered when the lock ends.
        consumer.acknowledge(first, Outcome.RELEASE)
        (second,) = await consumer.poll(POLL_S)
        assert second.delivery_count == 2
        consumer.acknowledge(second)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}


# -- secured listeners
# --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["SCRAM-SHA-256", "PLAIN"])
def mechanism(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def secured() -> Iterator[RunningBroker]:
    with open_test_broker(
        storage="memory", protocol="SASL_SSL",
        config={"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"},
    ) as broker:  # fmt: skip
        yield broker


def security_of(
    broker: RunningBroker, mechanism: str, tmp_path: Path, password: str | None = None
) -> Security:
    settings = broker.client_settings()
    authority = tmp_path / "ca.pem"
    authority.write_text(settings.get("ssl.ca.pem") or Path(settings["ssl.ca.location"]).read_text())
    return Security(
        tls=authority, mechanism=mechanism, username=settings["sasl.username"],
        password=password or settings["sasl.password"],
    )  # fmt: skip


async def test_log_ins_over_tls(secured: RunningBroker, mechanism: str, tmp_path: Path) -> None:
    security = security_of(secured, mechanism, tmp_path)
    topic = f"t{uuid.uuid4().hex[:12]}"
    secured.create_topic(topic)
    secured.set_group_config(topic, {"share.auto.offset.reset": "earliest"})
    async with Producer(secured.bootstrap, security=security) as producer:
        await producer.send_all(topic, [b"%d" % each for each in range(20)])
    async with ShareConsumer(secured.bootstrap, group=topic, topics=[topic], security=security) as consumer:
        assert len(await consumer.poll(POLL_S)) >= 20
        assert await consumer.commit() == {TopicPartition(topic, 0): None}


async def test_wrong_log_ins_say_what_is_wrong(secured: RunningBroker, tmp_path: Path) -> None:
    wrong = security_of(secured, "SCRAM-SHA-256", tmp_path, password="wrong")
    with pytest.raises(NotAuthenticated, match="user admin, SCRAM-SHA-256") as refused:
        await _enter(Producer(secured.bootstrap, security=wrong))
    assert "wrong" not in str(refused.value).replace("wrong password", "")
    untrusted = Security(tls=True, username="admin", password="x")
    with pytest.raises(NotAuthenticated, match="is not trusted"):
        await _enter(Producer(secured.bootstrap, security=untrusted))
    with pytest.raises(BrokerUnreachable):
        await _enter(Producer(secured.bootstrap))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "as no Kafka broker does"),
        (struct.pack(">ii", 16, 1) + bytes(12), "is it a broker"),
        (struct.pack(">ii", 6, 1) + b"\0\0", "cannot be read"),
    ],
    ids=["http", "zeros", "short"],
)
async def test_a_peer_that_is_no_broker(answer: bytes, words: str) -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(answer)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            with pytest.raises(BrokerUnreachable, match=words):
                await _enter(Producer(f"127.0.0.1:{port}"))
            tasks.cancel_scope.cancel()


async def _enter(producer: Producer) -> None:
    async with producer:
        pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mechanism": "GSSAPI", "username": "a", "password": "b"}, "is not one of"),
        ({"username": "a"}, "needs a username and a password"),
        ({"password": "a"}, "needs a username"),
        ({"mechanism": "OAUTHBEARER"}, "needs a token"),
        ({"tls": "/no/such/file.pem"}, "cannot be read"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Security(**settings)  # type: ignore[arg-type]


# -- cancellation
# --------------------------------------------------------------------------------------------------


class Cancelled:
    """Cancels calls after their first, second, … checkpoint, until one ends before that. Later
    ones are further apart: they are in the wait for the broker."""

    async def each_step(self, call: Callable[[], Awaitable[object]]) -> int:
        steps = 0
        while True:
            ended = False

            async def run() -> None:
                nonlocal ended
                await call()
                ended = True

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            if ended:
                return steps
            steps = steps + 1 if steps < 50 else int(steps * 1.3)


async def test_every_await_of_a_consumer_can_be_cancelled(target: Target) -> None:
    """Whatever is cancelled, each record is acknowledged once, and delivered once."""
    topic, group = target.topic(), target.group()
    await fill(target.bootstrap, topic, 0, 60)
    seen: Counter[int] = Counter()
    async with ShareConsumer(
        target.bootstrap, group=group, topics=[topic], mode="free", max_poll_records=7
    ) as consumer:

        async def work() -> None:
            for record in await consumer.poll(0.1):
                seen[int(record.value or b"")] += 1
                consumer.acknowledge(record, Outcome.ACCEPT)
            await consumer.commit()

        with anyio.fail_after(60):
            while len(seen) < 60:
                await Cancelled().each_step(work)
        await consumer.commit()
        assert await consumer.poll(0.3) == []
    assert set(seen.values()) == {1}


async def test_closing_can_be_cancelled(target: Target) -> None:
    """It sends what was acknowledged all the same."""
    for step in range(12):
        topic, group = target.topic(), target.group()
        await fill(target.bootstrap, topic, 0, 2)
        consumer = ShareConsumer(target.bootstrap, group=group, topics=[topic], mode="explicit")
        async with anyio.create_task_group() as tasks, consumer:
            for record in await consumer.poll(POLL_S):
                consumer.acknowledge(record)
            if step:
                tasks.start_soon(_cancel_after, tasks.cancel_scope, step)
            else:
                tasks.cancel_scope.cancel()
        async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as other:
            assert await other.poll(0.7) == [], step


async def _cancel_after(scope: anyio.CancelScope, steps: int) -> None:
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


async def test_closing_waits_for_the_heartbeat_under_way(target: Target) -> None:
    """A member whose join is not answered yet leaves, too."""
    topic, group = target.topic(), target.group()
    for step in range(50):
        async with ShareConsumer(target.bootstrap, group=group, topics=[topic]):
            await anyio.sleep(step * 0.0003)
    with Connection("127.0.0.1", target.port) as connection:
        (found,) = describe_share_groups(connection, [group])
    assert isinstance(found, ShareGroupDescription), found
    assert found.members == ()


def test_an_error_of_the_callback_in_close_is_raised(target: Target, anyio_backend: str) -> None:
    """And no task is left behind: trio refuses to end with one."""
    topic, group = target.topic(), target.group()

    def refuse(*_: object) -> None:
        raise LookupError("of the callback")

    async def consume() -> None:
        await fill(target.bootstrap, topic, 0, 1)
        async with ShareConsumer(
            target.bootstrap, group=group, topics=[topic], mode="explicit", on_acknowledged=refuse
        ) as consumer:
            for record in await consumer.poll(POLL_S):
                consumer.acknowledge(record)

    with pytest.raises(LookupError, match="of the callback"):
        anyio.run(consume, backend=anyio_backend)


async def test_a_consumer_that_cannot_be_entered_leaves_nothing_behind(target: Target) -> None:
    topic, group = target.topic(), target.group()

    async def enter() -> None:
        async with ShareConsumer(target.bootstrap, group=group, topics=[topic]):
            pass

    await Cancelled().each_step(enter)


def test_a_program_that_ends_without_closing(target: Target) -> None:
    """A crash of the process releases at once: the connection ends."""
    topic, group = target.topic(), target.group()
    anyio.run(fill, target.bootstrap, topic, 0, 1)
    code = f"""
import anyio, os
from kbroker_client import ShareConsumer
async def main():
    async with ShareConsumer({target.bootstrap!r}, group={group!r}, topics=[{topic!r}]) as consumer:
        await consumer.poll(30)
        os._exit(9)
anyio.run(main)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 9

    async def take() -> list[Record]:
        async with ShareConsumer(target.bootstrap, group=group, topics=[topic]) as consumer:
            return await consumer.poll(POLL_S)

    assert [each.delivery_count for each in anyio.run(take)] == [2]


async def test_topics_that_are_missing_or_refused(target: Target) -> None:
    async with Producer(target.bootstrap) as producer:
        with pytest.raises(KafkaError, match="no-such-topic"):
            await producer.send("no-such-topic", b"")
        topic = target.topic()
        with pytest.raises(TypeError, match="is bytes, not str"):
            await producer.send(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="there is no partition 5"):
            await producer.send(topic, b"", partition=5)
