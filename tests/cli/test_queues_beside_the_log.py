"""`kbroker queues describe` if jobs are kept beside the log, or groups hold it; and jobs without a
timestamp."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType

from kbroker.cli.exits import OK
from kbroker.client import admin
from kbroker.formats.batches import NO_TIMESTAMP, Record, build_batch
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import require_engine
from tests.cli.conftest import Command
from tests.cli.consumer_groups import until
from tests.cli.queue_calls import queue_name
from tests.cli.test_queues import answer, sent_ms, taken, worker


@pytest.fixture(scope="module")
def admin_broker() -> Iterator[RunningBroker]:
    """A broker that serves HTTP and checks its logs often."""
    args = ["--admin", "0", "--config", "log.retention.check.interval.ms=200"]
    with open_test_broker(storage=require_engine("segment"), extra_args=args) as running:
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


def test_a_job_without_a_timestamp_has_no_age(
    command: Command, broker: RunningBroker, queue: str, http: str
) -> None:
    batch = build_batch([Record(0, NO_TIMESTAMP, None, b"a job", ())])
    rows = [{"name": queue, "partition_data": [{"index": 0, "records": batch}]}]
    with broker.connect() as connection:
        made = connection.call("produce", 9, transactional_id=None, acks=-1, timeout=5000, topic_data=rows)
    assert made.responses[0].partition_responses[0].error_code == 0
    document = command("queues", "describe", queue, "--admin", http, "--json").json
    assert (document["unfinished"], document["oldest_age_ms"]) == (1, None)


def test_the_oldest_job_may_lie_beside_the_log(
    command: Command, broker: RunningBroker, queue: str, http: str
) -> None:
    """A scheduled job does not hold the log, and is still the oldest."""
    for each in ("internal.segment.bytes=2000", "retention.ms=-1"):
        assert command("configs", "set", "--topic", queue, each).code == OK
    assert command("queues", "send", queue, "later", "--delay", "1h").code == OK
    first_ms = command("queues", "peek", queue, "--json").json[0]["timestamp_ms"]
    with worker(broker, queue) as consumer, broker.connect() as connection:
        earliest = 0
        while earliest < 2:
            command("queues", "send", queue, *(f"{number:0100}" for number in range(10)))
            for _ in range(10):
                answer(consumer, taken(consumer), AcknowledgeType.ACCEPT)
            found = admin.find_offsets(connection, {queue: [0]}, admin.EARLIEST)[queue, 0]
            assert isinstance(found, int)
            earliest = found
        assert sent_ms(command, queue, http) == pytest.approx(first_ms, abs=1_000)
        document = command("queues", "describe", queue, "--admin", http, "--json").json
        assert (document["unfinished"], document["waiting"]) == (1, 1)
    assert sent_ms(command, queue, http) == pytest.approx(first_ms, abs=1_000), "without a worker"


def test_who_holds_the_log_is_shown(command: Command, broker: RunningBroker, queue: str, http: str) -> None:
    """One group alone, or several of which none holds it alone."""
    assert command("configs", "set", "--topic", queue, "internal.segment.bytes=2000").code == OK
    for number in range(5):
        command("queues", "send", queue, *(f"{number:0100}" for number in range(10)))

    def held(*groups: str) -> str | None:
        described = command("queues", "describe", queue, "--admin", http)
        lines = [line.split(None, 2)[2] for line in described.lines if line.startswith("  log held")]
        assert len(lines) <= 1
        return lines[0] if lines and all(each in lines[0] for each in groups) else None

    until("the queue holds the log", lambda: held(f" by group {queue}, from offset 0 of partition 0 onward"))
    other = f"{queue}-other"
    command("share-groups", "reset-offsets", other, "--topic", queue, "--to-earliest", "--execute")
    together = until("so does another group", lambda: held(" by groups ", other))
    assert together.endswith(" together, from offset 0 of partition 0 onward")
    assert sorted(re.findall(rf"{queue}\S*", together.replace(",", ""))) == [queue, other]
    assert command("share-groups", "delete", other).code == OK
    until("it is gone", lambda: held(f" by group {queue}, "))
