"""Scheduled jobs: `kbroker queues send --delay` and `--at`, how they are shown, and when they are
delivered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType

from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.clock import wall_clock_ms
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import require_engine
from tests.cli.conftest import Command
from tests.cli.consumer_groups import until
from tests.cli.queue_calls import queue_name
from tests.cli.test_queues import answer, taken, worker

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
FAR, FAR_MS = "2100-01-01T00:00+00:00", 4_102_444_800_000


@pytest.fixture(scope="module")
def admin_broker() -> Iterator[RunningBroker]:
    with open_test_broker(storage=require_engine("segment"), extra_args=["--admin", "0"]) as running:
        yield running


@pytest.fixture
def broker(admin_broker: RunningBroker) -> RunningBroker:
    return admin_broker


@pytest.fixture
def http(broker: RunningBroker) -> str:
    return broker.ready_line.rpartition("admin http://")[2].rstrip(")")


@pytest.fixture
def queue(request: pytest.FixtureRequest, command: Command) -> str:
    name = queue_name(request)
    assert command("queues", "create", name, "--delay", "0").code == OK
    return name


def peeked(command: Command, queue: str, *options: str) -> list[dict[str, Any]]:
    return list(command("queues", "peek", queue, "--json", *options).json)


def described(command: Command, queue: str, http: str) -> dict[str, Any]:
    return dict(command("queues", "describe", queue, "--admin", http, "--json").json)


def headers(job: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in job["headers"]}


def test_a_warning_counts_jobs_that_wait(
    command: Command, broker: RunningBroker, queue: str, http: str
) -> None:
    """They wait below the group's start offset, and DeleteRecords loses them."""
    for _ in range(3):
        assert command("queues", "send", queue, "in an hour", "--delay", "1h").code == OK
    assert command("queues", "send", queue, "now").code == OK
    with worker(broker, queue) as consumer:
        answer(consumer, taken(consumer), AcknowledgeType.ACCEPT)
    until("only the others are left", lambda: described(command, queue, http)["unfinished"] == 3 or None)
    dry = command("topics", "delete-records", queue, "--to-end", "--dry-run")
    assert f"warning: share group {queue} has not finished up to 3 of these records" in dry.err


def test_jobs_for_later_come_when_they_are_due(
    command: Command, broker: RunningBroker, queue: str, http: str
) -> None:
    """Meanwhile they are listed after the immediate jobs, the next one first."""
    began_ms = wall_clock_ms()
    assert command("queues", "send", queue, "in an hour", "--delay", "1h").code == OK
    assert command("queues", "send", queue, "soon", "--delay", "4s", "--header", "origin=test").code == OK
    assert command("queues", "send", queue, "now").code == OK
    found = peeked(command, queue)
    assert [each["value"] for each in found] == ["now", "soon", "in an hour"]
    assert found[0]["due_ms"] is None
    assert [each["due_ms"] - each["timestamp_ms"] for each in found[1:]] == [4000, HOUR_MS]
    assert headers(found[1]) == {"origin": "test", "kbroker-delay-ms": "4000"}
    rows = [line.split() for line in command("queues", "peek", queue).lines]
    assert rows[0] == ["AT", "TIME", "DUE", "KEY", "VALUE"]
    assert rows[1][3:] == ["-", "-", "now"]
    assert [each["value"] for each in peeked(command, queue, "-n", "2")] == ["now", "soon"]
    with worker(broker, queue) as consumer:
        for value in (b"now", b"soon"):
            message = taken(consumer)
            assert message.value() == value
            answer(consumer, message, AcknowledgeType.ACCEPT)
        assert wall_clock_ms() >= began_ms + 4000
        document = described(command, queue, http)
    names = ("unfinished", "ready", "in_flight", "waiting")
    assert [document[name] for name in names] == [1, 0, 0, 1]
    (later,) = peeked(command, queue)
    assert later["value"] == "in an hour"
    assert document["next_due_ms"] == later["due_ms"]
    assert document["oldest_age_ms"] >= 4000, "the one that waits is the oldest"
    lines = command("queues", "describe", queue, "--admin", http).lines
    assert any(line.startswith("  waiting       1, the next one is due in 59m ") for line in lines)


