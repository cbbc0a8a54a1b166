"""Whole hot requests within a broker, without sockets: from the frame to the buffers that would be
sent.

A broker runs in a thread of this process with durability `os`. A request is decoded, handled and
committed, and its response encoded, as the server does for each frame of a burst. A client would
also see the network, which takes about the same time again for small requests. The engine `memory`
stores nothing, so its difference to the segment engine is the cost of storage.

- *Produce*: bursts of 1 and 20 requests, each burst in one commit.
- *Fetch*: one partition.
- *ShareFetch*: one share-partition. Each request acknowledges the records of the one before: 500
  records as a range, 500 one by one, or a single record.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from kbroker.api import handler_of
from kbroker.api.request import Later, Raw, Request
from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.commits.waiting import Pending
from kbroker.broker.connection import ClientConnection
from kbroker.broker.logs.topics import Topic
from kbroker.broker.options import StartOptions
from kbroker.formats.batches import Buffer
from kbroker.protocol.messages import read_request, read_request_head
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import InitializeRequest, TopicPartition
from perf.parts.material import KIB, MIB, NOW_MS, batch_of, batch_of_records, frame_of, named
from perf.parts.part import Part

_GROUP, _MEMBER = "workers", "01234567-89ab-cdef-0123-456789abcdef"
_PRODUCE, _FETCH, _SHARE_FETCH = (0, 13), (1, 17), (78, 2)
_CONFIG = {"kbroker.sync.interval.ms": "60000"}


@pytest.fixture(params=["memory", "segment"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def running(engine: str, directory: Path) -> Iterator[Served]:
    """A broker with one topic, in its own thread."""
    served = Served()

    async def main() -> None:
        options = StartOptions(
            data_dir=directory, storage=engine, state_storage=engine, durability="os",
            config=BrokerConfig(_CONFIG)
        )  # fmt: skip
        async with open_broker(options) as broker:
            served.topic = await broker.topics.create("orders", 1, {})
            served.broker, served.token = broker, trio.lowlevel.current_trio_token()
            served.connection = ClientConnection(1, "127.0.0.1", trio.sleep_forever)
            stop.append(trio.Event())
            ready.set()
            await stop[0].wait()

    ready, stop = threading.Event(), list[trio.Event]()
    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(30), "the broker has not started"
    try:
        yield served
    finally:
        served.token.run_sync_soon(stop[0].set)
        thread.join()


class Served:
    broker: Broker
    topic: Topic
    connection: ClientConnection
    token: trio.lowlevel.TrioToken

    def run(self, work: Callable[[], Awaitable[object]]) -> None:
        """Runs `work` in the broker's thread. The two switches take 0.1 ms."""
        trio.from_thread.run(work, trio_token=self.token)

    def dispatch(self, frame: memoryview) -> Any:  # noqa: ANN401
        head = read_request_head(frame)
        body = read_request(head, frame)
        request = Request(self.broker, self.connection, head.api_key, head.api_version, head.client_id, body)
        return cast(Any, handler_of(head.api_key)(request))

    async def burst(self, frames: Sequence[memoryview]) -> list[Sequence[Buffer]]:
        answers = []
        for later in [self.dispatch(frame) for frame in frames]:
            answer: Later = later
            await answer.pending.wait()
            raw = answer.body()
            assert raw is not None
            answers.append(raw.buffers)
        return answers

    async def call(self, frame: memoryview) -> Sequence[Buffer]:
        answer: Raw = await self.dispatch(frame)
        assert not any(answer.errors), answer.errors
        return answer.buffers

    async def fill(self, batch: bytes, copies: int) -> None:
        pending = Pending(copies)

        def on_done(error: Exception | None) -> None:
            assert error is None, error
            pending.part_done()

        for _ in range(copies):
            self.topic.partitions[0].append(batch, NOW_MS, on_done)
        await pending.wait()


