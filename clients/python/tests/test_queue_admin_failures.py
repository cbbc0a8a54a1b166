"""QueueAdmin when calls are cancelled, connections break, brokers are away, rights are missing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.to_thread
import pytest

from clients.python.tests.targets import SHORT_LOCKS, Target
from clients.python.tests.watched_proxy import WatchedProxy, open_watched_proxy
from kbroker.client import acl_admin
from kbroker.client import admin as topic_admin
from kbroker.client.broker_process import free_port
from kbroker.client.rpc import Connection
from kbroker.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from kbroker.testing.broker import RunningBroker, open_test_broker
from kbroker_client import (
    BrokerUnreachable,
    ErrorCode,
    KafkaError,
    NotAuthenticated,
    Producer,
    QueueAdmin,
    QueueMissing,
    Security,
)

pytestmark = pytest.mark.anyio
Call: TypeAlias = Callable[[], Awaitable[object]]
LIMIT_S = 60.0


@pytest.fixture(
    params=[
        "memory",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("segment", "lmdb", "rocksdb")),
    ]
)
def own(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Without the queues of other tests: looking for those that share a dead letter topic takes a
    request for each."""
    with open_test_broker(storage=request.param, config=SHORT_LOCKS) as broker:
        yield Target(broker.port, broker)


def new_name() -> str:
    return f"q{uuid.uuid4().hex[:12]}"


async def cancelled(proxy: WatchedProxy, number: int, call: Call) -> bool:
    """Cancel the call while the broker has its request with this number. False: it has fewer."""
    proxy.watch(number)
    is_done = False

    async def run() -> None:
        nonlocal is_done
        await call()
        is_done = True
        proxy.stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await proxy.stopped.wait()
        tasks.cancel_scope.cancel()
    if not is_done:
        await proxy.ended.wait()
        assert proxy.requests == number, "nothing is sent after it"
    proxy.watch(0)
    return not is_done


async def broken(proxy: WatchedProxy, number: int, call: Call) -> bool:
    """Lose the answer to the call's request with this number. False: it has fewer."""
    proxy.watch(number, is_broken=True)
    try:
        await call()
    except BrokerUnreachable:
        await proxy.ended.wait()
    was_broken = proxy.ended.is_set()
    proxy.watch(0)
    return was_broken


Stop: TypeAlias = Callable[[WatchedProxy, int, Call], Awaitable[bool]]
stops = pytest.mark.parametrize("stop", [cancelled, broken])


@stops
async def test_a_creation_that_is_stopped_is_done_by_the_same_call(own: Target, stop: Stop) -> None:
    number, is_stopped = 0, True
    with anyio.fail_after(LIMIT_S):
        async with open_watched_proxy(own.port) as proxy, QueueAdmin(proxy.address) as admin:
            while is_stopped:
                number, name = number + 1, new_name()
                is_stopped = await stop(proxy, number, partial(admin.create, name, deliveries=7))
                await admin.create(name, deliveries=7)
                assert (await admin.create(name, deliveries=7)).steps == ()
                described = await admin.describe(name)
                assert described.settings["deliveries"] == 7
                assert described.dead_letters == 0
    assert number > 15, "as many requests have been stopped"


@stops
async def test_a_deletion_that_is_stopped_is_done_by_the_same_call(own: Target, stop: Stop) -> None:
    number, is_stopped = 0, True
    with anyio.fail_after(LIMIT_S):
        async with open_watched_proxy(own.port) as proxy, QueueAdmin(proxy.address) as admin:
            while is_stopped:
                number, name = number + 1, new_name()
                await admin.create(name)
                is_stopped = await stop(proxy, number, partial(admin.delete, name, with_dead_letters=True))
                if is_stopped:
                    with suppress(QueueMissing):  # Its last request may have been carried out.
                        await admin.delete(name, with_dead_letters=True)
                assert not [each for each in topic_names(own) if name in each]
    assert number > 8


@stops
async def test_a_purge_that_is_stopped_is_done_by_the_same_call(own: Target, stop: Stop) -> None:
    number, is_stopped, name = 0, True, new_name()
    with anyio.fail_after(LIMIT_S):
        async with (
            open_watched_proxy(own.port) as proxy,
            QueueAdmin(proxy.address) as admin,
            Producer(own.bootstrap) as producer,
        ):
            await admin.create(name)
            while is_stopped:
                number += 1
                await producer.send(name, b"job")
                is_stopped = await stop(proxy, number, partial(admin.purge, name))
                await admin.purge(name)
                assert (await admin.describe(name)).unfinished == 0
    assert number > 8


@stops
async def test_questions_that_are_stopped_are_asked_again(own: Target, stop: Stop) -> None:
    name = new_name()
    with anyio.fail_after(LIMIT_S):
        async with open_watched_proxy(own.port) as proxy, QueueAdmin(proxy.address) as admin:
            await admin.create(name)
            for call in (admin.list, partial(admin.describe, name)):
                number = 1
                while await stop(proxy, number, call):
                    number += 1
                    assert name in [each.name for each in await admin.list()]
                assert number > 5


def topic_names(target: Target) -> list[str]:
    with Connection("127.0.0.1", target.port) as connection:
        return [each.name for each in topic_admin.topics(connection)]


