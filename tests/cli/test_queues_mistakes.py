"""Commands that would lose the jobs of a queue by mistake, or set what cannot work: each is refused
with a line that names the way out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kbroker.cli.exits import OK, REFUSED
from kbroker.client import admin, group_admin
from kbroker.client.rpc import Connection
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command
from tests.cli.queue_calls import queue_name


@pytest.fixture
def queue(request: pytest.FixtureRequest, command: Command) -> str:
    name = queue_name(request)
    assert command("queues", "create", name).code == OK
    return name


def send(command: Command, queue: str) -> None:
    assert command("queues", "send", queue, "a job").code == OK


def why(queue: str) -> str:
    return (
        f"it is part of queue {queue}, which has 1 unfinished job: `kbroker queues delete {queue}` "
        "deletes the queue, --force only this part"
    )


def test_the_topic_of_a_queue_with_jobs_is_deleted_with_force_only(
    command: Command, broker: RunningBroker, queue: str, topic: str
) -> None:
    send(command, queue)
    refused = command("topics", "delete", queue, topic)
    assert refused == (
        REFUSED,
        f"deleted topic {topic}\n",
        f"kbroker: topic {queue} was not deleted: {why(queue)}\n",
    )
    assert command("topics", "delete", queue, "--force") == (OK, f"deleted topic {queue}\n", "")
    with Connection("127.0.0.1", broker.port) as connection:
        assert queue not in {each.name for each in admin.topics(connection)}


def test_the_group_of_a_queue_with_jobs_is_deleted_with_force_only(
    command: Command, broker: RunningBroker, queue: str
) -> None:
    send(command, queue)
    refused = command("share-groups", "delete", queue)
    assert refused.code == REFUSED
    assert refused.err == f"kbroker: share group {queue} could not be deleted: {why(queue)}\n"
    assert command("share-groups", "delete", queue, "--force").code == OK
    with Connection("127.0.0.1", broker.port) as connection:
        assert queue not in group_admin.group_types(connection)


def test_an_empty_queue_is_deleted_part_by_part(command: Command, queue: str) -> None:
    assert command("topics", "delete", queue).code == OK
    assert command("share-groups", "delete", queue).code == OK


def test_a_lock_max_below_the_lock(command: Command, queue: str) -> None:
    """The lock would never be prolonged, and the option would do nothing."""
    text = (
        f"queue {queue} would have a lock-max of 29999 ms, and a lock lasts 30000 ms before it is prolonged "
        "(share.record.lock.duration.ms): ask for at least that, or for 0s, or shorten the lock first"
    )
    low = command("queues", "create", queue, "--lock-max", "29999ms", "--update")
    assert low == (REFUSED, "", f"kbroker: {text}\n")
    for accepted in ("30s", "0s"):
        assert command("queues", "create", queue, "--lock-max", accepted, "--update").code == OK


def test_dead_letters_of_a_queue_are_no_queue(command: Command, queue: str) -> None:
    letters = f"dlq.{queue}"
    text = (
        f"there is no queue {letters}: topic {letters} has the dead letters of {queue}, "
        f"`kbroker dead-letters list {letters}` shows them"
    )
    for name in ("describe", "peek", "purge"):
        assert command("queues", name, letters) == (REFUSED, "", f"kbroker: {text}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "{}"),
        ("count", "{}"),
        ("show", "{}", "0:0"),
        ("redrive", "{}", "--name", "x"),
        ("purge", "{}", "--yes"),
    ],
)
def test_a_queue_in_place_of_its_dead_letter_topic(
    command: Command, queue: str, arguments: tuple[str, ...]
) -> None:
    refused = command("dead-letters", *(each.format(queue) for each in arguments))
    line = f"{queue} is no dead letter topic: the dead letters of the queue {queue} are in dlq.{queue}"
    assert refused == (REFUSED, "", f"kbroker: {line}\n")


def test_a_group_that_reads_dead_letters(command: Command, queue: str) -> None:
    """Its topic has dead letters, and its own are elsewhere."""
    letters = f"dlq.{queue}"
    config = f"errors.deadletterqueue.topic.name=dlq.{letters}"
    assert command("configs", "set", "--group", letters, config).code == OK
    assert command("dead-letters", "list", letters) == (
        OK, "", f"kbroker: there are no matching dead letters in {letters}\n",
    )  # fmt: skip


def test_a_queue_as_the_dead_letter_topic_of_another(command: Command, queue: str) -> None:
    """Nothing is altered unasked: its retention would be that of dead letters."""
    refused = command("queues", "create", f"{queue}-other", "--dead-letters", queue)
    assert refused.code == REFUSED
    line = f"topic {queue} is that of a queue: dead letters of {queue}-other would become its jobs"
    assert refused.err.splitlines()[0] == f"kbroker: queue {queue}-other: {line}"
    assert "was not created" in refused.err.splitlines()[-1]


def test_a_job_that_is_too_large_names_the_bound(broker: RunningBroker, queue: str) -> None:
    program = [sys.executable, "-m", "kbroker", "queues", "send", queue, "-b", broker.bootstrap]
    ran = subprocess.run(program, input=b"x" * 2_000_000, capture_output=True, check=False)
    assert ran.returncode == REFUSED
    assert (
        f"max.message.bytes of the topic is the bound: `kbroker configs set --topic {queue} "
        "max.message.bytes=...` raises it" in ran.stderr.decode()
    )
