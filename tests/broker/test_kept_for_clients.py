"""What the broker keeps for clients is bounded in bytes, whatever sizes they choose: names as long
as a request, sessions with all partitions that a request can name.

Each case lets a client without any right do its worst, and the memory that stays is measured.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from kbroker.bounded_cache import BoundedCache
from kbroker.broker.logs import fetch_sessions
from kbroker.broker.logs.fetch_sessions import INITIAL_EPOCH, FetchPartition, FetchSessions
from kbroker.broker.logs.missing_topics import MissingTopics
from kbroker.errors import KafkaError
from kbroker.groups.consumer.subscriptions import Subscriptions
from kbroker.security.acls import Operation, ResourceType
from kbroker.security.authorizer import StandardAuthorizer
from kbroker.security.metering import Meter
from kbroker.security.principals import ANONYMOUS
from kbroker.security.quotas import CLIENT_ID, PRODUCER_BYTE_RATE, QuotaTable, entity_of
from kbroker.security.rates import Windows
from kbroker.security.rights import Rights, SharedMemory
from kbroker.settings.altering import BrokerConfig
from kbroker.settings.hosts import canonical_host
from kbroker.share import session as share_session
from kbroker.share.persister import TopicPartition
from kbroker.share.session import ShareSessions
from tests.groups.consumer.world import Topics

KB: Final = 1 << 10
TIMES: Final = 400
LONG: Final = 32 * KB
"""Four hundred of these are 12.5 MiB: what a cache that is bounded by number would keep."""


def long_names() -> Iterator[str]:
    return (f"{number:06}{'x' * LONG}" for number in range(TIMES))


def rights() -> object:
    made = Rights(ANONYMOUS, "::1", StandardAuthorizer(), lambda *_: None, SharedMemory())
    for name in long_names():
        assert not made.has(Operation.READ, ResourceType.TOPIC, name)
    return made


def addresses() -> object:
    for name in long_names():
        assert canonical_host(name) == name
    return None


def names_that_members_subscribe_to() -> object:
    topics = Topics()
    topics.put("t", 1)
    subscriptions = Subscriptions(topics)
    for name in long_names():
        subscriptions.hash(frozenset(f"{name}{number}" for number in range(3)))
    return subscriptions


def rates_of_client_ids() -> object:
    table = QuotaTable()
    table.put(entity_of({CLIENT_ID: None}), {PRODUCER_BYTE_RATE: 1e6})
    meter = Meter(table, Windows(11, 1000))
    for name in long_names():
        use = meter.of(PRODUCER_BYTE_RATE, "", name, 0.0)
        assert use is not None
    return meter


def topics_that_do_not_exist() -> object:
    async def ask(missing: MissingTopics) -> None:
        for name in long_names():
            missing.asked_for(name, "c", "::1")

    missing = MissingTopics(Topics(), BrokerConfig.load())  # type: ignore[arg-type]
    trio.run(ask, missing, clock=MockClock())
    return missing


def settings_that_are_refused() -> object:
    async def refuse(missing: MissingTopics) -> None:
        for number, value in enumerate(long_names()):
            missing.creation.refused(f"t{number}", f"Invalid value {value}")

    missing = MissingTopics(Topics(), BrokerConfig.load())  # type: ignore[arg-type]
    trio.run(refuse, missing, clock=MockClock())
    return missing


def fetch_sessions_of_names() -> object:
    sessions = FetchSessions(10_000)
    for name in long_names():
        sessions.fetch(0, INITIAL_EPOCH, False, [FetchPartition((name, 0), 0, 1, -1, -1)], [], ANONYMOUS, 1)
    return sessions


@pytest.mark.parametrize(
    ("client", "most_kb"),
    [
        (rights, 500),
        (addresses, 500),
        (names_that_members_subscribe_to, 9 * KB),
        (rates_of_client_ids, 1000),
        (topics_that_do_not_exist, 500),
        (settings_that_are_refused, 500),
        (fetch_sessions_of_names, 500),
    ],
)
def test_long_names_do_not_stay(client: Callable[[], object], most_kb: int) -> None:
    assert kept_bytes(client) < most_kb * KB


def fetch_sessions_of_partitions() -> object:
    sessions = FetchSessions(10_000)
    for number in range(1, 60):
        wanted = [FetchPartition((number << 100, index), index, 1, -1, -1) for index in range(1000)]
        sessions.fetch(0, INITIAL_EPOCH, True, wanted, [], ANONYMOUS, 1)
    return sessions


def share_sessions_of_partitions() -> object:
    sessions = ShareSessions(10_000)
    topic_id = Topics().put("t", 1)
    refused = 0
    for number in range(60):
        wanted = [TopicPartition(topic_id, 1000 * number + index) for index in range(1000)]
        try:
            sessions.fetch("g", f"m{number}", 0, connection_id=1, add=wanted, forget=(), has_acks=False)
        except KafkaError:
            refused += 1
    assert refused
    return sessions


@pytest.mark.parametrize(
    "client", [fetch_sessions_of_partitions, share_sessions_of_partitions], ids=lambda case: case.__name__
)
def test_partitions_of_sessions_are_bounded(
    client: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fiftieth of the bounds: 59 000 partitions would take 20 MiB, and ten times that with
    ten times as many sessions."""
    monkeypatch.setattr(fetch_sessions, "MAX_BYTES", fetch_sessions.MAX_BYTES // 50)
    monkeypatch.setattr(share_session, "MAX_PARTITIONS", share_session.MAX_PARTITIONS // 50, raising=False)
    assert kept_bytes(client) < 4 << 20


def test_a_share_session_that_ends_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_session, "MAX_PARTITIONS", 10)
    sessions = ShareSessions(100)
    topic_id = Topics().put("t", 1)

    def fetch(member_id: str, epoch: int, *numbers: int, forget: tuple[int, ...] = ()) -> None:
        sessions.fetch(
            "g", member_id, epoch, connection_id=member_id, has_acks=False,
            add=[TopicPartition(topic_id, number) for number in numbers],
            forget=[TopicPartition(topic_id, number) for number in forget],
        )  # fmt: skip

    fetch("a", 0, *range(8))
    with pytest.raises(KafkaError):
        fetch("b", 0, *range(3))
    fetch("b", 0, 0, 1)
    with pytest.raises(KafkaError):
        fetch("b", 1, 2)
    fetch("b", 1, 0, 1)  # It names what it acknowledges.
    fetch("a", 1, forget=(0, 1, 99))
    fetch("b", 2, 2, 3)
    fetch("a", 0, *range(6))
    assert sessions.statistics().partitions == 10
    sessions.connection_closed("a")
    fetch("c", 0, *range(6))
    assert sessions.statistics().partitions == 10


def test_long_requests_share_the_room_of_share_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_session, "MAX_PARTITIONS", 1000)
    sessions = ShareSessions(100)
    topic_id = Topics().put("t", 1)
    wanted = [TopicPartition(topic_id, number) for number in range(800)]
    plans = [
        sessions.fetch(
            "g", member_id, 0, connection_id=1, add=wanted, forget=(), has_acks=False, in_steps=True
        )
        for member_id in ("a", "b")
    ]
    with pytest.raises(KafkaError):
        for _ in zip(*(plan.to_do or () for plan in plans), strict=True):
            pass
    assert sessions.statistics().partitions <= 1000


def test_a_bounded_cache_drops_what_was_not_used() -> None:
    cache: BoundedCache[int, str] = BoundedCache(10_000)
    for number in range(8):
        cache.put(number, "v", 700)
    cache.put(0, "w", 700)
    assert cache.get(1) == "v"
    for number in range(8, 16):
        cache.put(number, "v", 700)
        assert cache.get(1) == "v"
    assert (cache.get(2), cache.get(0), len(cache), cache.bytes) == (None, "w", 10, 10_000)
    cache.put(99, "v", 10_000)
    assert (cache.get(99), len(cache)) == (None, 10)
    cache.put(1, "v", 20_000)
    assert cache.get(1) is None
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


def kept_bytes(client: Callable[[], object]) -> int:
    """What stays in memory after the client has done its worst, and while the broker runs."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = client()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] + 0 * id(kept)
    finally:
        tracemalloc.stop()
