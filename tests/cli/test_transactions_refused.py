"""`kbroker transactions` when a broker refuses a request, or a transaction ends in between: a fake
broker answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, REFUSED
from kbroker.client import transaction_admin
from kbroker.errors import ErrorCode
from tests.cli.test_share_groups_refused import Answers, metadata
from tests.cli.test_share_groups_refused import broker as answering_broker
from tests.client.fake_broker import FakeBroker

BUSY = ErrorCode.concurrent_transactions
ABORT = ["transactions", "abort", "tx", "--yes"]


def list_transactions(request: Any) -> dict[str, Any]:
    row = {"transactional_id": "tx", "producer_id": 7, "transaction_state": "Ongoing"}
    return {"error_code": ErrorCode.none, "unknown_state_filters": (), "transaction_states": [row]}


def in_states(*states: str) -> Callable[[Any], dict[str, Any]]:
    """DescribeTransactions: a state for each request, the last one from then on."""
    left = list(states)

    def answer(request: Any) -> dict[str, Any]:
        state = left.pop(0) if len(left) > 1 else left[0]
        row = {
            "error_code": ErrorCode.none,
            "transactional_id": "tx",
            "transaction_state": state,
            "transaction_timeout": 60_000,
            "transaction_start_time": 1000,
            "producer_id": 7,
            "producer_epoch": 1,
            "topics": [{"topic": "orders", "partitions": [0]}],
        }
        return {"transaction_states": [row]}

    return answer


def fencing(*codes: ErrorCode) -> Callable[[Any], dict[str, Any]]:
    """InitProducerId: a code for each request, the last one from then on."""
    left = list(codes)

    def answer(request: Any) -> dict[str, Any]:
        code = left.pop(0) if len(left) > 1 else left[0]
        return {
            "error_code": code,
            "producer_id": 7,
            "producer_epoch": 3,
            "ongoing_txn_producer_id": -1,
            "ongoing_txn_producer_epoch": -1,
        }

    return answer


def producers(
    code: ErrorCode = ErrorCode.none, message: str | None = None
) -> Callable[[Any], dict[str, Any]]:
    """DescribeProducers: producer 7 has a transaction from offset 5 on in each log."""
    producer = {"producer_id": 7, "producer_epoch": 1, "last_sequence": 3, "last_timestamp": 1000}
    active = [{**producer, "coordinator_epoch": 4, "current_txn_start_offset": 5}]

    def answer(request: Any) -> dict[str, Any]:
        row = {"error_code": code, "error_message": message, "active_producers": () if code.value else active}
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [{"partition_index": each, **row} for each in topic.partition_indexes],
                }
                for topic in request.topics
            ]
        }

    return answer


def markers(code: ErrorCode) -> Callable[[Any], dict[str, Any]]:
    row = {"partition_index": 0, "error_code": code}
    topics = [{"name": "orders", "partitions": [row]}]
    return lambda _: {"markers": [{"producer_id": 7, "topics": topics}]}


ANSWERS: Answers = {
    "list_transactions": list_transactions,
    "describe_transactions": in_states("Ongoing"),
    "init_producer_id": fencing(ErrorCode.none),
    "describe_producers": producers(),
    "metadata": metadata,
}


def broker(
    monkeypatch: pytest.MonkeyPatch, **answers: Callable[[Any], dict[str, Any]]
) -> AbstractContextManager[FakeBroker]:
    return answering_broker(monkeypatch, **{**ANSWERS, **answers})


def test_a_filter_that_the_broker_does_not_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {**list_transactions(None), "unknown_state_filters": ["Empty"]}
    with broker(monkeypatch, list_transactions=lambda _: unknown):
        assert run(["transactions", "list", "--state", "empty"]) == REFUSED
    why = "the broker knows no transaction state Empty: leave it out"
    assert capsys.readouterr() == ("", f"kbroker: {why}\n")


def test_a_coordinator_that_is_loading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loading = {**list_transactions(None), "error_code": ErrorCode.coordinator_load_in_progress}
    with broker(monkeypatch, list_transactions=lambda _: loading):
        assert run(["transactions", "list"]) == REFUSED
    assert capsys.readouterr() == ("", "kbroker: transactions: coordinator load in progress\n")


@pytest.mark.parametrize(
    ("codes", "states", "outcome"),
    [
        ((ErrorCode.none,), ("Ongoing",), None),
        ((BUSY, ErrorCode.none), ("Ongoing", "PrepareAbort"), "aborted"),
        ((BUSY, BUSY, ErrorCode.none), ("Ongoing", "Ongoing", "CompleteAbort"), "aborted"),
        ((ErrorCode.coordinator_load_in_progress, ErrorCode.none), ("Ongoing",), None),
        ((BUSY, ErrorCode.none), ("PrepareCommit", "CompleteCommit"), "committed"),
    ],
)
def test_the_end_of_a_transaction_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    codes: tuple[ErrorCode, ...],
    states: tuple[str, ...],
    outcome: str | None,
) -> None:
    answers = {"init_producer_id": fencing(*codes), "describe_transactions": in_states(*states)}
    with broker(monkeypatch, **answers) as asked:
        ended = run([*ABORT, "--json"])
    output = capsys.readouterr()
    row = {"transactional_id": "tx", "outcome": outcome, "producer_id": 7, "producer_epoch": 3}
    assert json.loads(output.out) == row
    why = "the transaction of tx was committed: that was decided already; its producer is fenced"
    is_committed = outcome == "committed"
    assert (ended, output.err) == ((REFUSED, f"kbroker: {why}\n") if is_committed else (OK, ""))
    fences = [request for key, _, request in asked.requests if key == 22]
    assert len(fences) == len(codes)
    assert {request.transaction_timeout.total_seconds() for request in fences} == {10}


def test_an_end_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transaction_admin, "_PATIENCE_S", 0.1)
    with broker(monkeypatch, init_producer_id=fencing(BUSY)):
        assert run(ABORT) == REFUSED
    why = (
        "the transaction of tx has not ended in time, and its producer is not fenced: the broker's log has "
        "the reason; try again"
    )
    assert capsys.readouterr() == ("", f"kbroker: {why}\n")


def test_a_fence_that_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = ErrorCode.transactional_id_authorization_failed
    with broker(monkeypatch, init_producer_id=fencing(code)):
        assert run(ABORT) == REFUSED
    grants = "`kbroker acls add --user NAME --transactional-id tx --operation write` grants it"
    why = f"transactional id tx: this user lacks WRITE on transactional id tx: {grants}"
    assert capsys.readouterr() == ("", f"kbroker: {why}\n")


def nobody(_: Any) -> dict[str, Any]:
    return {**list_transactions(None), "transaction_states": ()}


def test_a_marker_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The marker has the epochs that the log told."""
    refused = markers(ErrorCode.transaction_coordinator_fenced)
    place = ["--topic", "orders", "-p", "0", "--start-offset", "5", "--yes"]
    with broker(monkeypatch, list_transactions=nobody, write_txn_markers=refused) as asked:
        assert run(["transactions", "abort", *place]) == REFUSED
    assert capsys.readouterr() == ("", "kbroker: orders-0: transaction coordinator fenced\n")
    ((_, _, request),) = (each for each in asked.requests if each[0] == 27)
    (marker,) = request.markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 1, 4)
    assert (marker.transaction_result, getattr(marker, "transaction_version", 0)) == (False, 0)


def test_a_log_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = producers(ErrorCode.kafka_storage_error, "It is damaged.")
    with broker(monkeypatch, describe_producers=damaged):
        assert run(["transactions", "find-hanging", "--json"]) == REFUSED
    lines = [f"kbroker: producers of orders-{number}: It is damaged.\n" for number in (0, 1)]
    assert capsys.readouterr() == ("[]\n", "".join(lines))


def test_a_topic_that_is_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch, describe_producers=producers(ErrorCode.unknown_topic_or_partition)):
        assert run(["transactions", "find-hanging"]) == OK
    assert capsys.readouterr() == ("", "kbroker: there are no hanging transactions\n")


@pytest.mark.parametrize(("state", "hanging"), [("Ongoing", [1]), ("CompleteAbort", [0, 1])])
def test_an_id_knows_the_partitions_of_its_open_transaction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, hanging: list[int]
) -> None:
    with broker(monkeypatch, describe_transactions=in_states(state)):
        assert run(["transactions", "find-hanging", "--json"]) == OK
    assert [each["partition"] for each in json.loads(capsys.readouterr().out)] == hanging