async def test_entering_can_be_cancelled(own: Target) -> None:
    async with open_watched_proxy(own.port) as proxy:
        assert await cancelled(proxy, 1, lambda: _enter(QueueAdmin(proxy.address)))
        assert not await cancelled(proxy, 2, lambda: _enter(QueueAdmin(proxy.address)))


async def test_a_time_limit_of_asyncio_itself(own: Target, anyio_backend: str) -> None:
    """It cancels the task without a scope of anyio."""
    if anyio_backend != "asyncio":
        pytest.skip("only asyncio")
    name = new_name()
    async with open_watched_proxy(own.port) as proxy, QueueAdmin(proxy.address) as admin:
        proxy.watch(5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(admin.create(name), 0.5)
        await proxy.ended.wait()
        assert proxy.requests == 5
        proxy.watch(0)
        assert (await admin.create(name)).is_new


# -- brokers
# --------------------------------------------------------------------------------------------------


async def test_a_broker_that_is_away() -> None:
    with pytest.raises(BrokerUnreachable, match="is the broker running there"):
        await _enter(QueueAdmin(f"127.0.0.1:{free_port()}"))
    with open_test_broker(storage="segment") as broker:
        async with QueueAdmin(broker.bootstrap) as admin:
            await admin.create("jobs")
            await anyio.to_thread.run_sync(broker.kill)
            for call in (admin.create("jobs"), admin.list(), admin.describe("jobs")):
                with pytest.raises(BrokerUnreachable, match="is the broker running there"):
                    await call
            await anyio.to_thread.run_sync(broker.restart)
            assert (await admin.create("jobs")).steps == ()


async def _enter(admin: QueueAdmin) -> None:
    async with admin:
        pass


# -- rights
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured() -> Iterator[RunningBroker]:
    with open_test_broker(storage="memory", protocol="SASL_SSL") as broker:
        broker.create_user("ann")
        yield broker


def security_of(
    broker: RunningBroker, user: str | None, folder: Path, password: str | None = None
) -> Security:
    settings = broker.client_settings(user)
    authority = folder / "ca.pem"
    authority.write_text(settings.get("ssl.ca.pem") or Path(settings["ssl.ca.location"]).read_text())
    return Security(
        tls=authority, username=settings["sasl.username"], password=password or settings["sasl.password"]
    )


def allow(broker: RunningBroker, user: str, *rights: tuple[ResourceType, str, Operation]) -> None:
    acls = [
        Acl(kind, PatternType.LITERAL, name, f"User:{user}", "*", operation, Permission.ALLOW)
        for kind, name, operation in rights
    ]
    with broker.connect() as connection:
        assert acl_admin.create(connection, acls) == [None] * len(acls)


async def test_a_user_without_rights(secured: RunningBroker, tmp_path: Path) -> None:
    name = new_name()
    async with QueueAdmin(secured.bootstrap, security=security_of(secured, None, tmp_path)) as admin:
        await admin.create(name)
    async with QueueAdmin(secured.bootstrap, security=security_of(secured, "ann", tmp_path)) as ann:
        assert await ann.list() == []
        for call in (ann.create(name), ann.describe(name), ann.purge(name), ann.delete(name)):
            with pytest.raises(KafkaError) as refused:
                await call
            assert refused.value.code is ErrorCode.group_authorization_failed
            assert "\n" not in str(refused.value)


async def test_the_rights_that_it_takes(secured: RunningBroker, tmp_path: Path) -> None:
    name, bob = new_name(), f"bob-{uuid.uuid4().hex[:6]}"
    secured.create_user(bob)
    allow(
        secured, bob,
        *((ResourceType.TOPIC, each, Operation.ALL) for each in (name, f"dlq.{name}")),
        (ResourceType.GROUP, name, Operation.ALL),
    )  # fmt: skip
    async with QueueAdmin(secured.bootstrap, security=security_of(secured, bob, tmp_path)) as admin:
        assert (await admin.create(name)).is_new
        assert [each.name for each in await admin.list()] == [name]
        assert (await admin.create(name, delay=5, update=True)).is_altered
        assert await admin.purge(name) == 0
        with pytest.raises(KafkaError) as refused:
            await admin.delete(name, with_dead_letters=True)
        assert refused.value.code is ErrorCode.cluster_authorization_failed, "others may have it too"
        assert (await admin.delete(name)).dead_letter_topic == f"dlq.{name}"


async def test_log_ins_that_are_refused(secured: RunningBroker, tmp_path: Path) -> None:
    with pytest.raises(NotAuthenticated):
        await _enter(
            QueueAdmin(secured.bootstrap, security=security_of(secured, None, tmp_path, password="wrong"))
        )
    with pytest.raises(BrokerUnreachable):
        await _enter(QueueAdmin(secured.bootstrap))


async def test_a_call_over_tls_can_be_cancelled(secured: RunningBroker, tmp_path: Path) -> None:
    async with QueueAdmin(secured.bootstrap, security=security_of(secured, None, tmp_path)) as admin:
        name = new_name()
        for attempt in range(20):
            with anyio.move_on_after(attempt / 200):
                await admin.create(name)
        await admin.create(name)
        assert (await admin.create(name)).steps == ()
