"""DescribeTransactions and ListTransactions: what the coordinator knows (KIP-664)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.broker.transactions import ending as service_module
from kbroker.clock import wall_clock_ms
from kbroker.errors import ErrorCode
from kbroker.protocol.messages import encode_response
from tests.api.conftest import KEYS, Client, Connect, versions
from tests.api.transaction_clients import HANGING, Described, add, begin, describe, describe_raw, end, init

NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request
LOADING = ErrorCode.coordinator_load_in_progress
NOT_FOUND = ErrorCode.transactional_id_not_found


async def list_all(client: Client, version: int = 2, **filters: Any) -> Any:
    given = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1, **filters}
    return await client.call("list_transactions", version, **{"transactional_id_pattern": None, **given})


async def listed(client: Client, version: int = 2, **filters: Any) -> list[str]:
    answer = await list_all(client, version, **filters)
    assert answer.error_code is NONE
    return sorted(row.transactional_id for row in answer.transaction_states)


# --- DescribeTransactions ---


async def test_the_states_of_an_id(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("b", 3)
        await client.create_topic("a")
        producer = await init(client, "t", 12_345)
        empty = Described(0, "t", "Empty", 12_345, -1, *producer)
        assert await describe(client, "t") == [empty]
        began_ms = wall_clock_ms()
        await add(client, "t", producer, b=[2, 0], a=[0])
        (ongoing,) = await describe(client, "t")
        assert began_ms <= ongoing.transaction_start_time <= wall_clock_ms()
        started = empty._replace(transaction_start_time=ongoing.transaction_start_time)
        topics = (("a", (0,)), ("b", (0, 2)))
        assert ongoing == started._replace(transaction_state="Ongoing", topics=topics)
        await end(client, "t", producer, commit=True)
        assert await describe(client, "t") == [started._replace(transaction_state="CompleteCommit")]
        await add(client, "t", producer, b=[1])
        await end(client, "t", producer, commit=False)
        (aborted,) = await describe(client, "t")
        assert (aborted.transaction_state, aborted.topics) == ("CompleteAbort", ())
        assert aborted.transaction_start_time >= started.transaction_start_time


@pytest.mark.parametrize("commit", [False, True])
async def test_an_id_whose_markers_are_not_written(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    may_go_on = trio.Event()

    async def wait(record: object) -> None:
        await may_go_on.wait()

    async def not_at_once(record: object) -> bool:
        return False

    monkeypatch.setattr(service_module, "_ANSWER_WITHIN_S", 0.01)
    async with connect() as client:
        await client.create_topic("a")
        producer = await begin(client, "t", a=[0])
        markers = client.broker.transactions.ending.markers
        monkeypatch.setattr(markers, "write_at_once", not_at_once)
        monkeypatch.setattr(markers, "write", wait)
        await end(client, "t", producer, commit=commit)
        (found,) = await describe(client, "t")
        assert found.transaction_state == ("PrepareCommit" if commit else "PrepareAbort")
        assert found.topics == (("a", (0,)),)
        assert await listed(client, state_filters=[found.transaction_state]) == ["t"]
        may_go_on.set()


async def test_the_answer_is_as_an_encoder_packs_it(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a", 3)
        for name in ("t", "u" * 200):
            await begin(client, name, a=[0, 2])
        names = ("t", "u" * 200, "", "none")
        raw = await describe_raw(client, *names)
        records = [client.broker.transactions.coordinator.record(name) for name in names]
        assert [int(each) for each in raw.errors] == [INVALID, NOT_FOUND]
        rows: list[dict[str, Any]] = []
        for name, record, code in zip(names, records, (NONE, NONE, INVALID, NOT_FOUND), strict=True):
            rows.append(
                {
                    "error_code": code,
                    "transactional_id": name,
                    "transaction_state": "Ongoing" if record else "",
                    "transaction_timeout": record.timeout_ms if record else 0,
                    "transaction_start_time": record.started_ms if record else 0,
                    "producer_id": record.producer_id if record else 0,
                    "producer_epoch": record.producer_epoch if record else 0,
                    "topics": [{"topic": "a", "partitions": [0, 2]}] if record else [],
                }
            )
        packed = encode_response(KEYS["describe_transactions"], 0, {"transaction_states": rows})
        assert b"".join(bytes(each) for each in raw.buffers) == packed
        assert (await client.call("describe_transactions", 0, transactional_ids=())).transaction_states == ()


async def test_ids_that_are_refused(connect: Connect) -> None:
    async with connect() as client:
        producer = await init(client, "t")
        refused = [Described(INVALID, ""), Described(NOT_FOUND, "none")]
        row = Described(0, "t", "Empty", 60_000, -1, *producer)
        assert await describe(client, "", "none", "t", "t") == [*refused, row, row]
        client.broker.transactions._is_ready = False
        loading = [Described(LOADING, "none"), Described(LOADING, "t")]
        assert await describe(client, "", "none", "t") == [refused[0], *loading]
        assert list((await describe_raw(client, "", "t")).errors) == [INVALID, LOADING]
        client.broker.transactions._is_ready = True


async def test_a_deleted_topic_is_left_out(connect: Connect) -> None:
    async with connect() as client:
        await client.create_topic("a")
        await client.create_topic("b")
        await begin(client, "t", a=[0], b=[0])
        await client.call("delete_topics", 6, topics=[{"name": "a", "topic_id": None}])
        (row,) = await describe(client, "t")
        assert (row.transaction_state, row.topics) == ("Ongoing", (("b", (0,)),))
        await client.create_topic("a")
        assert await describe(client, "t") == [row], "another topic with its name is no part of it"


@pytest.mark.parametrize("engine", ["segment", "lmdb", "rocksdb"])
async def test_ids_after_a_restart(connect: Connect, engine: str) -> None:
    async with connect(engine) as client:
        await client.create_topic("a", 2)
        await init(client, "empty")
        await begin(client, "ongoing", a=[0, 1])
        for name, commit in (("aborted", False), ("committed", True)):
            await end(client, name, await begin(client, name, a=[0]), commit=commit)
        names = ("empty", "ongoing", "aborted", "committed")
        before = await describe(client, *names)
        assert [row.transaction_state for row in before] == [
            "Empty",
            "Ongoing",
            "CompleteAbort",
            "CompleteCommit",
        ]
    async with connect(engine) as client:
        assert await describe(client, *names) == before
        assert await listed(client) == sorted(names)


# --- ListTransactions ---


@pytest.mark.parametrize("version", versions("list_transactions"))
async def test_filters_by_state_and_producer(connect: Connect, version: int) -> None:
    async with connect() as client:
        await client.create_topic("a")
        assert await listed(client, version) == []
        empty = await init(client, "empty")
        ongoing = await begin(client, "ongoing", a=[0])
        answer = await list_all(client, version)
        found = {
            row.transactional_id: (row.producer_id, row.transaction_state)
            for row in answer.transaction_states
        }
        assert found == {"empty": (empty.producer_id, "Empty"), "ongoing": (ongoing.producer_id, "Ongoing")}
        assert answer.unknown_state_filters == ()
        for filters, wanted in (
            ({"state_filters": ["Ongoing"]}, ["ongoing"]),
            ({"state_filters": ["Ongoing", "Empty"]}, ["empty", "ongoing"]),
            ({"state_filters": ["Dead", "PrepareEpochFence"]}, []),
            ({"producer_id_filters": [empty.producer_id]}, ["empty"]),
            ({"producer_id_filters": [empty.producer_id], "state_filters": ["Ongoing"]}, []),
            ({"producer_id_filters": [HANGING]}, []),
        ):
            assert await listed(client, version, **filters) == wanted, filters


async def test_unknown_states(connect: Connect) -> None:
    async with connect() as client:
        await init(client, "t")
        for states, unknown, wanted in (
            (["Gone"], ("Gone",), 0),
            (["empty", "Empty", "Gone", "Gone"], ("empty", "Gone"), 1),
            (["Dead"], (), 0),
        ):
            answer = await list_all(client, state_filters=states)
            assert answer.error_code is NONE
            assert (answer.unknown_state_filters, len(answer.transaction_states)) == (unknown, wanted)


async def test_durations(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id without a transaction counts from its last one, and one that never had any is older
    than all."""
    async with connect() as client:
        await client.create_topic("a")
        await init(client, "never")
        await begin(client, "ongoing", a=[0])
        (row,) = await describe(client, "ongoing")
        now_ms = row.transaction_start_time + 1000
        monkeypatch.setattr("kbroker.api.list_transactions.wall_clock_ms", lambda: now_ms)
        for duration_ms, wanted in (
            (-1, ["never", "ongoing"]),
            (0, ["never", "ongoing"]),
            (999, ["never", "ongoing"]),
            (1000, ["never"]),
            (now_ms, ["never"]),
            (now_ms + 1, []),
        ):
            assert await listed(client, duration_filter=duration_ms) == wanted, duration_ms
            assert await listed(client, 1, duration_filter=duration_ms) == wanted


