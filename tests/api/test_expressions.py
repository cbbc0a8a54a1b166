"""Regular expressions of clients are compiled and matched in threads, whatever names there are."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import re2

from kbroker.broker.groups import expressions as service
from kbroker.errors import ErrorCode
from kbroker.groups import expressions
from kbroker.groups.consumer.rebalance import ConsumerTimer, ConsumerTimerKind
from tests.api.conftest import Client, Connect
from tests.api.dead_letter_queues import until
from tests.api.transaction_clients import init

PLACES = {True: "loop", False: "thread"}


class Work:
    """Counts compilations and matches by the place where they happen."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._compile = re2.compile

    def count(self, what: str) -> None:
        self.counts[f"{what} on the {PLACES[threading.current_thread() is threading.main_thread()]}"] += 1

    def compile(self, pattern: str, options: Any = None) -> Any:
        self.count("compiled")
        return Compiled(self, self._compile(pattern, options))


class Compiled:
    def __init__(self, work: Work, compiled: Any) -> None:
        self._work = work
        self._compiled = compiled
        self.programsize = compiled.programsize

    def fullmatch(self, text: str) -> Any:
        self._work.count("matched")
        return self._compiled.fullmatch(text)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work()
    monkeypatch.setattr(re2, "compile", work.compile)
    return work


async def beat(client: Client, member_id: str, regex: str | None, epoch: int = 0) -> Any:
    joins = epoch == 0
    return await client.call(
        "consumer_group_heartbeat", 1, group_id="g", member_id=member_id, member_epoch=epoch,
        instance_id=None, rack_id=None, rebalance_timeout=60_000 if joins else -1,
        subscribed_topic_names=None, subscribed_topic_regex=regex, server_assignor=None,
        topic_partitions=() if joins else None,
    )  # fmt: skip


async def test_subscriptions(connect: Connect, work: Work) -> None:
    async with connect() as client:
        for number in range(20):
            await client.create_topic(f"t{number}")
        answer = await beat(client, "m", "t.*")
        assert len(answer.assignment.topic_partitions) == 20
        assert work.counts == {"compiled on the thread": 1, "matched on the thread": 20}
        # Another topic is matched alone. A client may create thousands, at milliseconds for each.
        await client.create_topic("t20")
        assert (await beat(client, "m", None, answer.member_epoch)).error_code is ErrorCode.none
        assert work.counts == {"compiled on the thread": 1, "matched on the thread": 21}


async def test_topics_that_changed_before_a_member_was_late(connect: Connect, work: Work) -> None:
    """Another member's expression is matched when it leaves."""
    async with connect() as client:
        await client.create_topic("t0")
        await beat(client, "late", "t0")
        await beat(client, "m", "t.*")
        await client.create_topic("t1")
        assert work.counts == {"compiled on the thread": 2, "matched on the thread": 2}
        groups = client.broker.consumer_group_service
        session = ConsumerTimer(ConsumerTimerKind.SESSION, "g", "late")
        groups.groups.consumer.rebalances.timers.set(session, groups._runner.clock.now_ms())
        groups._runner._wake_for_timers()
        await until(lambda: groups.groups.consumer.statistics().members == 1)
        assert work.counts == {"compiled on the thread": 2, "matched on the thread": 4}


async def test_expressions_that_no_longer_fit_into_the_cache(
    connect: Connect, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their topics are known still, which are smaller."""
    monkeypatch.setattr(expressions, "CACHED_BYTES", expressions.MEMORY_BYTES + 10_000)
    async with connect() as client:
        await client.create_topic("t")
        for _ in range(2):
            for regex in ("t.?", "t.*"):
                assert (await beat(client, "m", regex)).error_code is ErrorCode.none
        assert work.counts == {"compiled on the thread": 4, "matched on the thread": 2}


async def test_an_expression_that_is_none_is_compiled_once(connect: Connect, work: Work) -> None:
    async with connect() as client:
        for _ in range(3):
            answer = await beat(client, "m", "(")
            assert answer.error_code is ErrorCode.invalid_regular_expression
        assert work.counts == {"compiled on the thread": 1}


async def test_patterns_of_transactional_ids(connect: Connect, work: Work) -> None:
    async with connect() as client:
        for name in ("orders-1", "orders-2", "bills"):
            await init(client, name)
        filters = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
        too_long = "a" * 5000
        for pattern, code in (
            ("orders-.*", ErrorCode.none),
            (too_long, ErrorCode.invalid_regular_expression),
        ):
            answer = await client.call("list_transactions", 2, transactional_id_pattern=pattern, **filters)
            assert answer.error_code is code
        assert work.counts == {"compiled on the thread": 1, "matched on the thread": 3}


async def test_ids_are_read_as_they_are_matched(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all of them in one turn."""
    monkeypatch.setattr(service, "NAMES_A_PIECE", 2)
    read_before_a_match: list[int] = []
    async with connect() as client:
        for number in range(5):
            await init(client, f"id-{number}")
        coordinator = client.broker.transactions.coordinator
        records, read = coordinator.records, 0

        def counted() -> Iterator[Any]:
            nonlocal read
            for each in records():
                read += 1
                yield each

        def noted(compiled: Any, names: Any, matching: Any = service._matching) -> Any:
            read_before_a_match.append(read)
            return matching(compiled, names)

        monkeypatch.setattr(coordinator, "records", counted)
        monkeypatch.setattr(service, "_matching", noted)
        answer = await client.call(
            "list_transactions", 2, transactional_id_pattern="id-[0-3]", state_filters=(),
            producer_id_filters=(), duration_filter=-1,
        )  # fmt: skip
        assert len(answer.transaction_states) == 4
        assert read_before_a_match == [2, 4, 5]