def test_jobs_for_a_time(command: Command, broker: RunningBroker, queue: str) -> None:
    """One in the past is an immediate job."""
    assert command("queues", "send", queue, "past", "--at", "2001-02-03T04:05").code == OK
    in_a_day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86_400))
    assert command("queues", "send", queue, "tomorrow", "--at", in_a_day).code == OK
    past, tomorrow = peeked(command, queue)
    assert (past["value"], past["due_ms"]) == ("past", None)
    assert headers(past) == {"kbroker-deliver-at": "981173100000"}
    assert headers(tomorrow) == {"kbroker-deliver-at": str(tomorrow["due_ms"])}
    assert time.gmtime(tomorrow["due_ms"] / 1000)[:6] == time.strptime(in_a_day, "%Y-%m-%dT%H:%M:%SZ")[:6]
    with worker(broker, queue) as consumer:
        assert taken(consumer).value() == b"past"


def test_a_job_that_was_given_back_is_held_again(
    command: Command, broker: RunningBroker, queue: str, http: str
) -> None:
    """It waited outside the window; describe and inflight show which member has it."""
    assert command("queues", "create", queue, "--delay", "1500ms", "--update").code == OK
    assert command("queues", "send", queue, "job", "other").code == OK
    with worker(broker, queue, "worker-8") as consumer:
        answer(consumer, taken(consumer), AcknowledgeType.RELEASE)
        answer(consumer, taken(consumer), AcknowledgeType.ACCEPT)
        message = taken(consumer)
        assert (message.value(), message.delivery_count()) == (b"job", 2)
        document = described(command, queue, http)
        names = ("unfinished", "ready", "in_flight", "waiting", "next_due_ms")
        assert [document[name] for name in names] == [1, 0, 1, 0, None]
        (busy,) = document["workers"]
        assert (busy["client_id"], busy["jobs"]) == ("worker-8", 1)
        assert busy["left_ms"] > 0
        row = command("share-groups", "inflight", queue, "--admin", http).lines[-1].split()
        assert row[:7] == [queue, "0", "0", "1", "1", "2", "worker-8"]
        answer(consumer, message, AcknowledgeType.ACCEPT)
    until("it is done", lambda: described(command, queue, http)["unfinished"] == 0 or None)
    assert peeked(command, queue) == []


def test_a_queue_without_scheduling_refuses(command: Command, queue: str) -> None:
    """Its jobs would be delivered at once. The error says what to do, and that works."""
    assert command("queues", "create", queue, "--scheduling", "false", "--update").code == OK
    switch = f"kbroker queues create {queue} --scheduling true --update"
    line = f"kbroker: queue {queue} would deliver these jobs at once: `{switch}` turns scheduling on\n"
    for options in (("--delay", "1h"), ("--at", "2001-02-03T04:05")):
        assert command("queues", "send", queue, "job", *options) == (REFUSED, "", line)
    assert command("queues", "send", queue, "job", "--header", "kbroker-delay-ms=3600000").code == OK
    assert peeked(command, queue)[0]["due_ms"] is None, "it comes at once"
    assert command(*switch.split()[1:]).code == OK
    assert command("queues", "send", queue, "job", "--delay", "1h").code == OK


def test_how_far_ahead(command: Command, queue: str) -> None:
    refused = f"queue {queue} accepts no jobs scheduled more than 365d ahead"
    raises = f"kbroker configs set --group {queue} kbroker.queue.scheduling.max.delay.ms={401 * DAY_MS}"
    line = f"kbroker: {refused}: `{raises}` raises the limit\n"
    assert command("queues", "send", queue, "job", "--delay", "400d1h") == (REFUSED, "", line)
    line = f"kbroker: {refused}, and no queue accepts more than 3650d\n"
    assert command("queues", "send", queue, "job", "--at", FAR) == (REFUSED, "", line)
    assert command("queues", "send", queue, "job", "--delay", "365d").code == OK
    assert command(*raises.split()[1:]).code == OK
    assert command("queues", "send", queue, "job", "--delay", "400d1h").code == OK


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--delay", "1h", "--at", FAR], "--delay and --at exclude each other"),
        (["--delay", "5"], "'5' has no unit: write 500ms, 30s, 10m, 1h or 30d"),
        (["--delay", "-5s"], "'-5s' is not a duration"),
        (["--at", "noon"], "is not YYYY-MM-DDTHH:mm:SS.sss; write 2027-01-01T08:00, with seconds and"),
        (
            ["--delay", "1h", "--header", f"kbroker-deliver-at={FAR_MS}"],
            "kbroker-deliver-at already has the due time of these jobs",
        ),
    ],
)
def test_what_is_not_clear(command: Command, queue: str, options: list[str], why: str) -> None:
    ran = command("queues", "send", queue, "job", *options)
    assert (ran.code, ran.out) == (USAGE, "")
    assert why in ran.err
    assert peeked(command, queue) == []
