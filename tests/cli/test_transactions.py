"""`kbroker transactions` against a real broker, with transactional producers of confluent-kafka."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer

from kbroker.api.transactions import STATE_NAMES
from kbroker.broker.broker import open_broker
from kbroker.broker.options import StartOptions
from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.cli.transactions import command as cli_command
from kbroker.formats.transactions import TransactionKey
from kbroker.settings.altering import BrokerConfig
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.cli.conftest import Command
from tests.cli.consumer_groups import until

TIMEOUT_MS = 50_000
NO_TERMINAL = "kbroker: nothing was aborted: there is no terminal to confirm on, so --yes is needed\n"


def producer_of(broker: RunningBroker, transactional_id: str) -> Producer:
    config = {"transactional.id": transactional_id, "transaction.timeout.ms": TIMEOUT_MS, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **config})
    producer.init_transactions(30)
    return producer


def begin(broker: RunningBroker, transactional_id: str, topic: str, *partitions: int) -> Producer:
    """A producer with an open transaction that has a record in each of these partitions."""
    producer = producer_of(broker, transactional_id)
    producer.begin_transaction()
    for number in partitions or (0,):
        producer.produce(topic, b"open", partition=number)
    assert producer.flush(30) == 0
    return producer


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A transactional id of the test's own."""
    return f"tx-{request.node.name}"


def states(command: Command, *names: str) -> list[str]:
    ran = command("transactions", "describe", *names, "--json")
    assert ran.code == OK, ran
    return [each["state"] for each in ran.json]


def committed_values(broker: RunningBroker, topic: str, count: int) -> list[bytes | None]:
    config = {"group.id": "-", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **config})
    consumer.subscribe([topic])
    try:
        found = [consumer.poll(30) for _ in range(count)]
        return [None if each is None else each.value() for each in found]
    finally:
        consumer.close()


# --- list, describe, producers ---


def test_the_states_that_can_be_chosen_are_those_there_are() -> None:
    assert set(cli_command.STATES) == set(STATE_NAMES.values())


def test_list(broker: RunningBroker, command: Command, topic: str, name: str) -> None:
    one, two = f"{name}-1", f"{name}-2"
    begin(broker, one, topic).commit_transaction(30)
    held = begin(broker, two, topic)
    rows = [line.split() for line in command("transactions", "list", "--pattern", f"{name}-.").lines]
    assert rows[0] == ["TRANSACTIONAL-ID", "PRODUCER-ID", "STATE"]
    assert [(row[0], row[2]) for row in rows[1:]] == [(one, "CompleteCommit"), (two, "Ongoing")]
    producer_id = int(rows[2][1])
    expected = [{"transactional_id": two, "producer_id": producer_id, "state": "Ongoing"}]
    for options in (
        ("--state", "ongoing", "--pattern", f"{name}.*"),
        ("--state", "ongoing,preparecommit", "--pattern", f"{name}.*"),
        ("--producer-id", str(producer_id)),
        ("--state", "Ongoing", "--state", "Empty", "--producer-id", str(producer_id), "--longer-than", "0"),
    ):
        ran = command("transactions", "list", "--json", *options)
        assert (ran.code, ran.json, ran.err) == (OK, expected, ""), options
    ran = command("transactions", "list", "--pattern", f"{name}.*", "--longer-than", "1h")
    assert (ran.code, ran.out, ran.err) == (OK, "", "kbroker: no transactional id matches\n")
    ran = command("transactions", "list", "--pattern", "a(")
    assert (ran.code, ran.err) == (REFUSED, "kbroker: 'a(' is not a regular expression of RE2\n")
    held.abort_transaction(30)


def test_describe(broker: RunningBroker, command: Command, topic: str, name: str) -> None:
    """An id that never had a transaction has no start time."""
    new, one = f"{name}-new", f"{name}-1"
    producer_of(broker, new)
    held = begin(broker, one, topic, 0, 2)
    ran = command("transactions", "describe", new, one, "--json")
    assert (ran.code, ran.err) == (OK, "")
    first, second = ran.json
    nothing = {"started_ms": None, "open_ms": None, "partitions": {}}
    number = first["producer_id"]
    assert first == {
        "transactional_id": new,
        "state": "Empty",
        "producer_id": number,
        "producer_epoch": 0,
        "timeout_ms": TIMEOUT_MS,
        **nothing,
    }
    assert (second["state"], second["partitions"]) == ("Ongoing", {topic: [0, 2]})
    assert abs(second["started_ms"] + second["open_ms"] - time.time() * 1000) < 30_000
    ran = command("transactions", "describe", one, "no-such-id")
    assert (ran.code, ran.err) == (REFUSED, "kbroker: there is no transactional id no-such-id\n")
    assert ran.lines[0].split() == [
        *("TRANSACTIONAL-ID", "PRODUCER-ID", "EPOCH", "STATE", "TIMEOUT"),
        *("STARTED", "OPEN-FOR", "PARTITIONS"),
    ]
    assert ran.lines[1].split()[3:5] == ["Ongoing", "50s"]
    assert ran.lines[1].split()[-1] == f"{topic}:0,2"
    held.commit_transaction(30)
    (ended,) = command("transactions", "describe", one, "--json").json
    assert ended == {**ended, "state": "CompleteCommit", **nothing}
    assert command("transactions", "describe", one).lines[1].split()[-3:] == ["-", "-", "-"]


