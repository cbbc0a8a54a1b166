"""`kbroker share-groups` when a broker refuses part of a request, or has groups of other types: a
fake broker answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, REFUSED
from kbroker.client.rpc import API_KEYS
from kbroker.errors import ErrorCode
from tests.client.fake_broker import FakeBroker, fake_broker, serving

TOPIC_ID = UUID(int=7)
FINE = {"error_code": ErrorCode.none, "error_message": None}
NOT_FOUND = {"error_code": ErrorCode.group_id_not_found, "error_message": "Group g is not a share group."}
ROW_REFUSED = {"error_code": ErrorCode.unknown_topic_or_partition, "error_message": "It is gone."}
RESET = ["share-groups", "reset-offsets", "g", "--topic", "orders", "--to-earliest"]
Answers = dict[str, Callable[[Any], dict[str, Any]]]


def describe_groups(request: Any) -> dict[str, Any]:
    epochs = {
        "group_epoch": 3,
        "assignment_epoch": 3,
        "assignor_name": "simple",
        "members": (),
        "authorized_operations": 0,
    }
    return {
        "groups": [{"group_id": name, "group_state": "Empty", **FINE, **epochs} for name in request.group_ids]
    }


def no_share_group(request: Any) -> dict[str, Any]:
    row = {
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
        "authorized_operations": 0,
    }
    return {"groups": [{"group_id": name, **NOT_FOUND, **row} for name in request.group_ids]}


def list_groups(request: Any) -> dict[str, Any]:
    """One group of another type."""
    row = {"group_id": "g", "protocol_type": "consumer", "group_state": "Stable", "group_type": "classic"}
    return {"error_code": ErrorCode.none, "groups": [] if "share" in request.types_filter else [row]}


def describe_offsets(request: Any) -> dict[str, Any]:
    """Partition 0 is in use, 1 was never used, the end of the log of 2 is unknown."""
    rows = [
        {"partition_index": 0, "start_offset": 5, "leader_epoch": 1, "lag": 3, **FINE},
        {"partition_index": 1, "start_offset": -1, "leader_epoch": 0, "lag": -1, **FINE},
        {"partition_index": 2, "start_offset": 0, "leader_epoch": 0, "lag": -1, **ROW_REFUSED},
    ]
    topic = {"topic_name": "orders", "topic_id": TOPIC_ID, "partitions": rows}
    return {"groups": [{"group_id": "g", "topics": [topic], **FINE}]}


def metadata(request: Any) -> dict[str, Any]:
    row = {
        "error_code": ErrorCode.none,
        "leader_id": 0,
        "leader_epoch": 0,
        "replica_nodes": (),
        "isr_nodes": (),
        "offline_replicas": (),
    }
    topic = {
        "error_code": ErrorCode.none,
        "name": "orders",
        "topic_id": TOPIC_ID,
        "partitions": [{"partition_index": n, **row} for n in (0, 1)],
    }
    return {"brokers": (), "topics": [topic], "error_code": ErrorCode.none}


def list_offsets(request: Any) -> dict[str, Any]:
    row = {"error_code": ErrorCode.none, "timestamp": -1, "offset": 2, "leader_epoch": 0}
    return {
        "topics": [
            {
                "name": "orders",
                "partitions": [
                    {"partition_index": each.partition_index, **row} for each in request.topics[0].partitions
                ],
            }
        ]
    }


def alter_offsets(request: Any) -> dict[str, Any]:
    rows = [{"partition_index": 0, **FINE}, {"partition_index": 1, **ROW_REFUSED}]
    return {**FINE, "responses": [{"topic_name": "orders", "topic_id": TOPIC_ID, "partitions": rows}]}


def alter_too_late(request: Any) -> dict[str, Any]:
    return {"error_code": ErrorCode.non_empty_group, "error_message": None, "responses": ()}


ANSWERS: Answers = {
    "share_group_describe": describe_groups,
    "list_groups": list_groups,
    "describe_share_group_offsets": describe_offsets,
    "metadata": metadata,
    "list_offsets": list_offsets,
    "alter_share_group_offsets": alter_offsets,
}


@contextmanager
def broker(
    monkeypatch: pytest.MonkeyPatch, **answers: Callable[[Any], dict[str, Any]]
) -> Iterator[FakeBroker]:
    with fake_broker(
        serving({API_KEYS[name]: answer for name, answer in {**ANSWERS, **answers}.items()})
    ) as running:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", f"127.0.0.1:{running.port}")
        yield running


def test_offsets_that_are_not_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch):
        assert run(["share-groups", "describe", "g", "--verbose"]) == REFUSED
        table = capsys.readouterr()
        assert run(["share-groups", "describe", "g", "--json"]) == REFUSED
        (group,) = json.loads(capsys.readouterr().out)
    assert [line.split()[2:] for line in table.out.splitlines()] == [
        ["PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG"], ["0", "1", "5", "3"], ["1", "-", "-", "-"],
        ["2", "-", "-", "-"],
    ]  # fmt: skip
    assert table.err == "kbroker: group g, orders-2: It is gone.\n"
    unknown = {"topic": "orders", "start_offset": None, "leader_epoch": None, "lag": None}
    assert group["offsets"][1:] == [
        {**unknown, "partition": 1, "error": None},
        {**unknown, "partition": 2, "error": "It is gone."},
    ]


def test_a_partition_that_is_not_reset(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch):
        assert run([*RESET, "--execute"]) == REFUSED
    output = capsys.readouterr()
    assert [line.split() for line in output.out.splitlines()[1:]] == [["g", "orders", "0", "2"]]
    assert output.err == "kbroker: orders-1 could not be reset: It is gone.\n"


def test_a_member_that_comes_between(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch, alter_share_group_offsets=alter_too_late):
        assert run([*RESET, "--execute"]) == REFUSED
    assert capsys.readouterr() == (
        "",
        "kbroker: share group g is not empty any more: a member joined; nothing was changed\n",
    )


def test_a_dry_run_alters_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch) as running:
        assert run([*RESET, "--dry-run", "--export"]) == OK
    assert capsys.readouterr().out == "orders,0,2\norders,1,2\n"
    assert API_KEYS["alter_share_group_offsets"] not in [key for key, _, _ in running.requests]


def test_the_current_offset_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch):
        assert (
            run(
                [
                    "share-groups",
                    "reset-offsets",
                    "g",
                    "--topic",
                    "orders",
                    "--to-current",
                    "--dry-run",
                    "--export",
                ]
            )
            == OK
        )
    output = capsys.readouterr()
    assert output.out == "orders,0,5\norders,1,2\n"
    assert output.err == "kbroker: warning: share group g has no offset of orders-1 yet; using its end\n"


@pytest.mark.parametrize("mode", ["--dry-run", "--execute"])
def test_a_group_of_another_type_is_not_reset(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch, share_group_describe=no_share_group) as running:
        assert run([*RESET, mode]) == REFUSED
    assert capsys.readouterr() == (
        "",
        "kbroker: group g is a consumer group; use `kbroker groups reset-offsets g`\n",
    )
    assert API_KEYS["alter_share_group_offsets"] not in [key for key, _, _ in running.requests]


def test_a_group_of_another_type_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DeleteGroups would delete it."""
    with broker(monkeypatch) as running:
        assert run(["share-groups", "delete", "g"]) == REFUSED
    why = "it is a consumer group; use `kbroker groups delete g`"
    assert capsys.readouterr() == ("", f"kbroker: share group g could not be deleted: {why}\n")
    assert API_KEYS["delete_groups"] not in [key for key, _, _ in running.requests]


def test_a_group_of_another_type_is_not_described(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(monkeypatch, share_group_describe=no_share_group):
        assert run(["share-groups", "describe", "g"]) == REFUSED
        assert capsys.readouterr() == (
            "",
            "kbroker: group g is a consumer group; use `kbroker groups describe g`\n",
        )
        assert run(["groups", "list", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == [
        {"group": "g", "type": "classic", "protocol": "consumer", "state": "Stable"}
    ]
