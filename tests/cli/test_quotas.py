"""`kbroker quotas` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kbroker.cli import run
from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.testing.broker import open_test_broker


@pytest.fixture
def _broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with open_test_broker() as broker:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", f"{broker.host}:{broker.port}")
        yield


def said(capsys: pytest.CaptureFixture[str], command: str, code: int = OK) -> str:
    capsys.readouterr()
    found = run(["quotas", *command.split()])
    output = capsys.readouterr()
    assert found == code, output.err
    return output.out if code == OK else output.err


@pytest.mark.usefixtures("_broker")
def test_quotas_are_set_listed_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "list") == "there are no such quotas\n"
    answer = said(capsys, "set --user alice --produce-rate 1MB --fetch-rate 1.5MiB")
    assert answer == "user alice: fetch-rate 1.57286 MB/s, produce-rate 1 MB/s\n"
    assert said(capsys, "set -u alice --request-percentage 12.5").endswith(", request-percentage 12.5 %\n")
    said(capsys, "set --default-user --client-id batch --fetch-rate 500")
    said(capsys, "set --default-ip --connection-rate 10")
    assert [line.split() for line in said(capsys, "list").splitlines()] == [
        ["USER", "CLIENT", "ID", "IP", "QUOTA", "LIMIT"],
        ["(default)", "batch", "fetch-rate", "500", "B/s"],
        ["(default)", "connection-rate", "10/s"],
        ["alice", "fetch-rate", "1.57286", "MB/s"],
        ["alice", "produce-rate", "1", "MB/s"],
        ["alice", "request-percentage", "12.5", "%"],
    ]
    assert json.loads(said(capsys, "list --default-user --json")) == [
        {"user": None, "client_id": "batch", "quotas": {"consumer_byte_rate": 500.0}}
    ]
    left = json.loads(said(capsys, "remove --user alice --quota fetch-rate --quota produce-rate --json"))
    assert left == {"user": "alice", "quotas": {"request_percentage": 12.5}}
    assert said(capsys, "remove --user alice") == "user alice: no quotas\n"
    assert json.loads(said(capsys, "list --user alice --json")) == []


@pytest.mark.usefixtures("_broker")
def test_what_the_broker_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not a valid IP" in said(capsys, "set --ip nowhere --connection-rate 1", REFUSED)
    assert "Invalid configuration key" in said(capsys, "set --user alice --connection-rate 1", REFUSED)
    assert "there are no such quotas" in said(capsys, "remove --user alice", 1)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("set --user alice", "a quota is needed"),
        ("set --produce-rate 1MB", "whose quotas?"),
        ("remove", "whose quotas?"),
        ("set --user alice --default-user --produce-rate 1MB", "exclude each other"),
        ("set --user alice --ip 10.0.0.1 --connection-rate 1", "goes with no user"),
        ("set --user alice --produce-rate fast", "not a number of bytes a second"),
        ("set --user alice --produce-rate 0", "not a number of bytes a second"),
        (f"set --user alice --produce-rate {'9' * 400}", "is too large"),
        (f"set --user alice --fetch-rate {'9' * 308}GB", "is too large"),
        ("set --user alice --request-percentage 0", "request-percentage"),
    ],
)
def test_mistakes_are_usage_errors(command: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert reason in said(capsys, command, USAGE)
