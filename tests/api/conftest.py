"""A real broker in this process, without sockets, and a client that calls its handlers as the
server does.

Requests and answers go through kio's own encoder and decoder for the given version. A test that
walks an API's versions therefore shows that every field of every version is filled. `connect` opens
the broker; opened again in the same test it is the same broker after a restart. The default engine
is `memory`; tests of restarts request `every_engine`.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
from kio.serial import entity_reader

from kbroker.api import APIS, handler_of
from kbroker.api.request import Later, Raw, Request
from kbroker.broker import configs
from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.connection import ClientConnection
from kbroker.broker.logs import retention
from kbroker.broker.logs.partition import Partition
from kbroker.broker.options import Durability, StartOptions
from kbroker.broker.queues import dead_letters
from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import Record, build_batch
from kbroker.protocol.messages import (
    build,
    encode,
    encode_response,
    read_request,
    read_request_head,
    request_schema,
    response_schema,
)
from kbroker.settings.altering import BrokerConfig
from tests.turns import watch

ENGINES = ("memory", "segment", "lmdb", "rocksdb")
KEYS = {api.module: api.key for api in APIS.values()}


def versions(api: str) -> range:
    """All served versions, from the table that ApiVersions answers from."""
    found = APIS[KEYS[api]]
    return range(found.first, found.last + 1)


class Client:
    """`client.call("create_topics", 7, topics=...)`: field names are kio's; times are milliseconds,
    rows are mappings."""

    def __init__(self, broker: Broker, connection_id: int = 1) -> None:
        self.broker = broker
        self.connection = ClientConnection(connection_id, "127.0.0.1", broker.deadlines)

    def another(self, connection_id: int) -> Client:
        """A client of the same broker on a separate connection."""
        return Client(self.broker, connection_id)

    def disconnect(self) -> None:
        """Does what the server does when the connection ends."""
        self.broker.connection_closed(self.connection)

    async def call(self, api: str, version: int, **fields: Any) -> Any:
        return await self._answer(api, version, _decoded(*self.encoded(api, version, **fields)))

    def encoded(self, api: str, version: int, **fields: Any) -> tuple[type[Any], bytes]:
        """The schema of a request, and its body."""
        schema = request_schema(KEYS[api], version)
        return schema, encode(build(schema, {"timeout": 1000, **fields}))

    async def call_raw(self, api: str, version: int, body: bytes) -> Any:
        """With a body that kio cannot write, through the server's decoder."""
        schema = request_schema(KEYS[api], version)
        tags = b"\0" if schema.__header_schema__.__version__ >= 2 else b""
        frame = struct.pack(">hhih", KEYS[api], version, 1, -1) + tags + body
        return await self._answer(api, version, read_request(read_request_head(frame), frame))

    async def _answer(self, api: str, version: int, request: Any) -> Any:
        key = KEYS[api]
        watch.begin_request()
        answer: Any = handler_of(key)(Request(self.broker, self.connection, key, version, "test", request))
        if inspect.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, Later):
            await answer.pending.wait()
            answer = answer.body()
            if answer is None:
                return None
        body = b"".join(answer.buffers) if isinstance(answer, Raw) else encode_response(key, version, answer)
        return _decoded(response_schema(key, version), body)

    async def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> Any:
        """The row of the answer."""
        rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": (),
            "configs": rows,
        }
        (row,) = (await self.call("create_topics", 7, topics=[topic], validate_only=False)).topics
        assert row.error_code == 0, row
        return row

    def partition(self, topic: str, index: int = 0) -> Partition:
        found = self.broker.topics.by_name(topic)
        assert found is not None
        return found.partitions[index]

    async def append(self, topic: str, *timestamps_ms: int, partition: int = 0) -> int:
        """One batch with a record for each timestamp; returns its base offset once it is
        visible."""
        return await self.append_raw(
            topic, build_batch(Record(0, each, None, b"x", ()) for each in timestamps_ms), partition
        )

    async def append_raw(self, topic: str, batch: bytes, partition: int = 0) -> int:
        done = trio.Event()
        errors: list[Exception | None] = []

        def on_done(error: Exception | None) -> None:
            errors.append(error)
            done.set()

        await self.partition(topic, partition).load_producers()
        appended = self.partition(topic, partition).append(batch, wall_clock_ms(), on_done)
        await done.wait()
        assert errors == [None]
        return appended.base_offset


def _decoded(schema: type[Any], body: bytes) -> Any:
    entity, size = entity_reader(schema)(body, 0)
    assert size == len(body), "bytes are left over"
    return entity


Connect: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def engine() -> str:
    return "memory"


@pytest.fixture(params=ENGINES)
def every_engine(request: pytest.FixtureRequest, engine: str) -> str:
    return str(request.param)


@pytest.fixture
def parks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a tenth of a second are parked."""
    monkeypatch.setattr(configs, "PARK_FROM_MS", 100)


@pytest.fixture
def without_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of a share-partition's dead letters ends as soon as it has nothing to do."""
    monkeypatch.setattr(dead_letters, "LINGER_S", 0.01)


@pytest.fixture
def queues_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention checks work queues when the test asks."""
    monkeypatch.setattr(retention, "WORK_QUEUE_CHECK_S", 3600)


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    """`async with connect(engine="lmdb", config={...}) as client`."""

    @asynccontextmanager
    async def opened(
        engine: str = "memory", config: Mapping[str, str] | None = None, durability: Durability = "disk"
    ) -> AsyncIterator[Client]:
        options = StartOptions(
            data_dir=tmp_path / engine,
            storage=engine,
            state_storage=engine,
            config=BrokerConfig(config or {}),
            listen=("127.0.0.1", 9092),
            durability=durability,
        )
        async with open_broker(options) as broker:
            yield Client(broker)

    return opened
