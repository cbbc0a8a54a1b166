"""Extreme numbers in every numeric field of every served API: each gets an answer, and the
resulting state does no harm.

A real broker process. It may refuse a number, but the connection stays open. Requests that read the
changed state are answered as well, before and after a restart, since the broker may compute with a
stored number much later.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection

import pytest
from kio.serial import entity_reader

from kbroker.api import APIS
from kbroker.client.broker_process import RunningBroker, free_port
from kbroker.formats.batches import ProducerInfo, Record, build_batch, crc32c
from kbroker.protocol.messages import response_schema
from kbroker.testing.broker import open_test_broker
from tests.server.numeric_fields import (
    CORRELATION_ID,
    REQUESTS,
    Numeric,
    World,
    frame_with,
    numeric_fields,
    share_fetch,
)

WAITS = frozenset({"max_wait"})
"""The client chooses how long the request waits: an answer need not arrive."""
WAITS_S = 0.3
STORES = frozenset(
    {
        "alter_share_group_offsets", "create_partitions", "create_topics", "delete_records",
        "incremental_alter_configs", "initialize_share_group_state", "offset_commit",
        "read_share_group_state", "share_acknowledge", "write_share_group_state",
    }
)  # fmt: skip
"""The state that they leave is read after each number."""


class Client:
    """Bytes out, bytes in, over one connection, which is reopened after a request that still
    waits."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._open()

    def _open(self) -> None:
        self._socket = socket.create_connection((self._broker.host, self._broker.port), timeout=30)

    def close(self) -> None:
        self._socket.close()

    def ask(self, field: Numeric, frame: bytes, number: int) -> None:
        """Raises AssertionError if the broker closes the connection, or if the answer cannot be
        decoded."""
        what = f"{field.api.module} v{field.version} {field.name} = {number}"
        self._socket.sendall(frame)
        if field.api.module == "produce" and field.name == "acks" and number == 0:
            return
        may_wait = field.path[-1] in WAITS and number > 0
        self._socket.settimeout(WAITS_S if may_wait else 30)
        try:
            (size,) = struct.unpack(">i", self._exactly(4, what))
            answer = self._exactly(size, what)
        except TimeoutError:
            assert may_wait, f"{what}: no answer"
            self.close()
            self._open()
            return
        schema = response_schema(field.api.key, field.version)
        assert answer[:4] == struct.pack(">i", CORRELATION_ID), what
        _, at = entity_reader(schema.__header_schema__)(answer, 0)
        _, size = entity_reader(schema)(answer, at)
        assert at + size == len(answer), what

    def _exactly(self, size: int, what: str) -> bytes:
        received = b""
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            assert part, (
                f"{what}: the connection is closed; the broker's log ends: {self._broker.log_tail(1500)}"
            )
            received += part
        return received


class Probes:
    """Requests of all kinds about one case: each must be answered, whatever the answer is."""

    def __init__(self, world: World, admin_port: int) -> None:
        self._world = world
        self._admin_port = admin_port

    def run(self) -> None:
        world, call = self._world, self._world.connection.call
        name, topic_id = world.topic
        groups = [world.share_group, "committed", "classic", f"{world.share_group}-consumer"]
        named = [{"topic_name": name, "partitions": [0, 1]}]
        rows = [
            {
                "topic_id": topic_id,
                "partitions": [{"partition": index, "leader_epoch": (1 << 31) - 1} for index in (0, 1)],
            }
        ]
        described = [{"group_id": world.share_group, "topics": topics} for topics in (named, None)]
        call("describe_share_group_offsets", 1, groups=described)
        call("read_share_group_state_summary", 1, group_id=world.share_group, topics=rows)
        call("share_fetch", 2, **{**share_fetch(world), "member_id": "prober"})
        call("share_group_describe", 1, group_ids=groups, include_authorized_operations=False)
        call("consumer_group_describe", 1, group_ids=groups, include_authorized_operations=False)
        call("describe_groups", 5, groups=groups, include_authorized_operations=False)
        call("list_groups", 5, states_filter=(), types_filter=())
        call(
            "offset_fetch",
            8,
            groups=[{"group_id": each, "topics": None} for each in groups],
            require_stable=False,
        )
        for timestamp in (-3, -1, 0):
            wanted = [
                {
                    "name": name,
                    "partitions": [{"partition_index": index, "timestamp": timestamp} for index in (0, 1)],
                }
            ]
            call("list_offsets", 7, replica_id=-1, isolation_level=0, topics=wanted)
        for offset in (0, 3):
            row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
            topics = [{"topic_id": topic_id, "partitions": [row]}]
            call("fetch", 13, **limits, session_epoch=-1, topics=topics, forgotten_topics_data=(), rack_id="")
        call("describe_topic_partitions", 0, topics=[{"name": name}], cursor=None)
        call("describe_log_dirs", 4, topics=None)

    def look_around(self) -> None:
        """The output of every view."""
        for path in ("/metrics", f"/v1/share-groups/{self._world.share_group}/inflight"):
            connection = HTTPConnection("127.0.0.1", self._admin_port, timeout=60)
            with closing(connection):
                connection.request("GET", path)
                answer = connection.getresponse()
                answer.read()
                assert answer.status in (200, 404), path  # The group may not exist.