def test_producers(broker: RunningBroker, command: Command, topic: str, name: str) -> None:
    ran = command("transactions", "producers", topic)
    silent = f"kbroker: no partition of topic {topic} that was looked at knows a producer\n"
    assert (ran.code, ran.out, ran.err) == (OK, "", silent)
    held = begin(broker, name, topic, 1)
    ran = command("transactions", "producers", topic, "--json", "-p", "1")
    ((row,),) = (each["producers"] for each in ran.json)
    (described,) = command("transactions", "describe", name, "--json").json
    assert row["producer_id"] == described["producer_id"]
    assert (row["open_from"], row["last_sequence"], row["coordinator_epoch"]) == (0, 0, None)
    ran = command("transactions", "producers", topic)
    assert (ran.code, len(ran.lines), ran.lines[1].split()[:2]) == (OK, 2, [topic, "1"])
    assert ran.lines[1].split()[-1] == "0"
    held.commit_transaction(30)
    assert command("transactions", "producers", topic).lines[1].split()[-1] == "-"
    ran = command("transactions", "producers", topic, "--partition", "9")
    assert (ran.code, ran.err) == (REFUSED, f"kbroker: there is no partition 9 of topic {topic}\n")
    ran = command("transactions", "producers", "no-such-topic")
    assert (ran.code, ran.err) == (REFUSED, "kbroker: there is no topic no-such-topic\n")


# --- abort ---


def test_abort(broker: RunningBroker, command: Command, topic: str, name: str) -> None:
    """Readers get what is behind the aborted transaction, and its producer cannot commit."""
    held = begin(broker, name, topic, 0, 1)
    ran = command("transactions", "abort", name)
    assert (ran.code, ran.out, ran.err) == (USAGE, "", NO_TERMINAL)
    assert states(command, name) == ["Ongoing"]
    (before,) = command("transactions", "describe", name, "--json").json
    ran = command("transactions", "abort", name, "--yes")
    line = (
        f"aborted the transaction of {name} and fenced its producer {before['producer_id']} "
        f"(epoch {before['producer_epoch']})"
    )
    assert (ran.code, ran.out, ran.err) == (OK, f"{line}\n", "")
    with pytest.raises(KafkaException) as failed:
        held.commit_transaction(30)
    assert failed.value.args[0].fatal()
    begin(broker, name, topic, 0).commit_transaction(30)
    assert committed_values(broker, topic, 1) == [b"open"]
    assert states(command, name) == ["CompleteCommit"]


def test_abort_without_an_open_transaction(
    broker: RunningBroker, command: Command, topic: str, name: str
) -> None:
    held = producer_of(broker, name)
    (before,) = command("transactions", "describe", name, "--json").json
    ran = command("transactions", "abort", name, "--yes", "--json")
    assert (ran.code, ran.err) == (OK, "")
    epoch = before["producer_epoch"] + 1
    row = {"outcome": None, "producer_id": before["producer_id"], "producer_epoch": epoch}
    assert ran.json == {"transactional_id": name, **row}
    held.begin_transaction()
    held.produce(topic, b"late", partition=0)
    with pytest.raises(KafkaException):
        held.commit_transaction(30)
    ran = command("transactions", "abort", name, "--yes")
    fenced = f"producer {before['producer_id']} (epoch {epoch})"
    assert ran.out == f"fenced the {fenced} of {name}; it had no open transaction\n"
    ran = command("transactions", "abort", "no-such-id", "--yes")
    why = "there is no transactional id no-such-id; `kbroker transactions list` names those that exist"
    assert (ran.code, ran.err) == (REFUSED, f"kbroker: {why}\n")


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> Iterator[None]:
    """A person who types this at a terminal."""
    leader, follower = os.openpty()
    os.write(leader, answer)
    with os.fdopen(follower) as stdin, monkeypatch.context() as patched:
        patched.setattr("sys.stdin", stdin)
        yield
    os.close(leader)


