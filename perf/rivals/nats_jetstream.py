"""NATS JetStream as a queue: a work-queue stream with file storage, a durable pull consumer,
fetch(1) and ack."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from perf.rivals.rival import HOST, Failing, Rival, count_one, payload, program
from perf.rivals.server_process import ServerFailed, ServerProcess
from perf.workloads.client_process import Link
from perf.workloads.window import Client

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection

CONSUMER = "workers"
_FILL_AT_ONCE = 500
_FETCH_TIMEOUT_S = 0.1


class NatsJetStream(Rival):
    """File storage. The server syncs every two minutes (its default), so records survive a crash of
    the server, but not of the machine."""

    key: ClassVar[str] = "nats-jetstream"
    title: ClassVar[str] = "NATS JetStream"
    family: ClassVar[str] = "nats"
    durability: ClassVar[str] = "os"
    package: ClassVar[str] = "nats-server"
    client: ClassVar[str] = "nats-py"

    def launch(self) -> ServerProcess:
        options = [
            "--addr",
            HOST,
            "--port",
            str(self.port),
            "--jetstream",
            "--store_dir",
            str(self.home / "data"),
        ]
        return ServerProcess([program("nats-server"), *options], self.home / "server.log")

    def answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def check(self) -> str:
        """Storage is a setting of a stream, which `fill` checks."""
        return asyncio.run(self._version())

    def fill(self, queue: str, records: int, *, delay_s: float | None = None) -> None:
        """Jobs that wait for redelivery count as pending. With a delay, the consumer's limit of 1
        000 pending jobs is therefore raised."""
        asyncio.run(self._fill(queue, records, None if delay_s is None else records))

    def consumer(self, queue: str) -> Client:
        return Client(work, {"port": self.port, "queue": queue})

    def failing_consumer(self, queue: str, delay_s: float) -> Client:
        return Client(work_failing, {"port": self.port, "queue": queue, "delay_s": delay_s})

    def left(self, queue: str) -> int:
        return asyncio.run(self._left(queue))

    def drop(self, queue: str) -> None:
        asyncio.run(self._drop(queue))

    async def _version(self) -> str:
        async with connected(self.port) as connection:
            return str(connection._server_info["version"])

    async def _fill(self, queue: str, records: int, most_pending: int | None) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

        stream = StreamConfig(
            name=queue, subjects=[queue], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
        )
        async with connected(self.port) as connection:
            jetstream = connection.jetstream()
            await jetstream.add_stream(stream)
            settings = ConsumerConfig(
                durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=most_pending
            )
            await jetstream.add_consumer(queue, settings)
            for first in range(0, records, _FILL_AT_ONCE):
                numbers = range(first, min(first + _FILL_AT_ONCE, records))
                await asyncio.gather(*(jetstream.publish(queue, payload(number)) for number in numbers))
            made = await jetstream.stream_info(queue)
            consumer = await jetstream.consumer_info(queue, CONSUMER)
        as_configured = (
            made.config.storage == StorageType.FILE and consumer.config.ack_policy == AckPolicy.EXPLICIT
        )
        if not as_configured or consumer.config.mem_storage or made.state.messages != records:
            raise ServerFailed(f"nats-server's stream is not as configured: {made}, {consumer}")

    async def _left(self, queue: str) -> int:
        async with connected(self.port) as connection:
            consumer = await connection.jetstream().consumer_info(queue, CONSUMER)
        return (consumer.num_pending or 0) + (consumer.num_ack_pending or 0)

    async def _drop(self, queue: str) -> None:
        async with connected(self.port) as connection:
            await connection.jetstream().delete_stream(queue)


def work(link: Link, arguments: Mapping[str, Any]) -> None:
    """A client process."""
    asyncio.run(_work(link, arguments["port"], arguments["queue"]))


async def _work(link: Link, port: int, queue: str) -> None:
    from nats.errors import TimeoutError as NothingThere

    async with connected(port) as connection:
        subscription = await connection.jetstream().pull_subscribe_bind(CONSUMER, stream=queue)
        link.begin()
        while link.running:
            try:
                (record,) = await subscription.fetch(1, timeout=_FETCH_TIMEOUT_S)
            except NothingThere:
                link.check_patience()
                continue
            await record.ack()
            count_one(link)
        await connection.flush()
    link.send_report()


def work_failing(link: Link, arguments: Mapping[str, Any]) -> None:
    """A client process."""
    asyncio.run(_work_failing(link, arguments["port"], arguments["queue"], arguments["delay_s"]))


async def _work_failing(link: Link, port: int, queue: str, delay_s: float) -> None:
    from nats.errors import TimeoutError as NothingThere

    failing = Failing(link)
    async with connected(port) as connection:
        subscription = await connection.jetstream().pull_subscribe_bind(CONSUMER, stream=queue)
        link.begin()
        while link.running:
            try:
                (record,) = await subscription.fetch(1, timeout=_FETCH_TIMEOUT_S)
            except NothingThere:
                link.check_patience()
                continue
            if record.metadata.num_delivered == 1:
                failing.fails(record.data)
                await record.nak(delay=delay_s)
                if link.report.first_ms is None:
                    # The client waits for the others next, and would send nothing meanwhile.
                    await connection.flush()
                failing.failed()
            else:
                failing.came_again(record.data)
                await record.ack()
                failing.done()
        await connection.flush()
    link.send_report()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    import nats

    connection = await nats.connect(f"nats://{HOST}:{port}", allow_reconnect=False)
    try:
        yield connection
    finally:
        await connection.close()