@pytest.mark.parametrize("burst", [1, 20])
@pytest.mark.parametrize("size", [KIB, 16 * KIB, MIB - KIB], ids=lambda size: f"{size // KIB} KiB")
def test_produce(part: Part, engine: str, directory: Path, size: int, burst: int) -> None:
    calls = max(1, min(200, 16 * MIB // size) // burst)
    with running(engine, directory) as served:
        rows = [
            {"topic_id": served.topic.topic_id, "partition_data": [{"index": 0, "records": batch_of(size)}]}
        ]
        frame = memoryview(
            frame_of(_PRODUCE, {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": rows})
        )

        async def produce() -> None:
            for _ in range(calls):
                await served.burst([frame] * burst)

        part.rounds(
            tuple, lambda: served.run(produce), rounds=8, things=calls * burst, thing="request",
            size=calls * burst * size,
            group=f"requests: Produce, {size // KIB} KiB, {burst} at once", name=engine,
        )  # fmt: skip


@pytest.mark.parametrize("size", [16 * KIB, MIB], ids=named)
def test_fetch(part: Part, engine: str, directory: Path, size: int) -> None:
    calls = 200
    with running(engine, directory) as served:
        served.run(lambda: served.fill(batch_of(16 * KIB), 2 * MIB // (16 * KIB)))
        row = {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": 3,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
        }
        topics = [{"topic_id": served.topic.topic_id, "partitions": [{**row, "partition_max_bytes": size}]}]
        session = {
            "session_id": 0,
            "session_epoch": -1,
            "forgotten_topics_data": [],
            "rack_id": "",
            "isolation_level": 0,
        }
        limits = {"max_wait": 500, "min_bytes": 1, "max_bytes": 50 * MIB}
        frame = memoryview(frame_of(_FETCH, {**session, **limits, "topics": topics}))

        async def fetch() -> None:
            for _ in range(calls):
                buffers = await served.call(frame)
            assert sum(map(len, buffers)) > size

        part.rounds(
            tuple, lambda: served.run(fetch), rounds=8, things=calls, thing="request", size=calls * size,
            group=f"requests: Fetch, {named(size)}", name=engine,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("records", "acks"), [(500, "as a range"), (500, "one by one"), (1, "of one record")]
)
def test_share_fetch(part: Part, engine: str, directory: Path, records: int, acks: str) -> None:
    calls, rounds = 20, 8
    with running(engine, directory) as served:
        topic_id = served.topic.topic_id
        served.run(lambda: served.fill(batch_of_records(records, 100), calls * (rounds + 3)))
        initialize = [InitializeRequest(TopicPartition(topic_id, 0), 0, 0)]
        served.run(lambda: served.broker.persister.initialize(_GROUP, initialize))
        epochs = count()

        def prepare() -> tuple[list[memoryview]]:
            frames = [
                share_fetch_frame(topic_id, next(epochs), records, acks == "one by one") for _ in range(calls)
            ]
            return ([memoryview(frame) for frame in frames],)

        async def fetch(frames: Sequence[memoryview]) -> None:
            for frame in frames:
                buffers = await served.call(frame)
                assert sum(map(len, buffers)) > records * 100

        part.rounds(
            prepare, lambda frames: served.run(lambda: fetch(frames)), rounds=rounds, things=calls,
            thing="request",
            group=f"requests: ShareFetch, {records} and acknowledgements {acks}", name=engine,
        )  # fmt: skip


def share_fetch_frame(topic_id: object, epoch: int, records: int, one_by_one: bool) -> bytes:
    """The request of this session epoch. Each earlier request returned `records` records; this one
    accepts those of the last."""
    last = epoch * records - 1
    first = last - records + 1
    runs = (
        []
        if not epoch
        else [(offset, offset) for offset in range(first, last + 1)]
        if one_by_one
        else [(first, last)]
    )
    batches = [{"first_offset": run[0], "last_offset": run[1], "acknowledge_types": [1]} for run in runs]
    topics = [
        {"topic_id": topic_id, "partitions": [{"partition_index": 0, "acknowledgement_batches": batches}]}
    ]
    limits = {
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": 50 * MIB,
        "max_records": records,
        "batch_size": records,
    }
    session = {
        "group_id": _GROUP,
        "member_id": _MEMBER,
        "share_session_epoch": epoch,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
    }
    return frame_of(_SHARE_FETCH, {**session, **limits, "topics": topics, "forgotten_topics_data": []})