@pytest.fixture(scope="module")
def admin_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(admin_port: int) -> Iterator[RunningBroker]:
    config = {"group.initial.rebalance.delay.ms": "0", "group.share.max.share.sessions": "100000"}
    with open_test_broker(
        storage="segment", durability="os", config=config, extra_args=["--admin", str(admin_port)]
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_internal_error(broker: RunningBroker) -> Iterator[None]:
    before = len(broker.logs())
    yield
    logged = broker.logs()[before:]
    assert not any(trouble in logged for trouble in ("internal error", "Traceback")), logged[-4000:]


@pytest.fixture
def world(broker: RunningBroker) -> Iterator[World]:
    with broker.connect() as connection:
        yield World(connection)


def test_every_api_has_a_request() -> None:
    assert set(REQUESTS) == {api.module for api in APIS.values()}


@pytest.mark.parametrize("module", [api.module for api in APIS.values()])
# BASE-5
def test_every_number_is_answered(broker: RunningBroker, world: World, admin_port: int, module: str) -> None:
    probes = Probes(world, admin_port)
    with closing(Client(broker)) as client:
        for field in [field for field in numeric_fields(world) if field.api.module == module]:
            for number in field.extremes:
                world.begin_case(field.api)
                client.ask(field, frame_with(field, REQUESTS[module](world), number), number)
                if module in STORES:
                    probes.run()
    probes.run()
    probes.look_around()


HEADER_FIELDS = {
    "base_offset": (0, 8),
    "batch_length": (8, 4),
    "partition_leader_epoch": (12, 4),
    "magic": (16, 1),
    "attributes": (21, 2),
    "last_offset_delta": (23, 4),
    "base_timestamp": (27, 8),
    "max_timestamp": (35, 8),
    "producer_id": (43, 8),
    "producer_epoch": (51, 2),
    "base_sequence": (53, 4),
    "record_count": (57, 4),
}


def batch_with(numbers: Mapping[str, int]) -> bytes:
    """A batch that an idempotent producer could send, with these numbers in its header and the
    right CRC."""
    rows = [Record(0, 1_700_000_000_000 + each, None, b"x", ()) for each in range(3)]
    made = bytearray(build_batch(rows, producer=ProducerInfo(7, 0, 0)))
    for name, number in numbers.items():
        at, size = HEADER_FIELDS[name]
        made[at : at + size] = number.to_bytes(size, "big", signed=True)
    made[17:21] = crc32c(bytes(made[21:])).to_bytes(4, "big")
    return bytes(made)


@pytest.mark.parametrize(
    "names", [*HEADER_FIELDS, "base_timestamp max_timestamp", "record_count last_offset_delta"]
)
def test_every_number_in_a_batchs_header_is_answered(world: World, admin_port: int, names: str) -> None:
    """Consumers by offset, look-ups by time, and queues can read the accepted batches."""
    first, *others = names.split()
    probes = Probes(world, admin_port)
    for number in Numeric(APIS[0], 13, (), 8 * HEADER_FIELDS[first][1]).extremes:
        world.begin_case(APIS[0])
        numbers = {first: number, **dict.fromkeys(others, number)}
        if "last_offset_delta" in others:  # Only then do the two agree.
            numbers["last_offset_delta"] = max(number - 1, -(1 << 31))
        records = batch_with(numbers)
        for _ in range(2):
            data = [{"topic_id": world.topic.topic_id, "partition_data": [{"index": 0, "records": records}]}]
            values = {"acks": -1, "timeout": 1000, "transactional_id": None, "topic_data": data}
            world.connection.send_raw(world.connection.encode("produce", 13, values))
            # The response to a duplicate has the batch's timestamp, which this client's decoder may
            # refuse.
            assert world.connection.read_frame()
        world.connection.call("alter_share_group_offsets", 0, **REQUESTS["alter_share_group_offsets"](world))
        probes.run()
    probes.look_around()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_what_is_stored_survives_a_restart(broker: RunningBroker, admin_port: int, kill: bool) -> None:
    """After the tests above: everything that they left is loaded and can be described."""
    broker.kill() if kill else broker.stop()
    broker.start()
    with broker.connect() as connection:
        world = World(connection)
        world.begin_case(APIS[0])
        probes = Probes(world, admin_port)
        probes.run()
        probes.look_around()
        groups = [
            row.group_id
            for row in connection.call("list_groups", 5, states_filter=(), types_filter=()).groups
        ]
        rows = [{"group_id": group, "topics": None} for group in groups]
        answer = connection.call("describe_share_group_offsets", 1, groups=rows)
        assert len(answer.groups) == len(groups)
