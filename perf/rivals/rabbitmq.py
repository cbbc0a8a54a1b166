"""RabbitMQ as a queue: persistent messages, prefetch 1, each acknowledged. Quorum queues are
synced, classic durable ones are not.

The node has its own name, directories, configuration, Erlang cookie and port mapper (epmd), and
uses nothing that a package has set up.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kbroker.client.broker_process import free_port
from perf.rivals.rival import HOST, Failing, Rival, count_one, payload, program
from perf.rivals.server_process import ServerFailed, ServerProcess
from perf.workloads.client_process import Link
from perf.workloads.window import Client

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel
    from pika.spec import Basic, BasicProperties

PERSISTENT = 2
_CONTROL_TIMEOUT_S = 60.0
_POLL_S = 0.1
_LOOPBACK_ONLY = "-kernel inet_dist_use_interface {127,0,0,1}"


class RabbitMQ(Rival):
    """A node for one type of queue."""

    queue_type: ClassVar[str]
    family: ClassVar[str] = "rabbitmq"
    package: ClassVar[str] = "rabbitmq-server"
    client: ClassVar[str] = "pika"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._node = f"rival-{self.port}@localhost"
        self._environment: dict[str, str] = {}
        self._port_mapper: ServerProcess | None = None

    def launch(self) -> ServerProcess:
        self._environment = {**os.environ, **self._settings()}
        # Otherwise the node starts a daemon that outlives it.
        mapper = [program("epmd"), "-port", self._environment["ERL_EPMD_PORT"], "-address", HOST]
        self._port_mapper = ServerProcess(mapper, self.home / "epmd.log", self._environment)
        return ServerProcess([program("rabbitmq-server")], self.home / "server.log", self._environment)

    def kill(self) -> None:
        super().kill()
        if self._port_mapper is not None:
            self._port_mapper.kill()

    def answers(self) -> bool:
        from pika.exceptions import AMQPConnectionError

        try:
            with channel_to(self.port):
                return True
        except AMQPConnectionError:
            return False

    def check(self) -> str:
        """The type of a queue decides whether it is synced. How the log of quorum queues is synced
        is a setting, which is checked here."""
        method = self._control("eval", "maps:get(wal_sync_method, ra_system:fetch(quorum_queues)).")
        if method not in ("datasync", "sync"):
            raise ServerFailed(f"RabbitMQ's log of quorum queues is synced with {method}")
        return self._control("eval", "rabbit_misc:version().").strip('"')

    def fill(self, queue: str, records: int, *, delay_s: float | None = None) -> None:
        """With a delay, rejected jobs go to a second queue, whose messages return to the first when
        they expire."""
        import pika

        queues = {queue: self._arguments(None if delay_s is None else _waiting(queue))}
        if delay_s is not None:
            queues[_waiting(queue)] = {**self._arguments(queue), "x-message-ttl": int(delay_s * 1000)}
        with channel_to(self.port) as channel:
            for name, arguments in queues.items():
                channel.queue_declare(name, durable=True, arguments=arguments)
            properties = pika.BasicProperties(delivery_mode=PERSISTENT)
            for number in range(records):
                channel.basic_publish("", queue, payload(number), properties)
            self._server_has(channel, queue, records)
        for name in queues:
            self._check_queue(name)

    def consumer(self, queue: str) -> Client:
        return Client(work, {"port": self.port, "queue": queue})

    def failing_consumer(self, queue: str, delay_s: float) -> Client:
        """The delay is a property of the second queue, which `fill` has created."""
        return Client(work_failing, {"port": self.port, "queue": queue})

    def left(self, queue: str) -> int:
        with channel_to(self.port) as channel:
            # The request is processed in the queue's log after all acknowledgements. Its message is
            # requeued when the connection ends.
            method, _, _ = channel.basic_get(queue)
            return method.message_count + 1 if method is not None else 0

    def drop(self, queue: str) -> None:
        with channel_to(self.port) as channel:
            channel.queue_delete(queue)
            channel.queue_delete(_waiting(queue))  # no error where there is none

    def _arguments(self, dead_letters_to: str | None) -> dict[str, Any]:
        """The arguments of a queue. Quorum queues do not lose messages while dead-lettering
        them."""
        arguments: dict[str, Any] = {"x-queue-type": self.queue_type}
        if dead_letters_to is not None:
            arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_letters_to}
            if self.queue_type == "quorum":
                arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        return arguments

    def _settings(self) -> Mapping[str, str]:
        home = self.home
        plugins, config, environment_file = (
            home / "enabled_plugins",
            home / "rabbitmq.conf",
            home / "rabbitmq-env.conf",
        )
        plugins.write_text("[].\n")
        config.write_text(f"listeners.tcp.1 = {HOST}:{self.port}\nlog.file.level = warning\n")
        environment_file.write_text("")
        return {
            "HOME": str(home),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _LOOPBACK_ONLY,
            "RABBITMQ_CONF_ENV_FILE": str(environment_file),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
        }

    def _server_has(self, channel: BlockingChannel, queue: str, records: int) -> None:
        """Waits until the queue has all published messages. Publisher confirms would need one round
        trip for each record."""
        assert self.server is not None
        self.server.wait_until(
            lambda: channel.queue_declare(queue, passive=True).method.message_count == records
        )

    def _check_queue(self, queue: str) -> None:
        listed = self._control("list_queues", "--no-table-headers", "name", "type", "durable").splitlines()
        if f"{queue}\t{self.queue_type}\ttrue" not in listed:
            raise ServerFailed(f"RabbitMQ's queue {queue} is not as configured: {listed}")

    def _control(self, *words: str) -> str:
        command = [program("rabbitmqctl"), "--quiet", "--node", self._node, *words]
        done = subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_CONTROL_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(
                f"rabbitmqctl {words[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}"
            )
        return done.stdout.strip()


class QuorumQueue(RabbitMQ):
    """Every change goes through a Raft log (of one member) that is synced."""

    key: ClassVar[str] = "rabbitmq-quorum"
    title: ClassVar[str] = "RabbitMQ quorum queue"
    durability: ClassVar[str] = "disk"
    queue_type: ClassVar[str] = "quorum"


class ClassicQueue(RabbitMQ):
    """Durable, with persistent messages: written to files, which are not synced when a message is
    acknowledged."""

    key: ClassVar[str] = "rabbitmq-classic"
    title: ClassVar[str] = "RabbitMQ classic queue"
    durability: ClassVar[str] = "os"
    queue_type: ClassVar[str] = "classic"


def work(link: Link, arguments: Mapping[str, Any]) -> None:
    """A client process. Prefetched messages return to the queue when the connection ends."""
    with channel_to(arguments["port"]) as channel:

        def take(_: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, __: bytes) -> None:
            channel.basic_ack(method.delivery_tag)
            if properties.delivery_mode != PERSISTENT:
                raise ServerFailed(f"a message of delivery mode {properties.delivery_mode}")
            count_one(link)

        channel.basic_qos(prefetch_count=1)
        link.begin()
        channel.basic_consume(arguments["queue"], take)
        while link.running:
            channel.connection.process_data_events(_POLL_S)
            link.check_patience()
    link.send_report()


def work_failing(link: Link, arguments: Mapping[str, Any]) -> None:
    """A client process. A header shows that a message was dead-lettered."""
    failing = Failing(link)
    with channel_to(arguments["port"]) as channel:

        def take(
            _: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, value: bytes
        ) -> None:
            if "x-death" in (properties.headers or {}):
                failing.came_again(value)
                channel.basic_ack(method.delivery_tag)
                failing.done()
            else:
                failing.fails(value)
                channel.basic_reject(method.delivery_tag, requeue=False)
                failing.failed()

        channel.basic_qos(prefetch_count=1)
        link.begin()
        channel.basic_consume(arguments["queue"], take)
        while link.running:
            channel.connection.process_data_events(_POLL_S)
            link.check_patience()
    link.send_report()


def _waiting(queue: str) -> str:
    """The queue in which jobs wait for their next delivery."""
    return f"{queue}-waiting"


@contextmanager
def channel_to(port: int) -> Iterator[BlockingChannel]:
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port))
    try:
        yield connection.channel()
    finally:
        connection.close()
