"""`kbroker groups` when a broker refuses part of a request, or the group changes in between: a fake
broker answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, REFUSED
from kbroker.client.rpc import API_KEYS
from kbroker.errors import ErrorCode
from tests.cli.test_share_groups_refused import FINE, Answers
from tests.cli.test_share_groups_refused import broker as answering_broker
from tests.client.fake_broker import FakeBroker

RESET = ["groups", "reset-offsets", "g", "--topic", "orders", "--to-earliest"]
UNKNOWN = ErrorCode.unknown_topic_or_partition


def list_groups(request: Any) -> dict[str, Any]:
    row = {"group_id": "g", "protocol_type": "consumer", "group_state": "Empty", "group_type": "classic"}
    return {"error_code": ErrorCode.none, "groups": [row]}


def describe_groups(request: Any) -> dict[str, Any]:
    row = {"group_state": "Empty", "protocol_type": "consumer", "protocol_data": "", "members": (), **FINE}
    return {"groups": [{"group_id": name, **row} for name in request.groups]}


def rebalancing(request: Any) -> dict[str, Any]:
    (group,) = describe_groups(request)["groups"]
    return {"groups": [{**group, "group_state": "PreparingRebalance"}]}


def offset_fetch(request: Any) -> dict[str, Any]:
    """One existing partition, and one of a deleted topic."""
    row = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": ErrorCode.none,
    }
    topics = [{"name": name, "partitions": [row]} for name in ("gone", "orders")]
    return {"groups": [{"group_id": "g", "topics": topics, "error_code": ErrorCode.none}]}


def list_known_offsets(request: Any) -> dict[str, Any]:
    row = {"timestamp": -1, "leader_epoch": 0, "partition_index": 0}
    known = {
        "orders": {**row, "offset": 2, "error_code": ErrorCode.none},
        "gone": {**row, "offset": -1, "error_code": UNKNOWN},
    }
    return {"topics": [{"name": topic.name, "partitions": [known[topic.name]]} for topic in request.topics]}


def commit(*codes: ErrorCode) -> Callable[[Any], dict[str, Any]]:
    rows = [{"partition_index": number, "error_code": code} for number, code in enumerate(codes)]
    return lambda _: {"topics": [{"name": "orders", "partitions": rows}]}


ANSWERS: Answers = {
    "list_groups": list_groups,
    "describe_groups": describe_groups,
    "offset_fetch": offset_fetch,
}


def broker(
    monkeypatch: pytest.MonkeyPatch, **answers: Callable[[Any], dict[str, Any]]
) -> AbstractContextManager[FakeBroker]:
    return answering_broker(monkeypatch, **{**ANSWERS, **answers})


def test_a_topic_that_is_gone_has_no_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch, list_offsets=list_known_offsets):
        assert run(["groups", "describe", "g"]) == OK
    rows = [line.split()[1:6] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["gone", "0", "1", "-", "-"], ["orders", "0", "1", "2", "1"]]


def test_an_end_that_is_not_told_for_another_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "timestamp": -1,
        "leader_epoch": 0,
        "partition_index": 0,
        "offset": -1,
        "error_code": ErrorCode.leader_not_available,
    }
    with broker(monkeypatch, list_offsets=lambda _: {"topics": [{"name": "orders", "partitions": [row]}]}):
        assert run(["groups", "describe", "g"]) == REFUSED
    assert capsys.readouterr() == ("", "kbroker: offsets of orders-0: leader not available\n")


def test_a_group_that_rebalances(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with broker(monkeypatch, describe_groups=rebalancing, list_offsets=list_known_offsets):
        assert run(["groups", "describe", "g"]) == OK
        described = capsys.readouterr()
        assert run([*RESET, "--execute"]) == REFUSED
        reset = capsys.readouterr()
    assert described.err == "kbroker: warning: consumer group g is rebalancing\n"
    assert reset == (
        "",
        "kbroker: consumer group g is not empty: members are leaving or joining; try again\n",
    )


def test_a_partition_that_is_not_reset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch, offset_commit=commit(ErrorCode.none, ErrorCode.offset_metadata_too_large)):
        assert run([*RESET, "--execute", "--json"]) == REFUSED
    output = capsys.readouterr()
    assert json.loads(output.out) == [{"group": "g", "topic": "orders", "partition": 0, "new_offset": 2}]
    assert output.err == "kbroker: g: orders-1 could not be reset: offset metadata too large\n"


def test_a_member_that_comes_between(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch, offset_commit=commit(ErrorCode.unknown_member_id, ErrorCode.unknown_member_id)):
        assert run([*RESET, "--execute"]) == REFUSED
    assert capsys.readouterr() == (
        "",
        "kbroker: consumer group g is not empty any more: a member joined; nothing was changed\n",
    )


def test_a_dry_run_commits_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch) as running:
        assert run([*RESET, "--dry-run", "--export"]) == OK
    assert capsys.readouterr() == ("orders,0,2\norders,1,2\n", "")
    assert API_KEYS["offset_commit"] not in [key for key, _, _ in running.requests]


def test_a_group_of_other_programs_is_not_touched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def of_connect(request: Any) -> dict[str, Any]:
        return {
            "groups": [{**group, "protocol_type": "connect"} for group in describe_groups(request)["groups"]]
        }

    with broker(monkeypatch, describe_groups=of_connect):
        for arguments in (["groups", "describe", "g"], [*RESET, "--execute"]):
            assert run(arguments) == REFUSED
            assert capsys.readouterr() == (
                "",
                "kbroker: Group g is no consumer group: its protocol type is connect.\n",
            )