def test_the_question_says_what_is_fenced(
    broker: RunningBroker, command: Command, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = begin(broker, name, topic)
    (before,) = command("transactions", "describe", name, "--json").json
    with terminal(monkeypatch, b"n\n"):
        ran = command("transactions", "abort", name)
    assert ran.code == REFUSED
    assert ran.err.startswith(f"Abort the transaction of {name}, open for ")
    producer = f"producer {before['producer_id']} (epoch {before['producer_epoch']})"
    assert f"in {topic}:0, and fence its {producer}? [y/N]: " in ran.err
    assert ran.err.endswith("kbroker: nothing was aborted\n")
    held.commit_transaction(30)
    with terminal(monkeypatch, b"y\n"):
        ran = command("transactions", "abort", name)
    assert ran.code == OK
    assert ran.err.startswith(f"{name} has no open transaction. Fence its producer ")


# --- hanging transactions ---


def test_a_transaction_of_an_id_does_not_hang(
    broker: RunningBroker, command: Command, topic: str, name: str
) -> None:
    held = begin(broker, name, topic, 1)
    ran = command("transactions", "find-hanging", "--topic", topic, "--longer-than", "0")
    assert (ran.code, ran.out, ran.err) == (OK, "", "kbroker: there are no hanging transactions\n")
    place = ("--topic", topic, "--partition", "1", "--yes", "--start-offset")
    ran = command("transactions", "abort", *place, "0")
    assert (ran.code, ran.out) == (REFUSED, "")
    assert ran.err == (
        f"kbroker: the transaction is not hanging, it belongs to {name}: "
        f"`kbroker transactions abort {name}` aborts it in all of its partitions\n"
    )
    ran = command("transactions", "abort", *place, "5")
    assert ran.err == (
        f"kbroker: no open transaction of {topic}-1 begins at offset 5: "
        f"`kbroker transactions producers {topic} --partition 1` shows OPEN-FROM\n"
    )
    ran = command("transactions", "abort", "--topic", topic, "-p", "7", "--start-offset", "0", "--yes")
    assert ran.err == f"kbroker: there is no partition 7 of topic {topic}\n"
    held.commit_transaction(30)


async def forget(broker: RunningBroker, transactional_id: str) -> None:
    """The coordinator of a stopped broker loses an id, as after damage to its state."""
    options = StartOptions(
        data_dir=broker.data_dir,
        storage=broker.storage,
        state_storage=broker.state_storage,
        config=BrokerConfig({}),
    )
    async with open_broker(options) as opened:
        await opened.state_commits.commit([(TransactionKey(transactional_id).encode(), None)])


def test_a_hanging_transaction(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_test_broker() as broker:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap)
        ran = command("transactions", "list")
        assert (ran.code, ran.out, ran.err) == (OK, "", "kbroker: there are no transactional ids\n")
        broker.create_topic("orders", partitions=2)
        held = begin(broker, "lost", "orders", 1)
        (before,) = command("transactions", "describe", "lost", "--json").json
        broker.stop()
        del held
        trio.run(partial(forget, broker, "lost"))
        broker.start()
        until("an answer", lambda: command("transactions", "list").code == OK or None)
        assert command("transactions", "find-hanging", "--longer-than", "1h").out == ""
        ran = command("transactions", "find-hanging", "--longer-than", "0")
        producer = (str(before["producer_id"]), str(before["producer_epoch"]))
        assert ran.lines[1].split()[:5] == ["orders", "1", "0", *producer]
        options = "--topic orders --partition 1 --start-offset 0"
        assert ran.err == f"kbroker: `kbroker transactions abort {options}` aborts the first of these\n"
        (found,) = command("transactions", "find-hanging", "--longer-than", "0", "--json").json
        assert (found["topic"], found["partition"], found["start_offset"]) == ("orders", 1, 0)
        assert command("transactions", "abort", *options.split()).err == NO_TERMINAL
        ran = command("transactions", "abort", *options.split(), "--yes")
        name = f"producer {producer[0]} (epoch {producer[1]})"
        line = f"aborted the transaction of {name} in orders-1 from offset 0 on"
        assert (ran.code, ran.out, ran.err) == (OK, f"{line}\n", "")
        assert command("transactions", "find-hanging", "--longer-than", "0").out == ""
        begin(broker, "next", "orders", 1).commit_transaction(30)
        assert committed_values(broker, "orders", 1) == [b"open"]
