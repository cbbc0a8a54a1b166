"""Apache Kafka's kafka-transactions.sh, unmodified, against a broker on each engine."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kbroker.testing.broker import RunningBroker
from tests.kafka_tools.java import MISSING, TOOLS, Tool

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
TRANSACTIONS = f"{TOOLS}.TransactionsCommand"
PATIENCE_S = 60.0


def rows(lines: list[str]) -> list[dict[str, str]]:
    """The rows of the tool's table by the names of its columns. Cells may be empty."""
    names, *found = ([cell.strip() for cell in line.split("\t")] for line in lines)
    return [dict(zip(names, cells, strict=True)) for cells in found]


def stable_end(broker: RunningBroker, topic: str) -> int:
    """What a reader with read_committed takes for the end of partition 0."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)
    consumer.close()
    return int(end)


def opened(broker: RunningBroker, topic: str) -> Producer:
    """A producer with the topic's name as its id. It has committed one transaction, and its next
    one is open since offset 2."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"one", partition=0)
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return producer


def test_list_and_describe(broker: RunningBroker, tool: Tool) -> None:
    topic = "listed-and-described"
    broker.create_topic(topic)
    producer = opened(broker, topic)
    listed = {row["TransactionalId"]: row for row in rows(tool(TRANSACTIONS, "list").lines)}
    assert listed[topic]["TransactionState"] == "Ongoing"
    patterns = ("--transactional-id-pattern", "listed-.*")
    assert [row["TransactionalId"] for row in rows(tool(TRANSACTIONS, "list", *patterns).lines)] == [topic]
    assert rows(tool(TRANSACTIONS, "list", "--duration-filter", "3600000").lines) == []
    (row,) = rows(tool(TRANSACTIONS, "describe", "--transactional-id", topic).lines)
    assert row["TransactionState"] == "Ongoing"
    assert row["TopicPartitions"] == f"{topic}-0"
    assert row["ProducerId"] == listed[topic]["ProducerId"]
    producer.abort_transaction(PATIENCE_S)
    (row,) = rows(tool(TRANSACTIONS, "list", *patterns).lines)
    assert row["TransactionState"] == "CompleteAbort"


def test_producers_and_abort(broker: RunningBroker, tool: Tool) -> None:
    topic = "producers-and-abort"
    broker.create_topic(topic)
    opened(broker, topic)
    log = ("--topic", topic, "--partition", "0")
    (row,) = rows(tool(TRANSACTIONS, "describe-producers", *log).lines)
    assert row["CurrentTransactionStartOffset"] == "2"
    assert stable_end(broker, topic) == 2
    tool(TRANSACTIONS, "abort", *log, "--start-offset", "2")
    (row,) = rows(tool(TRANSACTIONS, "describe-producers", *log).lines)
    assert row["CurrentTransactionStartOffset"] == "None"
    assert stable_end(broker, topic) == 4


def test_hanging_transactions(broker: RunningBroker, tool: Tool) -> None:
    """None has lasted for long enough."""
    topic = "hanging"
    broker.create_topic(topic)
    producer = opened(broker, topic)
    for where in (("--topic", topic), ("--topic", topic, "--partition", "0"), ("--broker-id", "0")):
        assert rows(tool(TRANSACTIONS, "find-hanging", *where).lines) == []
    producer.commit_transaction(PATIENCE_S)


def test_an_id_is_fenced(broker: RunningBroker, tool: Tool) -> None:
    topic = "an-id-is-fenced"
    broker.create_topic(topic)
    opened(broker, topic)
    tool(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", topic)
    (row,) = rows(tool(TRANSACTIONS, "describe", "--transactional-id", topic).lines)
    assert row["TransactionState"] in ("CompleteAbort", "Empty")
    assert stable_end(broker, topic) == 4