async def test_patterns(connect: Connect) -> None:
    async with connect() as client:
        for name in ("orders-1", "orders-22", "Bills"):
            await init(client, name)
        for pattern, wanted in (
            (None, ["Bills", "orders-1", "orders-22"]),
            ("", ["Bills", "orders-1", "orders-22"]),
            (".*", ["Bills", "orders-1", "orders-22"]),
            ("orders", []),
            (r"orders-\d", ["orders-1"]),
            ("orders-.*|Bil+s", ["Bills", "orders-1", "orders-22"]),
            ("(?i)bills", ["Bills"]),
        ):
            assert await listed(client, transactional_id_pattern=pattern) == wanted, pattern
        for pattern in ("(", "a(?=b)", "*"):
            answer = await list_all(client, transactional_id_pattern=pattern)
            assert answer.error_code is ErrorCode.invalid_regular_expression
            assert (answer.unknown_state_filters, answer.transaction_states) == ((), ())


@pytest.mark.parametrize("version", versions("list_transactions"))
async def test_no_list_before_recovery_is_done(connect: Connect, version: int) -> None:
    async with connect() as client:
        await init(client, "t")
        client.broker.transactions._is_ready = False
        answer = await list_all(client, version)
        assert (answer.error_code, answer.transaction_states) == (LOADING, ())
        client.broker.transactions._is_ready = True
        assert await listed(client, version) == ["t"]
